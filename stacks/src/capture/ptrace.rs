//! The two calls on traced threads for which nix has no form: its signals have no real-time ones.
// UNSAFETY: waitid and ptrace of libc are called.
#![expect(unsafe_code)]

use std::io;
use std::mem::MaybeUninit;

/// A stop by PTRACE_INTERRUPT, or of a process that a signal has stopped.
const PTRACE_EVENT_STOP: i32 = 128;

/// How a thread stands still for its tracer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TracedStop {
    /// Because of the tracer, or of a stop of the whole process, which goes on after the release.
    Event,
    /// A signal is about to be delivered; the release must deliver it.
    SignalDelivery(i32),
}

/// The stop that a traced thread has reached, if any. Ends of threads are left to their parents.
///
/// # Errors
/// ECHILD if the thread is not traced by this thread, or does not exist any more.
pub fn poll_stop(tid: i32) -> io::Result<Option<TracedStop>> {
    let mut info = MaybeUninit::<libc::siginfo_t>::zeroed();
    let flags = libc::WSTOPPED | libc::WNOHANG | libc::__WALL;
    // SAFETY: `info` has room for one siginfo_t and lives until the call has returned.
    let result = unsafe { libc::waitid(libc::P_PID, tid as libc::id_t, info.as_mut_ptr(), flags) };
    if result != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: all bytes were zero, and the kernel has written over them; both are valid numbers.
    let (pid, status) = unsafe {
        let info = info.assume_init();
        (info.si_pid(), info.si_status())
    };
    Ok((pid != 0).then_some(match status >> 8 {
        PTRACE_EVENT_STOP => TracedStop::Event,
        _ => TracedStop::SignalDelivery(status & 0x7f),
    }))
}

/// Releases a thread that stands still. A signal that it was about to take is delivered.
///
/// # Errors
/// ESRCH if the thread does not stand still, for instance because it was killed.
pub fn detach(tid: i32, stop: TracedStop) -> io::Result<()> {
    let signal = match stop {
        TracedStop::Event => 0,
        TracedStop::SignalDelivery(signal) => signal,
    };
    let no_address: *mut libc::c_void = std::ptr::null_mut();
    // SAFETY: PTRACE_DETACH takes the signal as a number and touches no memory of this process.
    let result =
        unsafe { libc::ptrace(libc::PTRACE_DETACH, tid, no_address, libc::c_long::from(signal)) };
    match result {
        -1 => Err(io::Error::last_os_error()),
        _ => Ok(()),
    }
}
