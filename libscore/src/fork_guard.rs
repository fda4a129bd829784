//! Detects forked children. A process that a node has forked is not a node. It must not touch the
//! node's thread slots, its control socket, or the temporary directory that the parent removes.

// UNSAFETY: memmap2 does not have the advice.
#![expect(unsafe_code)]

use std::io;

use memmap2::{MmapMut, MmapRaw};
use nix::errno::Errno;

use crate::sync::{Ordering, SharedMapping};

const OWNER_MAGIC: u32 = 0x5c04_e001;

/// A word that reads as zero in every forked child, whatever call forked it (MADV_WIPEONFORK).
pub(crate) struct ForkGuard(SharedMapping);

impl ForkGuard {
    /// Marks this process as the owner.
    ///
    /// # Errors
    /// The kernel refuses the mapping or the advice (Linux before 4.14).
    pub(crate) fn new() -> io::Result<Self> {
        let page = MmapMut::map_anon(4096)?;
        let start = page.as_ptr().cast_mut().cast();
        // SAFETY: the mapping belongs to this process, and is private and anonymous as the advice
        // requires.
        Errno::result(unsafe { libc::madvise(start, page.len(), libc::MADV_WIPEONFORK) })?;
        let mapping = SharedMapping::new(MmapRaw::from(page));
        mapping.u32(0).store(OWNER_MAGIC, Ordering::Relaxed);
        Ok(Self(mapping))
    }

    /// Whether this process is the owner.
    pub(crate) fn is_owner(&self) -> bool {
        self.0.u32(0).load(Ordering::Relaxed) == OWNER_MAGIC
    }
}
