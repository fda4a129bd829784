//! The clock that jobs and their controller share.

use nix::time::{ClockId, clock_gettime};

use crate::BenchResult;

/// The monotonic clock, in nanoseconds.
pub fn now_ns() -> BenchResult<u64> {
    let now = clock_gettime(ClockId::CLOCK_MONOTONIC).map_err(|errno| format!("clock: {errno}"))?;
    Ok(now.tv_sec() as u64 * 1_000_000_000 + now.tv_nsec() as u64)
}
