//! From totals to what is shown.

use std::collections::BTreeMap;
use std::time::Duration;

use score_proto::sight::{Figures, HostFigures, NodeFigures};

use crate::{History, Kind};

/// Whoever is not heard of for so many periods, and at least so long, is shown no more.
const MISSED: u32 = 5;
const SILENT: Duration = Duration::from_secs(2);
/// Messages per second that a bar of comm stands for at least when it is full.
const FEW: f64 = 100.0;

/// What is known of a job.
#[derive(Debug, Clone, Default)]
pub struct View {
    processes: BTreeMap<(u32, u32), Process>,
    hosts: BTreeMap<u32, Known>,
    /// The most messages per second that a process has had.
    peak: f64,
}

#[derive(Debug, Clone)]
struct Known {
    figures: HostFigures,
    heard: Duration,
}

/// A process as it is shown.
#[derive(Debug, Clone, PartialEq)]
pub struct Process {
    /// The totals that came last.
    pub totals: NodeFigures,
    /// How much of its time it was busy in the last period in which its job ran: 0 to 1.
    pub busy: f32,
    /// Whether the job ran in the last period.
    pub ran: bool,
    /// Processors that it has kept busy in the last period, spinning included.
    pub processors: f32,
    /// Messages sent in a second.
    pub sent: f64,
    /// Messages received in a second.
    pub received: f64,
    /// Bytes sent in a second.
    pub sent_bytes: f64,
    /// Bytes received in a second.
    pub received_bytes: f64,
    /// What was shown before.
    pub history: History,
    heard: Duration,
}

/// A host as it is shown: its processes together.
#[derive(Debug, Clone, PartialEq)]
pub struct Host {
    /// Its place among the hosts of the job.
    pub host: u32,
    /// Its name; empty until it has told it.
    pub name: String,
    /// Processes that are shown.
    pub processes: usize,
    /// The mean of their busy shares.
    pub busy: f32,
    /// The sum of their messages in a second, sent and received.
    pub messages: f64,
    /// The same in bytes.
    pub bytes: f64,
    /// The sum of their memory.
    pub memory_kib: u64,
    /// What that is shown against.
    pub memory_scale_kib: u64,
    /// The job's files there.
    pub disk_kib: u64,
    /// What that is shown against.
    pub disk_scale_kib: u64,
    /// The mean of user monitor 0, as a share of 255.
    pub usr0: f32,
    /// The same of user monitor 1.
    pub usr1: f32,
}

fn share(part: u64, whole: u64) -> f32 {
    if whole == 0 { 0.0 } else { (part as f64 / whole as f64).min(1.0) as f32 }
}

impl Process {
    fn new(totals: NodeFigures, heard: Duration) -> Self {
        let (busy, ran) = (0.0, totals.watched_ns > 0);
        let history = History::default();
        let [sent, received, sent_bytes, received_bytes] = [0.0; 4];
        let processors = 0.0;
        let new = Self {
            totals,
            busy,
            ran,
            processors,
            sent,
            received,
            sent_bytes,
            received_bytes,
            history,
            heard,
        };
        // Since it began: the best that is known.
        let begin = NodeFigures { at_ns: 0, ..NodeFigures::default() };
        Self { busy: busy_share(&begin, &totals).unwrap_or(0.0), ..new }
    }

    /// Further totals of the same process. False: they are of another one.
    fn go_on(&mut self, totals: NodeFigures, heard: Duration) -> bool {
        let before = self.totals;
        let forth = totals.at_ns > before.at_ns
            && totals.watched_ns >= before.watched_ns
            && totals.sent >= before.sent
            && totals.cpu_ns >= before.cpu_ns
            && totals.host == before.host;
        if !forth {
            return false;
        }
        let seconds = (totals.at_ns - before.at_ns) as f64 / 1e9;
        let rate = |now: u64, then: u64| now.saturating_sub(then) as f64 / seconds;
        let share = busy_share(&before, &totals);
        self.ran = share.is_some();
        self.busy = share.unwrap_or(self.busy);
        self.processors = (rate(totals.cpu_ns, before.cpu_ns) / 1e9) as f32;
        self.sent = rate(totals.sent, before.sent);
        self.received = rate(totals.received, before.received);
        self.sent_bytes = rate(totals.sent_bytes, before.sent_bytes);
        self.received_bytes = rate(totals.received_bytes, before.received_bytes);
        (self.totals, self.heard) = (totals, heard);
        true
    }

    /// Messages sent and received in a second.
    pub fn messages(&self) -> f64 {
        self.sent + self.received
    }

    /// Bytes sent and received in a second.
    pub fn bytes(&self) -> f64 {
        self.sent_bytes + self.received_bytes
    }
}

