//! Being run at once when there is something to do: SCHED_FIFO, where the system allows. Among busy
//! processes a normal thread is run up to a tick after it has been woken, one like this within
//! microseconds. It must sleep whenever it has nothing to do.

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
        Heirs::Same => set(libc::SCHED_FIFO, 1),
        Heirs::Normal => set(libc::SCHED_FIFO | libc::SCHED_RESET_ON_FORK, 1),
    }
}

/// Makes the calling thread a normal one again.
pub fn leave() {
    // Nobody may be kept from that.
    let _ = set(libc::SCHED_OTHER, 0);
}
