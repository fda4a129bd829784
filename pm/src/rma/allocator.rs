//! Memory of PM's own allocator (`pmAlloc`, `pmFree`; not in the manual). The memory is in the
//! arena if the context has shmem, otherwise in a mapping of its own. A table of all blocks ensures
//! that a block with a locked region is not freed.

// UNSAFETY: maps and unmaps memory.
#![expect(unsafe_code)]

use super::Arena;
use crate::error::{Error, PmResult};
use std::collections::BTreeMap;
use std::ptr::null_mut;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

const PAGE: usize = 4096;

struct Block {
    len: usize,
    /// The arena that contains the block. None: the block is a separate mapping.
    arena: Option<Arc<Arena>>,
    /// The number of locked regions inside.
    locked_regions: usize,
}

static BLOCKS: Mutex<BTreeMap<usize, Block>> = Mutex::new(BTreeMap::new());

fn blocks() -> MutexGuard<'static, BTreeMap<usize, Block>> {
    BLOCKS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Allocates at least `len` bytes of zeroes, aligned to a page. Invalid: `len` is 0. NoMemory:
/// there is no memory.
pub(crate) fn allocate(arena: Option<&Arc<Arena>>, len: usize) -> PmResult<usize> {
    if len == 0 {
        return Err(Error::Invalid);
    }
    let mut blocks = blocks();
    if let Some(arena) = arena
        && let Ok((addr, len)) = arena.allocate(len)
    {
        blocks.insert(addr, Block { len, arena: Some(arena.clone()), locked_regions: 0 });
        return Ok(addr);
    }
    let len = len.checked_next_multiple_of(PAGE).ok_or(Error::NoMemory)?;
    let prot = libc::PROT_READ | libc::PROT_WRITE;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    // SAFETY: asks for new memory anywhere; touches none that exists.
    let addr = unsafe { libc::mmap(null_mut(), len, prot, flags, -1, 0) };
    if addr == libc::MAP_FAILED {
        return Err(Error::NoMemory);
    }
    blocks.insert(addr.addr(), Block { len, arena: None, locked_regions: 0 });
    Ok(addr.addr())
}

/// Frees memory. Invalid: `addr` was not returned by `allocate`. Busy: a region inside is locked.
pub(crate) fn free(addr: usize) -> PmResult<()> {
    let mut blocks = blocks();
    match blocks.get(&addr) {
        None => return Err(Error::Invalid),
        Some(block) if block.locked_regions > 0 => return Err(Error::Busy),
        Some(_) => {}
    }
    let Some(block) = blocks.remove(&addr) else { return Err(Error::Invalid) };
    match block.arena {
        Some(arena) => arena.release(addr, block.len),
        // SAFETY: mapped by `allocate`, and its user frees it.
        None => drop(unsafe { libc::munmap(addr as *mut libc::c_void, block.len) }),
    }
    Ok(())
}

fn block_containing(
    blocks: &mut BTreeMap<usize, Block>,
    addr: usize,
    len: usize,
) -> Option<&mut Block> {
    let (&start, block) = blocks.range_mut(..=addr).next_back()?;
    (addr - start + len <= block.len).then_some(block)
}

/// Records that a region is locked. True: all of it is PM's memory, and it is not freed before
/// `release`.
pub(crate) fn retain(addr: usize, len: usize) -> bool {
    block_containing(&mut blocks(), addr, len).map(|block| block.locked_regions += 1).is_some()
}

/// Undoes a `retain` that returned true.
pub(crate) fn release(addr: usize, len: usize) {
    if let Some(block) = block_containing(&mut blocks(), addr, len) {
        block.locked_regions = block.locked_regions.saturating_sub(1);
    }
}

/// Calls `copy` if all of the memory is PM's, and keeps it from being freed meanwhile. False: it is
/// other memory, and `copy` was not called.
pub(crate) fn with_retained(addr: usize, len: usize, copy: impl FnOnce()) -> bool {
    let mut blocks = blocks();
    let is_pm_allocated = block_containing(&mut blocks, addr, len).is_some();
    if is_pm_allocated {
        copy();
    }
    is_pm_allocated
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn locked_memory_is_not_freed_and_no_memory_is_freed_twice() {
        assert_eq!(allocate(None, 0), Err(Error::Invalid));
        assert_eq!(allocate(None, usize::MAX), Err(Error::NoMemory));
        let addr = allocate(None, 5000).unwrap();
        assert!(retain(addr + 100, 5000));
        assert!(!retain(addr, 8193) && !retain(addr - 1, 2));
        let mut copied = 0;
        assert!(
            with_retained(addr, 8192, || copied += 1) && !with_retained(addr, 8193, || copied += 1)
        );
        assert_eq!(copied, 1);
        assert_eq!(free(addr), Err(Error::Busy));
        release(addr + 100, 5000);
        assert_eq!(free(addr + 1), Err(Error::Invalid));
        assert_eq!(free(addr), Ok(()));
        assert_eq!(free(addr), Err(Error::Invalid));
    }
}
