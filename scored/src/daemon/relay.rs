//! One host's place in a job's tree: orders go on to the own shepherd and to the hosts below,
//! reports come from there and go up. No sockets here.
//!
//! Output keeps its order behind every source and moves only as far as the next hop has taken
//! what went before. Everything else does not wait for output; see docs/ARCHITECTURE.md, "A job on
//! many hosts".

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use score_proto::order::{HOP_WINDOW, Order, Placement, Report, Turns, Until};
use score_proto::sight::{Quiet, Seen};
use score_tree::merge::Queue;
use score_tree::range::Branch;

/// Reports that wait for the end of a turn at most.
const WAITING: usize = 4096;

/// The source that is the host's own shepherd; the others are the hosts below, in order.
pub const SHEPHERD: usize = 0;

/// Something to be sent on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Out {
    /// To whoever is above.
    Up(Report),
    /// To a source.
    Down(usize, Order),
}

#[derive(Debug)]
struct Source {
    /// The hosts that report through it.
    hosts: std::ops::Range<u32>,
    /// Output, and what keeps its place behind it.
    queue: VecDeque<Report>,
    /// Output that has gone on and has not been granted anew.
    taken: u64,
    ready: bool,
    drained: bool,
    finished: Option<u64>,
    /// The last order to stop that it has carried out.
    stopped: u64,
    /// Nothing more comes from there.
    gone: bool,
    /// What it has said of each element of the running stage.
    quiet: BTreeMap<u32, Quiet>,
    /// Elements that were idle when the job was stopped, of which it has not said so again.
    stale: BTreeSet<u32>,
}

impl Source {
    fn new(hosts: std::ops::Range<u32>) -> Self {
        Self {
            hosts,
            queue: VecDeque::new(),
            taken: 0,
            ready: false,
            drained: false,
            finished: None,
            stopped: 0,
            gone: false,
            quiet: BTreeMap::new(),
            stale: BTreeSet::new(),
        }
    }

    /// What is idle will be looked at anew when the job goes on.
    fn stops(&mut self) {
        let idle = self.quiet.iter().filter(|(_, quiet)| quiet.idle);
        self.stale = idle.map(|(element, _)| *element).collect();
    }

    fn says(&mut self, element: u32, quiet: Quiet) {
        self.stale.remove(&element);
        self.quiet.insert(element, quiet);
    }
}

/// A look at an element, as far as sources have answered.
#[derive(Debug)]
struct Look {
    round: u64,
    seen: Seen,
    answered: Vec<bool>,
}

fn has_stopped(source: &Source, switch: u64) -> bool {
    source.stopped >= switch || source.gone || source.finished.is_some()
}

/// The place of one host in the tree of one job.
#[derive(Debug)]
pub struct Relay {
    placement: Placement,
    sources: Vec<Source>,
    /// Bytes of output that may go up.
    credit: u64,
    /// The source whose last output ended in the middle of a line.
    holder: Option<usize>,
    /// Whose turn it is.
    turn: usize,
    is_ready: bool,
    draining: bool,
    killed: bool,
    finishing: bool,
    finished: bool,
    /// The order to stop that is being carried out.
    stopping: Option<u64>,
    /// What has gone up of each element of the running stage.
    quiet: BTreeMap<u32, Quiet>,
    /// Elements that were idle when the job was stopped: that they still are has to be said.
    again: BTreeSet<u32>,
    /// The last look at each.
    looks: BTreeMap<u32, Look>,
    waiting: Queue<Report>,
    out: Vec<Out>,
}

impl Relay {
    /// The place of the host that `placement` says is the receiver, in the tree over all hosts.
    pub fn new(placement: Placement) -> Self {
        let mut branch = Branch::whole(placement.hosts.len() as u32);
        while branch.root() != placement.own
            && let Some(next) = branch.towards(placement.own)
        {
            branch = next;
        }
        let own = placement.own..placement.own.saturating_add(1);
        let below = branch.children().map(|child| child.positions());
        Self {
            sources: std::iter::once(own).chain(below).map(Source::new).collect(),
            placement,
            credit: HOP_WINDOW,
            holder: None,
            turn: 0,
            is_ready: false,
            draining: false,
            killed: false,
            finishing: false,
            finished: false,
            stopping: None,
            quiet: BTreeMap::new(),
            again: BTreeSet::new(),
            looks: BTreeMap::new(),
            waiting: Queue::new(WAITING),
            out: Vec::new(),
        }
    }

    /// The place above the first host, which runs nothing itself.
    pub fn above_all(placement: Placement) -> Self {
        let all = 0..placement.hosts.len() as u32;
        let mut nobody = Source::new(0..0);
        (nobody.ready, nobody.gone) = (true, true);
        let sources = vec![nobody, Source::new(all)];
        Self { sources, ..Self::new(placement) }
    }

    /// The hosts that report through a source.
    pub fn hosts(&self, source: usize) -> std::ops::Range<u32> {
        self.sources.get(source).map_or(0..0, |one| one.hosts.clone())
    }

