//! What the sender, the receiver and whoever makes progress hand each other inside a process. Each
//! queue has one lock's holder at either end, so nobody waits for anybody.

#![forbid(unsafe_code)]

use super::layout::Geometry;
use super::queue::Queue;
use crate::config::CONTROL_MTU;
use crate::sync::{AtomicPtr, AtomicU64, Local, Ordering};
use crate::watch::Bell;
use std::ptr::null_mut;
use std::sync::OnceLock;

/// A message that was sent: its slot, receiver and length.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Submitted {
    pub(crate) slot: u32,
    pub(crate) to: u32,
    pub(crate) len: u32,
}

/// A message that has arrived: the entry that holds it, its sender and length.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Arrived {
    pub(crate) entry: u32,
    pub(crate) from: u32,
    pub(crate) len: u32,
}

// Both fit a word: 20 bits for a number, 24 for a node, 20 for a length.
fn pack(number: u32, node: u32, len: u32) -> u64 {
    u64::from(number) << 44 | u64::from(node) << 20 | u64::from(len)
}

fn unpack(word: u64) -> (u32, u32, u32) {
    ((word >> 44) as u32, (word >> 20) as u32 & 0xff_ffff, word as u32 & 0xf_ffff)
}

impl Submitted {
    pub(crate) fn word(self) -> u64 {
        pack(self.slot, self.to, self.len)
    }
    pub(crate) fn from_word(word: u64) -> Submitted {
        let (slot, to, len) = unpack(word);
        Submitted { slot, to, len }
    }
}

impl Arrived {
    pub(crate) fn word(self) -> u64 {
        pack(self.entry, self.from, self.len)
    }
    pub(crate) fn from_word(word: u64) -> Arrived {
        let (entry, from, len) = unpack(word);
        Arrived { entry, from, len }
    }
}

/// A control message that waits to be read.
pub(crate) struct Letter {
    pub(crate) from: u32,
    pub(crate) bytes: [u8; CONTROL_MTU],
    pub(crate) len: usize,
}

/// What the sender keeps for one peer.
#[derive(Default)]
pub(crate) struct Peer {
    /// How many messages were sent: by the sender.
    pub(crate) sent: Local,
    /// How many of these are acknowledged or dropped: by who makes progress.
    pub(crate) freed: Local,
    /// The longest message; 0: not known yet.
    pub(crate) mtu: Local,
    /// The last multicast that named it.
    pub(crate) stamp: Local,
    /// Remote operations on it that are under way.
    pub(crate) operations: AtomicU64,
}

impl Peer {
    /// By the sender.
    #[inline(always)]
    pub(crate) fn count_sent(&self) {
        self.sent.set(self.sent.get().wrapping_add(1));
    }

    /// Slots that are in use for it.
    #[inline(always)]
    pub(crate) fn outstanding(&self) -> u64 {
        self.sent.get().wrapping_sub(self.freed.get())
    }
}

const CHUNK: usize = 256;

/// All peers; only those in use take memory.
pub(crate) struct Peers(Box<[OnceLock<Box<[Peer]>>]>);

impl Peers {
    fn new(nodes: usize) -> Peers {
        Peers((0..nodes.div_ceil(CHUNK)).map(|_| OnceLock::new()).collect())
    }

    /// None: no such node.
    #[inline(always)]
    pub(crate) fn get(&self, node: u32) -> Option<&Peer> {
        let chunk = self.0.get(node as usize / CHUNK)?;
        let chunk = chunk.get_or_init(|| (0..CHUNK).map(|_| Peer::default()).collect());
        chunk.get(node as usize % CHUNK)
    }
}

/// See the module.
pub(crate) struct Lanes {
    /// Sender to progress: what to send; back: slots that are free.
    pub(crate) submitted: Queue,
    pub(crate) freed: Queue,
    /// Progress to receiver: messages; back: entries that were released.
    pub(crate) delivered: Queue,
    pub(crate) released: Queue,
    /// Where the message of each entry lies: written before it is delivered.
    places: Box<[AtomicPtr<u8>]>,
    pub(crate) peers: Peers,
    pub(crate) bell: Bell,
    /// Messages sent and neither acknowledged nor dropped: a glance.
    pub(crate) outstanding: AtomicU64,
    /// Bytes of remote memory have come.
    moved: AtomicU64,
}

impl Lanes {
    pub(crate) fn new(geometry: &Geometry, entries: usize) -> Lanes {
        Lanes {
            submitted: Queue::new(geometry.slots),
            freed: Queue::new(geometry.slots),
            delivered: Queue::new(entries),
            released: Queue::new(entries),
            places: (0..entries).map(|_| AtomicPtr::new(null_mut())).collect(),
            peers: Peers::new(geometry.nodes),
            bell: Bell::default(),
            outstanding: AtomicU64::new(0),
            moved: AtomicU64::new(0),
        }
    }

    /// By who makes progress.
    #[inline(always)]
    pub(crate) fn set_moved(&self) {
        self.moved.store(1, Ordering::Relaxed);
    }

    /// Whether bytes of remote memory have come since this was asked last.
    pub(crate) fn has_moved(&self) -> bool {
        self.moved.swap(0, Ordering::Relaxed) != 0
    }

    /// By who makes progress, before it delivers.
    #[inline(always)]
    pub(crate) fn set_place(&self, entry: u32, place: *mut u8) {
        self.places[entry as usize].store(place, Ordering::Relaxed);
    }

    /// By the receiver, of what was delivered to it.
    #[inline(always)]
    pub(crate) fn place(&self, entry: u32) -> *mut u8 {
        self.places.get(entry as usize).map_or(null_mut(), |place| place.load(Ordering::Relaxed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::MAX_NODE;

    #[test]
    fn what_is_handed_over_fits_a_word() {
        let sent = Submitted { slot: 1023, to: MAX_NODE as u32 - 1, len: 65_535 };
        assert_eq!(Submitted::from_word(sent.word()), sent);
        let came = Arrived { entry: 4095, from: MAX_NODE as u32 - 1, len: 1 };
        assert_eq!(Arrived::from_word(came.word()), came);
    }

    #[test]
    fn peers_exist_up_to_the_last_node() {
        let peers = Peers::new(300);
        peers.get(299).unwrap().sent.set(3);
        assert_eq!(peers.get(299).unwrap().outstanding(), 3);
        assert!(peers.get(512).is_none());
    }
}
