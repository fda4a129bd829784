//! Memory that a child of `fork` finds zeroed, however it was forked.

// UNSAFETY: maps memory and tells the kernel so.
#![expect(unsafe_code)]

use crate::error::{Error, PmResult};
use std::ptr::{NonNull, null_mut};

/// `len` bytes of zeroes, on pages of their own. NoMemory: the kernel gives none of that kind.
pub(crate) fn map_pages(len: usize) -> PmResult<NonNull<u8>> {
    let (prot, flags) =
        (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
    // SAFETY: asks for new memory anywhere; touches none that exists.
    let pages = unsafe { libc::mmap(null_mut(), len, prot, flags, -1, 0) };
    if pages == libc::MAP_FAILED {
        return Err(Error::NoMemory);
    }
    // SAFETY: what was just mapped.
    if unsafe { libc::madvise(pages, len, libc::MADV_WIPEONFORK) } != 0 {
        // SAFETY: as above; nobody knows it.
        unsafe { libc::munmap(pages, len) };
        return Err(Error::NoMemory);
    }
    NonNull::new(pages.cast()).ok_or(Error::NoMemory)
}
