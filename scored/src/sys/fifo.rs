//! Being run at once when there is something to do: SCHED_FIFO, where the system allows. Among busy
//! processes a normal thread is run up to a tick after it has been woken, one like this within
//! microseconds. It must sleep whenever it has nothing to do.

// UNSAFETY: sched_setscheduler has no safe wrapper.
#![expect(unsafe_code)]

use std::io;
use std::sync::OnceLock;

use nix::sched::{CpuSet, sched_getaffinity, sched_setaffinity};
use nix::unistd::Pid;

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

/// Where a thread that is pinned could run before.
static BEFORE: OnceLock<CpuSet> = OnceLock::new();

/// Keeps the calling thread on one processor, the first that it has: whoever does this on a host,
/// in whichever process, meets the others there, and to wake one takes no interrupt of another
/// processor. In a virtual machine that is most of what it costs.
pub fn pin() {
    if let Ok(all) = sched_getaffinity(CALLER)
        && keep_to_first(&all).is_ok()
    {
        let _ = BEFORE.set(all);
    }
}

fn keep_to_first(all: &CpuSet) -> nix::Result<()> {
    let first = (0..CpuSet::count()).find(|at| all.is_set(*at).unwrap_or(false));
    let mut one = CpuSet::new();
    one.set(first.unwrap_or(0))?;
    sched_setaffinity(CALLER, &one)
}

/// Does something where the thread may run wherever it could before it was pinned: what it starts
/// there can do so, too.
pub fn unpinned<T>(work: impl FnOnce() -> T) -> T {
    let Some(all) = BEFORE.get() else { return work() };
    let _ = sched_setaffinity(CALLER, all);
    let result = work();
    let _ = keep_to_first(all);
    result
}

const CALLER: Pid = Pid::from_raw(0);
