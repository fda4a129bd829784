//! Whether the job stays within its limits on this host: looked at from time to time, the more
//! often the nearer the limit can be.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use super::disk;
use crate::job::limits::{Kind, Limits};
use crate::sys::{cgroup, process};

/// Between two looks: at least, at most.
const PAUSE: (Duration, Duration) = (Duration::from_millis(10), Duration::from_secs(1));
/// Between two looks at memory where no cgroup limits it.
const MEMORY_PAUSE: Duration = Duration::from_millis(100);
/// Between two looks at the job's directory, and how many times longer than a look itself.
const DISK_PAUSE: Duration = Duration::from_millis(200);
const DISK_SHARE: u32 = 10;

/// Where the kernel counts for the job's group, if it has one.
#[derive(Debug, Clone, Default)]
pub struct Counts {
    /// `cpu.stat` or `cpuacct.usage`
    pub cpu: Option<PathBuf>,
    /// `memory.events` or `memory.oom_control`
    pub oom: Option<PathBuf>,
}

/// The limits of a job, and when they are looked at next.
#[derive(Debug, Default)]
pub struct Watch {
    limits: Limits,
    counts: Counts,
    cpu_next: Option<Instant>,
    memory_next: Option<Instant>,
    disk_next: Option<Instant>,
    told: bool,
}

impl Watch {
    /// Watches a job that has nothing running yet.
    pub fn new(limits: Limits, counts: Counts, now: Instant) -> Self {
        if let (Some(bytes), None) = (limits.memory, &counts.oom) {
            process::limit_data(bytes);
        }
        Self {
            cpu_next: limits.cpu.map(|_| now),
            memory_next: limits.memory.filter(|_| counts.oom.is_none()).map(|_| now),
            disk_next: limits.disk.map(|_| now),
            limits,
            counts,
            told: false,
        }
    }

    /// What the limits are.
    pub fn limits(&self) -> &Limits {
        &self.limits
    }

    /// When [`Watch::look`] is to be called next.
    pub fn deadline(&self) -> Option<Instant> {
        let all = [self.cpu_next, self.memory_next, self.disk_next];
        all.into_iter().flatten().min().filter(|_| !self.told)
    }

    /// The limit that is exceeded, if one is; told once.
    pub fn look(&mut self, now: Instant, directory: &Path) -> Option<Kind> {
        if self.deadline().is_none_or(|due| due > now) {
            return None;
        }
        let kind = self.look_at_cpu(now);
        let kind = kind.or_else(|| self.look_at_memory(now));
        let kind = kind.or_else(|| self.look_at_disk(now, directory));
        self.told |= kind.is_some();
        kind
    }

    /// A process was killed by SIGKILL: whether the kernel did it for lack of memory; told once.
    pub fn was_killed(&mut self) -> bool {
        let killed = self.counts.oom.as_deref().and_then(cgroup::oom_kills).unwrap_or(0) > 0;
        killed && !std::mem::replace(&mut self.told, true)
    }

    fn look_at_cpu(&mut self, now: Instant) -> Option<Kind> {
        let limit = self.limits.cpu.filter(|_| self.cpu_next.is_some_and(|due| due <= now))?;
        let counted = self.counts.cpu.as_deref().and_then(cgroup::cpu_ns);
        let used = Duration::from_nanos(counted.unwrap_or_else(process::family_cpu_ns));
        let left = limit.saturating_sub(used);
        let processors = u32::try_from(super::processors()).unwrap_or(1);
        self.cpu_next = Some(now + (left / processors).clamp(PAUSE.0, PAUSE.1));
        left.is_zero().then_some(Kind::Cpu)
    }

    fn look_at_memory(&mut self, now: Instant) -> Option<Kind> {
        let limit =
            self.limits.memory.filter(|_| self.memory_next.is_some_and(|due| due <= now))?;
        self.memory_next = Some(now + MEMORY_PAUSE);
        (process::family_memory() > limit).then_some(Kind::Memory)
    }

    fn look_at_disk(&mut self, now: Instant, directory: &Path) -> Option<Kind> {
        let limit = self.limits.disk.filter(|_| self.disk_next.is_some_and(|due| due <= now))?;
        let within = disk::is_within(directory, limit);
        // A large tree must not keep this process busy.
        self.disk_next = Some(now + DISK_PAUSE.max(now.elapsed() * DISK_SHARE));
        (!within).then_some(Kind::Disk)
    }
}

#[cfg(test)]
mod tests {
    use super::super::disk::tests::scratch;
    use super::*;
    use std::fs;

    #[test]
    fn an_exceeded_limit_is_told_once() {
        let base = scratch("once");
        fs::write(base.join("file"), vec![1; 2 << 20]).unwrap();
        let limits = Limits { disk: Some(1 << 20), ..Limits::default() };
        let now = Instant::now();
        let mut watch = Watch::new(limits, Counts::default(), now);
        assert_eq!(watch.deadline(), Some(now));
        assert_eq!(watch.look(now, &base), Some(Kind::Disk));
        assert_eq!(watch.deadline(), None);
        assert_eq!(watch.look(now + Duration::from_secs(9), &base), None);
        fs::remove_dir_all(&base).unwrap();
    }
}
