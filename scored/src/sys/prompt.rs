//! Being run at once when there is something to do: SCHED_RR, where the system allows (not FIFO:
//! of equals one that works long must not keep another from its turn). Among busy processes a
//! normal thread is run up to a tick after it has been woken, one like this within microseconds. It
//! must sleep whenever it has nothing to do.

// UNSAFETY: sched_setscheduler has no safe wrapper.
#![expect(unsafe_code)]

use std::io;

/// Whether what the calling thread starts shall be the same.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Heirs {
    /// It is.
    Same,
    /// It is as any other.
    Normal,
}

fn set(policy: libc::c_int, priority: libc::c_int) -> io::Result<()> {
    let param = libc::sched_param { sched_priority: priority };
    // SAFETY: reads the struct given; 0 is the calling thread.
    match unsafe { libc::sched_setscheduler(0, policy, &param) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Has the calling thread run before all normal ones.
///
/// # Errors
/// EPERM: it needs CAP_SYS_NICE, or RLIMIT_RTPRIO.
pub fn take(heirs: Heirs) -> io::Result<()> {
    match heirs {
        Heirs::Same => set(libc::SCHED_RR, 1),
        Heirs::Normal => set(libc::SCHED_RR | libc::SCHED_RESET_ON_FORK, 1),
    }
}

/// Makes the calling thread a normal one again.
pub fn leave() {
    // Nobody may be kept from that.
    let _ = set(libc::SCHED_OTHER, 0);
}

/// Does something as a normal thread that may take the kernel long, or has it wait for others by
/// trying again and again: who ends a process, or removes a directory, does so while another has
/// hold of a name in it, and that one may wait for this very processor.
pub fn aside<T>(work: impl FnOnce() -> T) -> T {
    // SAFETY: no memory is touched; 0 is the calling thread.
    let policy = unsafe { libc::sched_getscheduler(0) };
    if policy & !libc::SCHED_RESET_ON_FORK != libc::SCHED_RR {
        return work();
    }
    leave();
    let result = work();
    // What was allowed before is allowed again.
    let _ = take(Heirs::Normal);
    result
}
