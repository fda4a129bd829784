//! Figures for monitors (manual 3.5.3): looked at without stopping anybody, from the C-Areas, the
//! counters of PM and the kernel's. While nobody watches they cost one look, when the job begins,
//! at what memory and disk are free.
//!
//! The share in which a process is busy is statistical: its idle flag is looked at some ten times
//! in a period, in a short one every 20 ms. What counts is the job's running time, so the shares
//! of a job that runs in slices are those of its slices.

mod gauge;
mod sources;

use std::collections::BTreeMap;
use std::path::Path;
use std::time::{Duration, Instant};

use score_proto::order::Report;
use score_proto::sight::{self, HostFigures, NodeFigures};

pub use gauge::Tally;

use super::disk;
use super::networks::Gauges;
use super::sight::Sight;
use super::work::{At, Work};
use crate::job::limits::Limits;
use gauge::Gauge;
use sources::Memory;

/// Between two looks at the job's directory at least, and how many times longer than a look.
const DISK_PAUSE: Duration = Duration::from_secs(1);
const DISK_SHARE: u32 = 20;
/// Files that are counted of it at most: this process has other things to do.
const FILES: usize = 20_000;
/// Between two looks at a process's memory at least.
const MEMORY_PAUSE: Duration = Duration::from_millis(500);
/// Files about processes that are kept open at most: the job needs descriptors more.
const OPEN: usize = 256;

/// What is kept between reports.
#[derive(Debug, Default)]
pub struct Figures {
    gauge: Gauge,
    /// What memory and disk are shown against, once that was asked.
    scales_kib: Option<[u64; 2]>,
    disk_kib: u64,
    disk_next: Option<Instant>,
    memory_next: Option<Instant>,
    /// In the order of their C-Areas.
    processes: BTreeMap<At, Process>,
}

/// What is known of a process.
#[derive(Debug)]
struct Process {
    pid: i32,
    tally: Tally,
    memory: Memory,
    memory_kib: u64,
    /// Its user monitors.
    users: [u8; 2],
}

impl Figures {
    /// What memory and disk are shown against: their limits, or what was free at the first look.
    fn scales_kib(&mut self, limits: &Limits, directory: &Path) -> [u64; 2] {
        let limit = |bytes: Option<u64>| bytes.map(|bytes| bytes / 1024);
        *self.scales_kib.get_or_insert_with(|| {
            let disk = limit(limits.disk).unwrap_or_else(|| sources::free_kib(directory));
            [limit(limits.memory).unwrap_or_else(sources::available_kib), disk]
        })
    }

    /// The shares are wanted at the end of each process (`stat`).
    pub fn keep(&mut self, now: Instant) {
        self.gauge.keep(now);
    }

    /// [`score_proto::order::Order::Watch`]
    pub fn watch(&mut self, period_ms: u32, now: Instant) {
        self.gauge.watch(period_ms, now);
        if period_ms == 0 {
            self.processes.values_mut().for_each(|process| process.memory.close());
        }
    }

    /// When [`Work::measure`] has something to do.
    pub fn deadline(&self) -> Option<Instant> {
        self.gauge.deadline()
    }

    /// A process has begun.
    pub fn began(&mut self, at: At, pid: i32) {
        let (tally, memory) = (Tally::default(), Memory::default());
        let process = Process { pid, tally, memory, memory_kib: 0, users: [0; 2] };
        self.processes.insert(at, process);
    }

    /// A process has ended: how much of its time it was busy.
    pub fn ended(&mut self, at: At) -> Tally {
        self.processes.remove(&at).map(|process| process.tally).unwrap_or_default()
    }

    /// Looks at what the processes show; their job has run for `step` since the last time, if it
    /// has.
    fn look(&mut self, sight: &Sight, step: Option<Duration>) {
        let shown = sight.shown();
        for (at, process) in &mut self.processes {
            let (idle, users) = shown.of(at.element, at.node).unwrap_or_default();
            process.users = users;
            if let Some(step) = step {
                process.tally.count(step, idle);
            }
        }
    }

    fn look_at_disk(&mut self, directory: &Path, now: Instant) {
        if self.disk_next.is_none_or(|due| due <= now) {
            let used = disk::used(directory, u64::MAX, FILES);
            self.disk_kib = used.map_or(self.disk_kib, |bytes| bytes / 1024);
            self.disk_next = Some(now + DISK_PAUSE.max(now.elapsed() * DISK_SHARE));
        }
    }

    fn look_at_memory(&mut self, now: Instant) {
        if self.memory_next.is_none_or(|due| due <= now) {
            let keep = self.processes.len() <= OPEN;
            for process in self.processes.values_mut() {
                process.memory_kib = process.memory.kib(process.pid, keep);
            }
            self.memory_next = Some(now + MEMORY_PAUSE);
        }
    }
}

impl Work {
    /// Looks at the processes and reports, if it is time for that.
    pub(super) fn measure(&mut self, now: Instant) {
        let Some(known) = self.known.as_ref().filter(|_| self.figures.gauge.is_due(now)) else {
            return;
        };
        let step = self.figures.gauge.look(now, self.gate.job_time());
        self.figures.look(&self.sight, step);
        if !self.figures.gauge.is_report_due(now) || self.reports.is_slow() {
            return;
        }
        self.figures.look_at_disk(&self.ground.directory, now);
        self.figures.look_at_memory(now);
        let [memory_scale_kib, disk_scale_kib] =
            self.figures.scales_kib(self.watch.limits(), &self.ground.directory);
        let (at_ns, first, host) = (super::monotonic_ns(), known.here.first, known.placement.own);
        let gauges: Vec<Option<Gauges>> =
            (0..).zip(&self.callers).map(|(element, _)| self.segments.gauges(element)).collect();
        let node = |(at, process): (&At, &Process)| {
            let gauges = gauges.get(at.element as usize).and_then(Option::as_ref);
            let counted = gauges.map(|gauges| gauges.counters(at.node.wrapping_sub(first)));
            let counted = counted.unwrap_or_default();
            let [usr0, usr1] = process.users;
            NodeFigures {
                element: at.element,
                node: at.node,
                host,
                at_ns,
                watched_ns: process.tally.watched_ns,
                busy_ns: process.tally.busy_ns,
                sent: counted.sent,
                received: counted.received,
                sent_bytes: counted.sent_bytes,
                received_bytes: counted.received_bytes,
                memory_kib: process.memory_kib,
                cpu_ns: sources::cpu_ns(process.pid),
                usr0,
                usr1,
            }
        };
        let nodes = self.figures.processes.iter().map(node).collect();
        let host = HostFigures {
            host,
            name: known.host_name(),
            disk_kib: self.figures.disk_kib,
            disk_scale_kib,
            memory_scale_kib,
        };
        self.reports.add(Report::Figures(sight::Figures { hosts: vec![host], nodes }));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_counted_of_a_process_goes_with_it() {
        let at = At { element: 0, node: 3 };
        let mut figures = Figures::default();
        figures.began(at, 1);
        figures.look(&Sight::new().unwrap(), Some(Duration::from_millis(5)));
        assert_eq!(figures.ended(at).permille(), Some(1000), "who has not attached is busy");
        assert_eq!(figures.ended(at), Tally::default());
    }
}
