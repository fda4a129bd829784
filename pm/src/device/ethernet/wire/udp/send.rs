//! Sending datagrams: one by one where there is one, else in runs that the kernel segments.

// UNSAFETY: sendmsg and sendmmsg, and copies from the send slab.
#![expect(unsafe_code)]

use super::{Destination, PREFIX, Udp, stride};
use crate::device::ethernet::wire::{Packet, Slab, transfer};
use nix::errno::Errno;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, OwnedFd};

/// Pieces of one call: of a packet three at most.
const PIECES: usize = 3 * SEGMENTS;
/// Datagrams of one call.
const RUNS: usize = 16;
/// Packets of one call.
const PACKETS: usize = 128;
/// Segments of a datagram: what every kernel with UDP_SEGMENT takes.
const SEGMENTS: usize = 64;
/// Bytes of a datagram before it is segmented, headers left out.
const DATAGRAM: usize = 65_000;
/// Bytes of all datagrams of one call: at least one of them, and little enough for a cache.
pub const STAGING: usize = 128 << 10;
/// Shorter payloads are copied in any case: that is quicker than a piece of their own.
const IN_PLACE: usize = 512;
/// Packets up to this length are copied into one piece: cheaper than gathering.
const FLAT: usize = 256;

/// Room for the control message that says how long segments are.
#[repr(C, align(8))]
#[derive(Clone, Copy)]
struct Control([u8; 32]);

/// Consecutive packets of a batch that go as one datagram.
#[derive(Clone, Copy, Default)]
struct Run {
    first: usize,
    packets: usize,
}

