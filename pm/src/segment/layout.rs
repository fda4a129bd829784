//! Where things lie in a segment. All of it follows from the number of nodes, so that nothing in
//! the segment itself has to be believed.

#![forbid(unsafe_code)]

use crate::config::Counters;
use crate::copying::Copying;
use crate::door::Door;
use crate::error::{Error, Result};
use crate::remote::{Direction, Table};
use crate::ring::{MAX_SLOTS, Shape};
use crate::sync::{AtomicU32, AtomicU64, Ordering, fence};

/// "SCPMSHM" and the layout's version.
pub(crate) const MAGIC: u64 = u64::from_le_bytes(*b"SCPMSHM\x09");
/// The most nodes of one segment.
pub(crate) const MAX_NODES: usize = 2048;

const PAGE: usize = 4096;
/// Kinds of rings: messages, control messages, remote memory.
pub(crate) const KINDS: usize = 3;
/// Memory that the rings of all pairs together may take, if every pair talks.
const BUDGET: usize = 256 << 20;
/// In a large area the lines that a sender overwrites have left the receiver's cache since it read
/// them, and the sender gets them sooner (measured, 4 KiB one way: 256 KiB takes 5 to 10 % less
/// than 32 KiB, 1 MiB 15 %; but there 64 B take 10 % more).
const MAX_DATA: usize = 256 << 10;
const MAX_MTU: usize = 8 << 10;
/// Between two homes, so that a processor that fetches on beyond the end of one stays out of the
/// other.
const HOME_GAP: u16 = 256;
const MIN_DATA: usize = 4 << 10;
const MIN_SLOTS: usize = 32;
/// Slots of the ring for control messages; these are never long.
const CONTROL_SLOTS: u16 = 4;
/// Slots of the ring for requests and answers of remote memory.
const REMOTE_SLOTS: u16 = 16;

/// The first line of the header page. Written once by the owner, before anybody maps it.
#[repr(C)]
pub(crate) struct Header {
    pub(crate) magic: AtomicU64,
    pub(crate) nodes: AtomicU64,
    pub(crate) size: AtomicU64,
    pub(crate) nonce: [AtomicU64; 2],
    pub(crate) pad: [u64; 3],
    /// On its own line: written by the owner at any time.
    pub(crate) oversubscribed: AtomicU32,
}

/// One line, written by one side.
#[repr(C, align(64))]
pub(crate) struct Line<T>(pub(crate) T);

/// What a node's sending side counts.
#[repr(C)]
pub(crate) struct SendCounters {
    /// Messages, one per copy, before each becomes visible.
    pub(crate) sent: AtomicU64,
    /// Of these, dropped because the receiver has exited: they count as received.
    pub(crate) dropped: AtomicU64,
    /// Remote memory operations outstanding.
    pub(crate) remote: AtomicU64,
    /// Bytes of the messages sent.
    pub(crate) bytes: AtomicU64,
    /// To whom the last message went: 1 + the node, as this device numbers it. 0: none, or a later
    /// one went by another device.
    pub(crate) last: AtomicU32,
    /// Bytes of remote memory written, and read, by operations of this node.
    pub(crate) moved: [AtomicU64; 2],
}

impl SendCounters {
    /// By the only sender, before the message becomes visible: never more received than sent.
    #[inline(always)]
    pub(crate) fn count(&self) {
        self.sent.store(self.sent.load(Ordering::Relaxed).wrapping_add(1), Ordering::Relaxed);
    }

    /// By the only sender, at any time: who waits for the message need not wait for this. `to` is
    /// 1 + the node.
    #[inline(always)]
    pub(crate) fn describe(&self, to: u32, len: usize) {
        let bytes = self.bytes.load(Ordering::Relaxed).wrapping_add(len as u64);
        self.bytes.store(bytes, Ordering::Relaxed);
        // A stream is as fast as its stores (measured).
        if self.last.load(Ordering::Relaxed) != to {
            self.last.store(to, Ordering::Relaxed);
        }
    }

    /// By the only thread: bytes of remote memory were moved.
    #[inline(always)]
    pub(crate) fn count_moved(&self, direction: Direction, len: usize) {
        let moved = &self.moved[direction as usize];
        moved.store(moved.load(Ordering::Relaxed).wrapping_add(len as u64), Ordering::Relaxed);
    }
}

/// What a node's receiving side counts.
#[repr(C)]
pub(crate) struct ReceiveCounters {
    /// Messages released, and those claimed at exit.
    pub(crate) received: AtomicU64,
    /// Bytes of the messages taken.
    pub(crate) bytes: AtomicU64,
    /// As `SendCounters::last`, of who sent the last one that was taken.
    pub(crate) last: AtomicU32,
}

