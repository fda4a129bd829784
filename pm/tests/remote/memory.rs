//! Memory of each kind, locked on a node of a bed.

use super::bed::*;
use score_pm::*;
use std::ops::Range;
use std::sync::{PoisonError, RwLock};
use std::time::{Duration, Instant};

/// The beds whose regions stand in memory that all nodes share.
pub const SHARED: [&str; 2] = KINDS;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// Of PM's allocator.
    Ours,
    Other,
}

pub struct Memory<'a> {
    end: &'a Context,
    kind: Kind,
    pub at: *mut u8,
    pub len: usize,
    pub handle: AddrHandle,
}

fn map(at: *mut u8, len: usize) -> *mut u8 {
    let fixed = if at.is_null() { 0 } else { libc::MAP_FIXED };
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | fixed;
    let prot = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: new memory, or a place of ours.
    let at = unsafe { libc::mmap(at.cast(), len, prot, flags, -1, 0) };
    assert_ne!(at, libc::MAP_FAILED);
    at.cast()
}

impl<'a> Memory<'a> {
    pub fn new(bed: &'a Bed, node: usize, kind: Kind, len: usize) -> Memory<'a> {
        let end = &bed.ends[node];
        let at = match kind {
            Kind::Ours => end.allocate_memory(len).unwrap(),
            Kind::Other => map(std::ptr::null_mut(), len),
        };
        let handle = end.lock_memory(None, at.addr(), len).unwrap();
        Memory { end, kind, at, len, handle }
    }

    pub fn bytes(&self) -> &[u8] {
        // SAFETY: mapped, and nobody writes meanwhile.
        unsafe { std::slice::from_raw_parts(self.at, self.len) }
    }

    pub fn fill(&self, with: u8) {
        for i in 0..self.len {
            // SAFETY: inside.
            unsafe { self.at.add(i).write(with.wrapping_add(i as u8)) };
        }
    }

    /// What `fill` wrote is there, but in `changed`.
    pub fn is_filled_but(&self, with: u8, changed: Range<usize>) {
        for (i, &byte) in self.bytes().iter().enumerate() {
            assert!(changed.contains(&i) || byte == with.wrapping_add(i as u8), "byte {i}");
        }
    }

    /// Nothing is there any more; the addresses are kept from other threads.
    pub fn unmap(&self) {
        self.unmap_first(self.len);
    }

    pub fn unmap_first(&self, len: usize) {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED | libc::MAP_NORESERVE;
        // SAFETY: nobody uses it but by its handle.
        let at = unsafe { libc::mmap(self.at.cast(), len, libc::PROT_NONE, flags, -1, 0) };
        assert_eq!(at, self.at.cast());
    }

    pub fn map_again(&self) {
        map(self.at, self.len);
    }

    pub fn protect(&self) {
        // SAFETY: as above.
        unsafe { libc::mprotect(self.at.cast(), self.len, libc::PROT_READ) };
    }
}

impl Drop for Memory<'_> {
    fn drop(&mut self) {
        let _ = self.end.unlock_memory(None, self.at.addr(), self.len);
        match self.kind {
            Kind::Ours => self.end.free_memory(self.at).unwrap(),
            // SAFETY: nobody uses it any more.
            Kind::Other => drop(unsafe { libc::munmap(self.at.cast(), self.len) }),
        }
    }
}

/// The numbers of regions are the whole process's: who takes them all does it alone.
pub static NUMBERS: RwLock<()> = RwLock::new(());

/// Runs a test on every kind of bed, and once more where the kernel refuses to copy between
/// processes.
pub fn everywhere(nodes: usize, test: impl Fn(&Bed) + Sync) {
    let _numbers = NUMBERS.read().unwrap_or_else(PoisonError::into_inner);
    on_all(nodes, test);
}

/// The same for a test that holds [`NUMBERS`].
pub fn on_all(nodes: usize, test: impl Fn(&Bed) + Sync) {
    let _dog = Watchdog::new(300);
    for kind in EVERY {
        test(&Bed::new(kind, nodes));
    }
    where_copies_are_refused(|| {
        for kind in EVERY {
            test(&Bed::new(kind, nodes));
        }
    });
}

/// Runs it in a thread that may not call process_vm_readv and process_vm_writev.
pub fn where_copies_are_refused(test: impl Fn() + Sync) {
    std::thread::scope(|scope| {
        let refused = || {
            refuse_copies();
            test();
        };
        if let Err(panic) = scope.spawn(refused).join() {
            std::panic::resume_unwind(panic);
        }
    });
}

/// This thread, and those that it starts, get EPERM from these calls.
pub fn refuse_copies() {
    const NR: u32 = 0;
    let word =
        |code: u32, jt: u8, jf: u8, k: u32| libc::sock_filter { code: code as u16, jt, jf, k };
    let load = libc::BPF_LD | libc::BPF_W | libc::BPF_ABS;
    let equal = libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K;
    let answer = libc::BPF_RET | libc::BPF_K;
    let mut filter = [
        word(load, 0, 0, NR),
        word(equal, 1, 0, libc::SYS_process_vm_readv as u32),
        word(equal, 0, 1, libc::SYS_process_vm_writev as u32),
        word(answer, 0, 0, libc::SECCOMP_RET_ERRNO | libc::EPERM as u32),
        word(answer, 0, 0, libc::SECCOMP_RET_ALLOW),
    ];
    let program = libc::sock_fprog { len: filter.len() as u16, filter: filter.as_mut_ptr() };
    // SAFETY: the program is valid for the call, which copies it.
    let set = unsafe {
        libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
        libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const program)
    };
    assert_eq!(set, 0, "{}", std::io::Error::last_os_error());
}

/// All ends but `me` poll once.
fn others_poll(bed: &Bed, me: usize) {
    for (_, end) in bed.ends.iter().enumerate().filter(|&(k, _)| k != me) {
        assert_eq!(end.receive(), Err(Error::NoBuffers));
    }
}

/// Repeats a call until there is room.
pub fn surely(bed: &Bed, me: usize, call: impl Fn() -> Result<()>) {
    let end = Instant::now() + Duration::from_secs(60);
    loop {
        match call() {
            Ok(()) => return,
            Err(Error::NoBuffers | Error::Busy) => others_poll(bed, me),
            Err(error) => panic!("{error}"),
        }
        assert!(Instant::now() < end, "no room for 60 s");
    }
}

/// Waits for all operations of a node.
pub fn done(bed: &Bed, me: usize) -> Result<()> {
    let end = Instant::now() + Duration::from_secs(60);
    loop {
        match (bed.ends[me].is_write_done(), bed.ends[me].is_read_done()) {
            (Err(Error::Busy), _) | (_, Err(Error::Busy)) => others_poll(bed, me),
            (write, read) => return write.and(read),
        }
        assert!(Instant::now() < end, "not done for 60 s");
    }
}