/// None: the job did not run.
fn busy_share(before: &NodeFigures, now: &NodeFigures) -> Option<f32> {
    let watched = now.watched_ns.saturating_sub(before.watched_ns);
    (watched > 0).then(|| share(now.busy_ns.saturating_sub(before.busy_ns), watched))
}

impl View {
    /// Takes what has come, of some hosts and processes or all; `now`: on a clock of the caller's.
    pub fn take(&mut self, figures: &Figures, now: Duration) {
        for host in &figures.hosts {
            let known = Known { figures: host.clone(), heard: now };
            self.hosts.insert(host.host, known);
        }
        for node in &figures.nodes {
            let place = self.processes.entry((node.element, node.node));
            let process = place
                .and_modify(|process| {
                    if !process.go_on(*node, now) {
                        *process = Process::new(*node, now);
                    }
                })
                .or_insert_with(|| Process::new(*node, now));
            self.peak = self.peak.max(process.messages());
        }
        for node in &figures.nodes {
            let id = (node.element, node.node);
            let Some(process) = self.processes.get(&id) else { continue };
            let shares = Kind::ALL.map(|kind| match kind {
                Kind::Comm => process.messages() as f32,
                _ => self.share(process, kind),
            });
            if let Some(process) = self.processes.get_mut(&id) {
                process.history.push(shares);
            }
        }
    }

    /// Whether all hosts have been heard of since then.
    pub fn is_newer(&self, then: Duration) -> bool {
        !self.hosts.is_empty() && self.hosts.values().all(|host| host.heard > then)
    }

    /// Drops whoever has not been heard of for some periods: ended, or lost.
    pub fn forget(&mut self, now: Duration, period: Duration) {
        let limit = SILENT.max(period.saturating_mul(MISSED));
        let is_new = |heard: Duration| now.saturating_sub(heard) < limit;
        self.processes.retain(|_, process| is_new(process.heard));
        self.hosts.retain(|_, host| is_new(host.heard));
    }

    /// Drops everything: another stage begins.
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
        let known = |known: &Known| {
            let figures = &known.figures;
            let host = Host {
                name: figures.name.clone(),
                memory_scale_kib: figures.memory_scale_kib,
                disk_kib: figures.disk_kib,
                disk_scale_kib: figures.disk_scale_kib,
                ..Host::nobody(figures.host)
            };
            (figures.host, host)
        };
        let mut all: BTreeMap<u32, Host> = self.hosts.values().map(known).collect();
        for process in self.processes.values() {
            let number = process.totals.host;
            all.entry(number).or_insert_with(|| Host::nobody(number)).add(process);
        }
        all.into_values().map(Host::mean).collect()
    }

    /// Messages per second that a full bar of comm stands for: the most that a process has had.
    pub fn full_comm(&self) -> f64 {
        self.peak.max(FEW)
    }

    /// How long the bar of a process is: 0 to 1. A process has the disk of its host.
    pub fn share(&self, process: &Process, kind: Kind) -> f32 {
        let totals = &process.totals;
        let host = self.hosts.get(&totals.host).map(|known| &known.figures);
        match kind {
            Kind::Load => process.busy,
            Kind::Comm => (process.messages() / self.full_comm()).min(1.0) as f32,
            Kind::Memory => {
                host.map_or(0.0, |host| share(totals.memory_kib, host.memory_scale_kib))
            }
            Kind::Disk => host.map_or(0.0, |host| share(host.disk_kib, host.disk_scale_kib)),
            Kind::Usr0 => f32::from(totals.usr0) / 255.0,
            Kind::Usr1 => f32::from(totals.usr1) / 255.0,
        }
    }

    /// How long the bar of a host is: 0 to 1. Comm is the mean of its processes.
    pub fn host_share(&self, host: &Host, kind: Kind) -> f32 {
        let mean = host.messages / host.processes.max(1) as f64;
        match kind {
            Kind::Load => host.busy,
            Kind::Comm => (mean / self.full_comm()).min(1.0) as f32,
            Kind::Memory => share(host.memory_kib, host.memory_scale_kib),
            Kind::Disk => share(host.disk_kib, host.disk_scale_kib),
            Kind::Usr0 => host.usr0,
            Kind::Usr1 => host.usr1,
        }
    }
}

