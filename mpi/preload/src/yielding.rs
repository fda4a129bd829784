//! Replaces sched_yield(2). MPI libraries call it at each empty poll (MPICH always, Open MPI if it
//! is configured to), which takes several times as long as a message. A process that has its
//! processor to itself gains nothing from the call.

use std::ffi::c_int;
use std::sync::atomic::{AtomicU8, AtomicU32, Ordering};

/// Set for processes that do not share their processors with other processes of the job.
const SPIN_ENV: &std::ffi::CStr = c"SCORE_MPI_SPIN";
/// One of this many calls yields the processor in any case, because a process outside of the job
/// may need it.
const CALLS_PER_YIELD: u32 = 256;

const UNKNOWN: u8 = 0;
const YIELDS: u8 = 1;
const SPINS: u8 = 2;

/// The mode of this process.
static MODE: AtomicU8 = AtomicU8::new(UNKNOWN);

/// The number of calls of all threads. Lost updates, when two threads call at once, do no harm. A
/// thread-local number would cost as much as the rest of the call.
static CALLS: AtomicU32 = AtomicU32::new(0);

#[cold]
fn find_mode() -> u8 {
    // SAFETY: the argument is a C string. A program must not change the environment at the same
    // time.
    let is_set = !unsafe { libc::getenv(SPIN_ENV.as_ptr()) }.is_null();
    let mode = if is_set { SPINS } else { YIELDS };
    MODE.store(mode, Ordering::Relaxed);
    mode
}

/// Yields the processor like sched_yield(2), or returns at once. It does not use a pause
/// instruction, because that delays the next poll: MPICH loses 7 % of its 8-byte latency by it.
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
    // SAFETY: the system call has no arguments.
    unsafe { libc::syscall(libc::SYS_sched_yield) as c_int }
}
