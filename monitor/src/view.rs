//! Computes displayed values from reported totals.

use std::collections::BTreeMap;
use std::time::Duration;

use score_proto::ids::{ElementIndex, JobHostId};
use score_proto::observation::{HostMetrics, Metrics, NodeMetrics};

use crate::{History, Metric};

/// A process or host is dropped from the view after this many periods without a report, but not
/// before [`MIN_STALE_TIMEOUT`].
const STALE_AFTER_PERIODS: u32 = 5;
const MIN_STALE_TIMEOUT: Duration = Duration::from_secs(2);
/// The smallest rate, in messages per second, that a full bar of comm represents.
const MIN_FULL_SCALE_RATE: f64 = 100.0;

/// The displayed state of a job.
#[derive(Debug, Clone, Default)]
pub struct JobView {
    processes: BTreeMap<(ElementIndex, u32), Process>,
    hosts: BTreeMap<JobHostId, HostRecord>,
    /// The highest rate of any process so far, in messages per second.
    peak: f64,
}

#[derive(Debug, Clone)]
struct HostRecord {
    metrics: HostMetrics,
    received_at: Duration,
}

/// A process in the view.
#[derive(Debug, Clone, PartialEq)]
pub struct Process {
    /// The latest totals of the process.
    pub totals: NodeMetrics,
    /// The fraction of the last period in which the process was busy, 0 to 1. Only time in which
    /// the job ran counts.
    pub busy: f32,
    /// Whether the job ran in the last period.
    pub ran: bool,
    /// The number of processors that the process has used in the last period, including spinning.
    pub processors: f32,
    /// Messages sent per second.
    pub sent: f64,
    /// Messages received per second.
    pub received: f64,
    /// Bytes sent per second.
    pub sent_bytes: f64,
    /// Bytes received per second.
    pub received_bytes: f64,
    /// Earlier displayed values.
    pub history: History,
    received_at: Duration,
}

/// A host in the view: the sums and means of its processes.
#[derive(Debug, Clone, PartialEq)]
pub struct Host {
    /// The index of the host in the job.
    pub host: JobHostId,
    /// The name of the host. Empty until it was reported.
    pub name: String,
    /// The number of its processes in the view.
    pub processes: usize,
    /// The mean of the busy shares of its processes.
    pub busy: f32,
    /// Messages per second that its processes send and receive.
    pub messages: f64,
    /// Bytes per second that its processes send and receive.
    pub bytes: f64,
    /// The memory of its processes.
    pub memory_kib: u64,
    /// The scale for `memory_kib`.
    pub memory_scale_kib: u64,
    /// Size of the job's files on the host.
    pub disk_kib: u64,
    /// The scale for `disk_kib`.
    pub disk_scale_kib: u64,
    /// The mean of user monitor 0, as a fraction of 255.
    pub usr0: f32,
    /// The mean of user monitor 1, as a fraction of 255.
    pub usr1: f32,
}

fn share(part: u64, whole: u64) -> f32 {
    if whole == 0 { 0.0 } else { (part as f64 / whole as f64).min(1.0) as f32 }
}

impl Process {
    fn new(totals: NodeMetrics, received_at: Duration) -> Self {
        let (busy, ran) = (0.0, totals.observed_ns > 0);
        let history = History::default();
        let [sent, received, sent_bytes, received_bytes] = [0.0; 4];
        let processors = 0.0;
        let process = Self {
            totals,
            busy,
            ran,
            processors,
            sent,
            received,
            sent_bytes,
            received_bytes,
            history,
            received_at,
        };
        // The busy share since the start of the process is the best available approximation.
        let start = NodeMetrics { sampled_at_ns: 0, ..NodeMetrics::default() };
        Self { busy: busy_share(&start, &totals).unwrap_or(0.0), ..process }
    }

