//! The two calls on traced threads that nix cannot express, because its type for signals lacks
//! real-time signals.
// UNSAFETY: calls waitid and ptrace of libc.
#![expect(unsafe_code)]

use std::io;
use std::mem::MaybeUninit;

/// The event of a stop by PTRACE_INTERRUPT, or of a process that a signal has stopped.
const PTRACE_EVENT_STOP: i32 = 128;

/// The kind of stop of a traced thread.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TracedStop {
    /// The tracer has stopped the thread, or a signal has stopped the whole process. A stopped
    /// process stays stopped after the release.
    Event,
    /// A signal is to be delivered. The release must deliver it.
    SignalDelivery(i32),
}

/// Returns the stop that a traced thread has reached, if any. Does not consume exits, which belong
/// to the parents.
///
/// # Errors
/// ECHILD: this thread does not trace the thread, or the thread does not exist any more.
pub fn poll_stop(tid: i32) -> io::Result<Option<TracedStop>> {
    let mut info = MaybeUninit::<libc::siginfo_t>::zeroed();
    let flags = libc::WSTOPPED | libc::WNOHANG | libc::__WALL;
    // SAFETY: `info` has room for one siginfo_t and lives until the call has returned.
    let result = unsafe { libc::waitid(libc::P_PID, tid as libc::id_t, info.as_mut_ptr(), flags) };
    if result != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: all bytes were initialised to zero, and the kernel may have written to them. Every
    // value of the bytes is valid for the fields that are read.
    let (pid, status) = unsafe {
        let info = info.assume_init();
        (info.si_pid(), info.si_status())
    };
    Ok((pid != 0).then_some(match status >> 8 {
        PTRACE_EVENT_STOP => TracedStop::Event,
        _ => TracedStop::SignalDelivery(status & 0x7f),
    }))
}

/// Releases a stopped thread. If a signal was about to be delivered to it, the signal is delivered.
///
/// # Errors
/// ESRCH: the thread is not stopped, for example because it was killed.
pub fn detach(tid: i32, stop: TracedStop) -> io::Result<()> {
    let signal = match stop {
        TracedStop::Event => 0,
        TracedStop::SignalDelivery(signal) => signal,
    };
    let no_address: *mut libc::c_void = std::ptr::null_mut();
    // SAFETY: PTRACE_DETACH takes the signal as a number and accesses no memory of this process.
    let result =
        unsafe { libc::ptrace(libc::PTRACE_DETACH, tid, no_address, libc::c_long::from(signal)) };
    match result {
        -1 => Err(io::Error::last_os_error()),
        _ => Ok(()),
    }
}
