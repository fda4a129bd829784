//! Figures for monitors (manual 3.5.3): looked at without stopping anybody, from the C-Areas, the
//! counters of PM and the kernel's. While nobody watches they cost one look, when the job begins,
//! at what memory and disk are free.
//!
//! The share in which a process is busy is statistical: its idle flag is looked at some ten times
//! in a period, in a short one every 20 ms. What counts is the job's running time, so the shares
//! of a job that runs in slices are those of its slices.

mod gauge;
mod sources;

use std::collections::HashMap;
use std::path::Path;
use std::time::{Duration, Instant};

use score_proto::order::Report;
use score_proto::sight::{self, HostFigures, NodeFigures};

pub use gauge::Tally;

use super::disk;
use super::work::{At, Work};
use crate::job::limits::Limits;
use gauge::Gauge;

/// Between two looks at the job's directory at least, and how many times longer than a look.
const DISK_PAUSE: Duration = Duration::from_secs(1);
const DISK_SHARE: u32 = 20;
/// Files that are counted of it at most: this process has other things to do.
const FILES: usize = 20_000;
/// Between two looks at a process's memory at least.
const MEMORY_PAUSE: Duration = Duration::from_millis(500);

/// What is kept between reports.
#[derive(Debug, Default)]
pub struct Figures {
    gauge: Gauge,
    /// What memory and disk are shown against, once that was asked.
    scales_kib: Option<[u64; 2]>,
    disk_kib: u64,
    disk_next: Option<Instant>,
    memory: HashMap<At, u64>,
    memory_next: Option<Instant>,
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
    }

    /// When [`Work::measure`] has something to do.
    pub fn deadline(&self) -> Option<Instant> {
        self.gauge.deadline()
    }

    /// A process has ended: how much of its time it was busy.
    pub fn ended(&mut self, at: At) -> Tally {
        self.memory.remove(&at);
        self.gauge.ended(at)
    }

    fn look_at_disk(&mut self, directory: &Path, now: Instant) {
        if self.disk_next.is_none_or(|due| due <= now) {
            let used = disk::used(directory, u64::MAX, FILES);
            self.disk_kib = used.map_or(self.disk_kib, |bytes| bytes / 1024);
            self.disk_next = Some(now + DISK_PAUSE.max(now.elapsed() * DISK_SHARE));
        }
    }

    fn look_at_memory(&mut self, pids: &HashMap<At, i32>, now: Instant) {
        if self.memory_next.is_none_or(|due| due <= now) {
            self.memory = pids.iter().map(|(at, pid)| (*at, sources::memory_kib(*pid))).collect();
            self.memory_next = Some(now + MEMORY_PAUSE);
        }
    }
}

impl Work {
    /// Looks at the processes and reports, if it is time for that.
    pub(super) fn measure(&mut self, now: Instant) {
        let Some(known) = &self.known else { return };
        let first = known.here.first;
        let ran = self.gate.job_time();
        let shown = |at: At| self.sight.shown(at.element, at.node);
        if let Some(step) = self.figures.gauge.is_look_due(now, ran) {
            for at in self.pids.keys() {
                let idle = shown(*at).is_some_and(|(idle, _)| idle);
                self.figures.gauge.count(*at, step, idle);
            }
        }
        if !self.figures.gauge.is_report_due(now) || self.reports.is_slow() {
            return;
        }
        self.figures.look_at_disk(&self.ground.directory, now);
        self.figures.look_at_memory(&self.pids, now);
        let [memory_scale_kib, disk_scale_kib] =
            self.figures.scales_kib(self.watch.limits(), &self.ground.directory);
        let at_ns = super::monotonic_ns();
        let node = |(at, pid): (&At, &i32)| {
            let process = at.node.wrapping_sub(first);
            let counted = self.segments.counters(at.element, process).unwrap_or_default();
            let tally = self.figures.gauge.tally(*at);
            let [usr0, usr1] = shown(*at).map_or([0, 0], |(_, users)| users);
            NodeFigures {
                element: at.element,
                node: at.node,
                host: known.placement.own,
                at_ns,
                watched_ns: tally.watched_ns,
                busy_ns: tally.busy_ns,
                sent: counted.sent,
                received: counted.received,
                sent_bytes: counted.sent_bytes,
                received_bytes: counted.received_bytes,
                memory_kib: self.figures.memory.get(at).copied().unwrap_or(0),
                cpu_ns: sources::cpu_ns(*pid),
                usr0,
                usr1,
            }
        };
        let host = HostFigures {
            host: known.placement.own,
            name: known.host_name(),
            disk_kib: self.figures.disk_kib,
            disk_scale_kib,
            memory_scale_kib,
        };
        let nodes = self.pids.iter().map(node).collect();
        self.reports.add(Report::Figures(sight::Figures { hosts: vec![host], nodes }));
    }
}