impl ReceiveCounters {
    /// By the only receiver. A message of this length is taken, from the same node as the last one.
    #[inline(always)]
    pub(crate) fn count_further(&self, len: usize) {
        let bytes = self.bytes.load(Ordering::Relaxed).wrapping_add(len as u64);
        self.bytes.store(bytes, Ordering::Relaxed);
    }

    /// By the only receiver. The same from whichever node; `from` is 1 + the node.
    #[inline(always)]
    pub(crate) fn count_taken(&self, from: u32, len: usize) {
        self.count_further(len);
        self.last.store(from, Ordering::Relaxed);
    }

    /// By the only receiver.
    #[inline(always)]
    pub(crate) fn count_released(&self) {
        let received = self.received.load(Ordering::Relaxed).wrapping_add(1);
        // SYNC: received (who sees it has seen the process become busy before)
        self.received.store(received, Ordering::Release);
    }
}

/// Four lines per node, so that a sampler reads few and nobody's stores meet another's. Senders
/// read the door all the time: it has a pair of lines to itself, because processors fetch pairs.
#[repr(C)]
pub(crate) struct Node {
    pub(crate) send: Line<SendCounters>,
    pub(crate) receive: Line<ReceiveCounters>,
    /// Advanced by every poll that found nothing.
    pub(crate) epoch: Line<AtomicU64>,
    pub(crate) copying: Copying,
    pub(crate) door: Line<Door>,
    pub(crate) pad2: Line<[u64; 8]>,
}

impl Node {
    /// Adds what this node, one of `nodes`, has counted. Received is read after sent was: a sampler
    /// that finds both sums equal has then seen no message too few.
    pub(crate) fn add_to(&self, sum: &mut Counters, nodes: usize) {
        let (send, receive) = (&self.send.0, &self.receive.0);
        sum.door |= self.door.0.bits() & 3;
        sum.sent = sum.sent.wrapping_add(send.sent.load(Ordering::Acquire));
        let dropped = send.dropped.load(Ordering::Acquire);
        // SYNC: received
        let received = receive.received.load(Ordering::Acquire).wrapping_add(dropped);
        sum.received = sum.received.wrapping_add(received);
        sum.remote = sum.remote.wrapping_add(send.remote.load(Ordering::Acquire));
        sum.poll_epoch = sum.poll_epoch.wrapping_add(self.epoch.0.load(Ordering::Acquire));
        let more = |sum: &mut u64, word: &AtomicU64| {
            *sum = sum.wrapping_add(word.load(Ordering::Relaxed));
        };
        more(&mut sum.sent_bytes, &send.bytes);
        let [written, read] = &send.moved;
        more(&mut sum.sent_bytes, written);
        more(&mut sum.received_bytes, read);
        more(&mut sum.received_bytes, &receive.bytes);
        let last = |word: &AtomicU32| {
            let node = word.load(Ordering::Relaxed).checked_sub(1);
            node.filter(|node| (*node as usize) < nodes)
        };
        sum.last_to = sum.last_to.or(last(&send.last));
        sum.last_from = sum.last_from.or(last(&receive.last));
    }
}

/// The head of a node's activation record; a bitmap of sources for each kind of ring follows.
#[repr(C)]
pub(crate) struct Activation {
    /// Advances whenever a source sets its first bit.
    pub(crate) generation: Line<[AtomicU64; KINDS]>,
}

/// Bits for those who copy.
const COPIERS: usize = 256;

/// What a node's peers need to copy into and out of its memory. All zero: it has locked nothing.
/// The entries of its locked regions follow.
#[repr(C, align(64))]
pub(crate) struct Access {
    /// Its process, as the job's processes number them.
    pub(crate) pid: AtomicU64,
    /// Where in that process a word lies, and the word: whoever reads it there may copy.
    pub(crate) probe: AtomicU64,
    pub(crate) word: AtomicU64,
    /// Who has copied there, by a bit for each node's number modulo [`COPIERS`].
    pub(crate) copiers: [AtomicU64; COPIERS / 64],
}

impl Access {
    /// By node `by`, before it copies for the first time.
    pub(crate) fn note_copier(&self, by: usize) {
        let bit = by % COPIERS;
        self.copiers[bit / 64].fetch_or(1 << (bit % 64), Ordering::SeqCst);
        fence(Ordering::SeqCst);
    }

