//! The layout of a segment. It is computed from the number of nodes, so that no size in the segment
//! has to be trusted.

#![forbid(unsafe_code)]

use crate::config::Counters;
use crate::copy_hazards::CopyHazards;
use crate::error::{Error, PmResult};
use crate::receiver_state::ReceiverState;
use crate::ring::{MAX_SLOTS, RingGeometry};
use crate::rma::{Direction, Table};
use crate::sync::{AtomicU32, AtomicU64, Ordering, fence};

/// "SCPMSHM" and the layout's version.
pub(crate) const MAGIC: u64 = u64::from_le_bytes(*b"SCPMSHM\x0b");
/// The largest number of nodes of one segment.
pub(crate) const MAX_NODES: usize = 2048;

const PAGE: usize = 4096;
/// The number of kinds of rings (see `RingKind`).
pub(crate) const KINDS: usize = 2;
/// The memory for the rings of all pairs together, if every pair exchanges messages. The minimum
/// sizes of rings exceed it if there are more than about 200 nodes.
const RING_MEMORY_BUDGET: usize = 256 << 20;
/// The lines of a large data area have left the receiver's cache before the sender overwrites them,
/// so that the sender gets them sooner. An even larger area saves time for 4 KiB, but costs time
/// for 64 bytes.
const MAX_DATA: usize = 256 << 10;
const MAX_MTU: usize = 8 << 10;
/// The gap between two fixed buffers, so that a processor that prefetches beyond the end of one
/// does not fetch lines of the other.
const FIXED_BUFFER_GAP: u16 = 256;
const MIN_DATA: usize = 4 << 10;
const MIN_SLOTS: usize = 32;
/// Slots of the ring for control messages, all of which fit into slots.
const CONTROL_SLOTS: u16 = 4;

/// The start of the header page. The owner writes it once, before another process maps it.
#[repr(C)]
pub(crate) struct SegmentHeader {
    pub(crate) magic: AtomicU64,
    pub(crate) nodes: AtomicU64,
    pub(crate) size: AtomicU64,
    pub(crate) nonce: [AtomicU64; 2],
}

/// A value on its own cache line.
#[repr(C, align(64))]
pub(crate) struct CacheAligned<T>(pub(crate) T);

/// The counters of a node's sending side.
#[repr(C)]
pub(crate) struct SendCounters {
    /// Messages sent, one per copy of a multicast. Each is counted before it becomes visible.
    pub(crate) sent: AtomicU64,
    /// Sent messages that were dropped because the receiver has exited. They count as received.
    pub(crate) dropped: AtomicU64,
    /// Remote memory operations outstanding.
    pub(crate) pending_rma: AtomicU64,
    /// Bytes of the messages sent.
    pub(crate) bytes: AtomicU64,
    /// Destination of the last message: 1 + the node, in this device's numbering. 0: no message was
    /// sent, or a later one was sent on another device.
    pub(crate) last_peer: AtomicU32,
    /// Bytes of remote memory that operations of this node have written and read, by direction.
    pub(crate) rma_bytes: [AtomicU64; 2],
}

impl SendCounters {
    /// Called by the only sender before the message becomes visible, so that the sum of received
    /// messages never exceeds the sum of sent messages.
    #[inline(always)]
    pub(crate) fn count_sent(&self) {
        self.sent.store(self.sent.load(Ordering::Relaxed).wrapping_add(1), Ordering::Relaxed);
    }

    /// Called by the only sender, after the message is visible, so that the receiver does not wait
    /// for these stores. `peer` is 1 + the node.
    #[inline(always)]
    pub(crate) fn record_sent(&self, peer: u32, len: usize) {
        let bytes = self.bytes.load(Ordering::Relaxed).wrapping_add(len as u64);
        self.bytes.store(bytes, Ordering::Relaxed);
        // The number of stores limits the rate of a stream of messages (measured).
        if self.last_peer.load(Ordering::Relaxed) != peer {
            self.last_peer.store(peer, Ordering::Relaxed);
        }
    }

    /// Counts copied bytes of remote memory. Called by one thread only.
    #[inline(always)]
    pub(crate) fn count_rma_bytes(&self, direction: Direction, len: usize) {
        let total = &self.rma_bytes[direction as usize];
        total.store(total.load(Ordering::Relaxed).wrapping_add(len as u64), Ordering::Relaxed);
    }
}

/// The counters of a node's receiving side.
#[repr(C)]
pub(crate) struct ReceiveCounters {
    /// Messages released, and messages claimed at exit.
    pub(crate) received: AtomicU64,
    /// Bytes of the messages taken.
    pub(crate) bytes: AtomicU64,
    /// Source of the last message that was taken, encoded as [`SendCounters::last_peer`].
    pub(crate) last_peer: AtomicU32,
}

