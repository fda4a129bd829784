//! The time of day.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Seconds since 1970-01-01 00:00:00 UTC.
#[expect(clippy::disallowed_methods, reason = "hosts have no other clock in common")]
pub fn unix_seconds() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO).as_secs()
}
