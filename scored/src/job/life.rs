//! The life of a job: stages one after the other, each a pipeline of parallel processes. This is
//! the job's master: there is one, however many hosts the job has.

use std::collections::HashMap;

use score_proto::message::{Down, JobEnd, JobSpec, Kind, Level, NodeUsage, OsBytes, StageSpec, Up};
use score_proto::nodeset::NodeSet;
use score_proto::order::{Begin, Order, Placement, Report, Until};
use score_proto::sight::Figures;

use super::code;
use super::element::Element;
use super::hang::{self, Hang, Step};
use super::watchers::{Watcher, Watchers};
use crate::cluster::Time;
use crate::gang::Why;

/// What has happened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// scrun has said something.
    Down(Down),
    /// Hosts have reported something.
    Report(Report),
    /// The gang scheduler lets it run: at its beginning, and after each stop; also to set a pace.
    Run {
        /// The number of the order.
        switch: u64,
        /// How often it is to be looked whether all processes are idle.
        pace_us: u32,
        /// When it stops again.
        until: Until,
    },
    /// The gang scheduler stops it.
    Stop {
        /// The number of the order.
        switch: u64,
        /// For longer than a slice.
        lasting: bool,
    },
    /// All of it stands still, and remains so until [`Bid::Release`]: after [`Bid::Hold`], also
    /// one that is due to the user or to blocked output.
    Held,
    /// Time has passed.
    Tick,
    /// Somebody wants figures so often, in milliseconds; 0 for never again.
    Watch(Watcher, u32),
}

/// What is to be done.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Action {
    /// Tell scrun.
    Up(Up),
    /// Tell all others who watch.
    Figures(Figures),
    /// Tell the hosts.
    Order(Order),
    /// Tell the gang scheduler.
    Gang(Bid),
}

/// What the gang scheduler is told of the job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Bid {
    /// It can run: answered by [`Event::Run`].
    Enter,
    /// It will not run any more.
    Leave,
    /// All hosts have carried out the order to stop of that number.
    Stopped(u64),
    /// It is not to run, until released for the same reason. Answered by [`Event::Held`], perhaps
    /// more than once.
    Hold(Why),
    /// See [`Bid::Hold`].
    Release(Why),
    /// It gives up the rest of its slice.
    Yield,
    /// It wants no slice for so many seconds.
    Sleep(u32),
    /// None of its processes has anything to do.
    Idle,
    /// That is over.
    Busy,
}

/// How far the job has come.
#[derive(Debug, Clone, PartialEq, Eq)]
enum State {
    /// The hosts make ready.
    Starting,
    /// A stage runs.
    Running,
    /// Every process of the stage has ended; what they wrote is being read.
    Draining,
    /// The hosts reclaim everything; then scrun is told that the job was refused, or has ended.
    Finishing { refusal: Option<String>, code: u8 },
    /// scrun has been told.
    Over,
}

/// A job.
#[derive(Debug)]
pub struct Job {
    number: u32,
    placement: Placement,
    /// Names and kinds of the programs, by stage.
    shape: Vec<Vec<(String, Kind)>>,
    /// [`JobSpec::separate`]
    separate: bool,
    state: State,
    stage: usize,
    elements: Vec<Element>,
    /// Whether they can go on, likewise.
    hangs: Vec<Hang>,
    /// Those that the job is held for.
    checks: Vec<u32>,
    /// None of them has anything to do.
    silent: bool,
    /// When the event happens that is dealt with.
    now: Time,
    /// The job ends before its time, with this code at least.
    killed: Option<u8>,
    /// Signals that the user has sent: dying of them is no news.
    expected: Vec<i32>,
    /// Flushes that scrun has been asked for: host and its token, by ours.
    flushes: HashMap<u64, (u32, u64)>,
    next_flush: u64,
    /// The gang scheduler lets it run.
    running: bool,
    /// Its stage is to be started when it runs.
    due: bool,
    /// Its user has suspended it.
    suspended: bool,
    /// The gang scheduler knows it.
    entered: bool,
    usage: Vec<NodeUsage>,
    watchers: Watchers,
    actions: Vec<Action>,
}

