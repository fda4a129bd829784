//! Sends datagrams. A single packet is one datagram. Several packets are sent in runs that the
//! kernel segments.

// UNSAFETY: sendmsg and sendmmsg, and copies from the send slab.
#![expect(unsafe_code)]

use super::{Destination, LENGTH_PREFIX_LEN, Udp, stride};
use crate::device::ethernet::wire::{Packet, PeerNumber, SendMemory, socket_io};
use nix::errno::Errno;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, OwnedFd};

/// The most parts of one call: enough for a run, of which each packet has at most three parts.
const MAX_IOVECS: usize = 3 * MAX_GSO_SEGMENTS;
/// The most datagrams of one call.
const MAX_DATAGRAMS: usize = 16;
/// The most packets of one call.
const MAX_PACKETS: usize = 128;
/// The most segments of a datagram. Every kernel with UDP_SEGMENT supports this number.
const MAX_GSO_SEGMENTS: usize = 64;
/// The most bytes of a datagram before it is segmented, without headers.
const MAX_DATAGRAM_LEN: usize = 65_000;
/// The size of the staging buffer for all datagrams of one call. It is large enough for one
/// datagram, and small enough for a cache.
pub const STAGING_LEN: usize = 128 << 10;
/// Shorter payloads are always copied, because a copy is faster than a separate part.
const GATHER_MIN: usize = 512;
/// Single packets up to this length are copied into one buffer, because a copy is faster than
/// gathering.
const TX_COPYBREAK: usize = 256;

/// The buffer for the control message with the segment length.
#[repr(C, align(8))]
#[derive(Clone, Copy)]
struct CmsgBuffer([u8; 32]);

/// Consecutive packets of a batch that are sent as one datagram.
#[derive(Clone, Copy, Default)]
struct GsoRun {
    first: usize,
    count: usize,
}

