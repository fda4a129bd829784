//! The monitor thread. It is created by a system call, so that the C library does not count it.
//! Therefore a program with one thread remains single-threaded for the library
//! (`__libc_single_threaded`) and for the cache. In such a program, no other thread can map memory
//! that the only thread is unmapping.
//!
//! The thread has no thread-local memory of its own, not even an errno. Therefore it makes system
//! calls directly, and calls no function that allocates, locks or can panic.

// UNSAFETY: creates a thread and calls the kernel without the C library.
#![expect(unsafe_code)]

use super::invalidation_log::{BATCH, Log};
use super::uffd::{Message, Uffd};
use crate::threads;
use std::io;

/// Messages read at once. Each has at most two ranges.
const MAX_EVENTS_PER_READ: usize = BATCH as usize / 2;

/// The arguments of the thread.
struct MonitorArgs {
    uffd: &'static Uffd,
    log: &'static Log,
}

/// Starts the thread that reads `uffd` and writes `log` as long as the process lives.
///
/// # Errors
/// The kernel cannot create the thread.
pub(super) fn start(uffd: &'static Uffd, log: &'static Log) -> io::Result<()> {
    let args: &'static MonitorArgs = Box::leak(Box::new(MonitorArgs { uffd, log }));
    threads::without_signals(|| launch(args))
}

/// Used with sanitizers, which must track all threads, and on processors without an implementation
/// below.
#[cfg(any(sanitized, not(any(target_arch = "x86_64", target_arch = "aarch64"))))]
fn launch(args: &'static MonitorArgs) -> io::Result<()> {
    threads::spawn("score-pin", 256 << 10, move || run(args))
}

#[cfg(all(not(sanitized), any(target_arch = "x86_64", target_arch = "aarch64")))]
fn launch(args: &'static MonitorArgs) -> io::Result<()> {
    const STACK: usize = 64 << 10;
    const FLAGS: i32 = libc::CLONE_VM
        | libc::CLONE_FS
        | libc::CLONE_FILES
        | libc::CLONE_SIGHAND
        | libc::CLONE_THREAD
        | libc::CLONE_SYSVSEM;
    extern "C" fn entry(args: *mut libc::c_void) -> i32 {
        // SAFETY: the pointer that `launch` passed, which stays valid for ever.
        run(unsafe { &*args.cast::<MonitorArgs>() });
        0
    }
    // SAFETY: asks for new memory anywhere, which belongs to the thread for ever. The thread shares
    // all of the process, and its code is safe in any thread: see `run`.
    let thread = unsafe {
        let (prot, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE);
        let flags = flags | libc::MAP_ANONYMOUS | libc::MAP_STACK;
        let stack = libc::mmap(std::ptr::null_mut(), STACK, prot, flags, -1, 0);
        if stack == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let top = stack.byte_add(STACK);
        libc::clone(entry, top, FLAGS, std::ptr::from_ref(args).cast_mut().cast())
    };
    if thread < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// The main loop. It ends when the program closes the descriptor.
fn run(args: &MonitorArgs) {
    const NAME: &[u8; 10] = b"score-pin\0";
    let set_name = [libc::PR_SET_NAME as usize, NAME.as_ptr() as usize, 0, 0, 0];
    // SAFETY: reads a string with a final zero.
    unsafe { call(libc::SYS_prctl, set_name) };
    let mut messages = [Message::default(); MAX_EVENTS_PER_READ];
    while is_readable(args.uffd.raw_fd()) {
        args.log.begin();
        let count = read(args.uffd.raw_fd(), &mut messages);
        let Some(events) = messages.get(..count) else { break };
        let mut pushed = 0;
        for span in events.iter().flat_map(Message::changed).flatten() {
            args.log.push(pushed, span);
            pushed += 1;
        }
        args.log.end(pushed);
    }
    args.log.close();
}

/// Waits until there is an event to read. False: `fd` is not a userfaultfd any more.
fn is_readable(fd: i32) -> bool {
    let mut poll = libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
    loop {
        // SAFETY: one structure that lives through the call; no time limit, no signal mask.
        let count = unsafe { call(libc::SYS_ppoll, [(&raw mut poll) as usize, 1, 0, 0, 0]) };
        if count != -(libc::EINTR as isize) {
            return count == 1 && poll.revents == libc::POLLIN;
        }
    }
}

/// Reads the waiting messages and returns their number. After an error the number is larger than
/// the length of `messages`. A thread that caused an event continues as soon as the event is read.
fn read(fd: i32, messages: &mut [Message; MAX_EVENTS_PER_READ]) -> usize {
    let (addr, len) = (messages.as_mut_ptr() as usize, size_of_val(messages));
    // SAFETY: `len` is the size of the messages; every bit pattern is a valid message.
    let result = unsafe { call(libc::SYS_read, [fd as usize, addr, len, 0, 0]) };
    match usize::try_from(result) {
        Ok(bytes) => bytes / size_of::<Message>(),
        Err(_) if [-libc::EAGAIN, -libc::EINTR].contains(&(result as i32)) => 0,
        Err(_) => usize::MAX,
    }
}

/// Makes a system call. Returns the negative errno value after a failure.
///
/// # Safety
/// Those of the system call; see its manual page.
unsafe fn call(number: libc::c_long, arguments: [usize; 5]) -> isize {
    let [a, b, c, d, e] = arguments;
    let result: isize;
    #[cfg(target_arch = "x86_64")]
    // SAFETY: the kernel keeps all other registers; the caller guarantees the rest.
    unsafe {
        std::arch::asm!("syscall", inlateout("rax") number as isize => result, in("rdi") a,
            in("rsi") b, in("rdx") c, in("r10") d, in("r8") e, lateout("rcx") _, lateout("r11") _,
            options(nostack));
    }
    #[cfg(target_arch = "aarch64")]
    // SAFETY: as above.
    unsafe {
        std::arch::asm!("svc 0", in("x8") number, inlateout("x0") a as isize => result,
            in("x1") b, in("x2") c, in("x3") d, in("x4") e, options(nostack));
    }
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    {
        // SAFETY: as above.
        let ret = unsafe { libc::syscall(number, a, b, c, d, e) };
        let errno = || io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO);
        result = if ret < 0 { -(errno() as isize) } else { ret as isize };
    }
    result
}