fn display_name(path: &OsBytes) -> String {
    let name = path.0.rsplit(|byte| *byte == b'/').next().unwrap_or(&path.0);
    String::from_utf8_lossy(name).into_owned()
}

fn shape(spec: &JobSpec) -> Vec<Vec<(String, Kind)>> {
    let stage = |stage: &StageSpec| {
        stage.elements.iter().map(|one| (display_name(&one.path), one.kind)).collect()
    };
    spec.stages.iter().map(stage).collect()
}

/// A line for the user.
pub(super) fn notice(level: Level, text: String) -> Action {
    Action::Up(Up::Notice { level, text })
}

impl Job {
    /// A job that has been checked (see [`super::check`]) and placed, and what its hosts are told
    /// first.
    pub fn begin(begin: Begin, placement: Placement) -> (Self, [Order; 2]) {
        let job = Self {
            number: begin.job,
            placement: placement.clone(),
            shape: shape(&begin.spec),
            separate: begin.spec.separate,
            state: State::Starting,
            stage: 0,
            elements: Vec::new(),
            hangs: Vec::new(),
            checks: Vec::new(),
            silent: false,
            now: Time::ZERO,
            killed: None,
            expected: Vec::new(),
            flushes: HashMap::new(),
            next_flush: 0,
            running: false,
            due: false,
            suspended: false,
            entered: false,
            usage: Vec::new(),
            watchers: Watchers::default(),
            actions: Vec::new(),
        };
        (job, [Order::Place(placement), Order::Begin(Box::new(begin))])
    }

    /// Whether scrun has been told how the job has ended.
    pub fn is_over(&self) -> bool {
        self.state == State::Over
    }

    /// What time it is: said before each event.
    pub fn set_time(&mut self, now: Time) {
        self.now = now;
    }

    /// When [`Event::Tick`] is wanted.
    pub fn deadline(&self) -> Option<Time> {
        let all = self.elements.iter().zip(&self.hangs);
        all.filter(|(element, _)| !element.is_over()).filter_map(|(_, hang)| hang.deadline()).min()
    }

    /// One step: what has happened in, what to do out.
    pub fn on(&mut self, event: Event) -> Vec<Action> {
        match event {
            _ if self.is_over() => {}
            Event::Down(down) => self.told(down),
            Event::Report(report) => self.reported(report),
            Event::Run { switch, pace_us, until } => self.run(switch, pace_us, until),
            Event::Stop { switch, lasting } => {
                self.running = false;
                self.stopped();
                self.order(Order::Stop { switch, lasting });
            }
            Event::Held => {
                let checks = self.checks.clone();
                checks.into_iter().for_each(|number| self.hang(number, Hang::held));
            }
            Event::Tick => {
                (0..self.hangs.len() as u32).for_each(|one| self.hang(one, Hang::tick));
            }
            Event::Watch(watcher, period_ms) => self.watch(watcher, period_ms),
        }
        self.settle();
        std::mem::take(&mut self.actions)
    }

    fn order(&mut self, order: Order) {
        self.actions.push(Action::Order(order));
    }

    fn up(&mut self, up: Up) {
        self.actions.push(Action::Up(up));
    }

    fn gang(&mut self, bid: Bid) {
        self.actions.push(Action::Gang(bid));
    }

    /// The gang scheduler lets it run: processes are started in a slice only.
    fn run(&mut self, switch: u64, pace_us: u32, until: Until) {
        self.running = true;
        self.start_if_due();
        self.order(Order::Run { switch, pace_us, until });
    }

    fn stopped(&mut self) {
        (0..self.hangs.len() as u32).for_each(|one| self.hang(one, Hang::stopped));
    }

