//! Checks periodically whether the job stays within its limits on this host. The less CPU time is
//! left, the shorter is the interval to the next check.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use score_job::limits::LimitKind;
use score_proto::message::JobLimits;

use super::disk_usage;
use crate::sys::{cgroup, process};

/// Shortest and longest interval between two checks of CPU time.
const CHECK_INTERVAL_RANGE: (Duration, Duration) =
    (Duration::from_millis(10), Duration::from_secs(1));
/// Interval between two checks of memory, if no cgroup limits it.
const MEMORY_SAMPLE_INTERVAL: Duration = Duration::from_millis(100);
/// Shortest interval between two scans of the job's directory.
const DISK_SCAN_INTERVAL: Duration = Duration::from_millis(200);
/// The scan interval is at least this many times the duration of a scan.
const DISK_SCAN_BACKOFF_FACTOR: u32 = 10;

/// Files with the kernel's counters of the job's cgroup, if the job has one.
#[derive(Debug, Clone, Default)]
pub struct CgroupCounters {
    /// `cpu.stat` or `cpuacct.usage`
    pub cpu_file: Option<PathBuf>,
    /// `memory.events` or `memory.oom_control`
    pub oom_file: Option<PathBuf>,
}

/// The limits of a job, and the times of the next checks.
#[derive(Debug, Default)]
pub struct LimitEnforcer {
    limits: JobLimits,
    cgroup_counters: CgroupCounters,
    next_cpu_check: Option<Instant>,
    next_memory_check: Option<Instant>,
    next_disk_check: Option<Instant>,
    is_reported: bool,
}

impl LimitEnforcer {
    /// An enforcer for a job that has no processes yet. If no cgroup limits memory, also sets the
    /// resource limit on data of this process, which its children inherit.
    pub fn new(limits: JobLimits, cgroup_counters: CgroupCounters, now: Instant) -> Self {
        if let (Some(bytes), None) = (limits.memory, &cgroup_counters.oom_file) {
            process::limit_data(bytes);
        }
        Self {
            next_cpu_check: limits.cpu.map(|_| now),
            next_memory_check: limits
                .memory
                .filter(|_| cgroup_counters.oom_file.is_none())
                .map(|_| now),
            next_disk_check: limits.disk.map(|_| now),
            limits,
            cgroup_counters,
            is_reported: false,
        }
    }

    /// The limits.
    pub fn limits(&self) -> &JobLimits {
        &self.limits
    }

    /// When [`LimitEnforcer::check`] has to be called next.
    pub fn deadline(&self) -> Option<Instant> {
        let all = [self.next_cpu_check, self.next_memory_check, self.next_disk_check];
        all.into_iter().flatten().min().filter(|_| !self.is_reported)
    }

    /// The limit that is exceeded, if any. Returns it once.
    pub fn check(&mut self, now: Instant, directory: &Path) -> Option<LimitKind> {
        if self.deadline().is_none_or(|due| due > now) {
            return None;
        }
        let kind = self.check_cpu(now);
        let kind = kind.or_else(|| self.check_memory(now));
        let kind = kind.or_else(|| self.check_disk(now, directory));
        self.is_reported |= kind.is_some();
        kind
    }

    /// Whether the kernel has killed a process because memory was exhausted. Called after SIGKILL
    /// has ended a process. Returns true once.
    pub fn was_oom_killed(&mut self) -> bool {
        let oom_killed =
            self.cgroup_counters.oom_file.as_deref().and_then(cgroup::oom_kills).unwrap_or(0) > 0;
        oom_killed && !std::mem::replace(&mut self.is_reported, true)
    }

    fn check_cpu(&mut self, now: Instant) -> Option<LimitKind> {
        let limit =
            self.limits.cpu.filter(|_| self.next_cpu_check.is_some_and(|due| due <= now))?;
        let counted = self.cgroup_counters.cpu_file.as_deref().and_then(cgroup::cpu_ns);
        let used = Duration::from_nanos(counted.unwrap_or_else(process::descendants_cpu_ns));
        let left = limit.saturating_sub(used);
        let cpus = u32::try_from(super::cpu_count()).unwrap_or(1);
        self.next_cpu_check =
            Some(now + (left / cpus).clamp(CHECK_INTERVAL_RANGE.0, CHECK_INTERVAL_RANGE.1));
        left.is_zero().then_some(LimitKind::Cpu)
    }

    fn check_memory(&mut self, now: Instant) -> Option<LimitKind> {
        let limit =
            self.limits.memory.filter(|_| self.next_memory_check.is_some_and(|due| due <= now))?;
        self.next_memory_check = Some(now + MEMORY_SAMPLE_INTERVAL);
        (process::descendants_memory() > limit).then_some(LimitKind::Memory)
    }

    fn check_disk(&mut self, now: Instant, directory: &Path) -> Option<LimitKind> {
        let limit =
            self.limits.disk.filter(|_| self.next_disk_check.is_some_and(|due| due <= now))?;
        let is_below_limit = disk_usage::is_within(directory, limit);
        // A scan of a large tree must not keep this process busy.
        self.next_disk_check =
            Some(now + DISK_SCAN_INTERVAL.max(now.elapsed() * DISK_SCAN_BACKOFF_FACTOR));
        (!is_below_limit).then_some(LimitKind::Disk)
    }
}

#[cfg(test)]
mod tests {
    use super::super::disk_usage::tests::scratch_dir;
    use super::*;
    use std::fs;

    #[test]
    fn an_exceeded_limit_is_reported_once() {
        let base = scratch_dir("once");
        fs::write(base.join("file"), vec![1; 2 << 20]).unwrap();
        let limits = JobLimits { disk: Some(1 << 20), ..JobLimits::default() };
        let now = Instant::now();
        let mut enforcer = LimitEnforcer::new(limits, CgroupCounters::default(), now);
        assert_eq!(enforcer.deadline(), Some(now));
        assert_eq!(enforcer.check(now, &base), Some(LimitKind::Disk));
        assert_eq!(enforcer.deadline(), None);
        assert_eq!(enforcer.check(now + Duration::from_secs(9), &base), None);
        fs::remove_dir_all(&base).unwrap();
    }
}
