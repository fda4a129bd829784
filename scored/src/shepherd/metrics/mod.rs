//! Metrics for monitors (manual 3.5.3). The shepherd samples them from the C-Areas and from the
//! counters of PM and the kernel, without stopping a process. It samples only if there are
//! subscribers, or with the option `stat`.
//!
//! The busy fraction of a process is statistical: its idle flag is sampled about ten times in a
//! period, and at most every 20 ms. Only the job's running time counts. The fractions of a job that
//! runs in slices therefore describe its slices.

pub mod measurement;
mod proc_stats;
mod sampler;

use std::path::Path;
use std::time::{Duration, Instant};

use score_proto::message::JobLimits;
use score_proto::observation::{HostMetrics, Metrics, NodeMetrics};

use super::disk_usage;
use super::gang_switch::RunGate;
use super::inspection::ProcessInspector;
use super::job_info::{JobInfo, ProcessKey};
use super::networks::MessageCounters;
use super::processes::{Process, ProcessTable};
use super::shared_memory::SharedMemory;
use sampler::Sampler;

/// Shortest interval between two scans of the job's directory.
const DISK_SCAN_INTERVAL: Duration = Duration::from_secs(1);
/// The scan interval is at least this many times the duration of a scan.
const DISK_SCAN_BACKOFF_FACTOR: u32 = 20;
/// Largest number of files that one scan counts. The limit exists because the shepherd has other
/// work to do.
const MAX_SCANNED_FILES: usize = 20_000;
/// Shortest interval between two samples of a process's memory.
const MEMORY_SAMPLE_INTERVAL: Duration = Duration::from_millis(500);
/// Largest number of files of /proc that are kept open. The limit leaves descriptors for the job.
const MAX_OPEN_PROC_FILES: usize = 256;

/// State between reports.
#[derive(Debug, Default)]
pub struct MetricsCollector {
    sampler: Sampler,
    /// Full scale of memory and disk in KiB, after the first query.
    scales_kib: Option<[u64; 2]>,
    disk_kib: u64,
    next_disk_scan: Option<Instant>,
    next_memory_sample: Option<Instant>,
}

impl MetricsCollector {
    /// The full scale of memory and disk in KiB: the job's limits, or the free amounts at the first
    /// query.
    fn scales_kib(&mut self, limits: &JobLimits, directory: &Path) -> [u64; 2] {
        let limit = |bytes: Option<u64>| bytes.map(|bytes| bytes / 1024);
        *self.scales_kib.get_or_insert_with(|| {
            let disk = limit(limits.disk).unwrap_or_else(|| proc_stats::free_kib(directory));
            [limit(limits.memory).unwrap_or_else(proc_stats::available_kib), disk]
        })
    }

    /// Samples even without subscribers, because `stat` reports the busy fraction of each process
    /// at its exit.
    pub fn keep_sampling(&mut self, now: Instant) {
        self.sampler.keep_sampling(now);
    }

    /// Handles [`score_proto::job_control::JobOrder::SubscribeMetrics`].
    pub fn set_period(&mut self, period_ms: u32, now: Instant, processes: &mut ProcessTable) {
        self.sampler.set_period(period_ms, now);
        if period_ms == 0 {
            let running = processes.running_mut(None);
            running.for_each(|(_, process)| process.measurement.memory.close());
        }
    }

    /// When [`MetricsCollector::measure`] has work to do.
    pub fn deadline(&self) -> Option<Instant> {
        self.sampler.deadline()
    }

    fn sample_disk(&mut self, directory: &Path, now: Instant) {
        if self.next_disk_scan.is_none_or(|due| due <= now) {
            let bytes_used = disk_usage::bytes_used(directory, u64::MAX, MAX_SCANNED_FILES);
            self.disk_kib = bytes_used.map_or(self.disk_kib, |bytes| bytes / 1024);
            self.next_disk_scan =
                Some(now + DISK_SCAN_INTERVAL.max(now.elapsed() * DISK_SCAN_BACKOFF_FACTOR));
        }
    }

    fn sample_memory(&mut self, now: Instant, processes: &mut ProcessTable) {
        if self.next_memory_sample.is_none_or(|due| due <= now) {
            let keep_open = processes.running_count() <= MAX_OPEN_PROC_FILES;
            for (_, process) in processes.running_mut(None) {
                let measurement = &mut process.measurement;
                measurement.memory_kib = measurement.memory.kib(process.pid, keep_open);
            }
            self.next_memory_sample = Some(now + MEMORY_SAMPLE_INTERVAL);
        }
    }
}

