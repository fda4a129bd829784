//! The queues between sender, receiver and engine inside a process. Each end of a queue belongs to
//! the holder of one lock, so that the three need not wait for each other.

#![forbid(unsafe_code)]

use super::indices::{EntryIndex, SlotIndex};
use super::layout::SlabGeometry;
use super::spsc_queue::{QueueWord, SpscQueue};
use crate::config::CONTROL_MTU;
use crate::progress_lock::WakeupFlag;
use crate::sync::{AtomicPtr, AtomicU64, Ordering, SingleWriterU64};
use std::ptr::null_mut;
use std::sync::OnceLock;

/// A submitted message: its slot, receiver and length.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SendRequest {
    pub(crate) slot: SlotIndex,
    pub(crate) to: u32,
    pub(crate) len: u32,
}

/// A received message: the entry that holds it, its sender and length.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ReceivedMessage {
    pub(crate) entry: EntryIndex,
    pub(crate) from: u32,
    pub(crate) len: u32,
}

/// The most entries that the word of a received message can number.
#[cfg(test)]
pub(crate) const MAX_ENTRIES: usize = 1 << 20;

/// The word of either structure: 20 bits for the slot or entry, 24 for the node, 20 for the length.
struct PackedFields<I> {
    index: I,
    node: u32,
    len: u32,
}

impl<I: From<u32> + Into<u32>> PackedFields<I> {
    #[inline(always)]
    fn word(self) -> u64 {
        u64::from(self.index.into()) << 44 | u64::from(self.node) << 20 | u64::from(self.len)
    }

    #[inline(always)]
    fn from_word(word: u64) -> PackedFields<I> {
        let index = I::from((word >> 44) as u32);
        PackedFields { index, node: (word >> 20) as u32 & 0xff_ffff, len: word as u32 & 0xf_ffff }
    }
}

impl QueueWord for SendRequest {
    #[inline(always)]
    fn word(self) -> u64 {
        PackedFields { index: self.slot, node: self.to, len: self.len }.word()
    }
    #[inline(always)]
    fn from_word(word: u64) -> SendRequest {
        let PackedFields { index: slot, node: to, len } = PackedFields::from_word(word);
        SendRequest { slot, to, len }
    }
}

impl QueueWord for ReceivedMessage {
    #[inline(always)]
    fn word(self) -> u64 {
        PackedFields { index: self.entry, node: self.from, len: self.len }.word()
    }
    #[inline(always)]
    fn from_word(word: u64) -> ReceivedMessage {
        let PackedFields { index: entry, node: from, len } = PackedFields::from_word(word);
        ReceivedMessage { entry, from, len }
    }
}

impl QueueWord for SlotIndex {
    #[inline(always)]
    fn word(self) -> u64 {
        self.0.into()
    }
    #[inline(always)]
    fn from_word(word: u64) -> SlotIndex {
        SlotIndex(word as u32)
    }
}

/// A control message that waits to be read.
pub(crate) struct ControlMessage {
    pub(crate) from: u32,
    pub(crate) bytes: [u8; CONTROL_MTU],
    pub(crate) len: usize,
}

/// The state of the sender for one peer.
#[derive(Default)]
pub(crate) struct PeerSendState {
    /// The number of messages sent. The sender writes it.
    pub(crate) sent_count: SingleWriterU64,
    /// The number of these messages that were acknowledged or dropped. The engine writes it.
    pub(crate) freed_count: SingleWriterU64,
    /// The length of the longest message, or 0 if it is not known yet.
    pub(crate) mtu: SingleWriterU64,
    /// The id of the last multicast that included this peer.
    pub(crate) multicast_id: SingleWriterU64,
    /// The number of pending remote operations on this peer.
    pub(crate) pending_operations: AtomicU64,
}

impl PeerSendState {
    /// Counts one more message as sent. Called by the sender.
    #[inline(always)]
    pub(crate) fn count_sent(&self) {
        self.sent_count.set(self.sent_count.get().wrapping_add(1));
    }

    /// Returns the number of slots that are in use for this peer.
    #[inline(always)]
    pub(crate) fn outstanding(&self) -> u64 {
        self.sent_count.get().wrapping_sub(self.freed_count.get())
    }
}

const PEERS_PER_BLOCK: usize = 256;

/// The states of all peers. Memory is allocated only for blocks of peers that are in use.
pub(crate) struct PeerTable(Box<[OnceLock<Box<[PeerSendState]>>]>);