impl Host {
    fn nobody(host: u32) -> Self {
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

    /// Of the sums, the means.
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

    fn host(host: u32) -> HostFigures {
        let name = format!("h{host}");
        HostFigures { host, name, disk_kib: 25, disk_scale_kib: 100, memory_scale_kib: 1000 }
    }

    /// Totals after so many seconds of a process that is busy for `busy` of each.
    fn node(node: u32, seconds: u64, busy: f64) -> NodeFigures {
        NodeFigures {
            node,
            host: node / 2,
            at_ns: SECOND * (5 + seconds),
            watched_ns: SECOND * seconds,
            busy_ns: (SECOND as f64 * busy) as u64 * seconds,
            sent: 1000 * seconds,
            sent_bytes: 8000 * seconds,
            memory_kib: 250,
            cpu_ns: SECOND * seconds,
            usr0: 51,
            ..NodeFigures::default()
        }
    }

    fn after(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    fn two_seconds(busy: [f64; 4]) -> View {
        let mut view = View::default();
        for seconds in [1, 2] {
            let nodes = (0..).zip(busy).map(|(number, busy)| node(number, seconds, busy));
            let figures = Figures { hosts: vec![host(0), host(1)], nodes: nodes.collect() };
            view.take(&figures, after(seconds));
        }
        view
    }

    #[test]
    fn totals_become_shares_and_rates() {
        let view = two_seconds([0.0, 0.5, 1.0, 0.25]);
        let busy: Vec<f32> = view.processes().iter().map(|process| process.busy).collect();
        assert_eq!(busy, [0.0, 0.5, 1.0, 0.25]);
        let one = view.processes()[1];
        assert_eq!((one.sent, one.sent_bytes, one.received), (1000.0, 8000.0, 0.0));
        assert_eq!((one.processors, one.ran), (1.0, true));
        let shares = Kind::ALL.map(|kind| view.share(one, kind));
        assert_eq!(shares, [0.5, 1.0, 0.25, 0.25, 0.2, 0.0]);
        let hosts = view.hosts();
        assert_eq!((hosts[0].name.as_str(), hosts[0].processes), ("h0", 2));
        let shares = Kind::ALL.map(|kind| view.host_share(&hosts[1], kind));
        assert_eq!(shares, [0.625, 1.0, 0.5, 0.25, 0.2, 0.0]);
        assert_eq!(one.history.last(Kind::Load, 9).collect::<Vec<_>>(), [0.5, 0.5]);
    }

    #[test]
    fn a_job_that_was_stopped_keeps_its_share_and_is_marked() {
        let mut view = two_seconds([0.5; 4]);
        let still = NodeFigures { at_ns: SECOND * 9, ..node(1, 2, 0.5) };
        view.take(&Figures { hosts: Vec::new(), nodes: vec![still] }, after(3));
        let process = view.processes()[1];
        assert_eq!((process.busy, process.ran, process.sent), (0.5, false, 0.0));
    }

    #[test]
    fn another_process_of_the_same_number_begins_anew() {
        let mut view = two_seconds([1.0; 4]);
        let other = NodeFigures { at_ns: SECOND * 9, ..node(1, 1, 0.0) };
        view.take(&Figures { hosts: Vec::new(), nodes: vec![other] }, after(3));
        let process = view.processes()[1];
        assert_eq!((process.busy, process.sent), (0.0, 0.0));
        assert_eq!(process.history.last(Kind::Load, 9).len(), 1);
    }

    #[test]
    fn whoever_is_silent_is_forgotten() {
        let mut view = two_seconds([1.0; 4]);
        view.take(&Figures { hosts: vec![host(1)], nodes: vec![node(3, 3, 1.0)] }, after(4));
        view.forget(after(5), Duration::from_millis(100));
        assert_eq!((view.processes().len(), view.hosts().len()), (1, 1));
        view.forget(after(9), after(10));
        assert_eq!(view.processes().len(), 1);
        view.forget(after(60), after(10));
        assert!(view.processes().is_empty() && view.hosts().is_empty());
    }

    #[test]
    fn it_is_new_when_every_host_has_been_heard_again() {
        let mut view = two_seconds([1.0; 4]);
        assert!(view.is_newer(after(1)) && !view.is_newer(after(2)));
        for (number, all) in [(0, false), (1, true)] {
            view.take(&Figures { hosts: vec![host(number)], nodes: Vec::new() }, after(3));
            assert_eq!(view.is_newer(after(2)), all);
        }
    }

    #[test]
    fn hostile_figures_do_no_harm() {
        let mut view = View::default();
        let all = NodeFigures {
            at_ns: u64::MAX,
            watched_ns: 1,
            busy_ns: u64::MAX,
            sent: u64::MAX,
            memory_kib: u64::MAX,
            ..NodeFigures::default()
        };
        for figures in [NodeFigures::default(), all, NodeFigures::default(), all] {
            let nodes = vec![figures, NodeFigures { node: 1, ..figures }];
            view.take(&Figures { hosts: Vec::new(), nodes }, after(1));
            for process in view.processes() {
                assert!((0.0..=1.0).contains(&process.busy) && process.sent.is_finite());
            }
            assert_eq!(view.hosts().len(), 1);
        }
    }
}
