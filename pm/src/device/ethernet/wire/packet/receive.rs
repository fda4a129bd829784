//! Receives frames from the ring. Packets are copied to buffers, because a frame that a receiver
//! keeps would stop the whole ring when the kernel reaches it.

// UNSAFETY: copies from the mapped ring.
#![expect(unsafe_code)]

use super::PacketWire;
use super::ether_header;
use super::ring::Frame;
use crate::device::ethernet::wire::{Received, pool};

impl PacketWire {
    #[inline]
    pub fn receive(&mut self, out: &mut [Received]) -> usize {
        let mut count = 0;
        while count < out.len()
            && let Some(frame) = self.ring.peek()
        {
            match frame.and_then(|frame| Some((frame, self.check(frame)?))) {
                None => self.stats.malformed += 1,
                Some((frame, len)) => {
                    let Some(buffer) = self.pool.acquire_small() else {
                        self.stats.starved += 1;
                        break;
                    };
                    // SAFETY: the packet is inside the frame, by `check`, and the ring is not part
                    // of the pool.
                    unsafe { self.pool.fill(buffer, frame.data.add(ether_header::HEADER), len) };
                    out[count] = Received { buffer, offset: 0, len: len as u32 };
                    count += 1;
                }
            }
            self.ring.pop();
        }
        self.stats.received += count as u64;
        count
    }

    /// Returns the length of the packet in a frame, or None if the frame is malformed.
    fn check(&self, frame: Frame) -> Option<usize> {
        // A frame is at least as long as its header.
        let header = pool::copy_prefix::<{ ether_header::HEADER }>(frame.data);
        ether_header::packet_len(&header, frame.len, self.local.port)
            .filter(|len| *len <= self.pool.small_size())
    }

    #[inline]
    pub fn release(&mut self, buffer: u32) {
        self.pool.release(buffer);
    }
}
