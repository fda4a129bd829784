//! Memory that all processes of a job on a host share: one sparse file, of which each node has a
//! part, its arena. A node allocates in its own arena; its peers map the arena and copy directly.
//!
//! The owner creates the file. The file cannot be resized, so that no access to a mapping fails.
//! Every process of the job can access all of it.

// UNSAFETY: maps memory, and frees pages of it.
#![expect(unsafe_code)]

use crate::error::{Error, PmResult, from_io};
use crate::pin::mapping_monitor::remove_own_mappings;
use crate::pin::{PageRange, own_mappings};
use crate::shared_memory::open_sealed_file;
use memmap2::{Advice, MmapOptions, MmapRaw};
use nix::fcntl::{FallocateFlags, fallocate};
use nix::sys::resource::{Resource, getrlimit};
use score_sys::memfd::{self, Seals};
use std::collections::BTreeMap;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, PoisonError, Weak};

/// Bytes of a node's arena. They take only addresses until they are used.
const NODE_ARENA_LEN: usize = 64 << 30;
const PAGE: usize = 4096;
/// Blocks of at least this size are aligned to a huge page.
const HUGE_PAGE_SIZE: usize = 2 << 20;

/// The file with the arenas of all nodes.
pub(crate) struct ArenaFile {
    memfd: OwnedFd,
    nodes: usize,
}

impl ArenaFile {
    /// Creates a file for `nodes` nodes. None: this process may not have files of this size.
    pub(crate) fn create(nodes: usize) -> PmResult<Option<ArenaFile>> {
        let len = nodes * NODE_ARENA_LEN;
        if getrlimit(Resource::RLIMIT_FSIZE).is_ok_and(|(soft_limit, _)| soft_limit < len as u64) {
            return Ok(None);
        }
        let file = memfd::create("score-pm-arena").map_err(from_io)?;
        if file.set_len(len as u64).is_err() {
            return Ok(None);
        }
        memfd::seal(&file, Seals::Size).map_err(from_io)?;
        Ok(Some(ArenaFile { memfd: file.into(), nodes }))
    }

    /// Opens a file of another process. Invalid: the file can be resized, or has another size.
    pub(crate) fn open(memfd: OwnedFd, nodes: usize) -> PmResult<ArenaFile> {
        open_sealed_file(&memfd, nodes * NODE_ARENA_LEN)?;
        Ok(ArenaFile { memfd, nodes })
    }

    pub(crate) fn memfd(&self) -> BorrowedFd<'_> {
        self.memfd.as_fd()
    }

    fn node_offset(&self, node: usize) -> u64 {
        (node * NODE_ARENA_LEN) as u64
    }

    /// Maps the arena of `node`. None: this process may not map that much memory.
    pub(crate) fn map(&self, node: usize) -> Option<MmapRaw> {
        if node >= self.nodes {
            return None;
        }
        let mut options = MmapOptions::new();
        options.offset(self.node_offset(node)).len(NODE_ARENA_LEN);
        let map = options.map_raw(self.memfd.as_raw_fd()).ok()?;
        // A hint, which the kernel may refuse.
        let _ = map.advise(Advice::HugePage);
        Some(map)
    }

    /// Whether `len` bytes at `offset` are inside an arena.
    #[inline(always)]
    pub(crate) fn holds(offset: u64, len: usize) -> bool {
        offset.checked_add(len as u64).is_some_and(|end| end <= NODE_ARENA_LEN as u64)
    }
}

/// The arena of a node of this process, mapped, and its free memory.
pub(crate) struct Arena {
    file: Arc<ArenaFile>,
    node: usize,
    map: MmapRaw,
    /// Free ranges: offset and length.
    free: Mutex<BTreeMap<usize, usize>>,
}

impl Drop for Arena {
    /// All memory that is still allocated in the arena is unmapped with it.
    fn drop(&mut self) {
        PageRange::new(self.start(), self.start() + NODE_ARENA_LEN)
            .into_iter()
            .for_each(remove_own_mappings);
    }
}

/// An arena of this process, by the segment's nonce and the node.
struct CachedArena {
    nonce: [u64; 2],
    node: usize,
    arena: Weak<Arena>,
}

/// The mapped arenas. They are shared, so that a context that is attached again finds its arena
/// with the memory in use.
static MAPPED_ARENAS: Mutex<Vec<CachedArena>> = Mutex::new(Vec::new());

