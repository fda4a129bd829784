//! Sends frames. The kernel gathers the frame's header, the machine's header, the payload and the
//! user bytes.

// UNSAFETY: sendto, sendmsg and sendmmsg, which gather from the send slab.
#![expect(unsafe_code)]

use super::{PacketWire, ether_header};
use crate::device::ethernet::wire::{Packet, SendMemory, socket_io};
use nix::errno::Errno;
use std::mem::MaybeUninit;
use std::os::fd::AsRawFd;

/// The most frames of one call.
const BATCH: usize = 32;
/// Single frames up to this length are copied into one buffer, because a copy is faster than
/// gathering.
const TX_COPYBREAK: usize = 256;

type FrameHeader = [u8; ether_header::HEADER];

impl PacketWire {
    #[inline]
    pub fn send(&mut self, slab: &SendMemory, batch: &[Packet<'_>]) -> usize {
        let mut done = 0;
        while done < batch.len() {
            let rest = &batch[done..];
            let Some(first) = self.header(slab, &rest[0]) else {
                self.on_send_failed(Errno::EMSGSIZE);
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
                    // The kernel dropped the frame because a queue of the interface is full. It
                    // would also drop the rest.
                    self.on_send_failed(Errno::ENOBUFS);
                    return done + 1;
                }
                Err(errno) => {
                    self.on_send_failed(errno);
                    done += 1;
                }
            }
        }
        done
    }

    /// Returns the frame's header, or None if the packet cannot be sent.
    fn header(&self, slab: &SendMemory, packet: &Packet<'_>) -> Option<FrameHeader> {
        let (to, mtu) = *self.peers.get(packet.to.index())?;
        slab.slice(packet.offset, packet.len)?;
        let total = packet.total_len();
        (total > 0 && total <= mtu).then(|| ether_header::header(to, self.local.mac, total))
    }

    fn send_one(
        &mut self,
        slab: &SendMemory,
        packet: &Packet<'_>,
        header: &FrameHeader,
    ) -> nix::Result<usize> {
        let payload = slab.slice(packet.offset, packet.len).ok_or(Errno::EFAULT)?;
        let total = ether_header::HEADER + packet.total_len();
        self.stats.send_calls += 1;
        if total <= TX_COPYBREAK && packet.user_bytes.len == 0 {
            let mut buf = [MaybeUninit::<u8>::uninit(); TX_COPYBREAK];
            let to = buf.as_mut_ptr().cast::<u8>();
            let machine_header_len = packet.header.len();
            // SAFETY: the three parts fit into `buf` by the condition above. All are readable, the
            // payload by the contract of the slab.
            unsafe {
                to.copy_from_nonoverlapping(header.as_ptr(), ether_header::HEADER);
                to.add(ether_header::HEADER)
                    .copy_from_nonoverlapping(packet.header.as_ptr(), machine_header_len);
                to.add(ether_header::HEADER + machine_header_len)
                    .copy_from_nonoverlapping(payload, packet.len);
                return socket_io::send(&self.socket, to, total, socket_io::NO_ADDRESS).map(|()| 1);
            }
        }
        let mut iovecs = packet_iovecs(header, packet, payload);
        let (socket, message) = (self.socket.as_raw_fd(), message(&mut iovecs));
        // SAFETY: the message points to these parts. The headers and the payload are readable as
        // above, and the kernel checks the user bytes.
        let code = unsafe { libc::sendmsg(socket, &raw const message, libc::MSG_DONTWAIT) };
        Errno::result(code).map(|_| 1)
    }

    /// Sends the first packets of a batch with one call.
    fn send_many(&mut self, slab: &SendMemory, batch: &[Packet<'_>]) -> nix::Result<usize> {
        let mut headers = [[0; ether_header::HEADER]; BATCH];
        let mut iovecs = [const { [iovec(std::ptr::null(), 0); 4] }; BATCH];
        // SAFETY: this is plain data, for which all zeros are an empty message.
        let mut messages: [libc::mmsghdr; BATCH] = unsafe { MaybeUninit::zeroed().assume_init() };
        let mut count = 0;
        for packet in batch.iter().take(BATCH) {
            // A packet that cannot be sent is counted when it is the first of a batch.
            let Some(header) = self.header(slab, packet) else { break };
            let payload = slab.slice(packet.offset, packet.len).ok_or(Errno::EFAULT)?;
            headers[count] = header;
            iovecs[count] = packet_iovecs(&headers[count], packet, payload);
            messages[count].msg_hdr = message(&mut iovecs[count]);
            count += 1;
        }
        self.stats.send_calls += 1;
        let (socket, flags) = (self.socket.as_raw_fd(), libc::MSG_DONTWAIT);
        let first = messages.as_mut_ptr();
        // SAFETY: the first `count` messages point to parts that were set above and do not move
        // before the call. The headers are slices, the payloads are readable by the contract of the
        // slab, and the kernel checks the user bytes.
        let code = unsafe { libc::sendmmsg(socket, first, count as libc::c_uint, flags as _) };
        Errno::result(code).map(|sent| (sent as usize).min(count))
    }
}

const fn iovec(ptr: *const u8, len: usize) -> libc::iovec {
    libc::iovec { iov_base: ptr.cast_mut().cast(), iov_len: len }
}

fn packet_iovecs(
    header: &FrameHeader,
    packet: &Packet<'_>,
    payload: *const u8,
) -> [libc::iovec; 4] {
    let machine_header = packet.header;
    let user_bytes = iovec(packet.user_bytes.addr as *const u8, packet.user_bytes.len);
    let payload = iovec(payload, packet.len);
    // An empty part also costs the kernel time, so an empty payload is the last part, which is left
    // out.
    let (third, fourth) =
        if packet.len == 0 { (user_bytes, payload) } else { (payload, user_bytes) };
    [
        iovec(header.as_ptr(), ether_header::HEADER),
        iovec(machine_header.as_ptr(), machine_header.len()),
        third,
        fourth,
    ]
}

fn message(iovecs: &mut [libc::iovec; 4]) -> libc::msghdr {
    // SAFETY: this is plain data, for which all zeros are an empty message.
    let mut message: libc::msghdr = unsafe { MaybeUninit::zeroed().assume_init() };
    message.msg_iov = iovecs.as_mut_ptr();
    message.msg_iovlen = (3 + usize::from(iovecs[3].iov_len > 0)) as _;
    message
}
