//! Sending frames: copied into chunks, from wherever the bytes are, and one call to the kernel for
//! all.

// UNSAFETY: copies from the send slab; a call that makes the kernel look.
#![expect(unsafe_code)]

use super::{Xdp, raw};
use crate::device::ethernet::wire::{Elsewhere, Packet, Slab, transfer};
use crate::remote::{PARTS, Part};
use nix::errno::Errno;

/// Calls to the kernel for one batch; each takes up to 32 frames.
const KICKS: usize = 32;

impl Xdp {
    #[inline]
    pub fn send(&mut self, slab: &Slab, batch: &[Packet<'_>]) -> usize {
        let mut done = 0;
        for some in batch.chunks(PARTS) {
            let taken = self.put(slab, some);
            done += taken;
            if taken < some.len() {
                break;
            }
        }
        self.sending.publish();
        if done > 0 {
            self.kick();
        }
        done
    }

    /// Puts packets into the ring, and answers how many there was room for.
    fn put(&mut self, slab: &Slab, batch: &[Packet<'_>]) -> usize {
        let mut chunks = [None; PARTS];
        let (mut done, mut gathers) = (0, false);
        for (packet, chunk) in batch.iter().zip(&mut chunks) {
            match self.begin(slab, packet) {
                Ok(written) => *chunk = Some(written),
                Err(Some(errno)) => self.lost(errno),
                Err(None) => break,
            }
            gathers |= packet.more.len > 0;
            done += 1;
        }
        let (batch, chunks) = (&batch[..done], &mut chunks[..done]);
        if gathers {
            self.gather(batch, chunks);
        }
        for (packet, chunk) in batch.iter().zip(chunks) {
            let Some(chunk) = *chunk else { continue };
            let (addr, len) = (self.umem.at(chunk), (raw::HEADER + packet.total()) as u32);
            // It has as many places as there are chunks.
            self.sending.stage(libc::xdp_desc { addr, len, options: 0 });
            self.stats.sent += 1;
        }
        done
    }

    /// Writes all of a packet but what lies elsewhere to a chunk. None inside: there is none; else
    /// why it may not travel.
    fn begin(&mut self, slab: &Slab, packet: &Packet<'_>) -> Result<u32, Option<Errno>> {
        let (payload, header) = self.header(slab, packet).ok_or(Errno::EMSGSIZE)?;
        // Nothing leaves the ring while the link is down: that is no full queue.
        let chunk = self.chunk().ok_or(self.down)?;
        let inner = packet.header;
        let parts =
            [(header.as_ptr(), raw::HEADER), (inner.as_ptr(), inner.len()), (payload, packet.len)];
        // SAFETY: headers by their slices, the payload by the slab's promise.
        let written = unsafe { self.umem.write(chunk, parts, packet.more.len) };
        written.then_some(chunk).ok_or_else(|| {
            self.frames.give(chunk);
            Some(Errno::EMSGSIZE)
        })
    }

    /// Copies what lies elsewhere behind what is in the chunks; those of which that is not to be
    /// had are taken back.
    fn gather(&mut self, batch: &[Packet<'_>], chunks: &mut [Option<u32>]) {
        let mut begin = 0;
        while begin < batch.len() {
            let (mut parts, mut count) = ([Part::default(); PARTS], 0);
            let (from, mut end) = (batch[begin].more.at, batch[begin].more.at);
            for (packet, chunk) in batch[begin..].iter().zip(&chunks[begin..]) {
                let (Some(chunk), Elsewhere { at, len }) = (*chunk, packet.more) else { break };
                if at != end || len == 0 {
                    break;
                }
                let before = raw::HEADER + packet.total() - len;
                parts[count] = Part { at: self.umem.inside(chunk, before, len).addr(), len };
                (count, end) = (count + 1, end + len);
            }
            let run = begin..begin + count;
            // SAFETY: inside chunks that are ours, by `begin`.
            if unsafe { self.copier.gather(from, &parts[..count]) }.is_err() {
                for (i, part) in run.zip(parts) {
                    // SAFETY: as above.
                    let alone = unsafe { self.copier.gather(batch[i].more.at, &[part]) };
                    if alone.is_err()
                        && let Some(chunk) = chunks[i].take()
                    {
                        self.frames.give(chunk);
                        self.lost(Errno::EFAULT);
                    }
                }
            }
            begin += count.max(1);
        }
    }

    /// Payload and frame header; None: the packet may not travel.
    fn header(&self, slab: &Slab, packet: &Packet<'_>) -> Option<(*const u8, [u8; raw::HEADER])> {
        let (to, mtu) = *self.peers.get(packet.to as usize)?;
        let payload = slab.slice(packet.at, packet.len)?;
        let total = packet.total();
        (total > 0 && total <= mtu).then(|| (payload, raw::header(to, self.own.mac, total)))
    }

    /// A free send chunk, looking for completed ones if need be.
    #[inline]
    fn chunk(&mut self) -> Option<u32> {
        if let Some(frame) = self.frames.take() {
            return Some(frame);
        }
        self.collect();
        if self.frames.is_sent_out() && self.unkicked {
            self.kick();
        }
        self.frames.take()
    }

    /// Takes back what the kernel has sent.
    fn collect(&mut self) {
        while let Some(at) = self.completion.take() {
            if let Some(frame) = self.umem.number(at) {
                self.frames.give(frame);
            }
        }
        self.completion.free();
    }

    /// Has the kernel send what is in the ring.
    pub fn kick(&mut self) {
        self.unkicked = false;
        for _ in 0..KICKS {
            if !self.sending.is_pending() || !self.sending.needs_wakeup() {
                return;
            }
            self.stats.send_calls += 1;
            // SAFETY: an empty message: no memory is involved.
            let called =
                unsafe { transfer::send(&self.socket, std::ptr::null(), 0, transfer::NO_NAME) };
            match called {
                // Busy: the interface dropped a frame, for want of a carrier or of room.
                Ok(_) | Err(Errno::EAGAIN | Errno::EINTR | Errno::EBUSY) => {
                    self.down = None;
                    self.collect();
                }
                // No memory now; the next call tries again.
                Err(Errno::ENOBUFS) => break,
                Err(errno) => {
                    self.down = Some(errno);
                    self.fault = Some(super::Fault(errno));
                    break;
                }
            }
        }
        self.unkicked = self.sending.is_pending();
    }
}
