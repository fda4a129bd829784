//! Memory that the kernel zeroes in a child of `fork`, also if the program calls the system call
//! itself.

// UNSAFETY: maps memory and advises the kernel about it.
#![expect(unsafe_code)]

use crate::error::{Error, PmResult};
use std::ptr::{NonNull, null_mut};

/// Maps `len` bytes of zeroes on separate pages. NoMemory: the kernel has no such memory.
pub(crate) fn map_pages(len: usize) -> PmResult<NonNull<u8>> {
    let (prot, flags) =
        (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
    // SAFETY: asks for new memory anywhere; touches none that exists.
    let pages = unsafe { libc::mmap(null_mut(), len, prot, flags, -1, 0) };
    if pages == libc::MAP_FAILED {
        return Err(Error::NoMemory);
    }
    // SAFETY: the pages that were just mapped.
    if unsafe { libc::madvise(pages, len, libc::MADV_WIPEONFORK) } != 0 {
        // SAFETY: as above; there is no other reference.
        unsafe { libc::munmap(pages, len) };
        return Err(Error::NoMemory);
    }
    NonNull::new(pages.cast()).ok_or(Error::NoMemory)
}
