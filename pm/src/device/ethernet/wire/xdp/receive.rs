//! Taking frames where the kernel put them: they stay there until they are released.

#![forbid(unsafe_code)]

use super::{Xdp, raw};
use crate::device::ethernet::wire::{Received, pool};

impl Xdp {
    #[inline]
    pub fn receive(&mut self, out: &mut [Received]) -> usize {
        if self.unkicked {
            self.kick();
        }
        let (mut count, mut taken) = (0, false);
        while count < out.len()
            && let Some(entry) = self.receiving.take()
        {
            taken = true;
            match self.accept(entry) {
                Some(packet) => {
                    out[count] = packet;
                    count += 1;
                }
                None => self.stats.malformed += 1,
            }
        }
        if taken {
            self.receiving.free();
            self.stats.received += count as u64;
        }
        count
    }

    /// The packet in a frame. What is none goes back to the kernel, if it is a frame at all.
    fn accept(&mut self, entry: libc::xdp_desc) -> Option<Received> {
        let frame = self.umem.frame(entry.addr, entry.len as usize)?;
        if !self.frames.hold(frame.buffer) {
            return None;
        }
        let packet = self.check(frame);
        if packet.is_none() {
            self.release(frame.buffer);
        }
        packet
    }

    fn check(&self, frame: Received) -> Option<Received> {
        let at = self.umem.pointer(frame);
        let len = frame.len as usize;
        if at.is_null() || len < raw::HEADER {
            return None;
        }
        let header = pool::copy_head::<{ raw::HEADER }>(at);
        let len = raw::check(&header, len, self.own.port)?;
        let offset = frame.offset + raw::HEADER as u32;
        Some(Received { buffer: frame.buffer, offset, len: len as u32 })
    }

    #[inline]
    pub fn release(&mut self, buffer: u32) {
        if self.frames.release(buffer) {
            // It has as many places as there are chunks, so there is one.
            self.fill.push(self.umem.at(buffer));
        }
    }
}
