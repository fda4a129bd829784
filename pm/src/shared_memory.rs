//! Files in memory that the processes of a host share, and that no process can resize.

#![forbid(unsafe_code)]

use crate::debug;
use crate::error::{Error, PmResult};
use memmap2::{Advice, MmapOptions, MmapRaw};
use score_sys::memfd::{self, Seals};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// Maps a file of another process. Invalid: the file can be resized, or has another size.
pub(crate) fn open_sealed(memfd: &OwnedFd, size: usize) -> PmResult<MmapRaw> {
    open_sealed_file(memfd, size)?;
    map(memfd.as_fd(), size)
}

/// Like `open_sealed`, without mapping the file.
pub(crate) fn open_sealed_file(memfd: &OwnedFd, size: usize) -> PmResult<()> {
    let Some(len) = memfd::sealed_len(memfd, Seals::Size).map_err(|_| Error::Invalid)? else {
        debug::log(debug::ERROR, || "segment is not sealed against resizing".into());
        return Err(Error::Invalid);
    };
    if len != size as u64 {
        debug::log(debug::ERROR, || format!("segment has {len} bytes instead of {size}"));
        return Err(Error::Invalid);
    }
    Ok(())
}

pub(crate) fn map(memfd: BorrowedFd<'_>, size: usize) -> PmResult<MmapRaw> {
    use std::os::fd::AsRawFd;
    let map = MmapOptions::new().len(size).map_raw(memfd.as_raw_fd()).map_err(|e| {
        if e.raw_os_error() == Some(libc::ENOMEM) { Error::NoMemory } else { Error::Io }
    })?;
    // Both are hints, which the kernel may refuse. Without them the kernel would allocate a huge
    // page for one line, and a core dump would contain every ring.
    let _ = map.advise(Advice::NoHugePage);
    let _ = map.advise(Advice::DontDump);
    Ok(map)
}
