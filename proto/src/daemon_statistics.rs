//! Statistics about a daemon itself, for operators.

use serde::{Deserialize, Serialize};

/// Statistics of the iterations ("turns") of a daemon's main loop. The daemon handles no other
/// event during a turn, so that a long turn delays all of its clients.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DaemonStatistics {
    /// Number of turns since the daemon started.
    pub turns: u64,
    /// The longest turn since the daemon started, in microseconds.
    pub longest_turn_us: u64,
    /// The longest turn of the last minute, in microseconds.
    pub longest_recent_turn_us: u64,
}