impl ReceiveCounters {
    /// Counts a message of this length, from the same node as the last one. Called by the only
    /// receiver.
    #[inline(always)]
    pub(crate) fn count_received_bytes(&self, len: usize) {
        let bytes = self.bytes.load(Ordering::Relaxed).wrapping_add(len as u64);
        self.bytes.store(bytes, Ordering::Relaxed);
    }

    /// Counts a message of this length from any node; `peer` is 1 + the node. Called by the only
    /// receiver.
    #[inline(always)]
    pub(crate) fn record_received(&self, peer: u32, len: usize) {
        self.count_received_bytes(len);
        self.last_peer.store(peer, Ordering::Relaxed);
    }

    /// Counts a message that is released. Called by the only receiver.
    #[inline(always)]
    pub(crate) fn count_released(&self) {
        let received = self.received.load(Ordering::Relaxed).wrapping_add(1);
        // SYNC: received (a sampler that sees it also sees that the process became busy before)
        self.received.store(received, Ordering::Release);
    }
}

/// The counters and states of a node. The counters are on few lines, because a sampler reads them,
/// and each of these lines has one writer. The receiver state has its own pair of lines, because
/// senders read it all the time and processors fetch lines in pairs.
#[repr(C)]
pub(crate) struct NodeRecord {
    pub(crate) send: CacheAligned<SendCounters>,
    pub(crate) receive: CacheAligned<ReceiveCounters>,
    /// Advances with every poll that found no message.
    pub(crate) poll_epoch: CacheAligned<AtomicU64>,
    pub(crate) copy_hazards: CopyHazards,
    pub(crate) receiver_state: CacheAligned<ReceiverState>,
    pub(crate) pad2: CacheAligned<[u64; 8]>,
}

impl NodeRecord {
    /// Adds the counters of this node, one of `nodes`, to `sum`. `received` is read after `sent`,
    /// so that a sampler that finds both sums equal has missed no message.
    pub(crate) fn add_to(&self, sum: &mut Counters, nodes: usize) {
        let (send, receive) = (&self.send.0, &self.receive.0);
        sum.receiver_state |= self.receiver_state.0.bits() & 3;
        sum.sent = sum.sent.wrapping_add(send.sent.load(Ordering::Acquire));
        let dropped = send.dropped.load(Ordering::Acquire);
        // SYNC: received
        let received = receive.received.load(Ordering::Acquire).wrapping_add(dropped);
        sum.received = sum.received.wrapping_add(received);
        sum.pending_rma = sum.pending_rma.wrapping_add(send.pending_rma.load(Ordering::Acquire));
        sum.poll_epoch = sum.poll_epoch.wrapping_add(self.poll_epoch.0.load(Ordering::Acquire));
        let add = |sum: &mut u64, word: &AtomicU64| {
            *sum = sum.wrapping_add(word.load(Ordering::Relaxed));
        };
        add(&mut sum.sent_bytes, &send.bytes);
        let [written, read] = &send.rma_bytes;
        add(&mut sum.sent_bytes, written);
        add(&mut sum.received_bytes, read);
        add(&mut sum.received_bytes, &receive.bytes);
        let peer_of = |word: &AtomicU32| {
            let node = word.load(Ordering::Relaxed).checked_sub(1);
            node.filter(|node| (*node as usize) < nodes)
        };
        sum.last_to = sum.last_to.or(peer_of(&send.last_peer));
        sum.last_from = sum.last_from.or(peer_of(&receive.last_peer));
    }
}

/// The header of a node's activation record; a bitmap of sources for each kind of ring follows.
#[repr(C)]
pub(crate) struct Activation {
    /// Advances whenever a source sets its bit.
    pub(crate) generation: CacheAligned<[AtomicU64; KINDS]>,
}

/// The number of bits for the nodes that copy.
const COPIER_BITS: usize = 256;

/// The data with which a node's peers copy into and out of its memory. All zero: the node has no
/// locked region. The entries of its locked regions follow.
#[repr(C, align(64))]
pub(crate) struct RmaAccess {
    /// The process id, in the PID namespace of the job.
    pub(crate) pid: AtomicU64,
    /// The address of a word in that process, and its value. A peer that reads this value at the
    /// address has found the right process and may copy.
    pub(crate) probe_addr: AtomicU64,
    pub(crate) probe_value: AtomicU64,
    /// The nodes that have copied: node `n` has bit `n` modulo [`COPIER_BITS`].
    pub(crate) copiers: [AtomicU64; COPIER_BITS / 64],
}

