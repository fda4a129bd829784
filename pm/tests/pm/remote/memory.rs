//! Memory of each kind that is locked on a node of a test bed, and helper functions.

use crate::testbed::*;
use score_pm::*;
use std::ops::Range;
use std::sync::{PoisonError, RwLock, RwLockReadGuard};
use std::time::{Duration, Instant};

/// The kinds of test bed whose region tables are in memory that all nodes share.
pub const SHARED: [&str; 2] = KINDS;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// Memory of PM's allocator.
    Allocated,
    Mapped,
}

pub struct Memory<'a> {
    end: &'a Context,
    kind: Kind,
    pub at: *mut u8,
    pub len: usize,
    pub handle: AddrHandle,
}

fn map(addr: *mut u8, len: usize) -> *mut u8 {
    let fixed = if addr.is_null() { 0 } else { libc::MAP_FIXED };
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | fixed;
    let prot = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: this maps new memory, or replaces memory of this test.
    let mapped = unsafe { libc::mmap(addr.cast(), len, prot, flags, -1, 0) };
    assert_ne!(mapped, libc::MAP_FAILED);
    mapped.cast()
}

impl<'a> Memory<'a> {
    pub fn new(bed: &'a TestBed, node: usize, kind: Kind, len: usize) -> Memory<'a> {
        let end = &bed.contexts[node];
        let addr = match kind {
            Kind::Allocated => end.allocate_memory(len).unwrap(),
            Kind::Mapped => map(std::ptr::null_mut(), len),
        };
        let handle = end.lock_memory(None, addr.addr(), len).unwrap();
        Memory { end, kind, at: addr, len, handle }
    }

    pub fn bytes(&self) -> &[u8] {
        // SAFETY: the memory is mapped, and is not written meanwhile.
        unsafe { std::slice::from_raw_parts(self.at, self.len) }
    }

    pub fn fill(&self, seed: u8) {
        for i in 0..self.len {
            // SAFETY: the byte is inside the memory.
            unsafe { self.at.add(i).write(seed.wrapping_add(i as u8)) };
        }
    }

    /// Checks that the memory has the bytes of `fill`, except in `changed`.
    pub fn is_unchanged_except(&self, seed: u8, changed: Range<usize>) {
        for (i, &byte) in self.bytes().iter().enumerate() {
            assert!(changed.contains(&i) || byte == seed.wrapping_add(i as u8), "byte {i}");
        }
    }

    /// Makes the memory inaccessible. The addresses stay reserved, so that no other thread maps
    /// memory there.
    pub fn unmap(&self) {
        self.unmap_first(self.len);
    }

    pub fn unmap_first(&self, len: usize) {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED | libc::MAP_NORESERVE;
        // SAFETY: the memory is used only through its handle.
        let mapped = unsafe { libc::mmap(self.at.cast(), len, libc::PROT_NONE, flags, -1, 0) };
        assert_eq!(mapped, self.at.cast());
    }

    pub fn remap(&self) {
        map(self.at, self.len);
    }

    pub fn protect(&self) {
        // SAFETY: as in `unmap_first`.
        unsafe { libc::mprotect(self.at.cast(), self.len, libc::PROT_READ) };
    }
}

impl Drop for Memory<'_> {
    fn drop(&mut self) {
        let _ = self.end.unlock_memory(None, self.at.addr(), self.len);
        match self.kind {
            Kind::Allocated => self.end.free_memory(self.at).unwrap(),
            // SAFETY: the memory is no longer used.
            Kind::Mapped => drop(unsafe { libc::munmap(self.at.cast(), self.len) }),
        }
    }
}

/// The lock of the region ids, which belong to the whole process. A test that uses all of them
/// locks it exclusively.
pub static REGION_IDS_LOCK: RwLock<()> = RwLock::new(());

/// Waits until no test uses all region ids. A test that locks memory holds the result.
pub fn share_region_ids() -> RwLockReadGuard<'static, ()> {
    REGION_IDS_LOCK.read().unwrap_or_else(PoisonError::into_inner)
}

/// Runs a test on every kind of test bed.
pub fn on_every_kind_with_regions(nodes: usize, test: impl Fn(&TestBed)) {
    let _ids = share_region_ids();
    on_all(nodes, test);
}

/// Like [`on_every_kind_with_regions`], for a test that holds [`REGION_IDS_LOCK`].
pub fn on_all(nodes: usize, test: impl Fn(&TestBed)) {
    let _dog = Watchdog::new(300);
    for kind in ALL_KINDS {
        test(&TestBed::new(kind, nodes));
    }
}

/// Runs a test in a thread that may not call process_vm_readv and process_vm_writev.
pub fn without_cma(test: impl Fn() + Sync) {
    std::thread::scope(|scope| {
        let run_refused = || {
            forbid_cma();
            test();
        };
        if let Err(panic) = scope.spawn(run_refused).join() {
            std::panic::resume_unwind(panic);
        }
    });
}

/// Makes process_vm_readv and process_vm_writev fail with EPERM in this thread, and in threads that
/// it starts.
pub fn forbid_cma() {
    const NR: u32 = 0;
    let instruction =
        |code: u32, jt: u8, jf: u8, k: u32| libc::sock_filter { code: code as u16, jt, jf, k };
    let load = libc::BPF_LD | libc::BPF_W | libc::BPF_ABS;
    let equal = libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K;
    let ret = libc::BPF_RET | libc::BPF_K;
    let mut filter = [
        instruction(load, 0, 0, NR),
        instruction(equal, 1, 0, libc::SYS_process_vm_readv as u32),
        instruction(equal, 0, 1, libc::SYS_process_vm_writev as u32),
        instruction(ret, 0, 0, libc::SECCOMP_RET_ERRNO | libc::EPERM as u32),
        instruction(ret, 0, 0, libc::SECCOMP_RET_ALLOW),
    ];
    let program = libc::sock_fprog { len: filter.len() as u16, filter: filter.as_mut_ptr() };
    // SAFETY: the program is valid during the call, which copies it.
    let set = unsafe {
        libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
        libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const program)
    };
    assert_eq!(set, 0, "{}", std::io::Error::last_os_error());
}

/// Polls once on all contexts except that of node `me`.
pub fn poll_others(bed: &TestBed, me: usize) {
    for (_, end) in bed.contexts.iter().enumerate().filter(|&(k, _)| k != me) {
        assert_eq!(end.receive(), Err(Error::NoBuffers));
    }
}

/// Repeats a call while there is no room, and polls on the other contexts.
pub fn retry_polling(bed: &TestBed, me: usize, call: impl Fn() -> PmResult<()>) {
    let end = Instant::now() + Duration::from_secs(60);
    loop {
        match call() {
            Ok(()) => return,
            Err(Error::NoBuffers | Error::Busy) => poll_others(bed, me),
            Err(error) => panic!("{error}"),
        }
        assert!(Instant::now() < end, "no room for 60 s");
    }
}

/// Waits for all operations of node `me`. Returns an error if an operation has failed.
pub fn done(bed: &TestBed, me: usize) -> PmResult<()> {
    let end = Instant::now() + Duration::from_secs(60);
    loop {
        match (bed.contexts[me].is_write_done(), bed.contexts[me].is_read_done()) {
            (Err(Error::Busy), _) | (_, Err(Error::Busy)) => poll_others(bed, me),
            (write, read) => return write.and(read),
        }
        assert!(Instant::now() < end, "not done for 60 s");
    }
}