    fn start_if_due(&mut self) {
        if self.running && std::mem::take(&mut self.due) {
            self.order(Order::StartStage(self.stage as u32));
        }
    }

    fn suspend(&mut self) {
        self.suspended = true;
        if self.entered {
            self.gang(Bid::Hold(Why::User));
        }
    }

    fn resume(&mut self) {
        self.suspended = false;
        match self.entered {
            true => self.gang(Bid::Release(Why::User)),
            false => self.enter(),
        }
    }

    /// Has the gang scheduler know it as soon as it has a stage to run.
    fn enter(&mut self) {
        if self.state == State::Running && !self.entered && !self.suspended {
            self.entered = true;
            self.gang(Bid::Enter);
        }
    }

    fn told(&mut self, down: Down) {
        match down {
            // The session's own business, before there is a job.
            Down::Hello { .. }
            | Down::Submit(_)
            | Down::Open(_)
            | Down::Content { .. }
            | Down::Login(_)
            | Down::Request { .. }
            | Down::Console(_) => {}
            Down::Stdin(bytes) => self.order(Order::Stdin(bytes)),
            Down::StdinEof => self.order(Order::StdinEof),
            Down::OutputTaken(bytes) => self.order(Order::OutputTaken(bytes)),
            Down::Flushed(token) => {
                if let Some((host, token)) = self.flushes.remove(&token) {
                    self.order(Order::Flushed { host, token });
                }
            }
            Down::OutputClosed(stream) => {
                self.expected.push(libc::SIGPIPE);
                self.order(Order::OutputClosed(stream));
            }
            Down::Signal(signal) => {
                self.expected.push(signal);
                self.order(Order::Signal(signal));
                // It must be able to act on it, whether anybody reads what it says or not.
                if self.entered {
                    self.gang(Bid::Release(Why::Output));
                }
            }
            Down::Suspend => self.suspend(),
            Down::Resume => self.resume(),
            Down::Watch(period_ms) => self.watch(Watcher::Scrun, period_ms),
            Down::Kill => {
                self.order(Order::Kill);
                self.end_all(code::of_signal(libc::SIGKILL));
            }
        }
    }

    fn watch(&mut self, watcher: Watcher, period_ms: u32) {
        let period_ms = self.watchers.set(watcher, period_ms);
        // Hosts that make ready are told with the first stage.
        if let Some(period_ms) = period_ms.filter(|_| self.state != State::Starting) {
            self.order(Order::Watch { period_ms });
        }
    }

    fn figures(&mut self, figures: Figures) {
        let (scrun, others) = self.watchers.who();
        if scrun {
            self.up(Up::Figures(figures.clone()));
        }
        if others {
            self.actions.push(Action::Figures(figures));
        }
    }

    fn reported(&mut self, report: Report) {
        match report {
            Report::Ready if self.state == State::Starting => {
                let hosts = self.placement.hosts.len() as u32;
                let nodes = self.placement.nodes();
                self.up(Up::Accepted { job: self.number, nodes, hosts });
                let period_ms = self.watchers.shortest();
                if period_ms > 0 {
                    self.order(Order::Watch { period_ms });
                }
                self.begin_stage(0);
            }
            Report::Refused { code, reason } if self.state == State::Starting => {
                self.finish(Some(reason), code);
            }
            Report::Lost { code, reason } => self.lost(code, reason),
            Report::HostsGone { code, hosts, reason } => self.hosts_gone(code, hosts, reason),
            Report::Garbage { element, node, what } => {
                let name = self.name(element);
                self.lost(1, format!("node {node} of {name}: {what}; the job is ended"));
            }
            Report::Output { host, stream, bytes, .. } => {
                self.up(Up::Output { host, stream, bytes });
            }
            Report::Notice { level, text } => self.up(Up::Notice { level, text }),
            Report::StdinWindow(bytes) => self.up(Up::StdinWindow(bytes)),
            Report::StdinClosed => self.up(Up::StdinClosed),
            Report::Flush { host, token } => {
                self.flushes.insert(self.next_flush, (host, token));
                self.up(Up::Flush(self.next_flush));
                self.next_flush += 1;
            }
            Report::Stopped { switch } => {
                self.stopped();
                self.gang(Bid::Stopped(switch));
            }
            Report::Sleep { seconds, .. } => self.gang(Bid::Sleep(seconds)),
            Report::Yield { .. } => self.gang(Bid::Yield),
            Report::Quiet { element, quiet } => {
                self.hang(element, |hang, now| hang.quiet(quiet, now));
            }
            Report::Seen { element, round, seen } => {
                self.hang(element, |hang, now| hang.seen(round, seen, now));
            }
            Report::Waits { element, waits } => {
                self.hang(element, |hang, now| hang.explained(waits, now));
            }
            Report::Figures(figures) => self.figures(figures),
            Report::Usage(usage) => self.usage.extend(usage),
            Report::Drained if self.state == State::Draining => self.end_stage(),
            Report::Finished { elapsed_ns } => self.finished(elapsed_ns),
            other => self.of_element(other),
        }
    }

