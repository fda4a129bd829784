//! Sending frames: they are copied into chunks from the slab and from user memory, and one system
//! call sends all of them.

// UNSAFETY: copies from the send slab; a call that makes the kernel read the ring.
#![expect(unsafe_code)]

use super::{Xdp, ether_header};
use crate::device::ethernet::wire::{Packet, SendMemory, UserBytes, socket_io};
use crate::rma::{IoSegment, MAX_SEGMENTS};
use nix::errno::Errno;

/// Calls to the kernel for one batch; each takes up to 32 frames.
const MAX_WAKEUPS: usize = 32;

impl Xdp {
    #[inline]
    pub fn send(&mut self, slab: &SendMemory, batch: &[Packet<'_>]) -> usize {
        let mut done = 0;
        for sub_batch in batch.chunks(MAX_SEGMENTS) {
            let staged = self.stage_packets(slab, sub_batch);
            done += staged;
            if staged < sub_batch.len() {
                break;
            }
        }
        self.tx_ring.publish();
        if done > 0 {
            self.wake_kernel();
        }
        done
    }

    /// Puts packets into the ring, and returns how many fitted.
    fn stage_packets(&mut self, slab: &SendMemory, batch: &[Packet<'_>]) -> usize {
        let mut chunks = [None; MAX_SEGMENTS];
        let (mut done, mut has_user_bytes) = (0, false);
        for (packet, chunk) in batch.iter().zip(&mut chunks) {
            match self.write_packet(slab, packet) {
                Ok(written) => *chunk = Some(written),
                Err(Some(errno)) => self.on_send_failed(errno),
                Err(None) => break,
            }
            has_user_bytes |= packet.user_bytes.len > 0;
            done += 1;
        }
        let (batch, chunks) = (&batch[..done], &mut chunks[..done]);
        if has_user_bytes {
            self.gather(batch, chunks);
        }
        for (packet, chunk) in batch.iter().zip(chunks) {
            let Some(chunk) = *chunk else { continue };
            let (addr, len) =
                (self.umem.chunk_offset(chunk), (ether_header::HEADER + packet.total_len()) as u32);
            // The ring has as many entries as there are chunks.
            self.tx_ring.stage(libc::xdp_desc { addr, len, options: 0 });
            self.stats.sent += 1;
        }
        done
    }

    /// Writes all of a packet except its user bytes to a chunk. `Err(None)`: there is no chunk;
    /// otherwise the reason why the packet cannot be sent.
    fn write_packet(
        &mut self,
        slab: &SendMemory,
        packet: &Packet<'_>,
    ) -> Result<u32, Option<Errno>> {
        let (payload, header) = self.header(slab, packet).ok_or(Errno::EMSGSIZE)?;
        // While the link is down, frames stay in the ring: this is not a full queue.
        let chunk = self.acquire_chunk().ok_or(self.send_error)?;
        let machine_header = packet.header;
        let parts = [
            (header.as_ptr(), ether_header::HEADER),
            (machine_header.as_ptr(), machine_header.len()),
            (payload, packet.len),
        ];
        // SAFETY: headers by their slices, the payload by the slab's promise.
        let written = unsafe { self.umem.write(chunk, parts, packet.user_bytes.len) };
        written.then_some(chunk).ok_or_else(|| {
            self.chunks.release_send(chunk);
            Some(Errno::EMSGSIZE)
        })
    }

    /// Copies user bytes to the chunks, after the rest of each packet. Chunks whose user bytes are
    /// inaccessible are freed.
    fn gather(&mut self, batch: &[Packet<'_>], chunks: &mut [Option<u32>]) {
        let mut start = 0;
        while start < batch.len() {
            let (mut parts, mut count) = ([IoSegment::default(); MAX_SEGMENTS], 0);
            let (source, mut end) = (batch[start].user_bytes.addr, batch[start].user_bytes.addr);
            for (packet, chunk) in batch[start..].iter().zip(&chunks[start..]) {
                let (Some(chunk), UserBytes { addr, len }) = (*chunk, packet.user_bytes) else {
                    break;
                };
                if addr != end || len == 0 {
                    break;
                }
                let offset = ether_header::HEADER + packet.total_len() - len;
                parts[count] =
                    IoSegment { addr: self.umem.chunk_ptr(chunk, offset, len).addr(), len };
                (count, end) = (count + 1, end + len);
            }
            let run = start..start + count;
            // SAFETY: inside chunks that were acquired by `write_packet`.
            if unsafe { self.copier.gather(source, &parts[..count]) }.is_err() {
                for (i, part) in run.zip(parts) {
                    // SAFETY: as above.
                    let copied = unsafe { self.copier.gather(batch[i].user_bytes.addr, &[part]) };
                    if copied.is_err()
                        && let Some(chunk) = chunks[i].take()
                    {
                        self.chunks.release_send(chunk);
                        self.on_send_failed(Errno::EFAULT);
                    }
                }
            }
            start += count.max(1);
        }
    }

    /// Payload and frame header, or None if the packet cannot be sent.
    fn header(
        &self,
        slab: &SendMemory,
        packet: &Packet<'_>,
    ) -> Option<(*const u8, [u8; ether_header::HEADER])> {
        let (to, mtu) = *self.peers.get(packet.to as usize)?;
        let payload = slab.slice(packet.offset, packet.len)?;
        let total = packet.total_len();
        (total > 0 && total <= mtu)
            .then(|| (payload, ether_header::header(to, self.local.mac, total)))
    }

    /// A free send chunk. If there is none, completed chunks are reclaimed first.
    #[inline]
    fn acquire_chunk(&mut self) -> Option<u32> {
        if let Some(chunk) = self.chunks.acquire_send() {
            return Some(chunk);
        }
        self.reclaim_completed();
        if self.chunks.has_no_free_send() && self.wakeup_pending {
            self.wake_kernel();
        }
        self.chunks.acquire_send()
    }

    /// Frees the chunks that the kernel has sent.
    fn reclaim_completed(&mut self) {
        while let Some(offset) = self.completion_ring.pop() {
            if let Some(chunk) = self.umem.chunk_index(offset) {
                self.chunks.release_send(chunk);
            }
        }
        self.completion_ring.release_taken();
    }

    /// Makes the kernel send the frames in the ring.
    pub fn wake_kernel(&mut self) {
        self.wakeup_pending = false;
        for _ in 0..MAX_WAKEUPS {
            if !self.tx_ring.is_pending() || !self.tx_ring.needs_wakeup() {
                return;
            }
            self.stats.send_calls += 1;
            // SAFETY: an empty message: no memory is involved.
            let result = unsafe {
                socket_io::send(&self.socket, std::ptr::null(), 0, socket_io::NO_ADDRESS)
            };
            match result {
                // Busy: the interface dropped a frame, for lack of a carrier or of room.
                Ok(_) | Err(Errno::EAGAIN | Errno::EINTR | Errno::EBUSY) => {
                    self.send_error = None;
                    self.reclaim_completed();
                }
                // No memory; the next call tries again.
                Err(Errno::ENOBUFS) => break,
                Err(errno) => {
                    self.send_error = Some(errno);
                    self.fault = Some(super::WireFault(errno));
                    break;
                }
            }
        }
        self.wakeup_pending = self.tx_ring.is_pending();
    }
}
