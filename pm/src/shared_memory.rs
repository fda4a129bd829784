//! Files in memory that the processes of a host share, and that nobody can resize.

#![forbid(unsafe_code)]

use crate::debug;
use crate::error::{Error, PmResult};
use memmap2::{Advice, MmapOptions, MmapRaw};
use nix::fcntl::{FcntlArg, SealFlag, fcntl};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// The seals of the owner's segments, which received segments must have too. If a process could
/// shrink a segment, others that map it would get SIGBUS.
pub(crate) fn seals() -> SealFlag {
    SealFlag::F_SEAL_SHRINK | SealFlag::F_SEAL_GROW | SealFlag::F_SEAL_SEAL
}

/// Maps a file of another process. Invalid: it can be resized, or has another size.
pub(crate) fn open_sealed(memfd: &OwnedFd, size: usize) -> PmResult<MmapRaw> {
    open_sealed_file(memfd, size)?;
    map(memfd.as_fd(), size)
}

/// Like `open_sealed`, without mapping the file.
pub(crate) fn open_sealed_file(memfd: &OwnedFd, size: usize) -> PmResult<()> {
    let seal_bits = fcntl(memfd, FcntlArg::F_GET_SEALS).map_err(|_| Error::Invalid)?;
    if !SealFlag::from_bits_retain(seal_bits).contains(seals()) {
        debug::log(debug::ERROR, || "segment is not sealed against resizing".into());
        return Err(Error::Invalid);
    }
    let stat = nix::sys::stat::fstat(memfd).map_err(|_| Error::Invalid)?;
    if stat.st_size != size as i64 {
        debug::log(debug::ERROR, || {
            format!("segment has {} bytes instead of {size}", stat.st_size)
        });
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
