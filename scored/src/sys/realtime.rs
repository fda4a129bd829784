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

const CURRENT_THREAD: Pid = Pid::from_raw(0);
thread_local! {
    /// Where a thread that is kept to one processor could run before.
    static ORIGINAL_AFFINITY: OnceCell<CpuSet> = const { OnceCell::new() };
}

/// Whether what the calling thread starts shall be the same.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Inherit {
    /// It is.
    Realtime,
    /// It is as any other.
    Normal,
}

fn set_scheduler(policy: libc::c_int, priority: libc::c_int) -> io::Result<()> {
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
pub fn enter(inherit: Inherit) -> io::Result<()> {
    match inherit {
        Inherit::Realtime => set_scheduler(libc::SCHED_RR, 1),
        Inherit::Normal => set_scheduler(libc::SCHED_RR | libc::SCHED_RESET_ON_FORK, 1),
    }
}

/// Makes the calling thread a normal one again.
pub fn leave() {
    // Nobody may be kept from that.
    let _ = set_scheduler(libc::SCHED_OTHER, 0);
}

/// Keeps the calling thread to one processor, the first that it has: whoever does this on a host,
/// in whichever process, meets the others there. Not without [`enter`]: a normal thread would wait
/// there for busy ones.
pub fn pin_to_first_cpu() {
    if let Ok(allowed) = sched_getaffinity(CURRENT_THREAD)
        && pin_to_first_of(&allowed).is_ok()
    {
        ORIGINAL_AFFINITY.with(|original| _ = original.get_or_init(|| allowed));
    }
}

fn pin_to_first_of(allowed: &CpuSet) -> nix::Result<()> {
    let first = (0..CpuSet::count()).find(|cpu| allowed.is_set(*cpu).unwrap_or(false));
    let mut single = CpuSet::new();
    single.set(first.unwrap_or(0))?;
    sched_setaffinity(CURRENT_THREAD, &single)
}

/// Does something on this processor and comes back: all others there wait meanwhile, and run none
/// of their code. None where the calling thread is not kept to one, or may not run on this one.
pub fn run_on_cpu<T>(cpu: usize, work: impl FnOnce() -> T) -> Option<T> {
    let original = ORIGINAL_AFFINITY.with(|affinity| affinity.get().copied())?;
    let mut single = CpuSet::new();
    single.set(cpu).ok()?;
    sched_setaffinity(CURRENT_THREAD, &single).ok()?;
    let result = work();
    let _ = pin_to_first_of(&original);
    Some(result)
}

/// Does something where the thread could run before it was kept to one processor: what it starts
/// there can do so, too.
pub fn run_unpinned<T>(work: impl FnOnce() -> T) -> T {
    let Some(original) = ORIGINAL_AFFINITY.with(|affinity| affinity.get().copied()) else {
        return work();
    };
    let _ = sched_setaffinity(CURRENT_THREAD, &original);
    let result = work();
    let _ = pin_to_first_of(&original);
    result
}

/// Does something as a normal thread, anywhere, that may take the kernel long, or has it wait for
/// others by trying again and again: who ends a process, or removes a directory, does so while
/// another has hold of a name in it, and that one may wait for this very processor.
pub fn run_as_normal<T>(work: impl FnOnce() -> T) -> T {
    // SAFETY: no memory is touched; 0 is the calling thread.
    let policy = unsafe { libc::sched_getscheduler(0) };
    if policy & !libc::SCHED_RESET_ON_FORK != libc::SCHED_RR {
        return work();
    }
    leave();
    let result = run_unpinned(work);
    // What was allowed before is allowed again.
    let _ = enter(Inherit::Normal);
    result
}
