//! Sending frames: copied into chunks, and one call to the kernel for all.

// UNSAFETY: copies from the send slab; a call that makes the kernel look.
#![expect(unsafe_code)]

use super::{Xdp, raw};
use crate::device::ethernet::wire::{Packet, Slab, transfer};
use nix::errno::Errno;

/// Calls to the kernel for one batch; each takes up to 32 frames.
const KICKS: usize = 32;

impl Xdp {
    #[inline]
    pub fn send(&mut self, slab: &Slab, batch: &[Packet<'_>]) -> usize {
        let mut done = 0;
        for packet in batch {
            let Some((payload, header)) = self.header(slab, packet) else {
                self.lost(Errno::EMSGSIZE);
                done += 1;
                continue;
            };
            let Some(frame) = self.chunk() else {
                let Some(errno) = self.down else { break };
                // Nothing leaves the ring while the link is down: that is no full queue.
                self.lost(errno);
                done += 1;
                continue;
            };
            let inner = packet.header;
            let parts = [
                (header.as_ptr(), raw::HEADER),
                (inner.as_ptr(), inner.len()),
                (payload, packet.len),
            ];
            // SAFETY: headers by their slices, the payload by the slab's promise.
            let written = unsafe { self.umem.write(frame, parts) };
            let sent = written.is_some_and(|total| {
                let entry =
                    libc::xdp_desc { addr: self.umem.at(frame), len: total as u32, options: 0 };
                self.sending.stage(entry)
            });
            if !sent {
                self.frames.give(frame);
                break;
            }
            self.stats.sent += 1;
            done += 1;
        }
        self.sending.publish();
        if done > 0 {
            self.kick();
        }
        done
    }

    /// Payload and frame header; None: the packet may not travel.
    fn header(&self, slab: &Slab, packet: &Packet<'_>) -> Option<(*const u8, [u8; raw::HEADER])> {
        let (to, mtu) = *self.peers.get(packet.to as usize)?;
        let payload = slab.slice(packet.at, packet.len)?;
        let total = packet.total();
        let fits = total > 0 && total <= mtu && packet.more.len == 0;
        fits.then(|| (payload, raw::header(to, self.own.mac, total)))
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
