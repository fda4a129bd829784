//! Receiving datagrams, and taking apart those that the kernel put together.

// UNSAFETY: recvmsg and recvmmsg into buffers of the pool.
#![expect(unsafe_code)]

use super::Udp;
use crate::device::ethernet::wire::Received;
use nix::errno::Errno;
use std::mem::MaybeUninit;
use std::os::fd::AsRawFd;

/// Datagrams received by one call, once it is known that several come.
const BATCH: usize = 8;

/// Room for one control message with the size of segments, and for one nobody asked for.
#[repr(C, align(8))]
#[derive(Clone, Copy)]
struct Control([u8; 64]);

/// A datagram of several packets of equal length, the last one perhaps shorter.
#[derive(Clone, Copy)]
pub struct Segments {
    buffer: u32,
    offset: u32,
    end: u32,
    size: u32,
}

impl Segments {
    fn next(&mut self) -> Option<Received> {
        let len = self.size.min(self.end - self.offset);
        let packet = Received { buffer: self.buffer, offset: self.offset, len };
        self.offset += len;
        (len > 0).then_some(packet)
    }
}

/// What the kernel said about a datagram.
#[derive(Clone, Copy, Default)]
struct Arrived {
    len: usize,
    /// Length of its segments; 0: it is one packet.
    segment: usize,
    /// It was longer than the buffer.
    cut: bool,
}

impl Udp {
    #[inline]
    pub fn receive(&mut self, out: &mut [Received]) -> usize {
        if !self.waiting.is_empty() || out.is_empty() {
            return self.hand_out(out);
        }
        let wanted = if self.busy { BATCH } else { 1 };
        while self.landing.len() < wanted {
            let Some(buffer) = self.pool.take_large() else { break };
            self.landing.push(buffer);
        }
        let ready = self.landing.len().min(wanted);
        if ready == 0 {
            self.stats.starved += 1;
            return 0;
        }
        let mut arrived = [Arrived::default(); BATCH];
        let came = if ready == 1 {
            self.receive_one(&mut arrived[0])
        } else {
            self.receive_many(&mut arrived[..ready])
        };
        self.busy = came > 0;
        if came == 0 {
            return 0;
        }
        // The last ones of `landing` were filled, the last one first.
        let filled: [_; BATCH] =
            std::array::from_fn(
                |k| {
                    if k < came { self.landing.pop().unwrap_or_default() } else { 0 }
                },
            );
        for (buffer, one) in filled.iter().zip(&arrived[..came]) {
            self.accept(*buffer, *one);
        }
        self.hand_out(out)
    }

    fn hand_out(&mut self, out: &mut [Received]) -> usize {
        let mut count = 0;
        while let Some(first) = self.waiting.front_mut() {
            while count < out.len()
                && let Some(packet) = first.next()
            {
                out[count] = packet;
                count += 1;
            }
            if first.offset < first.end {
                break;
            }
            self.waiting.pop_front();
        }
        self.stats.received += count as u64;
        count
    }

    /// Queues the packets of a datagram, or drops what is none.
    fn accept(&mut self, buffer: u32, arrived: Arrived) {
        let Arrived { len, segment, cut } = arrived;
        if len == 0 || cut || len > self.pool.large_size() {
            self.stats.malformed += 1;
            self.landing.push(buffer);
            return;
        }
        let size = if segment == 0 { len } else { segment };
        if size >= len
            && len <= self.pool.small_size()
            && let Some(small) = self.pool.take_small()
        {
            self.pool.move_to_small(buffer, len, small);
            self.landing.push(buffer);
            self.queue(small, len, len);
            return;
        }
        let packets = len.div_ceil(size);
        self.pool.hold(buffer, packets as u16);
        self.queue(buffer, len, size);
    }

    fn queue(&mut self, buffer: u32, len: usize, size: usize) {
        let segments = Segments { buffer, offset: 0, end: len as u32, size: size as u32 };
        self.waiting.push_back(segments);
    }

