//! Receives frames in place. A frame stays in its chunk until it is released.

#![forbid(unsafe_code)]

use super::{Xdp, ether_header};
use crate::device::ethernet::wire::{Received, pool};

impl Xdp {
    #[inline]
    pub fn receive(&mut self, out: &mut [Received]) -> usize {
        if self.wakeup_pending {
            self.wake_kernel();
        }
        let (mut count, mut has_entries) = (0, false);
        while count < out.len()
            && let Some(entry) = self.rx_ring.pop()
        {
            has_entries = true;
            match self.accept(entry) {
                Some(packet) => {
                    out[count] = packet;
                    count += 1;
                }
                None => self.stats.malformed += 1,
            }
        }
        if has_entries {
            self.rx_ring.release_taken();
            self.stats.received += count as u64;
        }
        count
    }

    /// Returns the packet in a frame. If the frame contains no valid packet, returns its chunk to
    /// the kernel.
    fn accept(&mut self, entry: libc::xdp_desc) -> Option<Received> {
        let frame = self.umem.locate_frame(entry.addr, entry.len as usize)?;
        if !self.chunks.hold(frame.buffer) {
            return None;
        }
        let packet = self.check(frame);
        if packet.is_none() {
            self.release(frame.buffer);
        }
        packet
    }

    fn check(&self, frame: Received) -> Option<Received> {
        let ptr = self.umem.pointer(frame);
        let len = frame.len as usize;
        if ptr.is_null() || len < ether_header::HEADER {
            return None;
        }
        let header = pool::copy_prefix::<{ ether_header::HEADER }>(ptr);
        let len = ether_header::packet_len(&header, len, self.local.port)?;
        let offset = frame.offset + ether_header::HEADER as u32;
        Some(Received { buffer: frame.buffer, offset, len: len as u32 })
    }

    #[inline]
    pub fn release(&mut self, buffer: u32) {
        if self.chunks.release(buffer) {
            // The ring has as many entries as there are chunks, so there is room.
            self.fill_ring.push(self.umem.chunk_offset(buffer));
        }
    }
}
