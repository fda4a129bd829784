//! The receive buffers, which all peers share. The buffers for a peer are posted when it is first
//! connected.

#![forbid(unsafe_code)]

use super::adapter::{AccessRights, Adapter, DmaBuffer, MemoryRegion};
use super::bindings::Sge;
use crate::debug;
use crate::device::net_common::indices::EntryIndex;
use crate::device::net_common::layout::CONTROL_QUEUE_LEN;
use std::sync::Arc;

/// Bytes of the header before each payload: number, length, sender and kind, each of four bytes.
pub(super) const HEADER_LEN: usize = 16;
/// Additional buffers of a peer, for control messages and for messages that are sent again after a
/// failure.
const EXTRA_BUFFERS: usize = 2 * CONTROL_QUEUE_LEN;
/// The limits of the window (see `window`), which is larger if there are few peers.
const MAX_WINDOW: usize = 64;
const MIN_WINDOW: usize = 16;
/// The sum of the windows of all peers, if this permits at least `MIN_WINDOW` for each.
const TOTAL_WINDOW: usize = 256;

/// The window: the number of messages to one of `nodes` nodes that may be in flight or unread.
pub(super) fn window(nodes: usize) -> usize {
    (TOTAL_WINDOW / nodes.saturating_sub(1).max(1)).clamp(MIN_WINDOW, MAX_WINDOW)
}

pub(super) struct SharedReceiveBuffers {
    peer_regions: Box<[Option<MemoryRegion<Arc<DmaBuffer>>>]>,
    /// The number of buffers of a peer. The index among them takes `index_bits` bits of the
    /// buffer's entry.
    buffers_per_peer: usize,
    index_bits: u32,
    /// Bytes from one buffer to the next.
    buffer_stride: usize,
    pub(super) mtu: usize,
}

impl SharedReceiveBuffers {
    pub(super) fn new(nodes: usize, mtu: usize) -> SharedReceiveBuffers {
        SharedReceiveBuffers {
            peer_regions: (0..nodes).map(|_| None).collect(),
            buffers_per_peer: buffers_per_peer(nodes),
            index_bits: index_bits(nodes),
            buffer_stride: (HEADER_LEN + mtu).next_multiple_of(64),
            mtu,
        }
    }

    /// The number of buffers of all peers.
    pub(super) fn buffer_count(&self) -> usize {
        self.buffers_per_peer * self.peer_regions.len()
    }

    /// Posts the buffers of a peer.
    pub(super) fn post_buffers(
        &mut self,
        adapter: &Arc<Adapter>,
        node: u32,
    ) -> std::result::Result<(), String> {
        if self.peer_regions[node as usize].is_some() {
            return Ok(());
        }
        let region = MemoryRegion::allocate(
            adapter,
            self.buffers_per_peer * self.buffer_stride,
            AccessRights::Local,
        )?;
        self.peer_regions[node as usize] = Some(region);
        for index in 0..self.buffers_per_peer as u32 {
            self.post_buffer(adapter, EntryIndex(node << self.index_bits | index));
        }
        Ok(())
    }

    /// The address of a buffer, and its key.
    #[inline(always)]
    pub(super) fn buffer_addr(&self, entry: EntryIndex) -> Option<(*mut u8, u32)> {
        let region = self.peer_regions.get(entry.as_usize() >> self.index_bits)?.as_ref()?;
        let index = entry.as_usize() & ((1 << self.index_bits) - 1);
        let addr = region.memory.addr(index * self.buffer_stride, self.buffer_stride);
        Some((addr, region.lkey))
    }

    #[inline(always)]
    pub(super) fn post_buffer(&self, adapter: &Adapter, entry: EntryIndex) {
        let Some((buffer, lkey)) = self.buffer_addr(entry) else { return };
        let length = (HEADER_LEN + self.mtu) as u32;
        let sge = Sge { addr: buffer.addr() as u64, length, lkey };
        if !adapter.post_receive(entry.0.into(), sge) {
            debug::log(debug::ERROR, || "verbs: the adapter refuses a receive buffer".into());
        }
    }
}

/// The number of buffers of one peer, if there are `nodes` nodes.
fn buffers_per_peer(nodes: usize) -> usize {
    window(nodes) + EXTRA_BUFFERS
}

/// The number of bits that number the buffers of one peer.
fn index_bits(nodes: usize) -> u32 {
    buffers_per_peer(nodes).next_power_of_two().ilog2()
}

/// The number of possible entries, rounded up to a power of two.
pub(super) fn entry_count(nodes: usize) -> usize {
    (nodes << index_bits(nodes)).next_power_of_two()
}

#[cfg(test)]
mod tests {
    use super::super::config::MAX_NODES;
    use super::*;
    use crate::device::net_common::endpoint_queues::MAX_ENTRIES;

    #[test]
    fn a_receiver_has_buffers_for_all_that_its_peers_may_send() {
        for nodes in [1, 2, 5, 17, 300, 4096] {
            assert!((MIN_WINDOW..=MAX_WINDOW).contains(&window(nodes)), "{nodes}");
            assert!(entry_count(nodes) >= nodes * (window(nodes) + CONTROL_QUEUE_LEN));
        }
    }

    #[test]
    fn the_entries_of_the_most_nodes_fit_a_word_and_those_of_more_nodes_do_not() {
        assert!(entry_count(MAX_NODES) <= MAX_ENTRIES && entry_count(MAX_NODES + 1) > MAX_ENTRIES);
    }
}
