//! Receiving datagrams, and finding the packets in those that the kernel put together. Each packet
//! says its length itself: asking the kernel for the segments' size costs 150 ns a poll.

// UNSAFETY: recv and recvmmsg into buffers of the pool.
#![expect(unsafe_code)]

use super::{LEAD, PREFIX, Udp, stride};
use crate::device::ethernet::wire::{COPIED, Received, pool, transfer};
use nix::errno::Errno;
use std::mem::MaybeUninit;
use std::os::fd::AsRawFd;

/// Datagrams received by one call, once it is known that several come.
const BATCH: usize = 8;

/// After so many calls in a row that found one datagram, several are asked for.
const STREAK: u32 = 3;

/// A datagram whose packets are not all handed out: it was walked to its end and is sound.
#[derive(Clone, Copy)]
pub struct Segments {
    buffer: u32,
    /// Where the next packet's length stands.
    next: u32,
    end: u32,
}

impl Udp {
    #[inline]
    pub fn receive(&mut self, out: &mut [Received]) -> usize {
        if !self.waiting.is_empty() || out.is_empty() {
            return self.hand_out(out);
        }
        let wanted = if self.streak >= STREAK { BATCH } else { 1 };
        while self.landing.len() < wanted {
            let Some(buffer) = self.pool.take_large() else { break };
            self.landing.push(buffer);
        }
        let ready = self.landing.len().min(wanted);
        let mut lens = [0; BATCH];
        let mut came = 0;
        if ready == 0 {
            self.stats.starved += 1;
        } else if ready > 1 {
            came = self.receive_many(&mut lens[..ready]);
        } else if let Some(len) = self.receive_one() {
            if let Some(packet) = self.only_packet(len) {
                self.landing.pop();
                self.streak += 1;
                self.stats.received += 1;
                out[0] = packet;
                return 1;
            }
            (lens[0], came) = (len, 1);
        }
        if came == 0 {
            self.streak = 0;
            return 0;
        }
        // One of several asked for: the rush is over.
        self.streak = if ready > 1 && came == 1 { 0 } else { self.streak + 1 };
        // The last ones of `landing` were filled, the last one first.
        let filled: [_; BATCH] =
            std::array::from_fn(
                |k| {
                    if k < came { self.landing.pop().unwrap_or_default() } else { 0 }
                },
            );
        for (buffer, one) in filled.iter().zip(&lens[..came]) {
            self.accept(*buffer, *one);
        }
        self.hand_out(out)
    }

    #[inline]
    fn hand_out(&mut self, out: &mut [Received]) -> usize {
        let mut count = 0;
        while let Some(&segments) = self.waiting.front() {
            let mut segments = segments;
            while count < out.len()
                && let Some(len) = self.length(segments)
            {
                let offset = segments.next + PREFIX as u32;
                out[count] = Received { buffer: segments.buffer, offset, len: len as u32 };
                segments.next += stride(len) as u32;
                count += 1;
            }
            if self.length(segments).is_some() {
                self.waiting[0] = segments;
                break;
            }
            self.waiting.pop_front();
        }
        self.stats.received += count as u64;
        count
    }

    /// The length of the next packet; None: there is none, or it does not end inside.
    #[inline]
    fn length(&self, segments: Segments) -> Option<usize> {
        let room = segments.end.checked_sub(segments.next)? as usize;
        let prefix = Received { buffer: segments.buffer, offset: segments.next, len: 2 };
        let at = self.pool.pointer(prefix);
        if room <= PREFIX || at.is_null() {
            return None;
        }
        let len = usize::from(u16::from_be_bytes(pool::copy_head(at)));
        (len > 0 && PREFIX + len <= room).then_some(len)
    }

