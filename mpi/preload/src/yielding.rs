//! Replaces sched_yield(2). MPI libraries call it at each empty poll, and the call takes several
//! times as long as a message. A process that has its processor to itself gains nothing from the
//! call. A process that shares its processor must make the call at each empty poll. Otherwise the
//! process that has the next message waits until the kernel takes the processor away.
//!
//! The duration of the call shows whether another thread ran meanwhile. If not, the next calls
//! return at once, and their number grows from call to call. PM does the same with its own polls
//! (docs/dev/messages.md).

use std::ffi::c_int;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// The maximum number of calls in a row that return at once, because another process may need the
/// processor at any time.
const MAX_SKIPPED_CALLS: u32 = 255;
/// A call that returns within this time has found no other thread that waits for the processor.
const UNCONTENDED_YIELD_WINDOW: Duration = Duration::from_nanos(1500);
/// The number of consecutive calls that must return within the window before calls are skipped. The
/// kernel may return from one call although other threads wait.
const MIN_UNCONTENDED_YIELDS: u32 = 8;

/// How many calls return at once before the next call enters the kernel. All threads share this
/// number and the next one. If two threads call at the same time, an update may be lost, which is
/// harmless. A thread-local number would cost as much as the rest of the call.
static CALLS_TO_SKIP: AtomicU32 = AtomicU32::new(0);
/// Consecutive calls that entered the kernel and returned within the window.
static UNCONTENDED_YIELDS: AtomicU32 = AtomicU32::new(0);

/// Yields the processor like sched_yield(2), or returns at once. It does not use a pause
/// instruction, which would delay the next poll.
#[unsafe(no_mangle)]
pub extern "C" fn sched_yield() -> c_int {
    let calls_to_skip = CALLS_TO_SKIP.load(Ordering::Relaxed);
    if calls_to_skip > 0 {
        CALLS_TO_SKIP.store(calls_to_skip - 1, Ordering::Relaxed);
        return 0;
    }
    yield_and_measure()
}

#[cold]
fn yield_and_measure() -> c_int {
    let start = Instant::now();
    // SAFETY: the system call has no arguments.
    let result = unsafe { libc::syscall(libc::SYS_sched_yield) as c_int };
    let (uncontended_yields, calls_to_skip) =
        after_yield(UNCONTENDED_YIELDS.load(Ordering::Relaxed), start.elapsed());
    UNCONTENDED_YIELDS.store(uncontended_yields, Ordering::Relaxed);
    CALLS_TO_SKIP.store(calls_to_skip, Ordering::Relaxed);
    result
}

/// The new number of consecutive uncontended yields after one that took `elapsed`, and the number
/// of calls to skip before the next one.
fn after_yield(uncontended_yields: u32, elapsed: Duration) -> (u32, u32) {
    if elapsed >= UNCONTENDED_YIELD_WINDOW {
        return (0, 0);
    }
    let uncontended_yields = uncontended_yields.saturating_add(1);
    let calls_to_skip = uncontended_yields.saturating_sub(MIN_UNCONTENDED_YIELDS);
    (uncontended_yields, calls_to_skip.min(MAX_SKIPPED_CALLS))
}

#[cfg(test)]
mod tests {
    use super::*;

    // Promise (MPI): A process that has its processor to itself enters the kernel at one of 256
    // empty polls.
    #[test]
    fn calls_are_skipped_only_after_yields_that_found_no_other_process() {
        let short = Duration::from_nanos(300);
        let mut yields = 0;
        let none_skipped = [0; MIN_UNCONTENDED_YIELDS as usize];
        for expected in none_skipped.into_iter().chain(1..=MAX_SKIPPED_CALLS).chain([255; 3]) {
            let skipped;
            (yields, skipped) = after_yield(yields, short);
            assert_eq!(skipped, expected);
        }
        assert_eq!(after_yield(yields, UNCONTENDED_YIELD_WINDOW), (0, 0));
        assert_eq!(after_yield(u32::MAX, short), (u32::MAX, MAX_SKIPPED_CALLS));
    }
}