    /// Updates the totals of the process. Returns false if they belong to another process.
    fn update(&mut self, totals: NodeMetrics, received_at: Duration) -> bool {
        let previous = self.totals;
        let is_successor = totals.sampled_at_ns > previous.sampled_at_ns
            && totals.observed_ns >= previous.observed_ns
            && totals.sent >= previous.sent
            && totals.cpu_ns >= previous.cpu_ns
            && totals.host == previous.host;
        if !is_successor {
            return false;
        }
        let seconds = (totals.sampled_at_ns - previous.sampled_at_ns) as f64 / 1e9;
        let rate = |now: u64, earlier: u64| now.saturating_sub(earlier) as f64 / seconds;
        let share = busy_share(&previous, &totals);
        self.ran = share.is_some();
        self.busy = share.unwrap_or(self.busy);
        self.processors = (rate(totals.cpu_ns, previous.cpu_ns) / 1e9) as f32;
        self.sent = rate(totals.sent, previous.sent);
        self.received = rate(totals.received, previous.received);
        self.sent_bytes = rate(totals.sent_bytes, previous.sent_bytes);
        self.received_bytes = rate(totals.received_bytes, previous.received_bytes);
        (self.totals, self.received_at) = (totals, received_at);
        true
    }

    /// Messages sent and received per second.
    pub fn messages(&self) -> f64 {
        self.sent + self.received
    }

    /// Bytes sent and received per second.
    pub fn bytes(&self) -> f64 {
        self.sent_bytes + self.received_bytes
    }
}

/// The busy share between two samples. None if the job did not run.
fn busy_share(previous: &NodeMetrics, now: &NodeMetrics) -> Option<f32> {
    let observed_ns = now.observed_ns.saturating_sub(previous.observed_ns);
    (observed_ns > 0).then(|| share(now.busy_ns.saturating_sub(previous.busy_ns), observed_ns))
}

impl JobView {
    /// Adds a report about all or some hosts and processes. `now` is a time on the caller's clock.
    pub fn apply_report(&mut self, metrics: &Metrics, now: Duration) {
        for host in &metrics.hosts {
            let record = HostRecord { metrics: host.clone(), received_at: now };
            self.hosts.insert(host.host, record);
        }
        for node in &metrics.nodes {
            let entry = self.processes.entry((node.element, node.node));
            let process = entry
                .and_modify(|process| {
                    if !process.update(*node, now) {
                        *process = Process::new(*node, now);
                    }
                })
                .or_insert_with(|| Process::new(*node, now));
            self.peak = self.peak.max(process.messages());
        }
        for node in &metrics.nodes {
            let id = (node.element, node.node);
            let Some(process) = self.processes.get(&id) else { continue };
            let shares = Metric::ALL.map(|kind| match kind {
                Metric::Comm => process.messages() as f32,
                _ => self.share(process, kind),
            });
            if let Some(process) = self.processes.get_mut(&id) {
                process.history.push(shares);
            }
        }
    }

    /// Whether all hosts have reported since this time.
    pub fn is_complete_since(&self, since: Duration) -> bool {
        !self.hosts.is_empty() && self.hosts.values().all(|host| host.received_at > since)
    }

    /// Drops processes and hosts without a report for several periods. They have ended or are lost.
    pub fn drop_stale(&mut self, now: Duration, period: Duration) {
        let max_age = MIN_STALE_TIMEOUT.max(period.saturating_mul(STALE_AFTER_PERIODS));
        let is_recent = |received_at: Duration| now.saturating_sub(received_at) < max_age;
        self.processes.retain(|_, process| is_recent(process.received_at));
        self.hosts.retain(|_, host| is_recent(host.received_at));
    }

    /// Drops everything, because another stage begins.
    pub fn clear(&mut self) {
        *self = Self::default();
    }

    /// All processes, sorted by host, then element and node.
    pub fn processes(&self) -> Vec<&Process> {
        let mut all: Vec<&Process> = self.processes.values().collect();
        all.sort_by_key(|process| process.totals.host);
        all
    }