    /// What concerns one parallel process of the running stage; anything else is of another state,
    /// or was the business of the hop that passed it on.
    fn of_element(&mut self, report: Report) {
        let element = report.element().and_then(|one| self.elements.get_mut(one as usize));
        let Some(element) = element else { return };
        let ended = match &report {
            Report::Ended { nodes, .. } if self.placement.hosts.len() > 1 => Some(nodes.clone()),
            _ => None,
        };
        let before = self.actions.len();
        element.reported(report, &self.expected, &mut self.actions);
        let wakes = |action: &Action| matches!(action, Action::Order(Order::BarrierDone { .. }));
        let woken = self.actions[before..].iter().any(wakes).then(|| element.number());
        // Who sends to them from another host must not wait for them.
        if let Some(nodes) = ended.filter(|_| element.is_communicating()) {
            let gone = Order::Gone { element: element.number(), nodes };
            self.actions.push(Action::Order(gone));
        }
        if let Some(element) = woken {
            self.hang(element, Hang::disturbed);
        }
    }

    /// Something that tells whether an element can go on.
    fn hang(&mut self, number: u32, on: impl FnOnce(&mut Hang, Time) -> Vec<Step>) {
        let runs = self.elements.get(number as usize).is_some_and(|element| !element.is_over());
        let Some(hang) = self.hangs.get_mut(number as usize).filter(|_| runs) else { return };
        for step in on(hang, self.now) {
            match step {
                Step::Order(order) => self.order(order),
                Step::Hold => {
                    self.checks.push(number);
                    self.gang(Bid::Hold(Why::Check));
                }
                Step::Release => self.release(number),
                Step::Condemn(waits) => {
                    let name = self.name(number);
                    let lines = hang::lines(self.number, &name, &waits, &self.placement);
                    self.actions.extend(lines.into_iter().map(|text| notice(Level::Error, text)));
                    self.elements[number as usize].condemn(hang::CODE);
                }
                Step::End => self.elements[number as usize].end(hang::CODE, &mut self.actions),
            }
        }
    }

    /// The job need not stand still any longer for an element.
    fn release(&mut self, number: u32) {
        let before = self.checks.len();
        self.checks.retain(|other| *other != number);
        if self.checks.is_empty() && before > 0 {
            self.gang(Bid::Release(Why::Check));
        }
    }

    /// Tells the gang scheduler when all that runs has nothing to do, and when that is over.
    fn hush(&mut self) {
        let all = self.elements.iter().zip(&self.hangs);
        let mut running = all.filter(|(element, _)| !element.is_over()).peekable();
        let silent = running.peek().is_some() && running.all(|(_, hang)| hang.is_silent());
        if silent != self.silent && self.entered {
            self.silent = silent;
            self.gang(if silent { Bid::Idle } else { Bid::Busy });
        }
    }