impl Udp {
    #[inline]
    pub fn send(&mut self, slab: &Slab, batch: &[Packet<'_>]) -> usize {
        let mut done = 0;
        while done < batch.len() {
            let rest = &batch[done..];
            let taken =
                if let [one] = rest { self.send_one(slab, one) } else { self.runs(slab, rest) };
            if taken == 0 {
                break;
            }
            done += taken;
        }
        done
    }

    /// Whether it may travel at all; else it is counted.
    fn fits(&mut self, slab: &Slab, packet: &Packet<'_>) -> bool {
        let peer = self.peers.get(packet.to as usize);
        let short = peer.is_some_and(|peer| packet.total() <= peer.mtu);
        let fits = short && packet.total() > 0 && slab.slice(packet.at, packet.len).is_some();
        if !fits {
            self.lost(Errno::EMSGSIZE, 1);
        }
        fits
    }

    fn send_one(&mut self, slab: &Slab, packet: &Packet<'_>) -> usize {
        if !self.fits(slab, packet) {
            return 1;
        }
        let Some(payload) = slab.slice(packet.at, packet.len) else { return 1 };
        let prefix = prefix(packet);
        let (mut flat, mut parts) = ([MaybeUninit::<u8>::uninit(); FLAT], [part(&[]); 4]);
        let gathered = [&prefix[..], packet.header];
        let used = if PREFIX + packet.total() <= FLAT && packet.more.len == 0 {
            let begin = flat.as_mut_ptr().cast::<u8>();
            let mut to = begin;
            // SAFETY: all three fit `flat` by the line above; the payload is readable by the
            // slab's promise.
            unsafe {
                for one in gathered {
                    to.copy_from_nonoverlapping(one.as_ptr(), one.len());
                    to = to.add(one.len());
                }
                to.copy_from_nonoverlapping(payload, packet.len);
            }
            parts[0] = raw_part(begin, PREFIX + packet.total());
            1
        } else {
            let more = elsewhere(packet);
            parts = [part(&prefix), part(packet.header), raw_part(payload, packet.len), more];
            if packet.more.len == 0 { 3 } else { 4 }
        };
        let peer = &self.peers[packet.to as usize];
        let mut sent = false;
        if let Some(own) = &peer.connected {
            self.stats.send_calls += 1;
            // What this socket refuses, the common one may take, and it tells why if not.
            sent = send_parts(own, None, &mut parts[..used]).is_ok();
        }
        if !sent {
            self.stats.send_calls += 1;
            if let Err(errno) = send_parts(&self.socket, Some(peer), &mut parts[..used]) {
                return self.failed(errno, 1);
            }
        }
        self.stats.sent += 1;
        1
    }

    /// How many packets of a failed call are done with.
    #[cold]
    fn failed(&mut self, errno: Errno, packets: usize) -> usize {
        match errno {
            // Nothing was sent: to the caller both are a full queue.
            Errno::EAGAIN | Errno::EINTR => 0,
            errno => {
                self.lost(errno, packets);
                packets
            }
        }
    }

    /// Sends the beginning of a batch by one call and answers how many packets are done with.
    fn runs(&mut self, slab: &Slab, batch: &[Packet<'_>]) -> usize {
        if !self.fits(slab, &batch[0]) {
            return 1;
        }
        let mut runs = [Run::default(); RUNS];
        let mut count = 0;
        let mut next = 0;
        while count < RUNS && next < batch.len().min(PACKETS) {
            let rest = &batch[next..batch.len().min(PACKETS)];
            let packets = self.run(slab, rest);
            if packets == 0 {
                break;
            }
            runs[count] = Run { first: next, packets };
            count += 1;
            next += packets;
        }
        let sent = self.send_runs(slab, batch, &runs[..count]);
        match sent {
            Ok(sent) => {
                let packets = runs[..sent].iter().map(|run| run.packets).sum();
                self.stats.sent += packets as u64;
                packets
            }
            Err(errno) if self.is_unsegmented(errno, batch[0].to, runs[0].packets) => {
                // Once for each peer: it is not segmented any more.
                self.runs(slab, batch)
            }
            Err(errno) => self.failed(errno, runs[0].packets),
        }
    }

    /// Whether a run was refused because it cannot be segmented on this way, or its segments are
    /// too long for it: from now on this peer's packets go one by one.
    #[cold]
    fn is_unsegmented(&mut self, errno: Errno, to: u32, packets: usize) -> bool {
        let peer = &mut self.peers[to as usize];
        let segmentation = matches!(errno, Errno::EINVAL | Errno::EIO | Errno::EMSGSIZE);
        let first = packets > 1 && peer.segments && segmentation;
        if first {
            peer.segments = false;
        }
        first
    }

    /// How many packets at the beginning of `batch` go as one datagram; 0: the first may not
    /// travel, and it will be found and counted when it is its turn.
    fn run(&self, slab: &Slab, batch: &[Packet<'_>]) -> usize {
        let first = &batch[0];
        let Some(peer) = self.peers.get(first.to as usize) else { return 0 };
        let size = stride(first.total());
        let valid =
            |packet: &Packet<'_>| packet.total() > 0 && slab.slice(packet.at, packet.len).is_some();
        if first.total() > peer.mtu || !valid(first) {
            return 0;
        }
        if !peer.segments {
            return 1;
        }
        let most = SEGMENTS.min(DATAGRAM / size).max(1);
        let mut packets = 1;
        while packets < most && packets < batch.len() {
            let next = &batch[packets];
            if next.to != first.to || stride(next.total()) > size || !valid(next) {
                break;
            }
            packets += 1;
            // Only the last segment may be shorter.
            if stride(next.total()) < size {
                break;
            }
        }
        packets
    }

    /// Sends as many runs as one call takes. A packet lies in one piece: in the slab where that has
    /// room for headers, else put together here, but for what lies elsewhere. Pieces that touch
    /// become one: the kernel copies 60 KiB from one piece in half the time that it takes for 170.
    fn send_runs(&mut self, slab: &Slab, batch: &[Packet<'_>], runs: &[Run]) -> nix::Result<usize> {
        let mut pieces = [part(&[]); PIECES];
        let mut controls = [Control([0; 32]); RUNS];
        // SAFETY: plain data; all zero is an empty message.
        let mut messages: [libc::mmsghdr; RUNS] = unsafe { MaybeUninit::zeroed().assume_init() };
        let (mut count, mut used, mut filled) = (0, 0, 0);
        for (k, run) in runs.iter().enumerate() {
            let packets = &batch[run.first..run.first + run.packets];
            let Some(end) = self.place(slab, packets, &mut used, &mut pieces[filled..])? else {
                break;
            };
            let to = &mut messages[k].msg_hdr;
            (to.msg_name, to.msg_namelen) = self.peers[packets[0].to as usize].name();
            to.msg_iov = &raw mut pieces[filled];
            to.msg_iovlen = end as _;
            if run.packets > 1 {
                segment(to, &mut controls[k], stride(packets[0].total()) as u16);
            }
            filled += end;
            count += 1;
        }
        self.stats.send_calls += 1;
        let (socket, flags) = (self.socket.as_raw_fd(), libc::MSG_DONTWAIT);
        let first = messages.as_mut_ptr();
        // SAFETY: each of the first `count` messages points to its pieces, in the slab or in the
        // staging buffer, a name in its peer and its control; all outlive the call, none moves.
        // Pieces that lie elsewhere the kernel checks.
        let code = unsafe { libc::sendmmsg(socket, first, count as libc::c_uint, flags as _) };
        Errno::result(code).map(|sent| (sent as usize).min(count))
    }

    /// Completes the packets of a run and answers in how many pieces they lie. None: the staging
    /// buffer is used up, or there is no room for the pieces.
    fn place(
        &mut self,
        slab: &Slab,
        packets: &[Packet<'_>],
        used: &mut usize,
        pieces: &mut [libc::iovec],
    ) -> nix::Result<Option<usize>> {
        let mut count = 0;
        for packet in packets {
            // A datagram of one packet needs no padding.
            let whole = PREFIX + packet.total();
            let total = if packets.len() > 1 { stride(packet.total()) } else { whole };
            let padding = total - whole;
            let total = if packet.more.len == 0 { total } else { whole - packet.more.len };
            if pieces.len() < count + 3 {
                return Ok(None);
            }
            let head = [&prefix(packet)[..], packet.header];
            let framed = if packet.len >= IN_PLACE {
                slab.frame(packet.at, packet.len, head, total)
            } else {
                None
            };
            let at = match framed {
                Some(at) => at,
                None => {
                    let payload = slab.slice(packet.at, packet.len).ok_or(Errno::EFAULT)?;
                    let Some(segment) = self.staging.get_mut(*used..*used + total) else {
                        return Ok(None);
                    };
                    *used += total;
                    stage(segment, packet, payload);
                    segment.as_ptr()
                }
            };
            match pieces[..count].last_mut() {
                Some(last)
                    if last.iov_base.cast_const().wrapping_byte_add(last.iov_len) == at.cast() =>
                {
                    last.iov_len += total;
                }
                _ => {
                    pieces[count] = raw_part(at, total);
                    count += 1;
                }
            }
            if packet.more.len > 0 {
                pieces[count] = elsewhere(packet);
                pieces[count + 1] = part(&[0; 16][..padding]);
                count += if padding > 0 { 2 } else { 1 };
            }
        }
        Ok(Some(count))
    }
}

/// Writes a packet with its length before it; what is left of the segment is padding.
fn stage(segment: &mut [u8], packet: &Packet<'_>, payload: *const u8) {
    let (head, rest) = segment.split_at_mut(PREFIX + packet.header.len());
    let (prefix, header) = head.split_at_mut(PREFIX);
    prefix.copy_from_slice(&self::prefix(packet));
    header.copy_from_slice(packet.header);
    let (inside, padding) = rest.split_at_mut(packet.len);
    // SAFETY: readable by the slab's promise for as many bytes as `inside` has.
    unsafe { inside.as_mut_ptr().copy_from_nonoverlapping(payload, inside.len()) };
    padding.fill(0);
}

fn prefix(packet: &Packet<'_>) -> [u8; PREFIX] {
    (packet.total() as u16).to_be_bytes()
}

fn elsewhere(packet: &Packet<'_>) -> libc::iovec {
    raw_part(packet.more.at as *const u8, packet.more.len)
}

fn raw_part(at: *const u8, len: usize) -> libc::iovec {
    libc::iovec { iov_base: at.cast_mut().cast(), iov_len: len }
}

fn part(bytes: &[u8]) -> libc::iovec {
    raw_part(bytes.as_ptr(), bytes.len())
}

/// One datagram of one or several parts, which the callers have found readable.
#[inline]
fn send_parts(
    socket: &OwnedFd,
    to: Option<&Destination>,
    parts: &mut [libc::iovec],
) -> nix::Result<()> {
    let (name, name_len) = to.map_or(transfer::NO_NAME, Destination::name);
    if let [one] = parts {
        // SAFETY: a readable part, and a name in its peer or none.
        return unsafe {
            transfer::send(socket, one.iov_base.cast(), one.iov_len, (name, name_len))
        };
    }
    // SAFETY: plain data; all zero is an empty message.
    let mut message: libc::msghdr = unsafe { MaybeUninit::zeroed().assume_init() };
    message.msg_name = name;
    message.msg_namelen = name_len;
    message.msg_iov = parts.as_mut_ptr();
    message.msg_iovlen = parts.len() as _;
    let (socket, flags) = (socket.as_raw_fd(), libc::MSG_DONTWAIT);
    // SAFETY: the message points to readable parts, and to a name in its peer or none.
    let code = unsafe { libc::sendmsg(socket, &raw const message, flags) };
    Errno::result(code).map(drop)
}

/// Asks for segments of that length.
fn segment(message: &mut libc::msghdr, control: &mut Control, len: u16) {
    // SAFETY: arithmetic alone.
    let space = unsafe { libc::CMSG_SPACE(size_of::<u16>() as u32) } as usize;
    message.msg_control = control.0.as_mut_ptr().cast();
    message.msg_controllen = space.min(control.0.len()) as _;
    // SAFETY: the control is large enough for one header and two bytes, so there is a first
    // header, and its data lie inside.
    unsafe {
        let header = libc::CMSG_FIRSTHDR(message);
        (*header).cmsg_level = libc::SOL_UDP;
        (*header).cmsg_type = libc::UDP_SEGMENT;
        (*header).cmsg_len = libc::CMSG_LEN(size_of::<u16>() as u32) as _;
        libc::CMSG_DATA(header).cast::<u16>().write_unaligned(len);
    }
}
