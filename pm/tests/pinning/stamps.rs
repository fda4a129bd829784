//! A registrar that is not real, the one thing here. Each page carries a stamp that no other page
//! ever had; pinning notes the stamps, as a device would note the pages. Whoever locks memory
//! compares them with what it reads there: a difference is a device that writes to pages which are
//! not the program's.

// UNSAFETY: maps, unmaps and writes memory of its own.
#![expect(unsafe_code)]

use score_pm::pin::{Cache, Options, PAGE, Registrar, Span};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

static STAMP: AtomicU64 = AtomicU64::new(1);

/// Notes the stamps of what it pins. `room` bytes at most.
pub struct Stamps {
    pub room: usize,
    pub pinned: Arc<AtomicUsize>,
}

/// Where a region begins, and its stamps.
pub type Noted = Arc<(usize, Vec<u64>)>;

impl Registrar for Stamps {
    type Registration = Noted;

    fn pin(&mut self, span: Span) -> std::result::Result<Noted, i32> {
        if self.pinned.load(Ordering::Relaxed) + span.bytes() > self.room {
            return Err(libc::ENOMEM);
        }
        let pages = (span.start()..span.end()).step_by(PAGE);
        let stamps = pages.map(read_safely).collect::<Option<Vec<u64>>>().ok_or(libc::EFAULT)?;
        self.pinned.fetch_add(span.bytes(), Ordering::Relaxed);
        Ok(Arc::new((span.start(), stamps)))
    }

    fn unpin(&mut self, noted: Noted) {
        self.pinned.fetch_sub(noted.1.len() * PAGE, Ordering::Relaxed);
    }
}

/// A page's stamp; None where nothing is mapped.
fn read_safely(page: usize) -> Option<u64> {
    let mut word = 0u64;
    let to = libc::iovec { iov_base: (&raw mut word).cast(), iov_len: 8 };
    let from = libc::iovec { iov_base: page as *mut libc::c_void, iov_len: 8 };
    // SAFETY: writes eight bytes that are ours; what is not mapped is an error.
    let read = unsafe { libc::process_vm_readv(libc::getpid(), &to, 1, &from, 1, 0) };
    (read == 8).then_some(word)
}

pub fn cache(limit: usize) -> (Cache<Stamps>, Arc<AtomicUsize>) {
    let pinned = Arc::new(AtomicUsize::new(0));
    let registrar = Stamps { room: usize::MAX, pinned: pinned.clone() };
    (Cache::new(registrar, Options { limit }).unwrap(), pinned)
}

/// Maps `pages` at `at`, or anywhere for 0. None: something else is there.
pub fn map(at: usize, pages: usize, flags: i32, fd: i32) -> Option<usize> {
    let (access, kind) = (libc::PROT_READ | libc::PROT_WRITE, flags);
    // SAFETY: replaces nothing but what the caller owns.
    let memory = unsafe { libc::mmap(at as *mut _, pages * PAGE, access, kind, fd, 0) };
    (memory != libc::MAP_FAILED).then_some(memory as usize)
}

pub const PRIVATE: i32 = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;

pub fn unmap(at: usize, pages: usize) {
    // SAFETY: callers own this memory and do not use it afterwards.
    assert_eq!(unsafe { libc::munmap(at as *mut _, pages * PAGE) }, 0);
}

pub fn stamp(at: usize, pages: usize) {
    for page in 0..pages {
        let value = STAMP.fetch_add(1, Ordering::Relaxed);
        // SAFETY: mapped by the caller, and only its.
        unsafe { ((at + page * PAGE) as *mut u64).write_volatile(value) };
    }
}

/// Locks, compares, unlocks. False: the registration is of other pages.
pub fn is_true(cache: &Cache<Stamps>, at: usize, pages: usize) -> bool {
    let lock = cache.lock(at + 8, pages * PAGE - 8).unwrap();
    let (start, stamps) = &*lock.registration;
    let noted = &stamps[(at - start) / PAGE..][..pages];
    let there = (0..pages).map(|page| read_safely(at + page * PAGE).unwrap());
    let there: Vec<u64> = there.collect();
    let same = there == noted;
    if !same {
        println!("at {at:#x}: pinned as {noted:?} of a region at {start:#x}, now {there:?}");
    }
    cache.unlock(lock.id).unwrap();
    same
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
    let at = map(0, ARENA, PRIVATE, -1).unwrap();
    stamp(at, ARENA);
    at
}

/// One change of a part of an arena. None: the arena is lost, another thread has mapped there.
pub fn change(arena: usize, random: &mut Random) -> Option<()> {
    let first = random.below(ARENA);
    let pages = 1 + random.below((ARENA - first).min(6));
    let at = arena + first * PAGE;
    match random.below(5) {
        0 => {
            map(at, pages, PRIVATE | libc::MAP_FIXED, -1)?;
        }
        1 => {
            unmap(at, pages);
            map(at, pages, PRIVATE | libc::MAP_FIXED_NOREPLACE, -1)?;
        }
        2 => {
            let (old, size) = (at as *mut libc::c_void, pages * PAGE);
            // SAFETY: memory of this thread, which knows where it is from now on.
            let moved = unsafe { libc::mremap(old, size, 2 * size, libc::MREMAP_MAYMOVE) };
            if moved == libc::MAP_FAILED {
                // Several mappings: one of the other ways has split it.
                return Some(());
            }
            if moved == old {
                // It has grown where it was: these are the same pages, and their stamps stay.
                unmap(at + size, pages);
                return Some(());
            }
            map(at, pages, PRIVATE | libc::MAP_FIXED_NOREPLACE, -1)?;
            unmap(moved as usize, 2 * pages);
        }
        way => {
            let advice = if way == 3 { libc::MADV_DONTNEED } else { libc::MADV_FREE };
            // SAFETY: memory of this thread, written anew below.
            assert_eq!(unsafe { libc::madvise(at as *mut _, pages * PAGE, advice) }, 0);
        }
    }
    stamp(at, pages);
    Some(())
}

/// How often a test does something: thread switches take milliseconds in an emulated machine, and
/// their time under a sanitizer.
pub fn rounds(count: usize) -> usize {
    let slow = std::env::var_os("SCORE_VM").is_some() || cfg!(sanitized);
    if slow { count / 40 } else { count }
}