/// Samples the idle flags and user monitors of the processes. `elapsed`: running time of the job
/// since the last sample, if it has run.
fn sample_idle(
    processes: &mut ProcessTable,
    inspector: &ProcessInspector,
    elapsed: Option<Duration>,
) {
    let monitors = inspector.monitors();
    for (key, process) in processes.running_mut(None) {
        let (idle, user_monitors) = monitors.process(key.element, key.node).unwrap_or_default();
        process.measurement.user_monitors = user_monitors;
        if let Some(elapsed) = elapsed {
            process.measurement.busy_time.add_sample(elapsed, idle);
        }
    }
}

/// The job that is measured.
pub struct MeasuredJob<'a> {
    /// Its placement and names.
    pub job_info: &'a JobInfo,
    /// Its directory.
    pub directory: &'a Path,
    /// Its limits, which are the full scale of memory and disk.
    pub limits: &'a JobLimits,
    /// Its clock.
    pub run_gate: &'a RunGate,
    /// Reader of idle flags and user monitors.
    pub inspector: &'a ProcessInspector,
    /// The counters of its messages.
    pub shared_memory: &'a SharedMemory,
    /// Its processes.
    pub processes: &'a mut ProcessTable,
}

impl MetricsCollector {
    /// Samples the processes, if that is due. Returns metrics if they are due and can be sent.
    pub fn measure(
        &mut self,
        now: Instant,
        can_send: bool,
        job: MeasuredJob<'_>,
    ) -> Option<Metrics> {
        if !self.sampler.is_due(now) {
            return None;
        }
        let elapsed = self.sampler.sample(now, job.run_gate.job_time());
        sample_idle(job.processes, job.inspector, elapsed);
        if !self.sampler.is_report_due(now) || !can_send {
            return None;
        }
        self.sample_disk(job.directory, now);
        self.sample_memory(now, job.processes);
        let [memory_scale_kib, disk_scale_kib] = self.scales_kib(job.limits, job.directory);
        let host = HostMetrics {
            host: job.job_info.placement.self_host,
            name: job.job_info.host_name(),
            disk_kib: self.disk_kib,
            disk_scale_kib,
            memory_scale_kib,
        };
        Some(Metrics { hosts: vec![host], nodes: node_metrics(job) })
    }
}

/// The metrics of all running processes, which must have been sampled before.
fn node_metrics(job: MeasuredJob<'_>) -> Vec<NodeMetrics> {
    let sampled_at_ns = super::monotonic_ns();
    let (local_host, host) = (&job.job_info.local_host, job.job_info.placement.self_host);
    let message_counters: Vec<Option<MessageCounters>> = job
        .processes
        .elements()
        .map(|element| job.shared_memory.message_counters(element))
        .collect();
    let metrics_of = |(key, process): (ProcessKey, &mut Process)| {
        let element_counters = message_counters.get(key.element.index()).and_then(Option::as_ref);
        let counters = element_counters
            .map(|element_counters| element_counters.counters(local_host.process_of(key.node)));
        let counters = counters.unwrap_or_default();
        let measurement = &process.measurement;
        let [usr0, usr1] = measurement.user_monitors;
        NodeMetrics {
            element: key.element,
            node: key.node,
            host,
            sampled_at_ns,
            observed_ns: measurement.busy_time.watched_ns,
            busy_ns: measurement.busy_time.busy_ns,
            sent: counters.sent,
            received: counters.received,
            sent_bytes: counters.sent_bytes,
            received_bytes: counters.received_bytes,
            memory_kib: measurement.memory_kib,
            cpu_ns: proc_stats::cpu_ns(process.pid),
            usr0,
            usr1,
        }
    };
    job.processes.running_mut(None).map(metrics_of).collect()
}

#[cfg(test)]
mod tests {
    use super::super::call_handler::ElementCalls;
    use super::super::job_info::LocalNodes;
    use super::*;
    use score_proto::ids::ElementIndex;

    #[test]
    fn a_process_that_has_not_attached_is_busy() {
        let mut processes = ProcessTable::default();
        let nodes = LocalNodes { first: 3, count: 1 };
        processes.reset(vec![ElementCalls::new("a.out".to_owned())], nodes);
        processes.start(ProcessKey { element: ElementIndex(0), node: 3 }, 1, [None, None]);
        let inspector = ProcessInspector::new().unwrap();
        sample_idle(&mut processes, &inspector, Some(Duration::from_millis(5)));
        let (_, process) = processes.end(1).unwrap();
        assert_eq!(process.measurement.busy_time.permille(), Some(1000));
    }
}