impl RmaAccess {
    /// Called by node `node` before it copies for the first time.
    pub(crate) fn mark_copier(&self, node: usize) {
        let bit = node % COPIER_BITS;
        self.copiers[bit / 64].fetch_or(1 << (bit % 64), Ordering::SeqCst);
        fence(Ordering::SeqCst);
    }

    /// The nodes below `nodes` for which the owner of the memory may have to wait.
    pub(crate) fn copiers(&self, nodes: usize) -> impl Iterator<Item = usize> {
        let bits = self.copiers.each_ref().map(|word| word.load(Ordering::Relaxed));
        let nodes = if bits == [0; COPIER_BITS / 64] { 0 } else { nodes };
        (0..nodes).filter(move |node| {
            let bit = node % COPIER_BITS;
            bits[bit / 64] >> (bit % 64) & 1 == 1
        })
    }
}

/// A node's locked regions.
#[repr(C)]
pub(crate) struct RegionTable {
    pub(crate) access: RmaAccess,
    pub(crate) entries: Table,
}

#[cfg(not(loom))]
const _: () = {
    assert!(size_of::<SegmentHeader>() == 40);
    assert!(size_of::<SendCounters>() <= 64 && size_of::<ReceiveCounters>() <= 64);
    assert!(size_of::<NodeRecord>() == 384);
    assert!(std::mem::offset_of!(NodeRecord, receiver_state) == 256);
    assert!(size_of::<Activation>() == 64);
    assert!(size_of::<RmaAccess>() == 64 && align_of::<RegionTable>() == 64);
};

/// The sizes of a segment. Each process computes every address from its private copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SegmentGeometry {
    pub(crate) nodes: usize,
    pub(crate) ring: RingGeometry,
    pub(crate) control: RingGeometry,
    ring_stride: usize,
    control_stride: usize,
    activation_stride: usize,
    activation_offset: usize,
    control_offset: usize,
    regions_offset: usize,
    rings_offset: usize,
    pub(crate) size: usize,
}

fn power_of_two_below(n: usize) -> usize {
    if n == 0 { 0 } else { 1 << n.ilog2() }
}

impl SegmentGeometry {
    /// The layout for `nodes` nodes. Invalid: `nodes` is 0 or above [`MAX_NODES`].
    pub fn for_nodes(nodes: usize) -> PmResult<SegmentGeometry> {
        if nodes == 0 || nodes > MAX_NODES {
            return Err(Error::Invalid);
        }
        let share = RING_MEMORY_BUDGET / (nodes * nodes);
        let data = power_of_two_below(share / 4 * 3).clamp(MIN_DATA, MAX_DATA);
        let slots = power_of_two_below(share / 4 / 64).clamp(MIN_SLOTS, MAX_SLOTS);
        let mtu = (data / 4).min(MAX_MTU) as u16;
        let compact = RingGeometry {
            slot_count: slots as u16,
            lines_per_slot: 1,
            data_len: data as u32,
            fixed_buffer_stride: 0,
            mtu,
        };
        let two_line = RingGeometry { lines_per_slot: 2, ..compact };
        let with_fixed_buffers =
            RingGeometry { fixed_buffer_stride: mtu + FIXED_BUFFER_GAP, ..two_line };
        // Fixed buffers and second lines save more time than a larger data area and more slots.
        let half = RingGeometry { data_len: with_fixed_buffers.data_len / 2, ..with_fixed_buffers };
        let quarter = RingGeometry { slot_count: half.slot_count / 2, ..half };
        let is_large_enough = |candidate: &RingGeometry| {
            candidate.data_len >= 2 * u32::from(mtu)
                && usize::from(candidate.slot_count) >= MIN_SLOTS
        };
        let fits = |candidate: &RingGeometry| {
            candidate.bytes() + 128 <= share && is_large_enough(candidate)
        };
        let ring =
            [with_fixed_buffers, half, quarter, two_line].into_iter().find(fits).unwrap_or(compact);
        let mtu = crate::config::CONTROL_MTU as u16;
        let control = RingGeometry {
            slot_count: CONTROL_SLOTS,
            lines_per_slot: 1,
            data_len: 0,
            fixed_buffer_stride: 0,
            mtu,
        };
        // An odd number of 128-byte units. The first lines of idle rings then differ in their
        // offset in a page, so that polling all of them causes no cache misses.
        let ring_stride = (ring.bytes().div_ceil(128) | 1) * 128;
        let control_stride = control.bytes();
        let activation_stride = (64 + KINDS * nodes.div_ceil(64) * 8).next_multiple_of(64);
        let activation_offset = (PAGE + nodes * size_of::<NodeRecord>()).next_multiple_of(PAGE);
        let control_offset = (activation_offset + nodes * activation_stride).next_multiple_of(PAGE);
        let regions_offset =
            (control_offset + nodes * nodes * control_stride).next_multiple_of(PAGE);
        let rings_offset =
            (regions_offset + nodes * size_of::<RegionTable>()).next_multiple_of(PAGE);
        let size = (rings_offset + nodes * nodes * ring_stride).next_multiple_of(PAGE);
        Ok(SegmentGeometry {
            nodes,
            ring,
            control,
            ring_stride,
            control_stride,
            activation_stride,
            activation_offset,
            control_offset,
            regions_offset,
            rings_offset,
            size,
        })
    }

