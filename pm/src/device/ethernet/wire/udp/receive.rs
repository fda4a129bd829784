//! Receives datagrams, and finds the packets in datagrams that the kernel has coalesced. The
//! receiver uses the length in front of each packet, because reading the segment size from the
//! kernel would make each poll slower.

// UNSAFETY: recv and recvmmsg into buffers of the pool.
#![expect(unsafe_code)]

use super::{BUFFER_HEADROOM, LENGTH_PREFIX_LEN, Udp, stride};
use crate::device::ethernet::wire::{RX_COPYBREAK, Received, pool, socket_io};
use nix::errno::Errno;
use std::mem::MaybeUninit;
use std::os::fd::AsRawFd;

/// The most datagrams that one call receives, after several datagrams have arrived in a row.
const BATCH: usize = 8;

/// The number of consecutive successful calls after which one call receives several datagrams.
const BATCH_THRESHOLD: u32 = 3;

/// A datagram with validated packets that were not returned yet.
#[derive(Clone, Copy)]
pub struct GroDatagram {
    buffer: u32,
    /// The offset of the next packet's length.
    next_offset: u32,
    end_offset: u32,
}

impl Udp {
    #[inline]
    pub fn receive(&mut self, out: &mut [Received]) -> usize {
        if !self.pending_datagrams.is_empty() || out.is_empty() {
            return self.hand_out(out);
        }
        let wanted = if self.nonempty_calls >= BATCH_THRESHOLD { BATCH } else { 1 };
        while self.ready_buffers.len() < wanted {
            let Some(buffer) = self.pool.acquire_large() else { break };
            self.ready_buffers.push(buffer);
        }
        let ready = self.ready_buffers.len().min(wanted);
        let mut lens = [0; BATCH];
        let mut received = 0;
        if ready == 0 {
            self.stats.starved += 1;
        } else if ready > 1 {
            received = self.receive_many(&mut lens[..ready]);
        } else if let Some(len) = self.receive_one() {
            if let Some(packet) = self.single_packet(len) {
                self.ready_buffers.pop();
                self.nonempty_calls += 1;
                self.stats.received += 1;
                out[0] = packet;
                return 1;
            }
            (lens[0], received) = (len, 1);
        }
        if received == 0 {
            self.nonempty_calls = 0;
            return 0;
        }
        // If a call received one datagram although it requested several, the burst is over.
        self.nonempty_calls = if ready > 1 && received == 1 { 0 } else { self.nonempty_calls + 1 };
        // The call has filled the last buffers of `ready_buffers`, beginning with the last one.
        let filled: [_; BATCH] = std::array::from_fn(|k| {
            if k < received { self.ready_buffers.pop().unwrap_or_default() } else { 0 }
        });
        for (buffer, len) in filled.iter().zip(&lens[..received]) {
            self.queue_datagram(*buffer, *len);
        }
        self.hand_out(out)
    }

    #[inline]
    fn hand_out(&mut self, out: &mut [Received]) -> usize {
        let mut count = 0;
        while let Some(&datagram) = self.pending_datagrams.front() {
            let mut datagram = datagram;
            while count < out.len()
                && let Some(len) = self.next_len(datagram)
            {
                let offset = datagram.next_offset + LENGTH_PREFIX_LEN as u32;
                out[count] = Received { buffer: datagram.buffer, offset, len: len as u32 };
                datagram.next_offset += stride(len) as u32;
                count += 1;
            }
            if self.next_len(datagram).is_some() {
                self.pending_datagrams[0] = datagram;
                break;
            }
            self.pending_datagrams.pop_front();
        }
        self.stats.received += count as u64;
        count
    }

    /// Returns the length of the next packet, or None if there is none or if it exceeds the
    /// datagram.
    #[inline]
    fn next_len(&self, datagram: GroDatagram) -> Option<usize> {
        let available = datagram.end_offset.checked_sub(datagram.next_offset)? as usize;
        let prefix = Received { buffer: datagram.buffer, offset: datagram.next_offset, len: 2 };
        let ptr = self.pool.pointer(prefix);
        if available <= LENGTH_PREFIX_LEN || ptr.is_null() {
            return None;
        }
        let len = usize::from(u16::from_be_bytes(pool::copy_prefix(ptr)));
        (len > 0 && LENGTH_PREFIX_LEN + len <= available).then_some(len)
    }

