//! The receive ring (TPACKET_V2). It has frames of equal size in blocks. The status word of a frame
//! shows whether the kernel or the user owns the frame. TPACKET_V3 is not used, because it returns
//! whole blocks and would add its time-out to every message.

// UNSAFETY: reads a mapping that the kernel writes.
#![expect(unsafe_code)]

use super::ether_header;
use crate::device::ethernet::wire::sockopt;
use crate::sync::{AtomicU32, Ordering};
use memmap2::{MmapOptions, MmapRaw};
use socket2::{Domain, Socket, Type};
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

/// The size of a block in bytes. The kernel allocates a block contiguously.
const RING_BLOCK_LEN: usize = 128 << 10;
/// The size of the ring in bytes.
const RING_LEN: usize = 4 << 20;
/// The sizes of a ring.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PacketRingGeometry {
    frame_len: usize,
    block_count: usize,
}

impl PacketRingGeometry {
    /// Computes the sizes for packets of up to `mtu` bytes.
    pub fn new(mtu: usize) -> PacketRingGeometry {
        // The kernel's header, the sender's address and alignment need less than 128 bytes.
        let frame_len = (128 + ether_header::HEADER + mtu).next_multiple_of(128);
        PacketRingGeometry { frame_len, block_count: RING_LEN / RING_BLOCK_LEN }
    }

    fn per_block(self) -> usize {
        RING_BLOCK_LEN / self.frame_len
    }

    fn frames(self) -> usize {
        self.per_block() * self.block_count
    }

    fn frame_offset(self, index: usize) -> usize {
        index / self.per_block() * RING_BLOCK_LEN + index % self.per_block() * self.frame_len
    }

    /// Returns the offset of the frame after the one at `offset`, without a division by a variable.
    #[inline]
    fn offset_after(self, offset: usize) -> usize {
        let next = offset + self.frame_len;
        let fits_in_block = next % RING_BLOCK_LEN + self.frame_len <= RING_BLOCK_LEN;
        let next = if fits_in_block { next } else { next.next_multiple_of(RING_BLOCK_LEN) };
        if next < self.block_count * RING_BLOCK_LEN { next } else { 0 }
    }

    /// Makes the kernel allocate the ring of a socket.
    pub fn install(self, socket: BorrowedFd<'_>) -> io::Result<()> {
        let version = libc::tpacket_versions::TPACKET_V2 as libc::c_int;
        sockopt::set(socket, libc::SOL_PACKET, libc::PACKET_VERSION, &version)?;
        let request = libc::tpacket_req {
            tp_block_size: RING_BLOCK_LEN as u32,
            tp_block_nr: self.block_count as u32,
            tp_frame_size: self.frame_len as u32,
            tp_frame_nr: self.frames() as u32,
        };
        sockopt::set(socket, libc::SOL_PACKET, libc::PACKET_RX_RING, &request)
    }
}

/// Opens a socket, which receives no frames until it is bound.
pub fn socket() -> io::Result<Socket> {
    Socket::new(Domain::PACKET, Type::RAW.nonblocking(), None)
}

/// Starts to receive frames of the project's EtherType from an interface, given by its index.
pub fn bind(socket: &Socket, index: u32) -> io::Result<()> {
    let address = libc::sockaddr_ll {
        sll_family: libc::AF_PACKET as u16,
        sll_protocol: ether_header::ETHERTYPE.to_be(),
        sll_ifindex: index as libc::c_int,
        // The kernel ignores the other fields.
        sll_hatype: 0,
        sll_pkttype: 0,
        sll_halen: 0,
        sll_addr: [0; 8],
    };
    socket.bind(&sockopt::socket_address(address)?)
}

/// A frame that waits in the ring.
#[derive(Clone, Copy)]
pub struct Frame {
    /// The address of its first byte.
    pub data: *const u8,
    /// The length of the frame in the ring.
    pub len: usize,
}

