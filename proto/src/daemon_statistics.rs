//! Facts about a daemon itself, for operators.

use serde::{Deserialize, Serialize};

/// The turns of a daemon's loop. While a turn lasts, nobody else is served.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DaemonStatistics {
    /// Turns since the daemon started.
    pub turns: u64,
    /// The longest turn since the daemon started, in microseconds.
    pub longest_turn_us: u64,
    /// The longest turn of the last minute, in microseconds.
    pub longest_recent_turn_us: u64,
}