    /// All hosts, in the order of the job.
    pub fn hosts(&self) -> Vec<Host> {
        let to_host = |record: &HostRecord| {
            let metrics = &record.metrics;
            let host = Host {
                name: metrics.name.clone(),
                memory_scale_kib: metrics.memory_scale_kib,
                disk_kib: metrics.disk_kib,
                disk_scale_kib: metrics.disk_scale_kib,
                ..Host::empty(metrics.host)
            };
            (metrics.host, host)
        };
        let mut all: BTreeMap<JobHostId, Host> = self.hosts.values().map(to_host).collect();
        for process in self.processes.values() {
            let number = process.totals.host;
            all.entry(number).or_insert_with(|| Host::empty(number)).add(process);
        }
        all.into_values().map(Host::mean).collect()
    }

    /// The rate of a full bar of comm, in messages per second: the highest rate of any process so
    /// far, or a minimum.
    pub fn comm_full_scale(&self) -> f64 {
        self.peak.max(MIN_FULL_SCALE_RATE)
    }

    /// The length of a process's bar, 0 to 1. The value for disk is the value of the process's
    /// host.
    pub fn share(&self, process: &Process, kind: Metric) -> f32 {
        let totals = &process.totals;
        let host = self.hosts.get(&totals.host).map(|known| &known.metrics);
        match kind {
            Metric::Load => process.busy,
            Metric::Comm => (process.messages() / self.comm_full_scale()).min(1.0) as f32,
            Metric::Memory => {
                host.map_or(0.0, |host| share(totals.memory_kib, host.memory_scale_kib))
            }
            Metric::Disk => host.map_or(0.0, |host| share(host.disk_kib, host.disk_scale_kib)),
            Metric::Usr0 => f32::from(totals.usr0) / 255.0,
            Metric::Usr1 => f32::from(totals.usr1) / 255.0,
        }
    }

    /// The length of a host's bar, 0 to 1. The value for comm is the mean of its processes.
    pub fn host_share(&self, host: &Host, kind: Metric) -> f32 {
        let mean = host.messages / host.processes.max(1) as f64;
        match kind {
            Metric::Load => host.busy,
            Metric::Comm => (mean / self.comm_full_scale()).min(1.0) as f32,
            Metric::Memory => share(host.memory_kib, host.memory_scale_kib),
            Metric::Disk => share(host.disk_kib, host.disk_scale_kib),
            Metric::Usr0 => host.usr0,
            Metric::Usr1 => host.usr1,
        }
    }
}

impl Host {
    fn empty(host: JobHostId) -> Self {
        Self {
            host,
            name: String::new(),
            processes: 0,
            busy: 0.0,
            messages: 0.0,
            bytes: 0.0,
            memory_kib: 0,
            memory_scale_kib: 0,
            disk_kib: 0,
            disk_scale_kib: 0,
            usr0: 0.0,
            usr1: 0.0,
        }
    }

    fn add(&mut self, process: &Process) {
        self.processes += 1;
        self.busy += process.busy;
        self.messages += process.messages();
        self.bytes += process.bytes();
        self.memory_kib = self.memory_kib.saturating_add(process.totals.memory_kib);
        self.usr0 += f32::from(process.totals.usr0) / 255.0;
        self.usr1 += f32::from(process.totals.usr1) / 255.0;
    }

