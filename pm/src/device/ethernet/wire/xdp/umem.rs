//! The memory that AF_XDP's frames lie in: a sealed memfd, so that the owner of a process can go on
//! with it, in chunks of one frame each: first those that are received into, then those that are
//! sent from.

// UNSAFETY: registers memory with the kernel, and hands out addresses inside it.
#![expect(unsafe_code)]

use super::raw;
use crate::device::ethernet::wire::{Received, sockopt};
use memmap2::{MmapOptions, MmapRaw};
use nix::errno::Errno;
use nix::fcntl::{FcntlArg, SealFlag, fcntl};
use nix::sys::memfd::{MFdFlags, memfd_create};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

/// Chunks to receive into: the number of buffers.
pub const RECEIVE: usize = 1024;
/// Chunks to send from.
pub const SEND: usize = 512;
const CHUNKS: usize = RECEIVE + SEND;

/// A chunk is half a page or a page.
pub const CHUNK_MAX: usize = 4096;
/// What the kernel keeps free before a received frame (XDP_PACKET_HEADROOM), and our part of it:
/// with 14 the packet behind a frame's header of 18 bytes begins at a multiple of 16.
const OURS: usize = 14;
pub const HEADROOM: usize = 256 + OURS;

fn chunk(link_mtu: usize) -> usize {
    let frame = HEADROOM + raw::HEADER - raw::INSIDE + link_mtu;
    if frame <= CHUNK_MAX / 2 { CHUNK_MAX / 2 } else { CHUNK_MAX }
}