    /// Queues the packets of a datagram, or drops the datagram if it has none.
    #[inline]
    fn queue_datagram(&mut self, buffer: u32, len: usize) {
        let mut datagram = GroDatagram {
            buffer,
            next_offset: BUFFER_HEADROOM as u32,
            end_offset: (BUFFER_HEADROOM + len) as u32,
        };
        let mut packets = 0;
        while let Some(len) = self.next_len(datagram) {
            datagram.next_offset += stride(len) as u32;
            packets += 1;
        }
        // Only the padding of the last packet may follow that packet.
        if datagram.next_offset < datagram.end_offset || packets == 0 {
            self.stats.malformed += 1;
            datagram.end_offset = datagram.next_offset;
        }
        datagram.next_offset = BUFFER_HEADROOM as u32;
        if packets == 0 {
            self.ready_buffers.push(buffer);
            return;
        }
        if BUFFER_HEADROOM + len <= self.pool.small_size()
            && let Some(small) = self.pool.acquire_small()
        {
            self.pool.copy_to_small(buffer, BUFFER_HEADROOM + len, small);
            self.ready_buffers.push(buffer);
            datagram.buffer = small;
        }
        self.pool.set_refcount(datagram.buffer, packets);
        self.pending_datagrams.push_back(datagram);
    }

    /// Receives a datagram into the last ready buffer, and returns its length.
    #[inline]
    fn receive_one(&mut self) -> Option<usize> {
        let iovec = self.iovec_for(*self.ready_buffers.last()?);
        self.stats.receive_calls += 1;
        // SAFETY: this is a buffer of the pool that no other code uses, with its length.
        let result =
            unsafe { socket_io::receive(&self.socket, iovec.iov_base.cast(), iovec.iov_len) };
        result.inspect_err(|errno| self.on_receive_error(*errno)).ok()
    }

    /// Returns the packet of a short datagram in the last ready buffer, if the datagram contains
    /// only this packet. The packet stays in this buffer, because a caller that keeps it copies it.
    #[inline]
    fn single_packet(&self, datagram: usize) -> Option<Received> {
        let buffer = *self.ready_buffers.last()?;
        let start = BUFFER_HEADROOM as u32;
        let len = self.next_len(GroDatagram {
            buffer,
            next_offset: start,
            end_offset: start + datagram as u32,
        })?;
        let is_single = len < RX_COPYBREAK && LENGTH_PREFIX_LEN + len == datagram;
        is_single.then_some(Received {
            buffer,
            offset: start + LENGTH_PREFIX_LEN as u32,
            len: len as u32,
        })
    }

    #[cold]
    fn on_receive_error(&mut self, errno: Errno) {
        match errno {
            Errno::EAGAIN | Errno::EINTR => {}
            errno => self.fault = Some(super::WireFault(errno)),
        }
    }

    /// Returns the memory for a datagram in a buffer. It begins after the headroom, so that packets
    /// are aligned.
    fn iovec_for(&self, buffer: u32) -> libc::iovec {
        let (base, len) = self.pool.buffer(buffer);
        libc::iovec {
            iov_base: base.wrapping_add(BUFFER_HEADROOM).cast(),
            iov_len: len - BUFFER_HEADROOM,
        }
    }

    fn receive_many(&mut self, lens: &mut [usize]) -> usize {
        let wanted = lens.len();
        let mut iovecs: [libc::iovec; BATCH] =
            std::array::from_fn(|_| libc::iovec { iov_base: std::ptr::null_mut(), iov_len: 0 });
        for (iovec, &buffer) in iovecs.iter_mut().zip(self.ready_buffers.iter().rev().take(wanted))
        {
            *iovec = self.iovec_for(buffer);
        }
        // SAFETY: this is plain data, for which all zeros are an empty message.
        let mut messages: [libc::mmsghdr; BATCH] = unsafe { MaybeUninit::zeroed().assume_init() };
        for (to, iovec) in messages.iter_mut().zip(&mut iovecs) {
            to.msg_hdr.msg_iov = iovec;
            to.msg_hdr.msg_iovlen = 1;
        }
        self.stats.receive_calls += 1;
        // SAFETY: each of the first `wanted` messages points to its own buffer.
        let received = unsafe {
            libc::recvmmsg(
                self.socket.as_raw_fd(),
                messages.as_mut_ptr(),
                wanted as libc::c_uint,
                libc::MSG_DONTWAIT as _,
                std::ptr::null_mut(),
            )
        };
        if received < 0 {
            self.on_receive_error(Errno::last());
            return 0;
        }
        let received = (received as usize).min(wanted);
        for (to, from) in lens.iter_mut().zip(&messages[..received]) {
            // A truncated datagram is detected by the lengths of its packets.
            *to = (from.msg_len as usize).min(self.pool.large_size() - BUFFER_HEADROOM);
        }
        received
    }

    #[inline]
    pub fn release(&mut self, buffer: u32) {
        self.pool.release(buffer);
    }
}
