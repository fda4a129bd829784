//! A fake registrar. Each page has a unique stamp, and pinning records the stamps as a device would
//! record the pages. A test that locks memory compares the recorded stamps with those in memory. A
//! difference means that a device would write to pages that do not belong to the program.

// UNSAFETY: maps, unmaps and writes its own memory.
#![expect(unsafe_code)]

use score_pm::testing::pin::{Cache, CacheOptions, PAGE, PageRange, Registrar};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

static STAMP: AtomicU64 = AtomicU64::new(1);

/// Records the stamps of the pages that it pins. It pins at most `capacity` bytes.
pub struct StampRegistrar {
    pub capacity: usize,
    pub pinned: Arc<AtomicUsize>,
}

/// The address of a region, and its stamps.
pub type PinnedStamps = Arc<(usize, Vec<u64>)>;

impl Registrar for StampRegistrar {
    type Registration = PinnedStamps;

    fn pin(&mut self, span: PageRange) -> std::result::Result<PinnedStamps, i32> {
        if self.pinned.load(Ordering::Relaxed) + span.bytes() > self.capacity {
            return Err(libc::ENOMEM);
        }
        let pages = (span.start()..span.end()).step_by(PAGE);
        let page_stamps =
            pages.map(read_safely).collect::<Option<Vec<u64>>>().ok_or(libc::EFAULT)?;
        self.pinned.fetch_add(span.bytes(), Ordering::Relaxed);
        Ok(Arc::new((span.start(), page_stamps)))
    }

    fn unpin(&mut self, registration: PinnedStamps) {
        self.pinned.fetch_sub(registration.1.len() * PAGE, Ordering::Relaxed);
    }
}

/// Returns the stamp of a page, or None if the page is not mapped.
fn read_safely(page: usize) -> Option<u64> {
    let mut word = 0u64;
    let local = libc::iovec { iov_base: (&raw mut word).cast(), iov_len: 8 };
    let remote = libc::iovec { iov_base: page as *mut libc::c_void, iov_len: 8 };
    // SAFETY: the kernel writes eight bytes to a variable of this function. It returns an error if
    // the page is not mapped.
    let copied = unsafe { libc::process_vm_readv(libc::getpid(), &local, 1, &remote, 1, 0) };
    (copied == 8).then_some(word)
}

pub fn cache(limit: usize) -> (Cache<StampRegistrar>, Arc<AtomicUsize>) {
    let pinned = Arc::new(AtomicUsize::new(0));
    let registrar = StampRegistrar { capacity: usize::MAX, pinned: pinned.clone() };
    (Cache::new(registrar, CacheOptions { max_bytes: limit }).unwrap(), pinned)
}

/// Maps `pages` pages at `addr`, or at any address if `addr` is 0. Returns None if the kernel
/// refuses, for example because there is another mapping.
pub fn map(addr: usize, pages: usize, flags: i32, fd: i32) -> Option<usize> {
    let (prot, map_flags) = (libc::PROT_READ | libc::PROT_WRITE, flags);
    // SAFETY: this replaces only memory that the caller owns.
    let memory = unsafe { libc::mmap(addr as *mut _, pages * PAGE, prot, map_flags, fd, 0) };
    (memory != libc::MAP_FAILED).then_some(memory as usize)
}

pub const PRIVATE: i32 = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;

pub fn unmap(addr: usize, pages: usize) {
    // SAFETY: the callers own this memory and do not use it afterwards.
    assert_eq!(unsafe { libc::munmap(addr as *mut _, pages * PAGE) }, 0);
}

pub fn stamp(addr: usize, pages: usize) {
    for page in 0..pages {
        let value = STAMP.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the caller has mapped the memory and is its only user.
        unsafe { ((addr + page * PAGE) as *mut u64).write_volatile(value) };
    }
}

/// Locks memory, compares its stamps and unlocks it. Returns false if the registration has other
/// pages.
pub fn matches_pages(cache: &Cache<StampRegistrar>, addr: usize, pages: usize) -> bool {
    let lock = cache.lock(addr + 8, pages * PAGE - 8).unwrap();
    let (start, stamps) = &*lock.registration;
    let pinned_stamps = &stamps[(addr - start) / PAGE..][..pages];
    let current = (0..pages).map(|page| read_safely(addr + page * PAGE).unwrap());
    let current: Vec<u64> = current.collect();
    let matches = current == pinned_stamps;
    if !matches {
        println!(
            "at {addr:#x}: pinned as {pinned_stamps:?} of a region at {start:#x}, now {current:?}"
        );
    }
    cache.unlock(lock.id).unwrap();
    matches
}

pub struct Random(pub u64);

impl Random {
    pub fn below(&mut self, limit: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) as usize % limit
    }
}

pub const ARENA: usize = 24;

pub fn arena() -> usize {
    let addr = map(0, ARENA, PRIVATE, -1).unwrap();
    stamp(addr, ARENA);
    addr
}

/// Changes a part of an arena. Returns None if the arena is lost, because another thread has mapped
/// memory in it.
pub fn change(arena: usize, random: &mut Random) -> Option<()> {
    let first = random.below(ARENA);
    let pages = 1 + random.below((ARENA - first).min(6));
    let addr = arena + first * PAGE;
    match random.below(5) {
        0 => {
            map(addr, pages, PRIVATE | libc::MAP_FIXED, -1)?;
        }
        1 => {
            unmap(addr, pages);
            map(addr, pages, PRIVATE | libc::MAP_FIXED_NOREPLACE, -1)?;
        }
        2 => {
            let (old, len) = (addr as *mut libc::c_void, pages * PAGE);
            // SAFETY: this is memory of this thread, which uses only the new address from now on.
            let moved = unsafe { libc::mremap(old, len, 2 * len, libc::MREMAP_MAYMOVE) };
            if moved == libc::MAP_FAILED {
                // The range has several mappings, because another method has split the first one.
                return Some(());
            }
            if moved == old {
                // The memory has grown in place, so the pages and their stamps stay.
                unmap(addr + len, pages);
                return Some(());
            }
            map(addr, pages, PRIVATE | libc::MAP_FIXED_NOREPLACE, -1)?;
            unmap(moved as usize, 2 * pages);
        }
        method => {
            let advice = if method == 3 { libc::MADV_DONTNEED } else { libc::MADV_FREE };
            // SAFETY: this is memory of this thread, which writes it again below.
            assert_eq!(unsafe { libc::madvise(addr as *mut _, pages * PAGE, advice) }, 0);
        }
    }
    stamp(addr, pages);
    Some(())
}

/// Returns the number of rounds of a test. It is smaller in an emulated machine and under a
/// sanitizer, because thread switches are slow there.
pub fn rounds(count: usize) -> usize {
    let slow = std::env::var_os("SCORE_VM").is_some() || cfg!(sanitized);
    if slow { count / 40 } else { count }
}