pub fn socket() -> nix::Result<OwnedFd> {
    // SAFETY: no memory is involved.
    let fd = unsafe { libc::socket(libc::AF_XDP, libc::SOCK_RAW | libc::SOCK_CLOEXEC, 0) };
    Errno::result(fd)?;
    // SAFETY: a descriptor that was just opened and that nobody else knows.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

fn seals() -> SealFlag {
    SealFlag::F_SEAL_SHRINK | SealFlag::F_SEAL_GROW | SealFlag::F_SEAL_SEAL
}

/// The memory for a link of this MTU.
pub fn memory(link_mtu: usize) -> nix::Result<OwnedFd> {
    let memory = memfd_create(c"score-wire", MFdFlags::MFD_CLOEXEC | MFdFlags::MFD_ALLOW_SEALING)?;
    nix::unistd::ftruncate(&memory, (CHUNKS * chunk(link_mtu)) as i64)?;
    fcntl(&memory, FcntlArg::F_ADD_SEALS(seals()))?;
    Ok(memory)
}

/// Gives the memory and the sizes of its rings to a socket. The kernel keeps the pages; the mapping
/// is needed for this call alone.
pub fn register(
    socket: BorrowedFd<'_>,
    memory: BorrowedFd<'_>,
    link_mtu: usize,
) -> nix::Result<()> {
    let len = CHUNKS * chunk(link_mtu);
    let map = MmapOptions::new().len(len).map_raw(memory.as_raw_fd());
    let map = map.map_err(|_| Errno::last())?;
    let request = libc::xdp_umem_reg {
        addr: map.as_mut_ptr() as u64,
        len: len as u64,
        chunk_size: chunk(link_mtu) as u32,
        headroom: OURS as u32,
        flags: 0,
        tx_metadata_len: 0,
    };
    sockopt::set(socket, libc::SOL_XDP, libc::XDP_UMEM_REG, &request)?;
    let sizes = [
        (libc::XDP_UMEM_FILL_RING, RECEIVE),
        (libc::XDP_UMEM_COMPLETION_RING, SEND),
        (libc::XDP_RX_RING, RECEIVE),
        (libc::XDP_TX_RING, SEND),
    ];
    for (ring, size) in sizes {
        sockopt::set(socket, libc::SOL_XDP, ring, &(size as libc::c_int))?;
    }
    Ok(())
}

/// Binds to the first queue of an interface.
pub fn bind(socket: BorrowedFd<'_>, index: u32) -> nix::Result<()> {
    let name = libc::sockaddr_xdp {
        sxdp_family: libc::AF_XDP as u16,
        sxdp_flags: libc::XDP_COPY | libc::XDP_USE_NEED_WAKEUP,
        sxdp_ifindex: index,
        sxdp_queue_id: 0,
        sxdp_shared_umem_fd: 0,
    };
    let len = size_of_val(&name) as libc::socklen_t;
    // SAFETY: the kernel reads `len` bytes of an address that lives through the call.
    let code = unsafe { libc::bind(socket.as_raw_fd(), (&raw const name).cast(), len) };
    Errno::result(code).map(drop)
}

/// The mapped memory.
pub struct Umem {
    map: MmapRaw,
    chunk: usize,
}

impl Umem {
    pub fn map(memory: BorrowedFd<'_>, link_mtu: usize) -> std::io::Result<Umem> {
        let chunk = chunk(link_mtu);
        let len = CHUNKS * chunk;
        let held = fcntl(memory.as_fd(), FcntlArg::F_GET_SEALS)?;
        let size = nix::sys::stat::fstat(memory)?.st_size;
        if !SealFlag::from_bits_retain(held).contains(seals()) || size != len as i64 {
            return Err(std::io::Error::other("not the memory of a wire, sealed and of its size"));
        }
        let map = MmapOptions::new().len(len).map_raw(memory.as_raw_fd())?;
        Ok(Umem { map, chunk })
    }

    /// The chunk that an offset lies in.
    pub fn number(&self, at: u64) -> Option<u32> {
        let number = usize::try_from(at).ok()? / self.chunk;
        (number < CHUNKS).then_some(number as u32)
    }

    /// A chunk's offset.
    pub fn at(&self, frame: u32) -> u64 {
        frame as u64 * self.chunk as u64
    }

    /// The packet's place where a frame lies at `at`; None where it leaves its chunk.
    pub fn frame(&self, at: u64, len: usize) -> Option<Received> {
        let buffer = self.number(at)?;
        let offset = (at - self.at(buffer)) as usize;
        let inside = offset.checked_add(len)? <= self.chunk;
        inside.then_some(Received { buffer, offset: offset as u32, len: len as u32 })
    }

    /// Where that lies; null if it is not inside one chunk.
    pub fn pointer(&self, place: Received) -> *mut u8 {
        let (offset, len) = (place.offset as usize, place.len as usize);
        let end = offset.checked_add(len);
        if place.buffer as usize >= CHUNKS || end.is_none_or(|end| end > self.chunk) {
            return std::ptr::null_mut();
        }
        // SAFETY: inside the mapping, by the line above.
        unsafe { self.map.as_mut_ptr().add(place.buffer as usize * self.chunk + offset) }
    }

    /// Where `len` bytes of a chunk are; null if they are not inside it.
    pub fn inside(&self, frame: u32, offset: usize, len: usize) -> *mut u8 {
        let fits = offset.checked_add(len).is_some_and(|end| end <= self.chunk);
        let place = Received { buffer: frame, offset: offset as u32, len: len as u32 };
        if fits { self.pointer(place) } else { std::ptr::null_mut() }
    }

    /// Writes the parts one after the other into a chunk. False: it has no room for them and so
    /// many bytes more.
    ///
    /// # Safety
    /// Each part must be readable for its length.
    pub unsafe fn write(&self, frame: u32, parts: [(*const u8, usize); 3], more: usize) -> bool {
        let total: usize = parts.iter().map(|(_, len)| len).sum();
        let mut to = self.inside(frame, 0, total + more);
        if to.is_null() {
            return false;
        }
        for (from, len) in parts {
            // SAFETY: the source by the caller's promise; the target is inside the chunk, whose
            // room for all parts was checked.
            unsafe {
                to.copy_from_nonoverlapping(from, len);
                to = to.add(len);
            }
        }
        true
    }
}

/// Whose each chunk is.
pub struct Frames {
    /// Packets in each receive chunk that are not released yet.
    held: Vec<u16>,
    /// Receive chunks that nobody has: they go to the fill ring.
    idle: Vec<u32>,
    /// Send chunks that are free.
    free: Vec<u32>,
    /// How many receive chunks are held.
    in_use: usize,
}

impl Frames {
    pub fn new() -> Frames {
        Frames { held: vec![0; RECEIVE], idle: Vec::new(), free: Vec::new(), in_use: 0 }
    }

    /// The kernel has `filled`, `arrived` and `outgoing`; `back` will come as completed.
    pub fn take_over(&mut self, filled: &[u32], arrived: &[u32], outgoing: &[u32], back: &[u32]) {
        let mut known = vec![false; CHUNKS];
        for frame in [filled, arrived, outgoing, back].into_iter().flatten() {
            known[*frame as usize] = true;
        }
        let unknown = (0..CHUNKS).filter(|frame| !known[*frame]).map(|frame| frame as u32);
        let (receive, send) = unknown.partition(|frame| (*frame as usize) < RECEIVE);
        (self.idle, self.free) = (receive, send);
    }

    /// The next receive chunk for the fill ring.
    pub fn next_to_fill(&mut self) -> Option<u32> {
        self.idle.pop()
    }

    /// A chunk came from the receive ring. False: it is no receive chunk, or still held.
    pub fn hold(&mut self, frame: u32) -> bool {
        match self.held.get_mut(frame as usize) {
            Some(held @ 0) => {
                *held = 1;
                self.in_use += 1;
                true
            }
            _ => false,
        }
    }

    pub fn is_held(&self, frame: u32) -> bool {
        self.held.get(frame as usize).is_some_and(|held| *held > 0)
    }

    pub fn retain(&mut self, frame: u32) {
        if let Some(held @ 1..) = self.held.get_mut(frame as usize) {
            *held = held.saturating_add(1);
        }
    }

    /// True: it was the last packet, and the chunk goes to the fill ring.
    pub fn release(&mut self, frame: u32) -> bool {
        let Some(held @ 1..) = self.held.get_mut(frame as usize) else { return false };
        *held -= 1;
        let last = *held == 0;
        self.in_use -= usize::from(last);
        last
    }

    pub fn spare(&self) -> usize {
        RECEIVE - self.in_use
    }

    /// Whether no send chunk is free.
    pub fn is_sent_out(&self) -> bool {
        self.free.is_empty()
    }

    /// A free send chunk.
    pub fn take(&mut self) -> Option<u32> {
        self.free.pop()
    }

    /// A send chunk came back. What is none is not taken, nor more than there are.
    pub fn give(&mut self, frame: u32) {
        if (RECEIVE..CHUNKS).contains(&(frame as usize)) && self.free.len() < SEND {
            self.free.push(frame);
        }
    }
}

const _: () = assert!(RECEIVE.is_power_of_two() && SEND.is_power_of_two());