    /// The hosts right below, by source.
    pub fn below(&self) -> impl Iterator<Item = (usize, u32)> + '_ {
        self.sources.iter().enumerate().skip(1).map(|(source, one)| (source, one.hosts.start))
    }

    /// Where the job's hosts are.
    pub fn placement(&self) -> &Placement {
        &self.placement
    }

    /// The hosts behind sources that have not stopped yet, though they were ordered to.
    pub fn moving(&self) -> impl Iterator<Item = std::ops::Range<u32>> + '_ {
        let moving = |switch| move |one: &&Source| !has_stopped(one, switch);
        let sources = self.stopping.map(|switch| self.sources.iter().filter(moving(switch)));
        sources.into_iter().flatten().map(|one| one.hosts.clone())
    }

    /// Whether output waits for whoever is above to take what went before.
    pub fn is_blocked(&self) -> bool {
        let waits = |one: &Source| match one.queue.front() {
            Some(Report::Output { bytes, .. }) => bytes.len() as u64 > self.credit,
            _ => false,
        };
        self.sources.iter().any(waits)
    }

    /// Whether the shepherd has said of a parallel process that all of it here is idle.
    pub fn is_hushed(&self) -> bool {
        self.sources.first().is_some_and(|one| one.quiet.values().any(|quiet| quiet.idle))
    }

    /// Whether the last report has gone up.
    pub fn is_finished(&self) -> bool {
        self.finished
    }

    /// An order has come from above.
    pub fn ordered(&mut self, order: Order) {
        match order {
            Order::OutputTaken(bytes) => {
                self.credit = self.credit.saturating_add(bytes);
                return self.pump();
            }
            Order::Drain => {
                self.draining = true;
                self.sources.iter_mut().for_each(|source| source.drained = false);
            }
            Order::Kill => self.killed = true,
            Order::StartStage(_) => {
                self.quiet.clear();
                self.looks.clear();
                self.again.clear();
                self.sources.iter_mut().for_each(|source| {
                    source.quiet.clear();
                    source.stale.clear();
                });
            }
            Order::Finish => self.finishing = true,
            Order::Stop { switch, .. } => {
                self.stopping = Some(switch);
                self.sources.iter_mut().for_each(Source::stops);
                self.asks_again();
            }
            Order::Run { until: Until::Ordered, .. } => self.stopping = None,
            // It will stop without a further order.
            Order::Run { until: Until::Passed { switch, .. }, .. }
            | Order::Run { until: Until::Turns(Turns { switch, .. }), .. } => {
                self.stopping = Some(switch);
            }
            _ => {}
        }
        let to = order.host();
        for (number, source) in self.sources.iter().enumerate().filter(|(_, one)| !one.gone) {
            if to.is_some_and(|host| !source.hosts.contains(&host)) {
                continue;
            }
            let order = match &order {
                Order::Place(placement) => Order::Place(Placement {
                    own: source.hosts.start,
                    life: placement.life,
                    hosts: placement.hosts.clone(),
                }),
                other => other.clone(),
            };
            self.out.push(Out::Down(number, order));
        }
        self.pump();
    }

    /// A report has come from a source.
    pub fn reported(&mut self, from: usize, report: Report) {
        let Some(source) = self.sources.get_mut(from) else { return };
        match report {
            Report::Hello { .. } => {}
            Report::Ready => source.ready = true,
            Report::Drained if self.killed => source.drained = true,
            Report::Output { .. } | Report::Flush { .. } | Report::Drained => {
                source.queue.push_back(report);
            }
            Report::Finished { elapsed_ns } => source.finished = Some(elapsed_ns),
            Report::Quiet { element, quiet } => source.says(element, quiet),
            Report::Seen { element, round, seen } => self.seen(from, element, round, seen),
            Report::Stopped { switch } => {
                source.stopped = source.stopped.max(switch);
                source.stops();
            }
            other => self.add(other),
        }
        self.pump();
    }

    /// Nothing more comes from a source, against its will: it is told above.
    pub fn lost(&mut self, from: usize, code: u8, reason: String) {
        if let Some(source) = self.sources.get_mut(from)
            && !source.gone
            && source.finished.is_none()
        {
            let hosts = source.hosts.clone();
            // Before anything that its end completes.
            self.send_waiting();
            self.out.push(Out::Up(Report::HostsGone { code, hosts, reason }));
        }
        self.gone(from);
    }

    /// Nothing more comes from a source.
    pub fn gone(&mut self, from: usize) {
        if let Some(source) = self.sources.get_mut(from) {
            source.gone = true;
        }
        self.pump();
    }

    /// A source has looked at an element. The answers of all go up as one, behind whatever each of
    /// them has said before; who is gone never answers, since its job ends.
    fn seen(&mut self, from: usize, element: u32, round: u64, seen: Seen) {
        let sources = self.sources.len();
        let fresh = || Look { round, seen: Seen::NOTHING, answered: vec![false; sources] };
        let look = self.looks.entry(element).or_insert_with(fresh);
        if look.round < round {
            *look = fresh();
        }
        if look.round > round || std::mem::replace(&mut look.answered[from], true) {
            return;
        }
        look.seen = look.seen.and(seen);
        let nobody = |at: usize| self.sources[at].hosts.is_empty();
        if (0..sources).all(|at| look.answered[at] || nobody(at)) {
            let seen = look.seen;
            self.add(Report::Seen { element, round, seen });
        }
    }

    /// What is idle has to be said again when the job goes on.
    fn asks_again(&mut self) {
        let idle = self.quiet.iter().filter(|(_, quiet)| quiet.idle);
        self.again = idle.map(|(element, _)| *element).collect();
    }

    /// Whether all are idle, when that has changed, and once after each stop: a host that has said
    /// nothing is busy.
    fn hush(&mut self) {
        let elements: BTreeSet<u32> =
            self.sources.iter().flat_map(|source| source.quiet.keys().copied()).collect();
        for element in elements {
            let busy = Quiet { idle: false, ..Quiet::NOTHING };
            let sources = || self.sources.iter().filter(|source| !source.hosts.is_empty());
            let all = sources()
                .map(|source| source.quiet.get(&element).copied().unwrap_or(busy))
                .fold(Quiet::NOTHING, Quiet::and);
            if all.idle && sources().any(|source| source.stale.contains(&element)) {
                continue;
            }
            let quiet = if all.idle { all } else { busy };
            let again = self.again.remove(&element) && all.idle;
            if self.quiet.insert(element, quiet) != Some(quiet) || again {
                self.add(Report::Quiet { element, quiet });
            }
        }
    }

    /// What is to be sent, at the end of a turn.
    pub fn take(&mut self) -> Vec<Out> {
        self.hush();
        self.send_waiting();
        for (number, source) in self.sources.iter_mut().enumerate() {
            let taken = std::mem::take(&mut source.taken);
            if taken > 0 && !source.gone {
                self.out.push(Out::Down(number, Order::OutputTaken(taken)));
            }
        }
        if self.finishing && !self.finished && self.sources.iter().all(|one| self.is_over(one)) {
            self.finished = true;
            let elapsed_ns = self.sources.iter().filter_map(|one| one.finished).max().unwrap_or(0);
            self.out.push(Out::Up(Report::Finished { elapsed_ns }));
        }
        std::mem::take(&mut self.out)
    }

    fn add(&mut self, report: Report) {
        if let Err(report) = self.waiting.push(report) {
            self.send_waiting();
            self.out.push(Out::Up(report));
        }
    }

    fn send_waiting(&mut self) {
        while let Some(report) = self.waiting.pop() {
            self.out.push(Out::Up(report));
        }
    }

    fn is_over(&self, source: &Source) -> bool {
        (source.finished.is_some() || source.gone) && (source.queue.is_empty() || self.killed)
    }

    /// Sends on what may go.
    fn pump(&mut self) {
        while let Some(number) = self.next() {
            let source = &mut self.sources[number];
            match source.queue.front() {
                Some(Report::Output { bytes, unfinished, .. }) => {
                    let (count, unfinished) = (bytes.len() as u64, *unfinished);
                    if count > self.credit {
                        break;
                    }
                    self.credit -= count;
                    source.taken += count;
                    self.holder = unfinished.then_some(number);
                }
                Some(Report::Drained) => {
                    source.queue.pop_front();
                    source.drained = true;
                    continue;
                }
                _ => {}
            }
            self.out.extend(source.queue.pop_front().map(Out::Up));
        }
        let settled =
            |one: &Source| one.drained || (one.gone && (one.queue.is_empty() || self.killed));
        if self.draining && self.sources.iter().all(settled) {
            self.draining = false;
            self.out.push(Out::Up(Report::Drained));
        }
        if let Some(switch) = self.stopping
            && self.sources.iter().all(|one| has_stopped(one, switch))
        {
            self.stopping = None;
            self.asks_again();
            // Of several turns the last one counts.
            let last = self.sources.iter().map(|one| one.stopped).max().unwrap_or(0);
            self.add(Report::Stopped { switch: switch.max(last) });
        }
        if !self.is_ready && self.sources.iter().all(|one| one.ready) {
            self.is_ready = true;
            self.add(Report::Ready);
        }
    }

    /// The source whose output goes next, if there is one.
    fn next(&mut self) -> Option<usize> {
        if let Some(holder) = self.holder {
            let source = &self.sources[holder];
            if !source.queue.is_empty() {
                return Some(holder);
            }
            if !source.gone {
                return None;
            }
            // The rest of its line will never come.
            self.holder = None;
        }
        let count = self.sources.len();
        let next = (1..=count)
            .map(|step| (self.turn + step) % count)
            .find(|at| !self.sources[*at].queue.is_empty())?;
        self.turn = next;
        Some(next)
    }
}

#[cfg(test)]
#[path = "relay_tests.rs"]
mod tests;