    pub(crate) fn node_offset(&self, node: usize) -> usize {
        debug_assert!(node < self.nodes);
        PAGE + node * size_of::<NodeRecord>()
    }

    pub(crate) fn activation_offset(&self, node: usize) -> usize {
        debug_assert!(node < self.nodes);
        self.activation_offset + node * self.activation_stride
    }

    /// Words of one bitmap of sources.
    pub(crate) fn bitmap_words(&self) -> usize {
        self.nodes.div_ceil(64)
    }

    /// The offset of a ring. The rings of one receiver are adjacent.
    pub(crate) fn ring_offset(&self, from: usize, to: usize) -> usize {
        debug_assert!(from < self.nodes && to < self.nodes);
        self.rings_offset + (to * self.nodes + from) * self.ring_stride
    }

    pub(crate) fn control_offset(&self, from: usize, to: usize) -> usize {
        debug_assert!(from < self.nodes && to < self.nodes);
        self.control_offset + (to * self.nodes + from) * self.control_stride
    }

    pub(crate) fn regions_offset(&self, node: usize) -> usize {
        debug_assert!(node < self.nodes);
        self.regions_offset + node * size_of::<RegionTable>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_parts_of_a_segment_do_not_overlap_and_are_inside_it() {
        for nodes in [1, 2, 3, 4, 63, 64, 65, 90, 128, 256, 257, 1024, MAX_NODES] {
            let g = SegmentGeometry::for_nodes(nodes).unwrap();
            let last = nodes - 1;
            assert!(g.node_offset(last) + size_of::<NodeRecord>() <= g.activation_offset(0));
            assert!(g.activation_offset(last) + g.activation_stride <= g.control_offset(0, 0));
            assert!(64 + KINDS * g.bitmap_words() * 8 <= g.activation_stride);
            assert!(g.control_offset(last, last) + g.control.bytes() <= g.regions_offset(0));
            assert!(g.regions_offset(last) + size_of::<RegionTable>() <= g.ring_offset(0, 0));
            assert!(g.ring_offset(last, last) + g.ring.bytes() <= g.size);
            assert_eq!(g.ring_offset(last, last) % 128, 0);
            assert_eq!(g.control_offset(last, last) % 128, 0);
            assert_eq!(g.regions_offset(last) % 64, 0);
            assert!(g.ring.mtu as usize >= crate::config::MIN_MTU);
            assert!(g.ring.bytes() <= g.ring_stride);
            assert!(g.size.is_multiple_of(PAGE));
        }
    }

    #[test]
    fn up_to_64_processes_send_8_kib_in_one_message() {
        assert_eq!(SegmentGeometry::for_nodes(2).unwrap().ring.mtu, 8192);
        assert_eq!(SegmentGeometry::for_nodes(64).unwrap().ring.mtu, 8192);
        assert_eq!(SegmentGeometry::for_nodes(MAX_NODES).unwrap().ring.mtu, 1024);
    }

    #[test]
    fn up_to_142_processes_have_two_fixed_buffers_and_two_lines_for_each_slot() {
        for nodes in 1..=142 {
            let ring = SegmentGeometry::for_nodes(nodes).unwrap().ring;
            assert!(
                ring.lines_per_slot == 2 && ring.fixed_buffer_stride > ring.mtu,
                "{nodes}: {ring:?}"
            );
            assert!(ring.data_len >= 2 * u32::from(ring.mtu), "{nodes}: {ring:?}");
        }
    }

    #[test]
    fn first_lines_of_neighbouring_rings_differ_in_page_offset() {
        let g = SegmentGeometry::for_nodes(64).unwrap();
        let offsets: std::collections::HashSet<_> =
            (0..32).map(|from| g.ring_offset(from, 5) % PAGE).collect();
        assert_eq!(offsets.len(), 32);
    }

    #[test]
    fn no_nodes_and_too_many_nodes_are_refused() {
        assert_eq!(SegmentGeometry::for_nodes(0), Err(Error::Invalid));
        assert_eq!(SegmentGeometry::for_nodes(MAX_NODES + 1), Err(Error::Invalid));
    }
}
