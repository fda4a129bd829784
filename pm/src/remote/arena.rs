//! Memory that all processes of a host's job share: one sparse file, of which each node has a
//! part. What a node allocates in its own part its peers map, and copy into directly.
//!
//! The file is made by the owner and cannot be resized, so that no access to a mapping fails.
//! Every process of the job can reach all of it.

// UNSAFETY: maps memory, and gives pages of it back.
#![expect(unsafe_code)]

use crate::error::{Error, Result};
use crate::pin::{Span, own};
use crate::segment::{from_errno, open_sealed_file, seals};
use memmap2::{Advice, MmapOptions, MmapRaw};
use nix::fcntl::{FallocateFlags, FcntlArg, fallocate, fcntl};
use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::sys::resource::{Resource, getrlimit};
use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, PoisonError, Weak};

/// Bytes of a node's part: addresses only, until they are used.
const PART: usize = 64 << 30;
const PAGE: usize = 4096;
/// Larger blocks begin where a huge page could.
const HUGE: usize = 2 << 20;

/// The file.
pub(crate) struct ArenaFile {
    memory: OwnedFd,
    nodes: usize,
}

impl ArenaFile {
    /// Makes one for `nodes` nodes. None: files of this size are not allowed here.
    pub(crate) fn create(nodes: usize) -> Result<Option<ArenaFile>> {
        let size = nodes * PART;
        if getrlimit(Resource::RLIMIT_FSIZE).is_ok_and(|(most, _)| most < size as u64) {
            return Ok(None);
        }
        let flags = MFdFlags::MFD_CLOEXEC | MFdFlags::MFD_ALLOW_SEALING;
        let memory = memfd_create(c"score-pm-arena", flags).map_err(from_errno)?;
        if nix::unistd::ftruncate(&memory, size as i64).is_err() {
            return Ok(None);
        }
        fcntl(&memory, FcntlArg::F_ADD_SEALS(seals())).map_err(from_errno)?;
        Ok(Some(ArenaFile { memory, nodes }))
    }

    /// One that was made elsewhere. Invalid: it can be resized, or has another size.
    pub(crate) fn open(memory: OwnedFd, nodes: usize) -> Result<ArenaFile> {
        open_sealed_file(&memory, nodes * PART)?;
        Ok(ArenaFile { memory, nodes })
    }

    pub(crate) fn memory(&self) -> BorrowedFd<'_> {
        self.memory.as_fd()
    }

    fn start(&self, node: usize) -> u64 {
        (node * PART) as u64
    }

    /// Maps the part of `node`. None: this process may not map that much.
    pub(crate) fn map(&self, node: usize) -> Option<MmapRaw> {
        if node >= self.nodes {
            return None;
        }
        let mut options = MmapOptions::new();
        options.offset(self.start(node)).len(PART);
        let map = options.map_raw(self.memory.as_raw_fd()).ok()?;
        // A hint.
        let _ = map.advise(Advice::HugePage);
        Some(map)
    }

    /// Copies `len` bytes here into the part of `node`, where they fit. Memory that is not mapped
    /// is an error.
    pub(crate) fn put(&self, node: usize, at: u64, here: usize, len: usize) -> io::Result<()> {
        self.transfer(node, at, here, len, |fd, here, len, at| {
            // SAFETY: the kernel checks the addresses, and only reads there.
            unsafe { libc::pwrite(fd, here as *const libc::c_void, len, at) }
        })
    }

    /// Copies the other way.
    ///
    /// # Safety
    /// Whoever uses the `len` bytes here expects them to change.
    pub(crate) unsafe fn take(
        &self,
        node: usize,
        at: u64,
        here: usize,
        len: usize,
    ) -> io::Result<()> {
        self.transfer(node, at, here, len, |fd, here, len, at| {
            // SAFETY: the kernel checks the addresses; the caller answers for the bytes.
            unsafe { libc::pread(fd, here as *mut libc::c_void, len, at) }
        })
    }

    fn transfer(
        &self,
        node: usize,
        at: u64,
        here: usize,
        len: usize,
        call: impl Fn(i32, usize, usize, i64) -> isize,
    ) -> io::Result<()> {
        if node >= self.nodes || !Self::holds(at, len) {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let (fd, at) = (self.memory.as_raw_fd(), (self.start(node) + at) as i64);
        let mut done = 0;
        while done < len {
            match call(fd, here.wrapping_add(done), len - done, at + done as i64) {
                copied if copied > 0 => done += copied as usize,
                0 => return Err(io::Error::from_raw_os_error(libc::EFAULT)),
                _ => {
                    let error = io::Error::last_os_error();
                    if error.kind() != io::ErrorKind::Interrupted {
                        return Err(error);
                    }
                }
            }
        }
        Ok(())
    }

    /// Whether `len` bytes at `at` lie inside a part.
    #[inline(always)]
    pub(crate) fn holds(at: u64, len: usize) -> bool {
        at.checked_add(len as u64).is_some_and(|end| end <= PART as u64)
    }
}

/// The own part, mapped, and what of it is in use.
pub(crate) struct Arena {
    file: Arc<ArenaFile>,
    node: usize,
    map: MmapRaw,
    /// Free ranges: offset and length.
    free: Mutex<BTreeMap<usize, usize>>,
}