    #[inline]
    fn receive_one(&mut self, arrived: &mut Arrived) -> usize {
        let Some(&buffer) = self.landing.last() else { return 0 };
        let mut part = self.part(buffer);
        let mut control = Control([0; 64]);
        let mut message = message(&mut part, &mut control);
        self.stats.receive_calls += 1;
        // SAFETY: the message points to a buffer of the pool that nobody else uses and to the
        // locals above, with their lengths.
        let len =
            unsafe { libc::recvmsg(self.socket.as_raw_fd(), &raw mut message, libc::MSG_DONTWAIT) };
        if len < 0 {
            self.receive_failed();
            return 0;
        }
        *arrived = told(&message, len as usize);
        1
    }

    #[cold]
    fn receive_failed(&mut self) {
        match Errno::last() {
            Errno::EAGAIN | Errno::EINTR => {}
            errno => self.fault = Some(super::Fault(errno)),
        }
    }

    fn part(&self, buffer: u32) -> libc::iovec {
        let (base, len) = self.pool.buffer(buffer);
        libc::iovec { iov_base: base.cast(), iov_len: len }
    }

    fn receive_many(&mut self, arrived: &mut [Arrived]) -> usize {
        let wanted = arrived.len();
        let mut controls = [Control([0; 64]); BATCH];
        let mut parts: [libc::iovec; BATCH] =
            std::array::from_fn(|_| libc::iovec { iov_base: std::ptr::null_mut(), iov_len: 0 });
        for (part, &buffer) in parts.iter_mut().zip(self.landing.iter().rev().take(wanted)) {
            *part = self.part(buffer);
        }
        // SAFETY: plain data; all zero is an empty message.
        let mut messages: [libc::mmsghdr; BATCH] = unsafe { MaybeUninit::zeroed().assume_init() };
        let both = parts.iter_mut().zip(&mut controls);
        for (to, (part, control)) in messages.iter_mut().zip(both) {
            to.msg_hdr = message(part, control);
        }
        self.stats.receive_calls += 1;
        // SAFETY: each of the first `wanted` messages points to a buffer of its own and to locals.
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
            self.receive_failed();
            return 0;
        }
        let came = (came as usize).min(wanted);
        for (to, from) in arrived.iter_mut().zip(&messages[..came]) {
            *to = told(&from.msg_hdr, from.msg_len as usize);
        }
        came
    }

    #[inline]
    pub fn release(&mut self, buffer: u32) {
        self.pool.release(buffer);
    }
}

fn message(part: &mut libc::iovec, control: &mut Control) -> libc::msghdr {
    // SAFETY: plain data; all zero is an empty message.
    let mut message: libc::msghdr = unsafe { MaybeUninit::zeroed().assume_init() };
    message.msg_iov = part;
    message.msg_iovlen = 1;
    message.msg_control = control.0.as_mut_ptr().cast();
    message.msg_controllen = control.0.len() as _;
    message
}

/// Length, segment size and cut of a message that the kernel filled.
#[inline]
fn told(message: &libc::msghdr, len: usize) -> Arrived {
    let cut = message.msg_flags & libc::MSG_TRUNC != 0;
    let mut segment = 0;
    // SAFETY: the kernel set the control's length to what it wrote, inside the buffer given.
    let mut one = unsafe { libc::CMSG_FIRSTHDR(message) };
    while !one.is_null() {
        // SAFETY: CMSG_FIRSTHDR and CMSG_NXTHDR answer whole headers inside the buffer or null.
        let header = unsafe { one.read() };
        if header.cmsg_level == libc::SOL_UDP && header.cmsg_type == libc::UDP_GRO {
            // SAFETY: the kernel writes an int there; unaligned reads are allowed.
            let size = unsafe { libc::CMSG_DATA(one).cast::<libc::c_int>().read_unaligned() };
            segment = size.max(0) as usize;
        }
        // SAFETY: as above.
        one = unsafe { libc::CMSG_NXTHDR(message, one) };
    }
    Arrived { len, segment, cut }
}
