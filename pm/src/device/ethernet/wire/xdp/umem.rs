//! The memory for the frames of AF_XDP. It is a sealed memfd, so that the owner of a process can
//! continue with it. It consists of chunks of one frame each: first the chunks for receiving, then
//! those for sending.

// UNSAFETY: registers memory with the kernel, and returns addresses inside it.
#![expect(unsafe_code)]

use super::ether_header;
use crate::device::ethernet::wire::{Received, sockopt};
use memmap2::{MmapOptions, MmapRaw};
use nix::fcntl::{FcntlArg, SealFlag, fcntl};
use nix::sys::memfd::{MFdFlags, memfd_create};
use socket2::{Domain, Socket, Type};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

/// The number of chunks for receiving, which is the number of buffers.
pub const RECEIVE_CHUNKS: usize = 1024;
/// The number of chunks for sending.
pub const SEND_CHUNKS: usize = 512;
const CHUNKS: usize = RECEIVE_CHUNKS + SEND_CHUNKS;

/// The largest chunk. A chunk is half a page or a page.
pub const CHUNK_MAX: usize = 4096;
/// Additional bytes in front of a received frame. With 14 bytes, the packet after the frame's
/// header of 18 bytes begins at a multiple of 16. The kernel itself keeps 256 bytes free
/// (XDP_PACKET_HEADROOM).
const EXTRA_HEADROOM: usize = 14;
/// All bytes in front of a received frame.
pub const HEADROOM: usize = 256 + EXTRA_HEADROOM;

fn chunk_len_for(link_mtu: usize) -> usize {
    let frame_len =
        HEADROOM + ether_header::HEADER - ether_header::LINK_PAYLOAD_OVERHEAD + link_mtu;
    if frame_len <= CHUNK_MAX / 2 { CHUNK_MAX / 2 } else { CHUNK_MAX }
}

/// The address family of the sockets.
pub fn domain() -> Domain {
    Domain::from(libc::AF_XDP)
}

/// Opens a socket, which receives no frames until it is bound.
pub fn socket() -> io::Result<Socket> {
    Socket::new(domain(), Type::RAW, None)
}

fn seals() -> SealFlag {
    SealFlag::F_SEAL_SHRINK | SealFlag::F_SEAL_GROW | SealFlag::F_SEAL_SEAL
}

/// Creates the memory for a link of this MTU.
pub fn create_memory(link_mtu: usize) -> io::Result<OwnedFd> {
    let memory = memfd_create(c"score-wire", MFdFlags::MFD_CLOEXEC | MFdFlags::MFD_ALLOW_SEALING)?;
    nix::unistd::ftruncate(&memory, (CHUNKS * chunk_len_for(link_mtu)) as i64)?;
    fcntl(&memory, FcntlArg::F_ADD_SEALS(seals()))?;
    Ok(memory)
}

/// Registers the memory and the sizes of the rings with a socket. The kernel keeps the pages, so
/// the mapping is needed only for this call.
pub fn register(socket: BorrowedFd<'_>, memory: BorrowedFd<'_>, link_mtu: usize) -> io::Result<()> {
    let len = CHUNKS * chunk_len_for(link_mtu);
    let map = MmapOptions::new().len(len).map_raw(memory.as_raw_fd())?;
    let request = libc::xdp_umem_reg {
        addr: map.as_mut_ptr() as u64,
        len: len as u64,
        chunk_size: chunk_len_for(link_mtu) as u32,
        headroom: EXTRA_HEADROOM as u32,
        flags: 0,
        tx_metadata_len: 0,
    };
    sockopt::set(socket, libc::SOL_XDP, libc::XDP_UMEM_REG, &request)?;
    let sizes = [
        (libc::XDP_UMEM_FILL_RING, RECEIVE_CHUNKS),
        (libc::XDP_UMEM_COMPLETION_RING, SEND_CHUNKS),
        (libc::XDP_RX_RING, RECEIVE_CHUNKS),
        (libc::XDP_TX_RING, SEND_CHUNKS),
    ];
    for (ring, size) in sizes {
        sockopt::set(socket, libc::SOL_XDP, ring, &(size as libc::c_int))?;
    }
    Ok(())
}

