//! The engine's state for remote memory access. `rma_data.rs` copies the bytes.

#![forbid(unsafe_code)]

use super::rma_protocol::{LocalOperation, OperationNumber, OperationRole, RmaProtocol};
use crate::device::net_common::indices::{EntryIndex, RmaSlotBase, RmaSlotIndex, SlotIndex};
use crate::device::net_common::layout::SlabGeometry;
use crate::device::net_common::slot_allocator::SlotAllocator;
use crate::rma::{AddrHandle, IoSegment, MAX_SEGMENTS, UserMemoryCopier};

pub(super) struct RmaEngine {
    pub(super) protocol: RmaProtocol,
    /// The slots for RMA frames, and where they begin.
    slots: SlotAllocator<RmaSlotIndex>,
    slot_base: RmaSlotBase,
    pub(super) copier: UserMemoryCopier,
    pub(super) frame_run: FrameRun,
    /// Operations that are being moved from the queue to the protocol. The list is kept, so that
    /// its memory is reused.
    pub(super) requests: Vec<(u32, LocalOperation)>,
    /// Whether frames were received since the last `complete_operations`.
    pub(super) has_received_frames: bool,
    pub(super) in_flight: u64,
    /// The number of all frames ever sent.
    pub(super) frames_sent: u64,
}

/// Received frames of one stream whose bytes are contiguous.
pub(super) struct FrameRun {
    pub(super) peer: u32,
    pub(super) side: OperationRole,
    pub(super) number: OperationNumber,
    pub(super) to: AddrHandle,
    pub(super) len: usize,
    pub(super) count: usize,
    pub(super) parts: [IoSegment; MAX_SEGMENTS],
    pub(super) entries: [EntryIndex; MAX_SEGMENTS],
}

impl RmaEngine {
    pub(super) fn new(geometry: &SlabGeometry) -> RmaEngine {
        let frame_run = FrameRun {
            peer: 0,
            side: OperationRole::Target,
            number: OperationNumber::default(),
            to: AddrHandle::from_bits(0),
            len: 0,
            count: 0,
            parts: [IoSegment::default(); MAX_SEGMENTS],
            entries: [EntryIndex(0); MAX_SEGMENTS],
        };
        RmaEngine {
            protocol: RmaProtocol::default(),
            slots: SlotAllocator::new(geometry.slots, geometry.mtu),
            slot_base: geometry.rma_slot_base(),
            copier: UserMemoryCopier::new(),
            frame_run,
            requests: Vec::new(),
            has_received_frames: false,
            in_flight: 0,
            frames_sent: 0,
        }
    }

    /// Whether the protocol has nothing to transmit.
    #[inline]
    pub(super) fn is_idle(&self) -> bool {
        self.protocol.is_idle()
    }

    #[inline]
    pub(super) fn has_received_frames(&self) -> bool {
        self.has_received_frames
    }

    pub(super) fn in_flight(&self) -> u64 {
        self.in_flight
    }

    pub(super) fn frames_sent(&self) -> u64 {
        self.frames_sent
    }

    /// Allocates a slot for a frame.
    pub(super) fn allocate_slot(&self) -> Option<SlotIndex> {
        Some(self.slot_base.slot(self.slots.allocate()?))
    }

    /// Frees the slot of a frame that was not sent.
    pub(super) fn free_slot(&self, slot: SlotIndex) {
        if let Some(slot) = self.slot_base.rma_slot(slot) {
            self.slots.release(slot);
        }
    }

    /// Frees the slot of a frame to `destination`.
    pub(super) fn on_slot_freed(&mut self, destination: u32, slot: RmaSlotIndex) {
        self.slots.release(slot);
        self.in_flight = self.in_flight.saturating_sub(1);
        self.protocol.on_frame_done(destination);
    }

    /// Returns how many frames may be sent to `node` now. No peer may use more slots than are free.
    pub(super) fn available_slots(&self, node: u32) -> usize {
        self.slots.len().saturating_sub(self.protocol.in_flight(node)).min(MAX_SEGMENTS as u64)
            as usize
    }
}
