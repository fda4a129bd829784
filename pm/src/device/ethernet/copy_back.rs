//! Copies zero-copy frames back to the slab: frames that are sent again, frames that precede a
//! message, and all frames when memory is unlocked or the process exits.

// UNSAFETY: copies to frames of this process.
#![expect(unsafe_code)]

use super::engine::EthernetEngine;
use super::rma_data::report_failure;
use super::transmit::{BATCH, slot_of};
use crate::device::net_common::indices::SlotIndex;
use crate::device::net_common::layout::SendSlotState;
use crate::rma::{IoSegment, MAX_SEGMENTS};
use score_pm_reliability::packet_header::PacketKind;

impl EthernetEngine {
    /// Copies back the frames that precede a message to `node`. The message implies that earlier
    /// writes are complete, so their bytes must be in the slab, where they outlive this process.
    #[inline]
    pub(super) fn copy_back_for(&mut self, node: u32) {
        if !self.transmitter.zero_copy.is_empty() {
            self.copy_back_all(Some(node));
        }
    }

    /// Copies back all zero-copy frames. `node` limits them to the frames of writes to this node.
    #[cold]
    pub(super) fn copy_back_all(&mut self, node: Option<u32>) {
        let slots = self.transmitter.zero_copy.slots(node);
        self.copy_back(&slots);
    }

    /// Copies deferred packets to the slab and sends them again.
    #[cold]
    pub(super) fn send_deferred(&mut self) {
        let deferred = std::mem::take(&mut self.transmitter.deferred);
        let slots: Vec<SlotIndex> = deferred.iter().filter_map(slot_of).collect();
        self.copy_back(&slots);
        for batch in deferred.chunks(BATCH) {
            self.transmitter.send(&self.slab, batch);
        }
    }

    fn copy_back(&mut self, slots: &[SlotIndex]) {
        let mut rest = slots;
        while !rest.is_empty() {
            let count = self.transmitter.zero_copy.contiguous_count(rest).min(MAX_SEGMENTS);
            let (run, more) = rest.split_at(count);
            if self.try_copy_back(run).is_err() {
                run.iter().for_each(|slot| self.copy_back_one(*slot));
            }
            rest = more;
        }
    }

    /// Copies back one frame. If its bytes are no longer accessible, the operation fails.
    fn copy_back_one(&mut self, slot: SlotIndex) {
        let (Err(why), Some(frame)) =
            (self.try_copy_back(&[slot]), self.transmitter.zero_copy.frame(slot))
        else {
            return;
        };
        report_failure(frame.peer, &why);
        self.transmitter.zero_copy.discard(slot);
        self.rma.protocol.fail_operation(frame.peer, frame.side, frame.number);
    }

    /// Copies back frames whose bytes are contiguous in user memory. Returns the reason if they are
    /// not accessible.
    fn try_copy_back(&mut self, run: &[SlotIndex]) -> Result<(), String> {
        let Some(first) = self.transmitter.zero_copy.frame(run[0]) else { return Ok(()) };
        let mut parts = [IoSegment::default(); MAX_SEGMENTS];
        let mut bytes = 0;
        for (part, slot) in parts.iter_mut().zip(run) {
            let len = self.transmitter.zero_copy.frame(*slot).map_or(0, |frame| frame.bytes.len);
            let addr = self.slab.payload(*slot).addr();
            *part = IoSegment { addr, len };
            bytes += len;
        }
        let source_addr = match first.region {
            None => Ok(first.bytes.addr),
            Some(handle) => self.rma_requests.find(handle, bytes),
        };
        let source_addr = source_addr.map_err(|_| "it is not locked".to_owned())?;
        // SAFETY: the parts are frames of slots that belong to this process until they are
        // acknowledged.
        let copied = unsafe { self.rma.copier.gather(source_addr, &parts[..run.len()]) };
        copied.map_err(|error| error.to_string())?;
        for slot in run {
            let Some(frame) = self.transmitter.zero_copy.frame(*slot) else { continue };
            let published = SendSlotState::new(frame.bytes.len, PacketKind::Continuation);
            self.slab.replace(*slot, published);
            self.transmitter.zero_copy.set_in_slab(*slot);
        }
        Ok(())
    }
}
