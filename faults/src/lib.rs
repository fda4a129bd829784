//! Handlers of the signals of faults, for processes of a job. A thread that would die tells the
//! shepherd at the control socket and waits until its stack has been read. Then it dies of its
//! signal as it would have without handler, so that exit code and core file are the same.
//!
//! A handler that the program has set before stays, and one that it sets later takes the place of
//! this one. A thread whose stack has overflowed needs an alternate stack; [`install`] gives one to
//! the thread that calls it. Other threads without one die as they do without handler.

// UNSAFETY: sets handlers of signals, and makes the system calls that a handler may make.
#![expect(unsafe_code)]

use std::ffi::{c_int, c_void};
use std::mem::MaybeUninit;
use std::os::fd::RawFd;
use std::ptr::{null, null_mut};
use std::sync::atomic::{AtomicI32, AtomicU64, Ordering};

use score_proto::frame;

/// The signals of the manual (2.4.4) that say that the program is faulty, and that of abort(3).
const SIGNALS: [c_int; 6] =
    [libc::SIGSEGV, libc::SIGBUS, libc::SIGFPE, libc::SIGILL, libc::SIGSYS, libc::SIGABRT];

/// Size of the alternate stack. The registers of a frame of a signal take at most some 12 KiB.
const ALTERNATE_STACK_LEN: usize = 64 << 10;

/// Bytes of a set of signals, as the kernel has it.
const KERNEL_SIGSET_LEN: usize = 8;

/// The process that has set the handlers.
static OWNER: AtomicI32 = AtomicI32::new(0);
/// The control socket, and what identifies it: the program may have closed it, and have opened
/// something else under its number.
static CONTROL: AtomicI32 = AtomicI32::new(-1);
static CONTROL_DEVICE: AtomicU64 = AtomicU64::new(0);
static CONTROL_INODE: AtomicU64 = AtomicU64::new(0);
/// The thread that has reported its fault.
static FAULTING_THREAD: AtomicI32 = AtomicI32::new(0);

/// Sets the handler of each signal that the program has left at its default action, if `control` is
/// the control socket of this process and not one that it has inherited from a rank.
pub fn install(control: RawFd) {
    let Some((device, inode)) = identity(control) else { return };
    if !is_child_of_socket_owner(control) {
        return;
    }
    CONTROL.store(control, Ordering::Relaxed);
    CONTROL_DEVICE.store(device, Ordering::Relaxed);
    CONTROL_INODE.store(inode, Ordering::Relaxed);
    OWNER.store(std::process::id().cast_signed(), Ordering::Release);
    set_alternate_stack();
    for signal in SIGNALS {
        if has_default_action(signal) {
            set_handler(signal);
        }
    }
}

/// What tells an open file from others.
fn identity(fd: RawFd) -> Option<(u64, u64)> {
    let mut status = MaybeUninit::<libc::stat>::uninit();
    // SAFETY: there is room for a status, and it is read only if it was stored.
    unsafe {
        (libc::fstat(fd, status.as_mut_ptr()) == 0).then(|| {
            let status = status.assume_init();
            (status.st_dev, status.st_ino)
        })
    }
}

/// Whether the process that has made this pair of sockets, the shepherd, has started this process.
fn is_child_of_socket_owner(socket: RawFd) -> bool {
    let mut peer = libc::ucred { pid: 0, uid: 0, gid: 0 };
    let mut len = size_of::<libc::ucred>() as libc::socklen_t;
    let (level, name) = (libc::SOL_SOCKET, libc::SO_PEERCRED);
    // SAFETY: there is room for what the option has, and `len` says how much.
    let result =
        unsafe { libc::getsockopt(socket, level, name, (&raw mut peer).cast(), &raw mut len) };
    // SAFETY: no memory is involved.
    result == 0 && peer.pid > 0 && peer.pid == unsafe { libc::getppid() }
}

/// Gives the calling thread an alternate stack for handlers, if it has none.
fn set_alternate_stack() {
    let mut old = MaybeUninit::<libc::stack_t>::uninit();
    // SAFETY: there is room for the description of a stack, and it is read only if it was stored.
    // The mapping is used for nothing else, and stays as long as the process.
    unsafe {
        if libc::sigaltstack(null(), old.as_mut_ptr()) != 0
            || old.assume_init().ss_flags & libc::SS_DISABLE == 0
        {
            return;
        }
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_STACK;
        let start = libc::mmap(null_mut(), ALTERNATE_STACK_LEN, protection, flags, -1, 0);
        if start != libc::MAP_FAILED {
            let stack = libc::stack_t { ss_sp: start, ss_flags: 0, ss_size: ALTERNATE_STACK_LEN };
            libc::sigaltstack(&raw const stack, null_mut());
        }
    }
}