impl PeerTable {
    fn new(nodes: u32) -> PeerTable {
        PeerTable(
            (0..(nodes as usize).div_ceil(PEERS_PER_BLOCK)).map(|_| OnceLock::new()).collect(),
        )
    }

    /// Returns None if the node does not exist.
    #[inline(always)]
    pub(crate) fn get(&self, node: u32) -> Option<&PeerSendState> {
        let block = self.0.get(node as usize / PEERS_PER_BLOCK)?;
        let block =
            block.get_or_init(|| (0..PEERS_PER_BLOCK).map(|_| PeerSendState::default()).collect());
        block.get(node as usize % PEERS_PER_BLOCK)
    }
}

/// See the module.
pub(crate) struct EndpointQueues {
    /// `submitted` passes messages from the sender to the engine, and `freed` returns free slots.
    pub(crate) submitted: SpscQueue<SendRequest>,
    pub(crate) freed: SpscQueue<SlotIndex>,
    /// `delivered` passes messages from the engine to the receiver, and `released` returns released
    /// messages.
    pub(crate) delivered: SpscQueue<ReceivedMessage>,
    pub(crate) released: SpscQueue<ReceivedMessage>,
    /// The address of the message of each entry. The engine writes it before it delivers the
    /// message.
    message_ptrs: Box<[AtomicPtr<u8>]>,
    pub(crate) peers: PeerTable,
    pub(crate) wakeup_flag: WakeupFlag,
    /// The number of messages that are neither acknowledged nor dropped. It may be out of date.
    pub(crate) outstanding: AtomicU64,
    /// Whether RMA frames were received since the last `take_rma_received`.
    rma_received: AtomicU64,
}

impl EndpointQueues {
    pub(crate) fn new(geometry: &SlabGeometry, entries: usize) -> EndpointQueues {
        EndpointQueues {
            submitted: SpscQueue::new(geometry.slots),
            freed: SpscQueue::new(geometry.slots),
            delivered: SpscQueue::new(entries),
            released: SpscQueue::new(entries),
            message_ptrs: (0..entries).map(|_| AtomicPtr::new(null_mut())).collect(),
            peers: PeerTable::new(geometry.nodes),
            wakeup_flag: WakeupFlag::default(),
            outstanding: AtomicU64::new(0),
            rma_received: AtomicU64::new(0),
        }
    }

    /// Notes that RMA frames were received. Called by the engine.
    #[inline(always)]
    pub(crate) fn set_rma_received(&self) {
        self.rma_received.store(1, Ordering::Relaxed);
    }

    /// Whether RMA frames were received since the last call.
    pub(crate) fn take_rma_received(&self) -> bool {
        self.rma_received.swap(0, Ordering::Relaxed) != 0
    }

    /// Stores the address of an entry's message. Called by the engine before it delivers the
    /// message.
    #[inline(always)]
    pub(crate) fn set_message_ptr(&self, entry: EntryIndex, ptr: *mut u8) {
        self.message_ptrs[entry.as_usize()].store(ptr, Ordering::Relaxed);
    }

    /// Returns the address of an entry's message. Called by the receiver for a message that was
    /// delivered to it.
    #[inline(always)]
    pub(crate) fn message_ptr(&self, entry: EntryIndex) -> *mut u8 {
        let ptr = self.message_ptrs.get(entry.as_usize());
        ptr.map_or(null_mut(), |ptr| ptr.load(Ordering::Relaxed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::MAX_NODE;

    #[test]
    fn a_sent_and_a_received_message_fit_a_word() {
        let sent = SendRequest { slot: SlotIndex(1023), to: MAX_NODE as u32 - 1, len: 65_535 };
        assert_eq!(SendRequest::from_word(sent.word()), sent);
        let received =
            ReceivedMessage { entry: EntryIndex(4095), from: MAX_NODE as u32 - 1, len: 1 };
        assert_eq!(ReceivedMessage::from_word(received.word()), received);
        let last = ReceivedMessage { entry: EntryIndex(MAX_ENTRIES as u32 - 1), ..received };
        assert_eq!(ReceivedMessage::from_word(last.word()), last);
    }

    #[test]
    fn peers_exist_up_to_the_last_node() {
        let peers = PeerTable::new(300);
        peers.get(299).unwrap().sent_count.set(3);
        assert_eq!(peers.get(299).unwrap().outstanding(), 3);
        assert!(peers.get(512).is_none());
    }
}
