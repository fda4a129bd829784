//! Sending frames: the header of the frame, the header of the machine and the payload, gathered.

// UNSAFETY: send, sendmsg and sendmmsg that gather from the send slab.
#![expect(unsafe_code)]

use super::{PacketWire, raw};
use crate::device::ethernet::wire::{Packet, Slab, transfer};
use nix::errno::Errno;
use std::mem::MaybeUninit;
use std::os::fd::AsRawFd;

/// Frames of one call.
const BATCH: usize = 32;
/// Frames up to this length are copied into one piece: cheaper than gathering.
const FLAT: usize = 256;

type Header = [u8; raw::HEADER];

impl PacketWire {
    #[inline]
    pub fn send(&mut self, slab: &Slab, batch: &[Packet<'_>]) -> usize {
        let mut done = 0;
        while done < batch.len() {
            let rest = &batch[done..];
            let Some(first) = self.header(slab, &rest[0]) else {
                self.lost(Errno::EMSGSIZE);
                done += 1;
                continue;
            };
            let sent = if rest.len() == 1 {
                self.send_one(slab, &rest[0], &first)
            } else {
                self.send_many(slab, rest)
            };
            match sent {
                Ok(sent) => {
                    self.stats.sent += sent as u64;
                    done += sent;
                }
                Err(Errno::EAGAIN | Errno::EINTR) => break,
                Err(Errno::ENOBUFS) => {
                    // Dropped by a queue of the interface that is full: the rest would be too.
                    self.lost(Errno::ENOBUFS);
                    return done + 1;
                }
                Err(errno) => {
                    self.lost(errno);
                    done += 1;
                }
            }
        }
        done
    }

    /// The frame's header; None: the packet may not travel.
    fn header(&self, slab: &Slab, packet: &Packet<'_>) -> Option<Header> {
        let (to, mtu) = *self.peers.get(packet.to as usize)?;
        slab.slice(packet.at, packet.len)?;
        let total = packet.total();
        (total > 0 && total <= mtu).then(|| raw::header(to, self.own.mac, total))
    }

    fn send_one(
        &mut self,
        slab: &Slab,
        packet: &Packet<'_>,
        header: &Header,
    ) -> nix::Result<usize> {
        let payload = slab.slice(packet.at, packet.len).ok_or(Errno::EFAULT)?;
        let total = raw::HEADER + packet.total();
        self.stats.send_calls += 1;
        if total <= FLAT && packet.more.len == 0 {
            let mut flat = [MaybeUninit::<u8>::uninit(); FLAT];
            let to = flat.as_mut_ptr().cast::<u8>();
            let inner = packet.header.len();
            // SAFETY: the three parts fit `flat` by the line above; all are readable, the payload
            // by the slab's promise.
            unsafe {
                to.copy_from_nonoverlapping(header.as_ptr(), raw::HEADER);
                to.add(raw::HEADER).copy_from_nonoverlapping(packet.header.as_ptr(), inner);
                to.add(raw::HEADER + inner).copy_from_nonoverlapping(payload, packet.len);
                return transfer::send(&self.socket, to, total, transfer::NO_NAME).map(|()| 1);
            }
        }
        let mut parts = parts(header, packet, payload);
        let (socket, message) = (self.socket.as_raw_fd(), message(&mut parts));
        // SAFETY: the message points to these parts, readable as above; the last one the kernel
        // checks.
        let code = unsafe { libc::sendmsg(socket, &raw const message, libc::MSG_DONTWAIT) };
        Errno::result(code).map(|_| 1)
    }

    /// Sends the beginning of a batch by one call.
    fn send_many(&mut self, slab: &Slab, batch: &[Packet<'_>]) -> nix::Result<usize> {
        let mut headers = [[0; raw::HEADER]; BATCH];
        let mut gathered = [const { [part(std::ptr::null(), 0); 4] }; BATCH];
        // SAFETY: plain data; all zero is an empty message.
        let mut messages: [libc::mmsghdr; BATCH] = unsafe { MaybeUninit::zeroed().assume_init() };
        let mut count = 0;
        for packet in batch.iter().take(BATCH) {
            // One that may not travel is found again and counted when it is the first.
            let Some(header) = self.header(slab, packet) else { break };
            let payload = slab.slice(packet.at, packet.len).ok_or(Errno::EFAULT)?;
            headers[count] = header;
            gathered[count] = parts(&headers[count], packet, payload);
            messages[count].msg_hdr = message(&mut gathered[count]);
            count += 1;
        }
        self.stats.send_calls += 1;
        let (socket, flags) = (self.socket.as_raw_fd(), libc::MSG_DONTWAIT);
        let first = messages.as_mut_ptr();
        // SAFETY: the first `count` messages point to parts that were set above; headers by their
        // slices and payloads by the slab's promise are readable, what is elsewhere the kernel
        // checks; nothing moves before the call.
        let code = unsafe { libc::sendmmsg(socket, first, count as libc::c_uint, flags as _) };
        Errno::result(code).map(|sent| (sent as usize).min(count))
    }
}

const fn part(at: *const u8, len: usize) -> libc::iovec {
    libc::iovec { iov_base: at.cast_mut().cast(), iov_len: len }
}

fn parts(header: &Header, packet: &Packet<'_>, payload: *const u8) -> [libc::iovec; 4] {
    let inner = packet.header;
    let more = part(packet.more.at as *const u8, packet.more.len);
    let payload = part(payload, packet.len);
    // The kernel looks at an empty piece, too.
    let (third, fourth) = if packet.len == 0 { (more, payload) } else { (payload, more) };
    [part(header.as_ptr(), raw::HEADER), part(inner.as_ptr(), inner.len()), third, fourth]
}

fn message(parts: &mut [libc::iovec; 4]) -> libc::msghdr {
    // SAFETY: plain data; all zero is an empty message.
    let mut message: libc::msghdr = unsafe { MaybeUninit::zeroed().assume_init() };
    message.msg_iov = parts.as_mut_ptr();
    message.msg_iovlen = (3 + usize::from(parts[3].iov_len > 0)) as _;
    message
}