impl Drop for Arena {
    /// Whatever is still allocated there goes with the mapping.
    fn drop(&mut self) {
        Span::new(self.start(), self.start() + PART).into_iter().for_each(own::remove);
    }
}

/// A part of this process, by the file's name and the node.
struct Known {
    nonce: [u64; 2],
    node: usize,
    part: Weak<Arena>,
}

/// A context that is attached again goes on with what is in use.
static PARTS: Mutex<Vec<Known>> = Mutex::new(Vec::new());

impl Arena {
    /// The part of `node`. None: it cannot be mapped.
    pub(crate) fn of(file: &Arc<ArenaFile>, nonce: [u64; 2], node: usize) -> Option<Arc<Arena>> {
        let mut parts = PARTS.lock().unwrap_or_else(PoisonError::into_inner);
        parts.retain(|known| known.part.strong_count() > 0);
        let known = parts.iter().find(|known| known.nonce == nonce && known.node == node);
        if let Some(part) = known.and_then(|known| known.part.upgrade()) {
            return Some(part);
        }
        let map = file.map(node)?;
        let free = Mutex::new(BTreeMap::from([(0, PART)]));
        let part = Arc::new(Arena { file: file.clone(), node, map, free });
        parts.push(Known { nonce, node, part: Arc::downgrade(&part) });
        Some(part)
    }

    fn start(&self) -> usize {
        self.first().addr()
    }

    /// Its first byte, which is mapped as long as this lives.
    pub(crate) fn first(&self) -> *mut u8 {
        self.map.as_mut_ptr()
    }

    /// Where `len` bytes at `addr` lie in the part. None: they do not.
    pub(crate) fn offset(&self, addr: usize, len: usize) -> Option<u64> {
        let at = addr.checked_sub(self.start())? as u64;
        ArenaFile::holds(at, len).then_some(at)
    }

    /// The same for PM's own use, as an offset; never given back.
    pub(crate) fn reserve(&self, len: usize) -> Result<u64> {
        self.allocate(len).map(|(addr, _)| (addr - self.start()) as u64)
    }

    /// Whole pages, all zero. NoMemory: no room.
    pub(crate) fn allocate(&self, len: usize) -> Result<(usize, usize)> {
        let len = len.checked_next_multiple_of(PAGE).ok_or(Error::NoMemory)?;
        let align = if len >= HUGE { HUGE } else { PAGE };
        let mut free = self.free.lock().unwrap_or_else(PoisonError::into_inner);
        let fits = |(&at, &room): (&usize, &usize)| {
            let first = at.next_multiple_of(align);
            // `len` may be anything that a user asks for.
            let left = room.checked_sub(first - at)?;
            (len <= left).then_some((at, room, first))
        };
        let (at, room, first) = free.iter().find_map(fits).ok_or(Error::NoMemory)?;
        free.remove(&at);
        if first > at {
            free.insert(at, first - at);
        }
        if first + len < at + room {
            free.insert(first + len, at + room - first - len);
        }
        let start = self.start() + first;
        Span::new(start, start + len).into_iter().for_each(own::add);
        Ok((start, len))
    }

    /// Gives back what `allocate` gave: its pages become free, and zero.
    pub(crate) fn release(&self, addr: usize, len: usize) {
        // Before its pages go: a device may have them registered.
        Span::new(addr, addr + len).into_iter().for_each(own::remove);
        let mut at = addr - self.start();
        let mut len = len;
        let flags = FallocateFlags::FALLOC_FL_PUNCH_HOLE | FallocateFlags::FALLOC_FL_KEEP_SIZE;
        let from = self.file.start(self.node) + at as u64;
        if fallocate(&self.file.memory, flags, from as i64, len as i64).is_err() {
            // SAFETY: pages of the own part that nobody has in use.
            unsafe { std::ptr::write_bytes(addr as *mut u8, 0, len) };
        }
        let mut free = self.free.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((&before, &room)) = free.range(..at).next_back()
            && before + room == at
        {
            free.remove(&before);
            (at, len) = (before, len + room);
        }
        if let Some(room) = free.remove(&(at + len)) {
            len += room;
        }
        free.insert(at, len);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_length_is_given_that_does_not_fit() {
        // Addresses are all it takes; where they are limited there is no arena to try.
        let Some(file) = ArenaFile::create(1).unwrap() else { return };
        let Some(arena) = Arena::of(&Arc::new(file), [1, 2], 0) else { return };
        let (first, len) = arena.allocate(5000).unwrap();
        assert_eq!((first, len), (arena.start(), 2 * PAGE));
        for len in [PART, PART + 1, usize::MAX - 2 * PAGE + 1, usize::MAX - HUGE, usize::MAX] {
            assert_eq!(arena.allocate(len), Err(Error::NoMemory), "{len:#x}");
        }
        let (second, _) = arena.allocate(HUGE).unwrap();
        assert_eq!((second - arena.start()) % HUGE, 0);
        arena.release(first, len);
        arena.release(second, HUGE);
        assert_eq!(arena.allocate(PART), Ok((arena.start(), PART)));
    }
}