    /// By the owner: whom it may have to wait for, of `nodes` nodes.
    pub(crate) fn copiers(&self, nodes: usize) -> impl Iterator<Item = usize> {
        let bits = self.copiers.each_ref().map(|word| word.load(Ordering::Relaxed));
        let nodes = if bits == [0; COPIERS / 64] { 0 } else { nodes };
        (0..nodes).filter(move |node| {
            let bit = node % COPIERS;
            bits[bit / 64] >> (bit % 64) & 1 == 1
        })
    }
}

/// A node's locked regions.
#[repr(C)]
pub(crate) struct Regions {
    pub(crate) access: Access,
    pub(crate) entries: Table,
}

#[cfg(not(loom))]
const _: () = {
    assert!(size_of::<Header>() == 72);
    assert!(std::mem::offset_of!(Header, oversubscribed) == 64);
    assert!(size_of::<SendCounters>() <= 64 && size_of::<ReceiveCounters>() <= 64);
    assert!(size_of::<Node>() == 384);
    assert!(std::mem::offset_of!(Node, door) == 256);
    assert!(size_of::<Activation>() == 64);
    assert!(size_of::<Access>() == 64 && align_of::<Regions>() == 64);
};

/// The private copy of the sizes, used for every address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Geometry {
    pub(crate) nodes: usize,
    pub(crate) ring: Shape,
    pub(crate) control: Shape,
    pub(crate) remote: Shape,
    ring_stride: usize,
    control_stride: usize,
    remote_stride: usize,
    activation_stride: usize,
    activation_at: usize,
    control_at: usize,
    remote_at: usize,
    regions_at: usize,
    rings_at: usize,
    pub(crate) size: usize,
}

fn power_of_two_below(n: usize) -> usize {
    if n == 0 { 0 } else { 1 << n.ilog2() }
}

impl Geometry {
    /// The layout for `nodes` nodes. Invalid: none, or more than [`MAX_NODES`].
    pub fn for_nodes(nodes: usize) -> Result<Geometry> {
        if nodes == 0 || nodes > MAX_NODES {
            return Err(Error::Invalid);
        }
        let share = BUDGET / (nodes * nodes);
        let data = power_of_two_below(share / 4 * 3).clamp(MIN_DATA, MAX_DATA);
        let slots = power_of_two_below(share / 4 / 64).clamp(MIN_SLOTS, MAX_SLOTS);
        let mtu = (data / 4).min(MAX_MTU) as u16;
        let close = Shape { slots: slots as u16, lines: 1, data: data as u32, home: 0, mtu };
        let apart = Shape { lines: 2, ..close };
        let homely = Shape { home: mtu + HOME_GAP, ..apart };
        // Homes and second lines do more for a message than room for many.
        let half = Shape { data: homely.data / 2, ..homely };
        let quarter = Shape { slots: half.slots / 2, ..half };
        let is_enough = |shape: &Shape| {
            shape.data >= 2 * u32::from(mtu) && usize::from(shape.slots) >= MIN_SLOTS
        };
        let fits = |shape: &Shape| shape.bytes() + 128 <= share && is_enough(shape);
        let ring = [homely, half, quarter, apart].into_iter().find(fits).unwrap_or(close);
        let mtu = crate::config::CONTROL_MTU as u16;
        let control = Shape { slots: CONTROL_SLOTS, lines: 1, data: 0, home: 0, mtu };
        let remote = Shape { slots: REMOTE_SLOTS, ..control };
        // An odd number of 128-byte units: the first lines of idle rings then differ in their
        // offset in a page, and a sweep over them does not miss the cache (measured: 52 ns
        // instead of 172 for 64 rings).
        let ring_stride = (ring.bytes().div_ceil(128) | 1) * 128;
        let control_stride = control.bytes();
        let remote_stride = remote.bytes();
        let activation_stride = (64 + KINDS * nodes.div_ceil(64) * 8).next_multiple_of(64);
        let activation_at = (PAGE + nodes * size_of::<Node>()).next_multiple_of(PAGE);
        let control_at = (activation_at + nodes * activation_stride).next_multiple_of(PAGE);
        let remote_at = (control_at + nodes * nodes * control_stride).next_multiple_of(PAGE);
        let regions_at = (remote_at + nodes * nodes * remote_stride).next_multiple_of(PAGE);
        let rings_at = (regions_at + nodes * size_of::<Regions>()).next_multiple_of(PAGE);
        let size = (rings_at + nodes * nodes * ring_stride).next_multiple_of(PAGE);
        Ok(Geometry {
            nodes,
            ring,
            control,
            remote,
            ring_stride,
            control_stride,
            remote_stride,
            activation_stride,
            activation_at,
            control_at,
            remote_at,
            regions_at,
            rings_at,
            size,
        })
    }