impl Arena {
    /// The arena of `node`. None: it cannot be mapped.
    pub(crate) fn of(file: &Arc<ArenaFile>, nonce: [u64; 2], node: usize) -> Option<Arc<Arena>> {
        let mut arenas = MAPPED_ARENAS.lock().unwrap_or_else(PoisonError::into_inner);
        arenas.retain(|cached| cached.arena.strong_count() > 0);
        let cached = arenas.iter().find(|cached| cached.nonce == nonce && cached.node == node);
        if let Some(arena) = cached.and_then(|cached| cached.arena.upgrade()) {
            return Some(arena);
        }
        let map = file.map(node)?;
        let free = Mutex::new(BTreeMap::from([(0, NODE_ARENA_LEN)]));
        let arena = Arc::new(Arena { file: file.clone(), node, map, free });
        arenas.push(CachedArena { nonce, node, arena: Arc::downgrade(&arena) });
        Some(arena)
    }

    fn start(&self) -> usize {
        self.first().addr()
    }

    /// The first byte, which is mapped as long as `self` lives.
    pub(crate) fn first(&self) -> *mut u8 {
        self.map.as_mut_ptr()
    }

    /// The offset of the `len` bytes at `addr`. None: they are not in the arena.
    pub(crate) fn offset(&self, addr: usize, len: usize) -> Option<u64> {
        let in_arena = addr.checked_sub(self.start())? as u64;
        ArenaFile::holds(in_arena, len).then_some(in_arena)
    }

    /// Allocates whole pages of zeroes; returns address and length. NoMemory: there is no room.
    pub(crate) fn allocate(&self, len: usize) -> PmResult<(usize, usize)> {
        let len = len.checked_next_multiple_of(PAGE).ok_or(Error::NoMemory)?;
        let align = if len >= HUGE_PAGE_SIZE { HUGE_PAGE_SIZE } else { PAGE };
        let mut free = self.free.lock().unwrap_or_else(PoisonError::into_inner);
        let fits = |(&offset, &free_len): (&usize, &usize)| {
            let aligned = offset.next_multiple_of(align);
            // The difference is checked, because `len` is any value that a user passes.
            let usable = free_len.checked_sub(aligned - offset)?;
            (len <= usable).then_some((offset, free_len, aligned))
        };
        let (offset, free_len, aligned) = free.iter().find_map(fits).ok_or(Error::NoMemory)?;
        free.remove(&offset);
        if aligned > offset {
            free.insert(offset, aligned - offset);
        }
        if aligned + len < offset + free_len {
            free.insert(aligned + len, offset + free_len - aligned - len);
        }
        let start = self.start() + aligned;
        PageRange::new(start, start + len).into_iter().for_each(own_mappings::add);
        Ok((start, len))
    }

    /// Frees memory of `allocate`, whose pages become zero.
    pub(crate) fn release(&self, addr: usize, len: usize) {
        // Called before the pages are freed, because a device may have registered them.
        PageRange::new(addr, addr + len).into_iter().for_each(remove_own_mappings);
        let mut offset = addr - self.start();
        let mut len = len;
        let flags = FallocateFlags::FALLOC_FL_PUNCH_HOLE | FallocateFlags::FALLOC_FL_KEEP_SIZE;
        let file_offset = self.file.node_offset(self.node) + offset as u64;
        if fallocate(&self.file.memfd, flags, file_offset as i64, len as i64).is_err() {
            // SAFETY: pages of this arena that are not in use any more.
            unsafe { std::ptr::write_bytes(addr as *mut u8, 0, len) };
        }
        let mut free = self.free.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((&prev_offset, &prev_len)) = free.range(..offset).next_back()
            && prev_offset + prev_len == offset
        {
            free.remove(&prev_offset);
            (offset, len) = (prev_offset, len + prev_len);
        }
        if let Some(next_len) = free.remove(&(offset + len)) {
            len += next_len;
        }
        free.insert(offset, len);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_length_that_does_not_fit_is_refused() {
        // The test needs addresses only. If they are limited there is no arena.
        let Some(file) = ArenaFile::create(1).unwrap() else { return };
        let Some(arena) = Arena::of(&Arc::new(file), [1, 2], 0) else { return };
        let (first, len) = arena.allocate(5000).unwrap();
        assert_eq!((first, len), (arena.start(), 2 * PAGE));
        for len in [
            NODE_ARENA_LEN,
            NODE_ARENA_LEN + 1,
            usize::MAX - 2 * PAGE + 1,
            usize::MAX - HUGE_PAGE_SIZE,
            usize::MAX,
        ] {
            assert_eq!(arena.allocate(len), Err(Error::NoMemory), "{len:#x}");
        }
        let (second, _) = arena.allocate(HUGE_PAGE_SIZE).unwrap();
        assert_eq!((second - arena.start()) % HUGE_PAGE_SIZE, 0);
        arena.release(first, len);
        arena.release(second, HUGE_PAGE_SIZE);
        assert_eq!(arena.allocate(NODE_ARENA_LEN), Ok((arena.start(), NODE_ARENA_LEN)));
    }
}