/// Binds a socket to the first queue of an interface.
pub fn bind(socket: &Socket, index: u32) -> io::Result<()> {
    let address = libc::sockaddr_xdp {
        sxdp_family: libc::AF_XDP as u16,
        sxdp_flags: libc::XDP_COPY | libc::XDP_USE_NEED_WAKEUP,
        sxdp_ifindex: index,
        sxdp_queue_id: 0,
        sxdp_shared_umem_fd: 0,
    };
    socket.bind(&sockopt::socket_address(address)?)
}

/// The mapped memory.
pub struct Umem {
    map: MmapRaw,
    chunk_len: usize,
}

impl Umem {
    pub fn map(memory: BorrowedFd<'_>, link_mtu: usize) -> std::io::Result<Umem> {
        let chunk_len = chunk_len_for(link_mtu);
        let len = CHUNKS * chunk_len;
        let current_seals = fcntl(memory.as_fd(), FcntlArg::F_GET_SEALS)?;
        let size = nix::sys::stat::fstat(memory)?.st_size;
        if !SealFlag::from_bits_retain(current_seals).contains(seals()) || size != len as i64 {
            return Err(std::io::Error::other("the memory is not sealed, or has the wrong size"));
        }
        let map = MmapOptions::new().len(len).map_raw(memory.as_raw_fd())?;
        Ok(Umem { map, chunk_len })
    }

    /// Returns the chunk that contains an offset.
    pub fn chunk_index(&self, offset: u64) -> Option<u32> {
        let index = usize::try_from(offset).ok()? / self.chunk_len;
        (index < CHUNKS).then_some(index as u32)
    }

    pub fn chunk_offset(&self, chunk: u32) -> u64 {
        chunk as u64 * self.chunk_len as u64
    }

    /// Returns the location of a frame at `umem_offset`, or None if it exceeds its chunk.
    pub fn locate_frame(&self, umem_offset: u64, len: usize) -> Option<Received> {
        let buffer = self.chunk_index(umem_offset)?;
        let offset = (umem_offset - self.chunk_offset(buffer)) as usize;
        let fits = offset.checked_add(len)? <= self.chunk_len;
        fits.then_some(Received { buffer, offset: offset as u32, len: len as u32 })
    }

    /// Returns the address of a packet, or null if it is not inside one chunk.
    pub fn pointer(&self, packet: Received) -> *mut u8 {
        let (offset, len) = (packet.offset as usize, packet.len as usize);
        let end = offset.checked_add(len);
        if packet.buffer as usize >= CHUNKS || end.is_none_or(|end| end > self.chunk_len) {
            return std::ptr::null_mut();
        }
        // SAFETY: the packet is inside the mapping, by the checks above.
        unsafe { self.map.as_mut_ptr().add(packet.buffer as usize * self.chunk_len + offset) }
    }

    /// Returns the address of `len` bytes at `offset` in a chunk, or null if they are not inside
    /// it.
    pub fn chunk_ptr(&self, chunk: u32, offset: usize, len: usize) -> *mut u8 {
        let fits = offset.checked_add(len).is_some_and(|end| end <= self.chunk_len);
        let packet = Received { buffer: chunk, offset: offset as u32, len: len as u32 };
        if fits { self.pointer(packet) } else { std::ptr::null_mut() }
    }

