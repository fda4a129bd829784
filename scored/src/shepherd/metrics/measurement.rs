//! Metrics of one process.

use super::proc_stats::MemoryReader;
use super::sampler::BusyTime;

/// Resource usage of one process, as of the last sample.
#[derive(Debug, Default)]
pub struct Measurement {
    /// Its busy time.
    pub busy_time: BusyTime,
    /// Reader of its memory usage.
    pub memory: MemoryReader,
    /// Its resident memory in KiB.
    pub memory_kib: u64,
    /// Its user monitors.
    pub user_monitors: [u8; 2],
}
