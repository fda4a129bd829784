//! Sends frames. They are copied into chunks from the slab and from user memory, and one system
//! call sends up to 32 frames.

// UNSAFETY: copies from the send slab, and makes the kernel read the ring.
#![expect(unsafe_code)]

use super::{Xdp, ether_header};
use crate::device::ethernet::wire::{Packet, SendMemory, UserBytes, socket_io};
use crate::rma::{IoSegment, MAX_SEGMENTS};
use nix::errno::Errno;

/// The most system calls for one batch. One call sends up to 32 frames.
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

    /// Adds packets to the ring, and returns how many are finished: added, or lost because they
    /// cannot be sent.
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
            // The ring has as many entries as there are send chunks, so there is room.
            self.tx_ring.stage(libc::xdp_desc { addr, len, options: 0 });
            self.stats.sent += 1;
        }
        done
    }

    /// Writes all of a packet except its user bytes to a chunk. Returns `Err(None)` if there is no
    /// free chunk. Other errors are the reason why the packet cannot be sent.
    fn write_packet(
        &mut self,
        slab: &SendMemory,
        packet: &Packet<'_>,
    ) -> Result<u32, Option<Errno>> {
        let (payload, header) = self.header(slab, packet).ok_or(Errno::EMSGSIZE)?;
        // While the link is down, frames stay in the ring. That is an error, and not a full queue.
        let chunk = self.acquire_chunk().ok_or(self.send_error)?;
        let machine_header = packet.header;
        let parts = [
            (header.as_ptr(), ether_header::HEADER),
            (machine_header.as_ptr(), machine_header.len()),
            (payload, packet.len),
        ];
        // SAFETY: the headers are slices, and the payload is readable by the contract of the slab.
        let written = unsafe { self.umem.write(chunk, parts, packet.user_bytes.len) };
        written.then_some(chunk).ok_or_else(|| {
            self.chunks.release_send(chunk);
            Some(Errno::EMSGSIZE)
        })
    }

    /// Copies user bytes to the chunks after the rest of each packet. If the user bytes of a packet
    /// are inaccessible, frees its chunk.
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
            // SAFETY: the parts are inside chunks that `write_packet` has acquired.
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

    /// Returns the payload and the frame header, or None if the packet cannot be sent.
    fn header(
        &self,
        slab: &SendMemory,
        packet: &Packet<'_>,
    ) -> Option<(*const u8, [u8; ether_header::HEADER])> {
        let (to, mtu) = *self.peers.get(packet.to.index())?;
        let payload = slab.slice(packet.offset, packet.len)?;
        let total = packet.total_len();
        (total > 0 && total <= mtu)
            .then(|| (payload, ether_header::header(to, self.local.mac, total)))
    }

    /// Acquires a free send chunk. If there is none, reclaims completed chunks first.
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
            // SAFETY: the message is empty, so the call accesses no memory.
            let result = unsafe {
                socket_io::send(&self.socket, std::ptr::null(), 0, socket_io::NO_ADDRESS)
            };
            match result {
                // EBUSY: the interface dropped a frame, because it has no carrier or no room.
                Ok(_) | Err(Errno::EAGAIN | Errno::EINTR | Errno::EBUSY) => {
                    self.send_error = None;
                    self.reclaim_completed();
                }
                // ENOBUFS: the kernel has no memory. The next call tries again.
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