    fn name(&self, element: u32) -> String {
        let shape = self.shape[self.stage].get(element as usize);
        shape.map_or_else(String::new, |(name, _)| name.clone())
    }

    fn begin_stage(&mut self, stage: usize) {
        self.state = State::Running;
        self.stage = stage;
        self.flushes.clear();
        let nodes = self.placement.nodes();
        let last = self.shape[stage].len() - 1;
        self.elements = (0..)
            .zip(&self.shape[stage])
            .map(|(at, (name, kind))| {
                let element = Element::new(at, name.clone(), *kind, nodes, (at as usize) < last);
                if self.separate { element.separate() } else { element }
            })
            .collect();
        self.hangs = self.elements.iter().map(|one| Hang::new(one.number(), nodes)).collect();
        self.due = true;
        self.enter();
        self.start_if_due();
    }

    fn lost(&mut self, code: u8, reason: String) {
        if self.killed.is_none() {
            self.actions.push(notice(Level::Error, reason));
        }
        self.end_all(code);
    }

    fn hosts_gone(&mut self, code: u8, hosts: std::ops::Range<u32>, reason: String) {
        self.actions.push(notice(Level::Error, reason));
        let places = self.placement.hosts.get(hosts.start as usize..hosts.end as usize);
        let gone: Vec<_> = places.unwrap_or_default().iter().map(|place| place.range()).collect();
        if self.separate && self.state == State::Running {
            // The commands on other hosts have nothing to do with it.
            self.killed.get_or_insert(code);
        } else {
            self.end_all(code);
        }
        for range in gone {
            let nodes = NodeSet::from(range);
            self.elements.iter_mut().for_each(|element| element.skipped(&nodes));
        }
    }

    fn end_all(&mut self, code: u8) {
        self.killed.get_or_insert(code);
        match &mut self.state {
            State::Starting => self.finish(None, code),
            // Nothing of the stage has been started, and nothing will be.
            State::Running if self.due => self.finish(None, code),
            State::Running => {
                for element in &mut self.elements {
                    element.end(code, &mut self.actions);
                }
            }
            State::Finishing { code: so_far, .. } if *so_far == 0 => *so_far = code,
            _ => {}
        }
    }

    fn settle(&mut self) {
        for number in self.checks.clone() {
            if self.elements.get(number as usize).is_none_or(Element::is_over) {
                self.release(number);
            }
        }
        self.hush();
        if self.state == State::Running && self.elements.iter().all(Element::is_over) {
            (self.state, self.due) = (State::Draining, false);
            self.hangs.clear();
            self.order(Order::Drain);
        }
    }

    fn end_stage(&mut self) {
        let code = code::of_pipeline(self.elements.iter().map(Element::code));
        match self.killed {
            None if code == 0 && self.stage + 1 < self.shape.len() => {
                self.begin_stage(self.stage + 1);
            }
            None => self.finish(None, code),
            Some(least) => self.finish(None, if code == 0 { least } else { code }),
        }
    }

    fn finish(&mut self, refusal: Option<String>, code: u8) {
        (self.state, self.due) = (State::Finishing { refusal, code }, false);
        if std::mem::take(&mut self.entered) {
            self.gang(Bid::Leave);
        }
        self.order(Order::Finish);
    }

    /// Every host has reclaimed everything, or is gone.
    fn finished(&mut self, elapsed_ns: u64) {
        let State::Finishing { refusal, code } = std::mem::replace(&mut self.state, State::Over)
        else {
            // They were not asked to: somebody up here lost count.
            return self.up(Up::Finished(JobEnd { code: 1, usage: Vec::new(), elapsed_ns }));
        };
        let usage = std::mem::take(&mut self.usage);
        self.up(match refusal {
            Some(reason) => Up::Refused { reason, code },
            None => Up::Finished(JobEnd { code, usage, elapsed_ns }),
        });
    }
}

#[cfg(test)]
#[path = "life_tests.rs"]
mod tests;
