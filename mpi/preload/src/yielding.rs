//! MPI libraries call sched_yield(2) at each empty poll (MPICH always, Open MPI if it is told to),
//! which takes several times as long as a message. A process that has its processor to itself gains
//! nothing by it.

use std::ffi::c_int;
use std::sync::atomic::{AtomicU8, AtomicU32, Ordering};

/// Set for processes that have their processors to themselves, as far as their job is concerned.
const SPIN_ENV: &std::ffi::CStr = c"SCORE_MPI_SPIN";
/// One of so many calls gives up the processor nevertheless: another process may need it that is
/// not of the job.
const CALLS_PER_YIELD: u32 = 256;

const UNKNOWN: u8 = 0;
const YIELDS: u8 = 1;
const SPINS: u8 = 2;

/// What this process does.
static MODE: AtomicU8 = AtomicU8::new(UNKNOWN);

/// Calls of all threads. If some are lost, when two threads call at once, that does no harm; a
/// number for each thread would cost as much as all the rest of a call.
static CALLS: AtomicU32 = AtomicU32::new(0);

#[cold]
fn find_mode() -> u8 {
    // SAFETY: a string. A program that changes the environment at the same time is at fault itself.
    let is_set = !unsafe { libc::getenv(SPIN_ENV.as_ptr()) }.is_null();
    let mode = if is_set { SPINS } else { YIELDS };
    MODE.store(mode, Ordering::Relaxed);
    mode
}

/// sched_yield(2), or nothing. A pause of the processor would only delay the next poll: MPICH loses
/// 7 % of its 8-byte latency by it.
#[unsafe(no_mangle)]
pub extern "C" fn sched_yield() -> c_int {
    let mode = match MODE.load(Ordering::Relaxed) {
        UNKNOWN => find_mode(),
        known => known,
    };
    let calls = CALLS.load(Ordering::Relaxed).wrapping_add(1);
    CALLS.store(calls, Ordering::Relaxed);
    if mode == SPINS && !calls.is_multiple_of(CALLS_PER_YIELD) {
        return 0;
    }
    // SAFETY: a system call without arguments.
    unsafe { libc::syscall(libc::SYS_sched_yield) as c_int }
}
