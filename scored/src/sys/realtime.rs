//! Realtime scheduling (SCHED_RR), if the system allows it, for threads that must run as soon as
//! they are woken. SCHED_FIFO is not used, because a long-running thread must not block others of
//! the same priority. Among busy processes, a normal thread may run as late as a clock tick after
//! it was woken, and a realtime thread runs within microseconds. A realtime thread must sleep
//! whenever it has nothing to do.
//!
//! Threads that wake each other for each gang switch are pinned to one processor, so that no
//! interrupts of other processors are needed. In a virtual machine, these interrupts would be most
//! of the cost of a switch.

// UNSAFETY: sched_setscheduler has no safe wrapper.
#![expect(unsafe_code)]

use std::cell::OnceCell;
use std::io;

use nix::sched::{CpuSet, sched_getaffinity, sched_setaffinity};
use nix::unistd::Pid;

const CURRENT_THREAD: Pid = Pid::from_raw(0);
thread_local! {
    /// Affinity of a pinned thread before it was pinned.
    static ORIGINAL_AFFINITY: OnceCell<CpuSet> = const { OnceCell::new() };
}

/// Scheduling class of the threads and processes that the calling thread starts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Inherit {
    /// The realtime class, like the calling thread.
    Realtime,
    /// The normal class.
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

/// Moves the calling thread into the realtime class, so that it runs before all normal threads.
///
/// # Errors
/// EPERM: the process has neither CAP_SYS_NICE nor RLIMIT_RTPRIO.
pub fn enter(inherit: Inherit) -> io::Result<()> {
    match inherit {
        Inherit::Realtime => set_scheduler(libc::SCHED_RR, 1),
        Inherit::Normal => set_scheduler(libc::SCHED_RR | libc::SCHED_RESET_ON_FORK, 1),
    }
}

/// Moves the calling thread back into the normal class.
pub fn leave() {
    // This needs no permission.
    let _ = set_scheduler(libc::SCHED_OTHER, 0);
}

/// Pins the calling thread to the first processor that it may use. All pinned threads on a host, in
/// all processes, thus share one processor. Requires [`enter`], because a normal thread would wait
/// there for busy threads.
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

/// Runs `work` on this processor, and returns to the pinned one. All other threads on this
/// processor wait in the meantime. None if the calling thread is not pinned, or may not run on this
/// processor.
pub fn run_on_cpu<T>(cpu: usize, work: impl FnOnce() -> T) -> Option<T> {
    let original = ORIGINAL_AFFINITY.with(|affinity| affinity.get().copied())?;
    let mut single = CpuSet::new();
    single.set(cpu).ok()?;
    sched_setaffinity(CURRENT_THREAD, &single).ok()?;
    let result = work();
    let _ = pin_to_first_of(&original);
    Some(result)
}

/// Runs `work` with the affinity that the thread had before it was pinned. Processes and threads
/// that `work` starts inherit that affinity.
pub fn run_unpinned<T>(work: impl FnOnce() -> T) -> T {
    let Some(original) = ORIGINAL_AFFINITY.with(|affinity| affinity.get().copied()) else {
        return work();
    };
    let _ = sched_setaffinity(CURRENT_THREAD, &original);
    let result = work();
    let _ = pin_to_first_of(&original);
    result
}

/// Runs `work` as a normal, unpinned thread. Use it for work that takes the kernel long, or in
/// which the kernel waits by retrying. An example is the removal of a directory while another
/// process uses a name in it. The kernel then retries, and the other process may be waiting for
/// this processor.
pub fn run_as_normal<T>(work: impl FnOnce() -> T) -> T {
    // SAFETY: no memory is touched; 0 is the calling thread.
    let policy = unsafe { libc::sched_getscheduler(0) };
    if policy & !libc::SCHED_RESET_ON_FORK != libc::SCHED_RR {
        return work();
    }
    leave();
    let result = run_unpinned(work);
    // The class was permitted before, and is therefore permitted now.
    let _ = enter(Inherit::Normal);
    result
}