    /// Writes the parts one after the other into a chunk. Returns false if the chunk has no room
    /// for them and `extra_len` more bytes.
    ///
    /// # Safety
    /// Each part must be readable for its length.
    pub unsafe fn write(
        &self,
        chunk: u32,
        parts: [(*const u8, usize); 3],
        extra_len: usize,
    ) -> bool {
        let total: usize = parts.iter().map(|(_, len)| len).sum();
        let mut to = self.chunk_ptr(chunk, 0, total + extra_len);
        if to.is_null() {
            return false;
        }
        for (from, len) in parts {
            // SAFETY: the caller guarantees the source. The target is inside the chunk, which has
            // room for all parts.
            unsafe {
                to.copy_from_nonoverlapping(from, len);
                to = to.add(len);
            }
        }
        true
    }
}

/// The use of each chunk.
pub struct ChunkAllocator {
    /// The number of packets in each receive chunk that are not released yet.
    refcounts: Vec<u16>,
    /// Receive chunks that are not in use. They are added to the fill ring.
    free_receive: Vec<u32>,
    /// Send chunks that are free.
    free_send: Vec<u32>,
    /// The number of held receive chunks.
    held_count: usize,
}

impl ChunkAllocator {
    pub fn new() -> ChunkAllocator {
        ChunkAllocator {
            refcounts: vec![0; RECEIVE_CHUNKS],
            free_receive: Vec::new(),
            free_send: Vec::new(),
            held_count: 0,
        }
    }

    /// Computes the free chunks. All chunks in the four rings are in use.
    pub fn recover(
        &mut self,
        filled: &[u32],
        received: &[u32],
        outgoing: &[u32],
        completed: &[u32],
    ) {
        let mut is_in_use = vec![false; CHUNKS];
        for chunk in [filled, received, outgoing, completed].into_iter().flatten() {
            is_in_use[*chunk as usize] = true;
        }
        let free = (0..CHUNKS).filter(|frame| !is_in_use[*frame]).map(|frame| frame as u32);
        let (receive, send) = free.partition(|frame| (*frame as usize) < RECEIVE_CHUNKS);
        (self.free_receive, self.free_send) = (receive, send);
    }

    /// Returns the next receive chunk for the fill ring.
    pub fn next_to_fill(&mut self) -> Option<u32> {
        self.free_receive.pop()
    }

    /// Holds a chunk from the receive ring. Returns false if it is not a receive chunk or is still
    /// held.
    pub fn hold(&mut self, chunk: u32) -> bool {
        match self.refcounts.get_mut(chunk as usize) {
            Some(refcount @ 0) => {
                *refcount = 1;
                self.held_count += 1;
                true
            }
            _ => false,
        }
    }

    pub fn is_held(&self, chunk: u32) -> bool {
        self.refcounts.get(chunk as usize).is_some_and(|refcount| *refcount > 0)
    }

    pub fn retain(&mut self, chunk: u32) {
        if let Some(refcount @ 1..) = self.refcounts.get_mut(chunk as usize) {
            *refcount = refcount.saturating_add(1);
        }
    }

    /// Releases one packet of a chunk. Returns true if it was the last one, so that the caller
    /// returns the chunk to the fill ring.
    pub fn release(&mut self, chunk: u32) -> bool {
        let Some(refcount @ 1..) = self.refcounts.get_mut(chunk as usize) else { return false };
        *refcount -= 1;
        let last = *refcount == 0;
        self.held_count -= usize::from(last);
        last
    }

    pub fn spare(&self) -> usize {
        RECEIVE_CHUNKS - self.held_count
    }

    pub fn has_no_free_send(&self) -> bool {
        self.free_send.is_empty()
    }

    pub fn acquire_send(&mut self) -> Option<u32> {
        self.free_send.pop()
    }

    /// Frees a send chunk. Ignores other chunks, and a chunk if all are free already.
    pub fn release_send(&mut self, chunk: u32) {
        if (RECEIVE_CHUNKS..CHUNKS).contains(&(chunk as usize))
            && self.free_send.len() < SEND_CHUNKS
        {
            self.free_send.push(chunk);
        }
    }
}

const _: () = assert!(RECEIVE_CHUNKS.is_power_of_two() && SEND_CHUNKS.is_power_of_two());