    pub(crate) fn node_at(&self, node: usize) -> usize {
        debug_assert!(node < self.nodes);
        PAGE + node * size_of::<Node>()
    }

    pub(crate) fn activation_at(&self, node: usize) -> usize {
        debug_assert!(node < self.nodes);
        self.activation_at + node * self.activation_stride
    }

    /// Words of one bitmap of sources.
    pub(crate) fn bitmap_words(&self) -> usize {
        self.nodes.div_ceil(64)
    }

    /// The rings of one receiver lie side by side.
    pub(crate) fn ring_at(&self, from: usize, to: usize) -> usize {
        debug_assert!(from < self.nodes && to < self.nodes);
        self.rings_at + (to * self.nodes + from) * self.ring_stride
    }

    pub(crate) fn control_at(&self, from: usize, to: usize) -> usize {
        debug_assert!(from < self.nodes && to < self.nodes);
        self.control_at + (to * self.nodes + from) * self.control_stride
    }

    pub(crate) fn remote_at(&self, from: usize, to: usize) -> usize {
        debug_assert!(from < self.nodes && to < self.nodes);
        self.remote_at + (to * self.nodes + from) * self.remote_stride
    }

    pub(crate) fn regions_at(&self, node: usize) -> usize {
        debug_assert!(node < self.nodes);
        self.regions_at + node * size_of::<Regions>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_part_lies_behind_the_one_before_and_inside_the_segment() {
        for nodes in [1, 2, 3, 4, 63, 64, 65, 90, 128, 256, 257, 1024, MAX_NODES] {
            let g = Geometry::for_nodes(nodes).unwrap();
            let last = nodes - 1;
            assert!(g.node_at(last) + size_of::<Node>() <= g.activation_at(0));
            assert!(g.activation_at(last) + g.activation_stride <= g.control_at(0, 0));
            assert!(64 + KINDS * g.bitmap_words() * 8 <= g.activation_stride);
            assert!(g.control_at(last, last) + g.control.bytes() <= g.remote_at(0, 0));
            assert!(g.remote_at(last, last) + g.remote.bytes() <= g.regions_at(0));
            assert!(g.regions_at(last) + size_of::<Regions>() <= g.ring_at(0, 0));
            assert!(g.ring_at(last, last) + g.ring.bytes() <= g.size);
            assert_eq!(g.ring_at(last, last) % 128, 0);
            assert_eq!(g.control_at(last, last) % 128, 0);
            assert_eq!(g.remote_at(last, last) % 128, 0);
            assert_eq!(g.regions_at(last) % 64, 0);
            assert!(g.ring.mtu as usize >= crate::config::MIN_MTU);
            assert!(g.ring.bytes() <= g.ring_stride);
            assert!(g.size.is_multiple_of(PAGE));
        }
    }

    #[test]
    fn up_to_64_processes_send_8_kib_in_one_message() {
        assert_eq!(Geometry::for_nodes(2).unwrap().ring.mtu, 8192);
        assert_eq!(Geometry::for_nodes(64).unwrap().ring.mtu, 8192);
        assert_eq!(Geometry::for_nodes(MAX_NODES).unwrap().ring.mtu, 1024);
    }

    #[test]
    fn up_to_142_processes_have_two_homes_and_two_lines_for_each_slot() {
        for nodes in 1..=142 {
            let ring = Geometry::for_nodes(nodes).unwrap().ring;
            assert!(ring.lines == 2 && ring.home > ring.mtu, "{nodes}: {ring:?}");
            assert!(ring.data >= 2 * u32::from(ring.mtu), "{nodes}: {ring:?}");
        }
    }

    #[test]
    fn first_lines_of_neighbouring_rings_differ_in_page_offset() {
        let g = Geometry::for_nodes(64).unwrap();
        let offsets: std::collections::HashSet<_> =
            (0..32).map(|from| g.ring_at(from, 5) % PAGE).collect();
        assert_eq!(offsets.len(), 32);
    }

    #[test]
    fn no_nodes_and_too_many_nodes_are_refused() {
        assert_eq!(Geometry::for_nodes(0), Err(Error::Invalid));
        assert_eq!(Geometry::for_nodes(MAX_NODES + 1), Err(Error::Invalid));
    }
}
