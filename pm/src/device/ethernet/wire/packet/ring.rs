//! The receive ring (TPACKET_V2): frames of equal size in blocks, each with a status word that says
//! whose it is. TPACKET_V3 hands out whole blocks and would add its time-out to every message.

// UNSAFETY: reads a mapping that the kernel writes.
#![expect(unsafe_code)]

use super::raw;
use crate::device::ethernet::wire::sockopt;
use crate::sync::{AtomicU32, Ordering};
use memmap2::{MmapOptions, MmapRaw};
use nix::errno::Errno;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

/// Bytes of a block: what the kernel allocates in one piece.
const BLOCK: usize = 128 << 10;
/// About so much memory in all.
const RING: usize = 4 << 20;
/// Sizes of a ring.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Geometry {
    frame: usize,
    blocks: usize,
}

impl Geometry {
    /// For packets of up to `mtu` bytes.
    pub fn new(mtu: usize) -> Geometry {
        // Header, the sender's address, alignment: less than 128 bytes.
        let frame = (128 + raw::HEADER + mtu).next_multiple_of(128);
        Geometry { frame, blocks: RING / BLOCK }
    }

    fn per_block(self) -> usize {
        BLOCK / self.frame
    }

    fn frames(self) -> usize {
        self.per_block() * self.blocks
    }

    fn at(self, frame: usize) -> usize {
        frame / self.per_block() * BLOCK + frame % self.per_block() * self.frame
    }

    /// Where the frame behind the one at `at` is: what `at` answers, without a division.
    #[inline]
    fn behind(self, at: usize) -> usize {
        let next = at + self.frame;
        let inside = next % BLOCK + self.frame <= BLOCK;
        let next = if inside { next } else { next.next_multiple_of(BLOCK) };
        if next < self.blocks * BLOCK { next } else { 0 }
    }

    /// Has the kernel allocate it.
    pub fn install(self, socket: BorrowedFd<'_>) -> nix::Result<()> {
        let version = libc::tpacket_versions::TPACKET_V2 as libc::c_int;
        sockopt::set(socket, libc::SOL_PACKET, libc::PACKET_VERSION, &version)?;
        let request = libc::tpacket_req {
            tp_block_size: BLOCK as u32,
            tp_block_nr: self.blocks as u32,
            tp_frame_size: self.frame as u32,
            tp_frame_nr: self.frames() as u32,
        };
        sockopt::set(socket, libc::SOL_PACKET, libc::PACKET_RX_RING, &request)
    }
}

/// A socket that receives nothing before it is bound.
pub fn socket() -> nix::Result<OwnedFd> {
    let flags = libc::SOCK_RAW | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
    // SAFETY: no memory is involved.
    let fd = unsafe { libc::socket(libc::AF_PACKET, flags, 0) };
    Errno::result(fd)?;
    // SAFETY: a descriptor that was just opened and that nobody else knows.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Begins to receive our EtherType from that interface.
pub fn bind(socket: BorrowedFd<'_>, index: u32) -> nix::Result<()> {
    // SAFETY: plain data; all zero is valid.
    let mut name: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
    name.sll_family = libc::AF_PACKET as u16;
    name.sll_protocol = raw::ETHERTYPE.to_be();
    name.sll_ifindex = index as libc::c_int;
    let len = size_of_val(&name) as libc::socklen_t;
    // SAFETY: the kernel reads `len` bytes of an address that lives through the call.
    let code = unsafe { libc::bind(socket.as_raw_fd(), (&raw const name).cast(), len) };
    Errno::result(code).map(drop)
}

/// A frame that waits in the ring.
#[derive(Clone, Copy)]
pub struct Frame {
    /// Its first byte.
    pub at: *const u8,
    /// Its bytes that are there.
    pub len: usize,
}

/// The mapped ring.
pub struct Ring {
    map: MmapRaw,
    geometry: Geometry,
    /// Where the frame is that the kernel fills next, as far as known.
    next: usize,
    /// Whether `next` is right. Whoever takes a ring over finds out by the first frame that comes.
    synced: bool,
}

impl Ring {
    pub fn map(socket: BorrowedFd<'_>, geometry: Geometry) -> std::io::Result<Ring> {
        // The kernel refuses any length but that of the ring.
        let len = geometry.blocks * BLOCK;
        let map = MmapOptions::new().len(len).map_raw(socket.as_raw_fd())?;
        Ok(Ring { map, geometry, next: 0, synced: false })
    }

    #[inline]
    fn header(&self, at: usize) -> *mut libc::tpacket2_hdr {
        assert!(at < self.map.len());
        // SAFETY: a frame of the mapping, by the geometry, which its length was made from.
        unsafe { self.map.as_mut_ptr().add(at).cast() }
    }

    #[inline]
    fn status(&self, at: usize) -> &AtomicU32 {
        // SAFETY: an aligned word inside the mapping, which lives as long as self; both sides
        // access it atomically.
        unsafe { AtomicU32::from_ptr(&raw mut (*self.header(at)).tp_status) }
    }

    #[inline]
    fn is_ours(&self, at: usize) -> bool {
        // With the kernel, which writes the frame before its status.
        self.status(at).load(Ordering::Acquire) & libc::TP_STATUS_USER != 0
    }

    /// Looks for the oldest frame: the one that is ours after one that is not.
    #[cold]
    fn sync(&mut self) {
        let frames = self.geometry.frames();
        let is_ours = |frame: usize| self.is_ours(self.geometry.at(frame % frames));
        let oldest = (0..frames).find(|&one| is_ours(one) && !is_ours(one + frames - 1));
        let all = || is_ours(0).then_some(0);
        if let Some(first) = oldest.or_else(all) {
            self.next = self.geometry.at(first);
            self.synced = true;
        }
    }

    /// The oldest frame that waits. None in it: it is not a whole one, to be skipped.
    #[inline]
    pub fn peek(&mut self) -> Option<Option<Frame>> {
        if !self.synced {
            self.sync();
        }
        if !self.is_ours(self.next) {
            return None;
        }
        let header = self.header(self.next);
        // SAFETY: inside the mapping; the owner of the ring's other descriptor may write there too,
        // so each field is read once and checked below.
        let (len, whole, mac) = unsafe {
            (
                (&raw const (*header).tp_snaplen).read_volatile() as usize,
                (&raw const (*header).tp_len).read_volatile() as usize,
                (&raw const (*header).tp_mac).read_volatile() as usize,
            )
        };
        if len != whole || len < raw::HEADER || mac + len > self.geometry.frame {
            return Some(None);
        }
        // SAFETY: inside the frame by the line above.
        let at = unsafe { header.cast::<u8>().add(mac).cast_const() };
        Some(Some(Frame { at, len }))
    }

    /// Gives the oldest frame back to the kernel.
    #[inline]
    pub fn pop(&mut self) {
        // What was read of the frame was read before.
        self.status(self.next).store(libc::TP_STATUS_KERNEL, Ordering::Release);
        self.next = self.geometry.behind(self.next);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_follow_each_other_round_the_ring() {
        for mtu in [1496, 8996, 65_531] {
            let ring = Geometry::new(mtu);
            let mut at = 0;
            for frame in 0..ring.frames() {
                assert_eq!(at, ring.at(frame), "frame {frame} for an MTU of {mtu}");
                at = ring.behind(at);
            }
            assert_eq!(at, 0);
        }
    }
}
