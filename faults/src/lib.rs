//! Handlers of the signals of faults, for processes of a job. A thread that is about to die reports
//! to the shepherd on the control socket, and waits until its stack has been read. Then it dies of
//! its signal. Exit code and core file are the same as without a handler.
//!
//! A handler that the program has set earlier stays. A handler that the program sets later replaces
//! this one. A thread whose stack has overflowed needs an alternate stack; [`install`] gives one to
//! the calling thread. Other threads without an alternate stack die as without a handler.

// UNSAFETY: sets handlers of signals, and makes system calls that are permitted in a handler.
#![expect(unsafe_code)]

use std::ffi::{c_int, c_void};
use std::mem::MaybeUninit;
use std::os::fd::RawFd;
use std::ptr::{null, null_mut};
use std::sync::atomic::{AtomicI32, AtomicU64, Ordering};

use score_proto::message;

/// The signals of a faulty program (manual 2.4.4), and the signal of abort(3).
const SIGNALS: [c_int; 6] =
    [libc::SIGSEGV, libc::SIGBUS, libc::SIGFPE, libc::SIGILL, libc::SIGSYS, libc::SIGABRT];

/// The size of the alternate stack. The registers in a signal frame take at most about 12 KiB.
const ALTERNATE_STACK_LEN: usize = 64 << 10;

/// The size of the kernel's set of signals in bytes.
const KERNEL_SIGSET_LEN: usize = 8;

/// The process that has set the handlers.
static OWNER: AtomicI32 = AtomicI32::new(0);
/// The control socket, and its device and inode. The program may have closed the socket and opened
/// another file under its number.
static CONTROL: AtomicI32 = AtomicI32::new(-1);
static CONTROL_DEVICE: AtomicU64 = AtomicU64::new(0);
static CONTROL_INODE: AtomicU64 = AtomicU64::new(0);
/// The first thread that has had a fault, which reports it.
static FAULTING_THREAD: AtomicI32 = AtomicI32::new(0);

/// Sets the handler of each signal that the program has left at its default action. Does so only if
/// `control` is the control socket of this process, not one that it has inherited from a rank.
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

/// The device and inode, which identify an open file.
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

/// Whether this process is a child of the process that has created this socket pair, which is the
/// shepherd.
fn is_child_of_socket_owner(socket: RawFd) -> bool {
    let mut peer = libc::ucred { pid: 0, uid: 0, gid: 0 };
    let mut len = size_of::<libc::ucred>() as libc::socklen_t;
    let (level, name) = (libc::SOL_SOCKET, libc::SO_PEERCRED);
    // SAFETY: the buffer has room for a `ucred`, and `len` is its size.
    let result =
        unsafe { libc::getsockopt(socket, level, name, (&raw mut peer).cast(), &raw mut len) };
    // SAFETY: no memory is involved.
    result == 0 && peer.pid > 0 && peer.pid == unsafe { libc::getppid() }
}

/// Sets an alternate stack for handlers in the calling thread, if the thread has none.
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
    // SAFETY: an action of all zeros has no flags and an empty mask. The handler has the signature
    // that the flags require, and calls only functions that are permitted in a handler. While it
    // runs, all signals of faults are blocked, so a second fault ends the process.
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
    // A child of the process, which is not a rank of the job, dies at once.
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

/// Reports the fault to the shepherd, unless another thread has done so. Returns false if that
/// fails.
fn report(control: RawFd, signal: c_int) -> bool {
    // SAFETY: no memory is involved.
    let thread = unsafe { libc::gettid() };
    let (order, failed) = (Ordering::Relaxed, Ordering::Relaxed);
    if FAULTING_THREAD.compare_exchange(0, thread, order, failed).is_err() {
        return true;
    }
    let mut buffer = [0; 32];
    let Ok(call) = message::encode_fault(signal, thread, &mut buffer) else { return false };
    let flags = libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT;
    permit_tracers();
    // SAFETY: the pointer and the length are those of `call`.
    unsafe { libc::send(control, call.as_ptr().cast(), call.len(), flags) > 0 }
}

/// Permits every process of the user to trace this one. Some systems permit only ancestors to trace
/// a process. There, neither the service that reads stacks nor a debugger could trace the process
/// otherwise. This function may be called in a handler.
pub fn permit_tracers() {
    // SAFETY: no memory is involved.
    unsafe { libc::prctl(libc::PR_SET_PTRACER, libc::PR_SET_PTRACER_ANY, 0, 0, 0) };
}

/// Returns when the shepherd has sent the signal to this thread, or when the shepherd has ended.
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
        // SAFETY: the set, which contains a signal that this thread blocks, and the interval are
        // valid for the call. The system call is made directly, because the C library's function is
        // a cancellation point.
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

/// Makes the thread die of the signal, at the place of the fault, when the handler returns.
fn die_on_return(signal: c_int, info: *mut libc::siginfo_t) {
    // SAFETY: an action of all zeros is the default action. The kernel has provided `info`. The
    // signal is blocked until the handler returns. Sending to oneself fails only if the kernel has
    // no memory.
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