impl Udp {
    #[inline]
    pub fn send(&mut self, slab: &SendMemory, batch: &[Packet<'_>]) -> usize {
        let mut done = 0;
        while done < batch.len() {
            let rest = &batch[done..];
            let sent = if let [one] = rest {
                self.send_one(slab, one)
            } else {
                self.send_batch(slab, rest)
            };
            if sent == 0 {
                break;
            }
            done += sent;
        }
        done
    }

    /// Whether a packet can be sent at all. If not, counts it as lost.
    fn check_packet(&mut self, slab: &SendMemory, packet: &Packet<'_>) -> bool {
        let peer = self.peers.get(packet.to.index());
        let fits_mtu = peer.is_some_and(|peer| packet.total_len() <= peer.mtu);
        let fits =
            fits_mtu && packet.total_len() > 0 && slab.slice(packet.offset, packet.len).is_some();
        if !fits {
            self.on_send_failed(Errno::EMSGSIZE, 1);
        }
        fits
    }

    fn send_one(&mut self, slab: &SendMemory, packet: &Packet<'_>) -> usize {
        if !self.check_packet(slab, packet) {
            return 1;
        }
        let Some(payload) = slab.slice(packet.offset, packet.len) else { return 1 };
        let prefix = prefix(packet);
        let (mut buf, mut iovecs) = ([MaybeUninit::<u8>::uninit(); TX_COPYBREAK], [iovec(&[]); 4]);
        let headers = [&prefix[..], packet.header];
        let used = if LENGTH_PREFIX_LEN + packet.total_len() <= TX_COPYBREAK
            && packet.user_bytes.len == 0
        {
            let begin = buf.as_mut_ptr().cast::<u8>();
            let mut to = begin;
            // SAFETY: all three parts fit into `buf` by the condition above. The payload is
            // readable by the contract of the slab.
            unsafe {
                for header in headers {
                    to.copy_from_nonoverlapping(header.as_ptr(), header.len());
                    to = to.add(header.len());
                }
                to.copy_from_nonoverlapping(payload, packet.len);
            }
            iovecs[0] = raw_iovec(begin, LENGTH_PREFIX_LEN + packet.total_len());
            1
        } else {
            let user_bytes = user_iovec(packet);
            iovecs =
                [iovec(&prefix), iovec(packet.header), raw_iovec(payload, packet.len), user_bytes];
            if packet.user_bytes.len == 0 { 3 } else { 4 }
        };
        let peer = &self.peers[packet.to.index()];
        let mut sent = false;
        if let Some(connected) = &peer.connected_socket {
            self.stats.send_calls += 1;
            // If the connected socket refuses the packet, the common socket may accept it or report
            // the reason.
            sent = send_iovecs(connected, None, &mut iovecs[..used]).is_ok();
        }
        if !sent {
            self.stats.send_calls += 1;
            if let Err(errno) = send_iovecs(&self.socket, Some(peer), &mut iovecs[..used]) {
                return self.on_send_error(errno, 1);
            }
        }
        self.stats.sent += 1;
        1
    }

    /// Handles a failed call. Returns how many packets are finished, that is, lost.
    #[cold]
    fn on_send_error(&mut self, errno: Errno, packets: usize) -> usize {
        match errno {
            // Nothing was sent. For the caller, both errors mean that the queue is full.
            Errno::EAGAIN | Errno::EINTR => 0,
            errno => {
                self.on_send_failed(errno, packets);
                packets
            }
        }
    }

    /// Sends the first packets of a batch with one call, and returns how many are finished.
    fn send_batch(&mut self, slab: &SendMemory, batch: &[Packet<'_>]) -> usize {
        if !self.check_packet(slab, &batch[0]) {
            return 1;
        }
        let mut runs = [GsoRun::default(); MAX_DATAGRAMS];
        let mut count = 0;
        let mut next = 0;
        while count < MAX_DATAGRAMS && next < batch.len().min(MAX_PACKETS) {
            let rest = &batch[next..batch.len().min(MAX_PACKETS)];
            let packets = self.run_len(slab, rest);
            if packets == 0 {
                break;
            }
            runs[count] = GsoRun { first: next, count: packets };
            count += 1;
            next += packets;
        }
        let sent = self.send_runs(slab, batch, &runs[..count]);
        match sent {
            Ok(sent) => {
                let packets = runs[..sent].iter().map(|run| run.count).sum();
                self.stats.sent += packets as u64;
                packets
            }
            Err(errno) if self.disable_segmentation(errno, batch[0].to, runs[0].count) => {
                // This happens once for each peer, because its packets are not segmented after
                // that.
                self.send_batch(slab, batch)
            }
            Err(errno) => self.on_send_error(errno, runs[0].count),
        }
    }

    /// Whether the kernel refused a run because it cannot be segmented on this route, or because
    /// its segments are too long for the route. If so, this peer's packets are sent one by one from
    /// now on.
    #[cold]
    fn disable_segmentation(&mut self, errno: Errno, to: PeerNumber, packets: usize) -> bool {
        let peer = &mut self.peers[to.index()];
        let is_segmentation_error = matches!(errno, Errno::EINVAL | Errno::EIO | Errno::EMSGSIZE);
        let is_unsegmentable = packets > 1 && peer.supports_segmentation && is_segmentation_error;
        if is_unsegmentable {
            peer.supports_segmentation = false;
        }
        is_unsegmentable
    }

    /// Returns how many packets at the beginning of `batch` are sent as one datagram. Returns 0 if
    /// the first packet cannot be sent. Such a packet is counted when it is the first of a batch.
    fn run_len(&self, slab: &SendMemory, batch: &[Packet<'_>]) -> usize {
        let first = &batch[0];
        let Some(peer) = self.peers.get(first.to.index()) else { return 0 };
        let segment_len = stride(first.total_len());
        let valid = |packet: &Packet<'_>| {
            packet.total_len() > 0 && slab.slice(packet.offset, packet.len).is_some()
        };
        if first.total_len() > peer.mtu || !valid(first) {
            return 0;
        }
        if !peer.supports_segmentation {
            return 1;
        }
        let max_packets = MAX_GSO_SEGMENTS.min(MAX_DATAGRAM_LEN / segment_len).max(1);
        let mut packets = 1;
        while packets < max_packets && packets < batch.len() {
            let next = &batch[packets];
            if next.to != first.to || stride(next.total_len()) > segment_len || !valid(next) {
                break;
            }
            packets += 1;
            // Only the last segment may be shorter.
            if stride(next.total_len()) < segment_len {
                break;
            }
        }
        packets
    }

    /// Sends as many runs as one call accepts. All of a packet except its user bytes is contiguous:
    /// in the slab if there is room for the headers, otherwise in the staging buffer. Adjacent
    /// parts are merged, because the kernel copies one large part much faster than many small ones.
    fn send_runs(
        &mut self,
        slab: &SendMemory,
        batch: &[Packet<'_>],
        runs: &[GsoRun],
    ) -> nix::Result<usize> {
        let mut iovecs = [iovec(&[]); MAX_IOVECS];
        let mut controls = [CmsgBuffer([0; 32]); MAX_DATAGRAMS];
        // SAFETY: this is plain data, for which all zeros are an empty message.
        let mut messages: [libc::mmsghdr; MAX_DATAGRAMS] =
            unsafe { MaybeUninit::zeroed().assume_init() };
        let (mut count, mut staging_used, mut iovec_count) = (0, 0, 0);
        for (k, run) in runs.iter().enumerate() {
            let packets = &batch[run.first..run.first + run.count];
            let Some(run_iovecs) =
                self.build_iovecs(slab, packets, &mut staging_used, &mut iovecs[iovec_count..])?
            else {
                break;
            };
            let header = &mut messages[k].msg_hdr;
            (header.msg_name, header.msg_namelen) = self.peers[packets[0].to.index()].sockaddr();
            header.msg_iov = &raw mut iovecs[iovec_count];
            header.msg_iovlen = run_iovecs as _;
            if run.count > 1 {
                set_segment_len(header, &mut controls[k], stride(packets[0].total_len()) as u16);
            }
            iovec_count += run_iovecs;
            count += 1;
        }
        self.stats.send_calls += 1;
        let (socket, flags) = (self.socket.as_raw_fd(), libc::MSG_DONTWAIT);
        let first = messages.as_mut_ptr();
        // SAFETY: each of the first `count` messages points to its parts in the slab or in the
        // staging buffer, to the address of its peer, and to its control message. All of these
        // outlive the call and do not move. The kernel checks parts in user memory.
        let code = unsafe { libc::sendmmsg(socket, first, count as libc::c_uint, flags as _) };
        Errno::result(code).map(|sent| (sent as usize).min(count))
    }

    /// Builds the parts of the packets of a run, and returns their number. Returns None if the
    /// staging buffer or the list of parts is full.
    fn build_iovecs(
        &mut self,
        slab: &SendMemory,
        packets: &[Packet<'_>],
        staging_used: &mut usize,
        iovecs: &mut [libc::iovec],
    ) -> nix::Result<Option<usize>> {
        let mut count = 0;
        for packet in packets {
            // A datagram of one packet needs no padding.
            let unpadded_len = LENGTH_PREFIX_LEN + packet.total_len();
            let total = if packets.len() > 1 { stride(packet.total_len()) } else { unpadded_len };
            let padding = total - unpadded_len;
            let total = if packet.user_bytes.len == 0 {
                total
            } else {
                unpadded_len - packet.user_bytes.len
            };
            if iovecs.len() < count + 3 {
                return Ok(None);
            }
            let headers = [&prefix(packet)[..], packet.header];
            let framed = if packet.len >= GATHER_MIN {
                slab.frame_in_place(packet.offset, packet.len, headers, total)
            } else {
                None
            };
            let ptr = match framed {
                Some(at) => at,
                None => {
                    let payload = slab.slice(packet.offset, packet.len).ok_or(Errno::EFAULT)?;
                    let Some(segment) = self.staging.get_mut(*staging_used..*staging_used + total)
                    else {
                        return Ok(None);
                    };
                    *staging_used += total;
                    stage(segment, packet, payload);
                    segment.as_ptr()
                }
            };
            match iovecs[..count].last_mut() {
                Some(last)
                    if last.iov_base.cast_const().wrapping_byte_add(last.iov_len) == ptr.cast() =>
                {
                    last.iov_len += total;
                }
                _ => {
                    iovecs[count] = raw_iovec(ptr, total);
                    count += 1;
                }
            }
            if packet.user_bytes.len > 0 {
                iovecs[count] = user_iovec(packet);
                iovecs[count + 1] = iovec(&[0; 16][..padding]);
                count += if padding > 0 { 2 } else { 1 };
            }
        }
        Ok(Some(count))
    }
}

/// Writes the length of a packet, the packet and the padding to a segment of the staging buffer.
fn stage(segment: &mut [u8], packet: &Packet<'_>, payload: *const u8) {
    let (headers, rest) = segment.split_at_mut(LENGTH_PREFIX_LEN + packet.header.len());
    let (prefix, header) = headers.split_at_mut(LENGTH_PREFIX_LEN);
    prefix.copy_from_slice(&self::prefix(packet));
    header.copy_from_slice(packet.header);
    let (target, padding) = rest.split_at_mut(packet.len);
    // SAFETY: the payload is readable by the contract of the slab, for as many bytes as `target`
    // has.
    unsafe { target.as_mut_ptr().copy_from_nonoverlapping(payload, target.len()) };
    padding.fill(0);
}

fn prefix(packet: &Packet<'_>) -> [u8; LENGTH_PREFIX_LEN] {
    (packet.total_len() as u16).to_be_bytes()
}

fn user_iovec(packet: &Packet<'_>) -> libc::iovec {
    raw_iovec(packet.user_bytes.addr as *const u8, packet.user_bytes.len)
}

fn raw_iovec(ptr: *const u8, len: usize) -> libc::iovec {
    libc::iovec { iov_base: ptr.cast_mut().cast(), iov_len: len }
}

fn iovec(bytes: &[u8]) -> libc::iovec {
    raw_iovec(bytes.as_ptr(), bytes.len())
}

/// Sends one datagram of one or several parts. The callers have checked that the parts are
/// readable.
#[inline]
fn send_iovecs(
    socket: &OwnedFd,
    to: Option<&Destination>,
    iovecs: &mut [libc::iovec],
) -> nix::Result<()> {
    let (addr, addr_len) = to.map_or(socket_io::NO_ADDRESS, Destination::sockaddr);
    if let [one] = iovecs {
        // SAFETY: the part is readable, and the address is that of a peer or null.
        return unsafe {
            socket_io::send(socket, one.iov_base.cast(), one.iov_len, (addr, addr_len))
        };
    }
    // SAFETY: this is plain data, for which all zeros are an empty message.
    let mut message: libc::msghdr = unsafe { MaybeUninit::zeroed().assume_init() };
    message.msg_name = addr;
    message.msg_namelen = addr_len;
    message.msg_iov = iovecs.as_mut_ptr();
    message.msg_iovlen = iovecs.len() as _;
    let (socket, flags) = (socket.as_raw_fd(), libc::MSG_DONTWAIT);
    // SAFETY: the message points to readable parts, and to the address of a peer or to none.
    let code = unsafe { libc::sendmsg(socket, &raw const message, flags) };
    Errno::result(code).map(drop)
}

/// Adds the control message with the segment length to a message.
fn set_segment_len(message: &mut libc::msghdr, control: &mut CmsgBuffer, len: u16) {
    // SAFETY: this is only arithmetic.
    let space = unsafe { libc::CMSG_SPACE(size_of::<u16>() as u32) } as usize;
    message.msg_control = control.0.as_mut_ptr().cast();
    message.msg_controllen = space.min(control.0.len()) as _;
    // SAFETY: the control buffer is large enough for one header and two bytes. Therefore there is a
    // first header, and its data are inside the buffer.
    unsafe {
        let header = libc::CMSG_FIRSTHDR(message);
        (*header).cmsg_level = libc::SOL_UDP;
        (*header).cmsg_type = libc::UDP_SEGMENT;
        (*header).cmsg_len = libc::CMSG_LEN(size_of::<u16>() as u32) as _;
        libc::CMSG_DATA(header).cast::<u16>().write_unaligned(len);
    }
}