fn has_default_action(signal: c_int) -> bool {
    let mut action = MaybeUninit::<libc::sigaction>::uninit();
    // SAFETY: there is room for an action, and it is read only if it was stored.
    unsafe {
        libc::sigaction(signal, null(), action.as_mut_ptr()) == 0
            && action.assume_init().sa_sigaction == libc::SIG_DFL
    }
}

fn set_handler(signal: c_int) {
    // SAFETY: all zeros are an action without flags and with an empty mask. The handler takes what
    // the flags say, and calls only what a handler may call. While it runs, all signals of faults
    // are blocked: one that the kernel causes ends the process then.
    unsafe {
        let mut action: libc::sigaction = MaybeUninit::zeroed().assume_init();
        action.sa_sigaction = on_fault as *const () as usize;
        action.sa_flags = libc::SA_ONSTACK | libc::SA_SIGINFO;
        for one in SIGNALS {
            libc::sigaddset(&raw mut action.sa_mask, one);
        }
        libc::sigaction(signal, &raw const action, null_mut());
    }
}

extern "C" fn on_fault(signal: c_int, info: *mut libc::siginfo_t, _context: *mut c_void) {
    // A child of the process, which is no rank of the job, dies at once.
    // SAFETY: no memory is involved.
    let is_rank = unsafe { libc::getpid() } == OWNER.load(Ordering::Acquire);
    let control = CONTROL.load(Ordering::Relaxed);
    if is_rank && is_control_socket(control) && report(control, signal) {
        wait_for_release(control, signal);
    }
    die_on_return(signal, info);
}

fn is_control_socket(fd: RawFd) -> bool {
    let kept = (CONTROL_DEVICE.load(Ordering::Relaxed), CONTROL_INODE.load(Ordering::Relaxed));
    identity(fd) == Some(kept)
}

/// Tells the shepherd, unless another thread has done so. False: it cannot be told.
fn report(control: RawFd, signal: c_int) -> bool {
    // SAFETY: no memory is involved.
    let thread = unsafe { libc::gettid() };
    let (order, failed) = (Ordering::Relaxed, Ordering::Relaxed);
    if FAULTING_THREAD.compare_exchange(0, thread, order, failed).is_err() {
        return true;
    }
    let mut buffer = [0; 32];
    let Ok(call) = frame::encode_fault(signal, thread, &mut buffer) else { return false };
    let flags = libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT;
    permit_tracers();
    // SAFETY: the bytes of a call.
    unsafe { libc::send(control, call.as_ptr().cast(), call.len(), flags) > 0 }
}

/// Permits each process of the user to trace this one: where only ancestors may, the service that
/// reads stacks and a debugger could not. A handler may call it.
pub fn permit_tracers() {
    // SAFETY: no memory is involved.
    unsafe { libc::prctl(libc::PR_SET_PTRACER, libc::PR_SET_PTRACER_ANY, 0, 0, 0) };
}

/// Returns when the shepherd has sent the signal to this thread, or has ended.
fn wait_for_release(control: RawFd, signal: c_int) {
    let interval = libc::timespec { tv_sec: 1, tv_nsec: 0 };
    let mut set = MaybeUninit::<libc::sigset_t>::uninit();
    // SAFETY: an empty set is stored, then a signal.
    unsafe {
        libc::sigemptyset(set.as_mut_ptr());
        libc::sigaddset(set.as_mut_ptr(), signal);
    }
    loop {
        let no_info = null_mut::<libc::siginfo_t>();
        // SAFETY: a set of signals, which this thread blocks, and a time. The C library's function
        // is one at which a thread may be cancelled.
        let received = unsafe {
            let (set, interval) = (set.as_ptr(), &raw const interval);
            libc::syscall(libc::SYS_rt_sigtimedwait, set, no_info, interval, KERNEL_SIGSET_LEN)
        };
        if received == i64::from(signal) || has_hung_up(control) {
            return;
        }
    }
}

fn has_hung_up(socket: RawFd) -> bool {
    let mut entry = libc::pollfd { fd: socket, events: 0, revents: 0 };
    // SAFETY: one entry.
    let count = unsafe { libc::poll(&raw mut entry, 1, 0) };
    count > 0 && entry.revents & (libc::POLLHUP | libc::POLLERR | libc::POLLNVAL) != 0
}

/// After the handler has returned, the thread dies of the signal where it has got it.
fn die_on_return(signal: c_int, info: *mut libc::siginfo_t) {
    // SAFETY: all zeros are the default action. The information is the kernel's; the signal is
    // blocked until the handler returns. Queueing to oneself is refused only without memory.
    unsafe {
        let action: libc::sigaction = MaybeUninit::zeroed().assume_init();
        libc::sigaction(signal, &raw const action, null_mut());
        let (process, thread) = (libc::getpid(), libc::gettid());
        let call = libc::SYS_rt_tgsigqueueinfo;
        if libc::syscall(call, process, thread, signal, info) != 0 {
            libc::syscall(libc::SYS_tgkill, process, thread, signal);
        }
    }
}
