//! Measures how long processes outside of the jobs used the two processors during a measurement.
//! This time is not a cost of the scheduler.

use std::fs;

use crate::BenchResult;

/// The nanoseconds of a tick in /proc/stat.
const TICK: u64 = 10_000_000;
/// The processor time that all processes and the jobs have used so far, in nanoseconds.
#[derive(Debug, Clone, Copy)]
pub struct CpuUsage {
    busy_ns: u64,
    total_ns: u64,
    job_ns: u64,
}

impl CpuUsage {
    /// Samples the usage of these processors and of these processes.
    pub fn sample(processors: &[usize], process_ids: &[u32]) -> BenchResult<Self> {
        let stat = fs::read_to_string("/proc/stat").map_err(|error| format!("stat: {error}"))?;
        let (mut busy_ns, mut total_ns) = (0, 0);
        for processor in processors {
            let name = format!("cpu{processor} ");
            let line = stat.lines().find_map(|line| line.strip_prefix(&name));
            let counters: Vec<u64> =
                line.unwrap_or_default().split(' ').filter_map(|word| word.parse().ok()).collect();
            // The columns are user nice system idle iowait irq softirq steal. Later columns are
            // included in these.
            let sum: u64 = counters.iter().take(8).sum();
            let idle: u64 = counters.iter().skip(3).take(2).sum();
            (busy_ns, total_ns) = (busy_ns + (sum - idle) * TICK, total_ns + sum * TICK);
        }
        let cpu_time_ns = |pid: &u32| -> Option<u64> {
            let text = fs::read_to_string(format!("/proc/{pid}/schedstat")).ok()?;
            text.split(' ').next()?.parse().ok()
        };
        Ok(Self { busy_ns, total_ns, job_ns: process_ids.iter().filter_map(cpu_time_ns).sum() })
    }

    /// Returns the fraction of the processors' time that other processes have used since `earlier`,
    /// including scored itself and the kernel's housekeeping.
    pub fn share_of_others_since(&self, earlier: &Self) -> f64 {
        let busy_ns = (self.busy_ns - earlier.busy_ns) as f64;
        let job_ns = (self.job_ns - earlier.job_ns) as f64;
        (busy_ns - job_ns) / ((self.total_ns - earlier.total_ns) as f64).max(1.0)
    }
}

/// Returns the ping-pong processes that have this path as their argument.
pub fn pids_of_job(progress_path: &str) -> Vec<u32> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    let is_ping_pong = |pid: &u32| {
        let words = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        let words: Vec<&[u8]> = words.split(|byte| *byte == 0).collect();
        words.get(1) == Some(&&b"turns"[..]) && words.get(2) == Some(&progress_path.as_bytes())
    };
    pids.filter(is_ping_pong).collect()
}
