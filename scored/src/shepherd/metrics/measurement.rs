//! Metrics of one process.

use super::proc_stats::MemoryReader;
use super::sampler::BusyTime;

/// What one process has used, as of the last sample.
#[derive(Debug, Default)]
pub struct Measurement {
    /// How long it was busy.
    pub busy_time: BusyTime,
    /// Reader of its memory usage.
    pub memory: MemoryReader,
    /// Its resident memory.
    pub memory_kib: u64,
    /// Its user monitors.
    pub user_monitors: [u8; 2],
}
