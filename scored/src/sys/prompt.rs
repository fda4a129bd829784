//! Being run at once when there is something to do: SCHED_RR, where the system allows (not FIFO:
//! of equals one that works long must not keep another from its turn). Among busy processes a
//! normal thread is run up to a tick after it has been woken, one like this within microseconds. It
//! must sleep whenever it has nothing to do.
//!
//! Threads that wake one another for each switch keep to one processor: no interrupt of another
//! processor is needed then. In a virtual machine those are most of what a switch costs.

// UNSAFETY: sched_setscheduler has no safe wrapper.
#![expect(unsafe_code)]

use std::cell::OnceCell;
use std::io;

use nix::sched::{CpuSet, sched_getaffinity, sched_setaffinity};
use nix::unistd::Pid;

const CALLER: Pid = Pid::from_raw(0);
thread_local! {
    /// Where a thread that is kept to one processor could run before.
    static BEFORE: OnceCell<CpuSet> = const { OnceCell::new() };
}

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

/// Keeps the calling thread to one processor, the first that it has: whoever does this on a host,
/// in whichever process, meets the others there. Not without [`take`]: a normal thread would wait
/// there for busy ones.
pub fn keep_to_one() {
    if let Ok(all) = sched_getaffinity(CALLER)
        && keep_to_first(&all).is_ok()
    {
        BEFORE.with(|before| _ = before.get_or_init(|| all));
    }
}

fn keep_to_first(all: &CpuSet) -> nix::Result<()> {
    let first = (0..CpuSet::count()).find(|at| all.is_set(*at).unwrap_or(false));
    let mut one = CpuSet::new();
    one.set(first.unwrap_or(0))?;
    sched_setaffinity(CALLER, &one)
}

/// Does something on this processor and comes back: all others there wait meanwhile, and run none
/// of their code. None where the calling thread is not kept to one, or may not run on this one.
pub fn upon<T>(processor: usize, work: impl FnOnce() -> T) -> Option<T> {
    let all = BEFORE.with(|before| before.get().copied())?;
    let mut one = CpuSet::new();
    one.set(processor).ok()?;
    sched_setaffinity(CALLER, &one).ok()?;
    let result = work();
    let _ = keep_to_first(&all);
    Some(result)
}

/// Does something where the thread could run before it was kept to one processor: what it starts
/// there can do so, too.
pub fn anywhere<T>(work: impl FnOnce() -> T) -> T {
    let Some(all) = BEFORE.with(|before| before.get().copied()) else { return work() };
    let _ = sched_setaffinity(CALLER, &all);
    let result = work();
    let _ = keep_to_first(&all);
    result
}

/// Does something as a normal thread, anywhere, that may take the kernel long, or has it wait for
/// others by trying again and again: who ends a process, or removes a directory, does so while
/// another has hold of a name in it, and that one may wait for this very processor.
pub fn aside<T>(work: impl FnOnce() -> T) -> T {
    // SAFETY: no memory is touched; 0 is the calling thread.
    let policy = unsafe { libc::sched_getscheduler(0) };
    if policy & !libc::SCHED_RESET_ON_FORK != libc::SCHED_RR {
        return work();
    }
    leave();
    let result = anywhere(work);
    // What was allowed before is allowed again.
    let _ = take(Heirs::Normal);
    result
}