    /// Divides the sums into means.
    fn mean(mut self) -> Self {
        let count = self.processes.max(1) as f32;
        for sum in [&mut self.busy, &mut self.usr0, &mut self.usr1] {
            *sum /= count;
        }
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000_000;

    fn host(host: u32) -> HostMetrics {
        let name = format!("h{host}");
        HostMetrics {
            host: JobHostId(host),
            name,
            disk_kib: 25,
            disk_scale_kib: 100,
            memory_scale_kib: 1000,
        }
    }

    /// Totals after this many seconds, of a process that is busy for `busy` of each second.
    /// Processes with higher numbers send more messages.
    fn node(node: u32, seconds: u64, busy: f64) -> NodeMetrics {
        let messages = u64::from(node + 1) * seconds;
        NodeMetrics {
            node,
            host: JobHostId(node / 2),
            sampled_at_ns: SECOND * (5 + seconds),
            observed_ns: SECOND * seconds,
            busy_ns: (SECOND as f64 * busy) as u64 * seconds,
            sent: 1000 * messages,
            received: 500 * messages,
            sent_bytes: 8000 * seconds,
            received_bytes: 3000 * seconds,
            memory_kib: 250,
            cpu_ns: SECOND * seconds,
            usr0: 51,
            usr1: 204,
            ..NodeMetrics::default()
        }
    }

    fn after(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    fn two_seconds(busy: [f64; 4]) -> JobView {
        let mut view = JobView::default();
        for seconds in [1, 2] {
            let nodes = (0..).zip(busy).map(|(number, busy)| node(number, seconds, busy));
            let metrics = Metrics { hosts: vec![host(0), host(1)], nodes: nodes.collect() };
            view.apply_report(&metrics, after(seconds));
        }
        view
    }

    #[test]
    fn totals_become_shares_and_rates() {
        let view = two_seconds([0.0, 0.5, 1.0, 0.25]);
        let busy: Vec<f32> = view.processes().iter().map(|process| process.busy).collect();
        assert_eq!(busy, [0.0, 0.5, 1.0, 0.25]);
        let process = view.processes()[1];
        assert_eq!((process.sent, process.received), (2000.0, 1000.0));
        assert_eq!((process.messages(), process.bytes()), (3000.0, 11_000.0));
        assert_eq!((process.processors, process.ran), (1.0, true));
        let shares = Metric::ALL.map(|kind| view.share(process, kind));
        assert_eq!(shares, [0.5, 0.5, 0.25, 0.25, 0.2, 0.8]);
        let hosts = view.hosts();
        assert_eq!((hosts[0].name.as_str(), hosts[0].processes), ("h0", 2));
        assert_eq!((hosts[0].messages, hosts[0].bytes), (4500.0, 22_000.0));
        let shares = Metric::ALL.map(|kind| view.host_share(&hosts[1], kind));
        assert_eq!(shares, [0.625, 0.875, 0.5, 0.25, 0.2, 0.8]);
        assert_eq!(process.history.last(Metric::Load, 9).collect::<Vec<_>>(), [0.5, 0.5]);
        assert_eq!(process.history.last(Metric::Comm, 9).collect::<Vec<_>>(), [0.0, 3000.0]);
    }

    #[test]
    fn a_full_bar_of_comm_is_the_highest_rate_or_the_minimum() {
        let mut view = two_seconds([0.5; 4]);
        assert_eq!(view.comm_full_scale(), 6000.0);
        let still = NodeMetrics { sampled_at_ns: SECOND * 9, ..node(3, 2, 0.5) };
        view.apply_report(&Metrics { hosts: Vec::new(), nodes: vec![still] }, after(3));
        assert_eq!(view.comm_full_scale(), 6000.0);
        view.clear();
        assert!(view.processes().is_empty() && view.hosts().is_empty());
        assert_eq!(view.comm_full_scale(), MIN_FULL_SCALE_RATE);
    }

    #[test]
    fn rates_are_per_second_in_periods_of_any_length() {
        let mut view = JobView::default();
        for seconds in [1, 5] {
            let nodes = vec![node(0, seconds, 0.5)];
            view.apply_report(&Metrics { hosts: vec![host(0)], nodes }, after(seconds));
        }
        let process = view.processes()[0];
        assert_eq!((process.sent, process.received), (1000.0, 500.0));
        assert_eq!((process.sent_bytes, process.received_bytes), (8000.0, 3000.0));
        assert_eq!((process.processors, process.busy), (1.0, 0.5));
    }

    #[test]
    fn a_stopped_job_keeps_its_displayed_share() {
        let mut view = two_seconds([0.5; 4]);
        let still = NodeMetrics { sampled_at_ns: SECOND * 9, ..node(1, 2, 0.5) };
        view.apply_report(&Metrics { hosts: Vec::new(), nodes: vec![still] }, after(3));
        let process = view.processes()[1];
        assert_eq!((process.busy, process.ran, process.sent), (0.5, false, 0.0));
    }

    #[test]
    fn another_process_with_the_same_number_starts_without_history() {
        let mut view = two_seconds([1.0; 4]);
        let other = NodeMetrics { sampled_at_ns: SECOND * 9, ..node(1, 1, 0.0) };
        view.apply_report(&Metrics { hosts: Vec::new(), nodes: vec![other] }, after(3));
        let process = view.processes()[1];
        assert_eq!((process.busy, process.sent), (0.0, 0.0));
        assert_eq!(process.history.last(Metric::Load, 9).len(), 1);
    }

    /// Totals of one process never decrease, and each sample has a later time.
    #[test]
    fn totals_that_decrease_belong_to_another_process() {
        let next = node(1, 3, 0.5);
        let foreign = [
            NodeMetrics { sampled_at_ns: node(1, 2, 0.5).sampled_at_ns, ..next },
            NodeMetrics { observed_ns: SECOND, ..next },
            NodeMetrics { sent: 3999, ..next },
            NodeMetrics { cpu_ns: SECOND, ..next },
            NodeMetrics { host: JobHostId(1), ..next },
        ];
        for (totals, length) in foreign.map(|totals| (totals, 1)).into_iter().chain([(next, 3)]) {
            let mut view = two_seconds([0.5; 4]);
            view.apply_report(&Metrics { hosts: Vec::new(), nodes: vec![totals] }, after(3));
            let id = (ElementIndex::FIRST, 1);
            let history = &view.processes[&id].history;
            assert_eq!(history.last(Metric::Load, 9).len(), length, "{totals:?}");
        }
    }

    #[test]
    fn stale_processes_and_hosts_are_dropped() {
        let mut view = two_seconds([1.0; 4]);
        view.apply_report(
            &Metrics { hosts: vec![host(1)], nodes: vec![node(3, 3, 1.0)] },
            after(4),
        );
        view.drop_stale(after(4) - Duration::from_nanos(1), Duration::from_millis(100));
        assert_eq!((view.processes().len(), view.hosts().len()), (4, 2));
        view.drop_stale(after(4), Duration::from_millis(100));
        assert_eq!((view.processes().len(), view.hosts().len()), (1, 1));
        view.drop_stale(after(9), after(10));
        assert_eq!(view.processes().len(), 1);
        view.drop_stale(after(60), after(10));
        assert!(view.processes().is_empty() && view.hosts().is_empty());
    }

    #[test]
    fn the_view_is_complete_when_every_host_has_reported_again() {
        let mut view = two_seconds([1.0; 4]);
        assert!(view.is_complete_since(after(1)) && !view.is_complete_since(after(2)));
        for (number, all) in [(0, false), (1, true)] {
            view.apply_report(&Metrics { hosts: vec![host(number)], nodes: Vec::new() }, after(3));
            assert_eq!(view.is_complete_since(after(2)), all);
        }
    }

    #[test]
    fn hostile_metrics_do_no_harm() {
        let mut view = JobView::default();
        let maximal = NodeMetrics {
            sampled_at_ns: u64::MAX,
            observed_ns: 1,
            busy_ns: u64::MAX,
            sent: u64::MAX,
            memory_kib: u64::MAX,
            ..NodeMetrics::default()
        };
        for metrics in [NodeMetrics::default(), maximal, NodeMetrics::default(), maximal] {
            let nodes = vec![metrics, NodeMetrics { node: 1, ..metrics }];
            view.apply_report(&Metrics { hosts: Vec::new(), nodes }, after(1));
            for process in view.processes() {
                assert!((0.0..=1.0).contains(&process.busy) && process.sent.is_finite());
            }
            assert_eq!(view.hosts().len(), 1);
        }
    }
}