    /// Queues the packets of a datagram, or drops what is none.
    #[inline]
    fn accept(&mut self, buffer: u32, len: usize) {
        let mut segments = Segments { buffer, next: LEAD as u32, end: (LEAD + len) as u32 };
        let mut packets = 0;
        while let Some(len) = self.length(segments) {
            segments.next += stride(len) as u32;
            packets += 1;
        }
        // Behind the last one there may be its padding, and nothing else.
        if segments.next < segments.end || packets == 0 {
            self.stats.malformed += 1;
            segments.end = segments.next;
        }
        segments.next = LEAD as u32;
        if packets == 0 {
            self.landing.push(buffer);
            return;
        }
        if LEAD + len <= self.pool.small_size()
            && let Some(small) = self.pool.take_small()
        {
            self.pool.move_to_small(buffer, LEAD + len, small);
            self.landing.push(buffer);
            segments.buffer = small;
        }
        self.pool.hold(segments.buffer, packets);
        self.waiting.push_back(segments);
    }

    /// The length of a datagram that came to the next landing place.
    #[inline]
    fn receive_one(&mut self) -> Option<usize> {
        let part = self.part(*self.landing.last()?);
        self.stats.receive_calls += 1;
        // SAFETY: a buffer of the pool that nobody else uses, and its length.
        let came = unsafe { transfer::receive(&self.socket, part.iov_base.cast(), part.iov_len) };
        came.inspect_err(|errno| self.receive_failed(*errno)).ok()
    }

    /// The packet of a short datagram that came to the next landing place and holds nothing else:
    /// it stays there, whoever keeps it copies it.
    #[inline]
    fn only_packet(&self, datagram: usize) -> Option<Received> {
        let buffer = *self.landing.last()?;
        let next = LEAD as u32;
        let len = self.length(Segments { buffer, next, end: next + datagram as u32 })?;
        let alone = len < COPIED && PREFIX + len == datagram;
        alone.then_some(Received { buffer, offset: next + PREFIX as u32, len: len as u32 })
    }

    #[cold]
    fn receive_failed(&mut self, errno: Errno) {
        match errno {
            Errno::EAGAIN | Errno::EINTR => {}
            errno => self.fault = Some(super::Fault(errno)),
        }
    }

    /// Where a datagram goes: behind the lead, so that packets lie aligned.
    fn part(&self, buffer: u32) -> libc::iovec {
        let (base, len) = self.pool.buffer(buffer);
        libc::iovec { iov_base: base.wrapping_add(LEAD).cast(), iov_len: len - LEAD }
    }

    fn receive_many(&mut self, lens: &mut [usize]) -> usize {
        let wanted = lens.len();
        let mut parts: [libc::iovec; BATCH] =
            std::array::from_fn(|_| libc::iovec { iov_base: std::ptr::null_mut(), iov_len: 0 });
        for (part, &buffer) in parts.iter_mut().zip(self.landing.iter().rev().take(wanted)) {
            *part = self.part(buffer);
        }
        // SAFETY: plain data; all zero is an empty message.
        let mut messages: [libc::mmsghdr; BATCH] = unsafe { MaybeUninit::zeroed().assume_init() };
        for (to, part) in messages.iter_mut().zip(&mut parts) {
            to.msg_hdr.msg_iov = part;
            to.msg_hdr.msg_iovlen = 1;
        }
        self.stats.receive_calls += 1;
        // SAFETY: each of the first `wanted` messages points to a buffer of its own.
        let came = unsafe {
            libc::recvmmsg(
                self.socket.as_raw_fd(),
                messages.as_mut_ptr(),
                wanted as libc::c_uint,
                libc::MSG_DONTWAIT as _,
                std::ptr::null_mut(),
            )
        };
        if came < 0 {
            self.receive_failed(Errno::last());
            return 0;
        }
        let came = (came as usize).min(wanted);
        for (to, from) in lens.iter_mut().zip(&messages[..came]) {
            // One that was cut is found out by its packets' lengths.
            *to = (from.msg_len as usize).min(self.pool.large_size() - LEAD);
        }
        came
    }

    #[inline]
    pub fn release(&mut self, buffer: u32) {
        self.pool.release(buffer);
    }
}