/// The mapped ring.
pub struct PacketRing {
    map: MmapRaw,
    geometry: PacketRingGeometry,
    /// The offset of the frame to read next, if it is known.
    next_offset: usize,
    /// Whether `next_offset` is known. The oldest received frame determines it, because another
    /// process may have used the ring before.
    synced: bool,
}

impl PacketRing {
    pub fn map(
        socket: BorrowedFd<'_>,
        geometry: PacketRingGeometry,
    ) -> std::io::Result<PacketRing> {
        // The kernel refuses to map any other length.
        let len = geometry.block_count * RING_BLOCK_LEN;
        let map = MmapOptions::new().len(len).map_raw(socket.as_raw_fd())?;
        Ok(PacketRing { map, geometry, next_offset: 0, synced: false })
    }

    #[inline]
    fn header(&self, offset: usize) -> *mut libc::tpacket2_hdr {
        assert!(offset < self.map.len());
        // SAFETY: the offset is inside the mapping, by the line above.
        unsafe { self.map.as_mut_ptr().add(offset).cast() }
    }

    #[inline]
    fn status(&self, offset: usize) -> &AtomicU32 {
        // SAFETY: this is an aligned word inside the mapping, which lives as long as self. Both
        // sides access it atomically.
        unsafe { AtomicU32::from_ptr(&raw mut (*self.header(offset)).tp_status) }
    }

    #[inline]
    fn is_user_owned(&self, offset: usize) -> bool {
        // This pairs with the kernel, which writes the frame before its status.
        self.status(offset).load(Ordering::Acquire) & libc::TP_STATUS_USER != 0
    }

    /// Finds the oldest received frame: a frame of the user that follows a frame of the kernel.
    #[cold]
    fn find_oldest(&mut self) {
        let frames = self.geometry.frames();
        let is_user_owned =
            |frame: usize| self.is_user_owned(self.geometry.frame_offset(frame % frames));
        let oldest = (0..frames).find(|&i| is_user_owned(i) && !is_user_owned(i + frames - 1));
        let all = || is_user_owned(0).then_some(0);
        if let Some(first) = oldest.or_else(all) {
            self.next_offset = self.geometry.frame_offset(first);
            self.synced = true;
        }
    }

    /// Returns the oldest waiting frame. Returns `Some(None)` if it is not a whole frame and must
    /// be skipped.
    #[inline]
    pub fn peek(&mut self) -> Option<Option<Frame>> {
        if !self.synced {
            self.find_oldest();
        }
        if !self.is_user_owned(self.next_offset) {
            return None;
        }
        let header = self.header(self.next_offset);
        // SAFETY: the fields are inside the mapping. A process with another descriptor of the
        // socket may also write there, so each field is read once and checked below.
        let (len, original_len, mac_offset) = unsafe {
            (
                (&raw const (*header).tp_snaplen).read_volatile() as usize,
                (&raw const (*header).tp_len).read_volatile() as usize,
                (&raw const (*header).tp_mac).read_volatile() as usize,
            )
        };
        if len != original_len
            || len < ether_header::HEADER
            || mac_offset + len > self.geometry.frame_len
        {
            return Some(None);
        }
        // SAFETY: the offset is inside the frame by the check above.
        let data = unsafe { header.cast::<u8>().add(mac_offset).cast_const() };
        Some(Some(Frame { data, len }))
    }

    /// Returns the oldest frame to the kernel.
    #[inline]
    pub fn pop(&mut self) {
        // With `Release`, all reads of the frame are complete before the kernel owns it.
        self.status(self.next_offset).store(libc::TP_STATUS_KERNEL, Ordering::Release);
        self.next_offset = self.geometry.offset_after(self.next_offset);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_use_the_slots_of_the_ring_in_order() {
        for mtu in [1496, 8996, 65_531] {
            let ring = PacketRingGeometry::new(mtu);
            let mut offset = 0;
            for frame in 0..ring.frames() {
                assert_eq!(offset, ring.frame_offset(frame), "frame {frame} for an MTU of {mtu}");
                offset = ring.offset_after(offset);
            }
            assert_eq!(offset, 0);
        }
    }
}
