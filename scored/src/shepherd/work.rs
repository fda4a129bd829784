//! The job as it stands on this host: starting its processes, hearing them, seeing them end.

use std::collections::HashMap;
use std::fs::File;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use mio::{Registry, Token};
use score_proto::message::{ElementSpec, JobSpec, NodeUsage, Stream};
use score_proto::nodeset::NodeSet;
use score_proto::order::{Begin, Place, Placement, Report, Status};

use super::callers::Callers;
use super::calls::{Controls, Heard};
use super::figures::Figures;
use super::input::Input;
use super::limits::{Counts, Watch};
use super::output::{Outputs, Purpose};
use super::reports::Reports;
use super::segments::Segments;
use super::sight::Sight;
use super::start::{self, NotStarted, Starts};
use super::switch::Gate;
use super::{FIRST, INPUT, NETWORKS, ending};
use crate::job::code;
use crate::job::limits::Kind;
use crate::raw::Asker;
use crate::sys::process::{self, Reap, Reaped};
use crate::sys::remove;

/// Processes started in one turn of the loop.
const STARTS: usize = 16;
/// How long output may take to drain after the user has killed the job.
const KILLED_DRAIN: Duration = Duration::from_millis(300);
/// How long killed processes may take to go.
const GOING: Duration = Duration::from_secs(5);

/// One process of the running stage.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct At {
    /// Parallel process in the stage, from 0.
    pub element: u32,
    /// Node, counted over all hosts.
    pub node: u32,
}

/// What does not change while the shepherd lives.
#[derive(Debug)]
pub struct Ground {
    pub directory: PathBuf,
    pub outer_proc: Option<OwnedFd>,
    pub descriptor_limit: libc::rlimit,
    pub null: File,
    /// Where the kernel counts what the job uses.
    pub counts: Counts,
    /// Whether daemons serve several users.
    pub multi_user: bool,
    /// Who opens raw sockets that this process may not.
    pub raw: Option<Asker>,
}

/// The job, once it is known.
#[derive(Debug)]
pub struct Known {
    pub begin: Begin,
    pub placement: Placement,
    /// This host's block of nodes.
    pub here: Place,
    pub stage: usize,
}

/// How far the end of the job has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum End {
    NotYet,
    /// Waiting for killed processes, until then.
    Going(Instant),
    /// Reading what they left.
    Reading,
    Done,
}

/// The job's part on this host.
pub struct Work {
    pub(super) ground: Ground,
    /// Which hosts there are, until the job comes.
    pub(super) placement: Option<Placement>,
    pub(super) known: Option<Known>,
    pub reports: Reports,
    pub outputs: Outputs,
    pub input: Input,
    pub controls: Controls,
    pub(super) starts: Starts,
    pub(super) segments: Segments,
    /// What is seen of the processes from outside.
    pub sight: Sight,
    /// Whether the job is stopped.
    pub gate: Arc<Gate>,
    /// How long it had been, when that was last looked at.
    stopped_for: Duration,
    /// The user has heard what there is to hear of the networks.
    pub(super) told_networks: bool,
    pub(super) watch: Watch,
    pub(super) figures: Figures,
    /// By element of the running stage.
    pub(super) callers: Vec<Callers>,
    running: HashMap<i32, At>,
    /// The same the other way round.
    pub(super) pids: HashMap<At, i32>,
    /// Signals of the user that came before all processes of the stage were started.
    early: Vec<i32>,
    /// Flushes that have been reported: caller and the number of its call, by token.
    pub(super) flushes: HashMap<u64, (At, u32)>,
    next_flush: u64,
    pub(super) began: Option<Instant>,
    last_end: Option<Instant>,
    /// The user has killed the job: its output is not waited for longer than `killed_until`.
    killed: bool,
    killed_until: Option<Instant>,
    end: End,
}

fn output_token(number: usize) -> Token {
    Token(FIRST + 2 * number)
}

fn control_token(number: usize) -> Token {
    Token(FIRST + 2 * number + 1)
}

impl Work {
    pub fn new(ground: Ground, reports: Reports, gate: Arc<Gate>, sight: Sight) -> Self {
        Self {
            ground,
            placement: None,
            known: None,
            reports,
            outputs: Outputs::default(),
            input: Input::default(),
            controls: Controls::default(),
            starts: Starts::default(),
            segments: Segments::default(),
            sight,
            gate,
            stopped_for: Duration::ZERO,
            told_networks: false,
            watch: Watch::default(),
            figures: Figures::default(),
            callers: Vec::new(),
            running: HashMap::new(),
            pids: HashMap::new(),
            early: Vec::new(),
            flushes: HashMap::new(),
            next_flush: 0,
            began: None,
            last_end: None,
            killed: false,
            killed_until: None,
            end: End::NotYet,
        }
    }

    /// Everything has been reported and nothing is left.
    pub fn is_done(&self) -> bool {
        self.end == End::Done
    }

    /// Whether there is something to do without waiting.
    pub fn is_runnable(&self) -> bool {
        let starts = self.starts.is_pending() && !self.gate.is_stopped();
        starts || self.outputs.is_runnable() || self.controls.is_runnable()
    }

    /// When something is to be done by the clock.
    pub fn next_deadline(&self) -> Option<Instant> {
        let lines = if self.gate.is_stopped() { None } else { self.outputs.next_deadline() };
        let going = match self.end {
            End::Going(until) => Some(until),
            _ => None,
        };
        [lines, going, self.killed_until, self.watch.deadline(), self.figures.deadline()]
            .into_iter()
            .flatten()
            .min()
    }

    /// One turn of the loop: everything that is ready, a bounded amount of each.
    pub fn turn(&mut self, registry: &Registry, now: Instant) {
        if let Err(error) = self.segments.register(registry, NETWORKS) {
            self.lost(format!("the networks cannot be watched: {error}"));
        }
        self.count_stops();
        self.start_some(registry);
        self.outputs.pump(&mut self.reports, now);
        if !self.gate.is_stopped() {
            self.outputs.expire(&mut self.reports, now);
        }
        self.input.pump(&mut self.reports);
        self.hear_calls();
        self.measure(now);
        if let Some(kind) = self.watch.look(now, &self.ground.directory) {
            self.exceeded(kind);
        }
        if self.killed_until.is_some_and(|until| until <= now) {
            self.killed_until = None;
            self.outputs.abandon(Purpose::StageEnd);
            self.outputs.abandon(Purpose::JobEnd);
        }
        loop {
            self.go_on_ending(now);
            match self.outputs.drained(&mut self.reports) {
                Some(purpose) => self.drained(purpose),
                None => break,
            }
        }
    }

    /// The clocks of the job stand still while it is stopped.
    fn count_stops(&mut self) {
        let stopped_for = self.gate.stopped_for();
        let pause = stopped_for.saturating_sub(self.stopped_for);
        if !pause.is_zero() {
            self.stopped_for = stopped_for;
            self.outputs.postpone(pause);
            // What came meanwhile was left.
            self.serve_networks();
        }
    }

    /// What processes that have ended have sent is on its way still.
    pub fn serve_networks(&self) {
        if !self.gate.is_stopped() {
            self.segments.serve();
        }
    }

    /// The user has killed the job.
    pub(super) fn kill(&mut self) {
        self.killed = true;
        self.killed_until = Some(Instant::now() + KILLED_DRAIN);
        ending::kill_all();
    }

    /// Ends everything that is left, then reports it.
    pub(super) fn begin_to_end(&mut self) {
        self.input.close();
        self.starts.cancel(None);
        self.end = End::Going(Instant::now() + GOING);
        ending::kill_all();
    }

    pub(super) fn drain(&mut self, purpose: Purpose) {
        if self.killed {
            self.killed_until = Some(Instant::now() + KILLED_DRAIN);
        }
        self.outputs.drain(purpose, None);
    }

    pub(super) fn start_stage(&mut self, stage: usize) {
        let Some(known) = &mut self.known else { return };
        let Some(shape) = known.begin.spec.stages.get(stage) else { return };
        known.stage = stage;
        if stage > 0 {
            self.input.close();
        }
        let (first, nodes) = (known.here.first, known.here.nodes);
        self.segments.clear();
        self.flushes.clear();
        let callers = |(number, element): (u32, &ElementSpec)| {
            let name = element.path.0.rsplit(|byte| *byte == b'/').next().unwrap_or_default();
            Callers::new(number, String::from_utf8_lossy(name).into_owned(), first, nodes)
        };
        self.callers = (0..).zip(&shape.elements).map(callers).collect();
        self.controls.reset(shape.elements.len(), first, nodes);
        self.starts.begin(&self.ground.of(known), stage);
    }

    fn start_some(&mut self, registry: &Registry) {
        let gate = Arc::clone(&self.gate);
        for _ in 0..STARTS {
            let Some(open) = gate.open() else { return };
            let Some(at) = self.starts.next() else { return };
            let Some(known) = &self.known else { return };
            let stage = known.stage;
            let started = self.starts.start(&self.ground.of(known), stage, at);
            drop(open);
            match started {
                Ok(started) => {
                    if let Err(error) = self.keep(started, stage, at, registry) {
                        self.lost(format!("node {}: {error}", at.node));
                    }
                }
                Err(fault) => self.not_started(at, fault),
            }
            if !self.starts.is_pending() {
                self.early.clear();
            }
        }
    }

    fn keep(
        &mut self,
        started: start::Started,
        stage: usize,
        at: At,
        registry: &Registry,
    ) -> std::io::Result<()> {
        self.running.insert(started.pid, at);
        self.pids.insert(at, started.pid);
        self.figures.began(at, started.pid);
        for signal in &self.early {
            process::kill_group(started.pid, *signal);
        }
        let owner = (stage, at.element);
        if let Some(stdin) = started.stdin {
            self.input.open(stdin, &mut self.reports, registry, INPUT)?;
        }
        if let Some(stdout) = started.stdout {
            self.outputs.add(stdout, Stream::Stdout, owner, registry, output_token)?;
        }
        self.outputs.add(started.stderr, Stream::Stderr, owner, registry, output_token)?;
        self.controls.add(at, started.control, registry, control_token)
    }

    fn not_started(&mut self, At { element, node }: At, fault: NotStarted) {
        let nodes = NodeSet::one(node);
        match fault {
            NotStarted::Skipped => self.reports.add(Report::Skipped { element, nodes }),
            NotStarted::Program(code, why) => {
                self.reports.add(Report::NotStarted { element, nodes, code, why });
            }
            NotStarted::Job(why) => {
                self.lost(why);
                self.reports.add(Report::Skipped { element, nodes });
            }
        }
    }

    /// The job cannot go on: nothing further is started.
    pub(super) fn lost(&mut self, reason: String) {
        let reason = match &self.known {
            Some(known) if known.placement.hosts.len() > 1 => {
                format!("host {}: {reason}", known.here.name)
            }
            _ => reason,
        };
        self.reports.add(Report::Lost { code: 1, reason });
        self.skip_starts(None);
    }

    /// Takes what has not been started off the list, of one element or of all.
    pub(super) fn skip_starts(&mut self, element: Option<u32>) {
        for At { element, node } in self.starts.cancel(element) {
            self.reports.add(Report::Skipped { element, nodes: NodeSet::one(node) });
        }
    }

    /// The job has exceeded a limit: nothing of it goes on here.
    fn exceeded(&mut self, kind: Kind) {
        let host = self.known.as_ref().map_or_else(super::files::host_name, Known::host_name);
        let (code, reason) = self.watch.limits().exceeded(kind, &host);
        self.reports.add(Report::Lost { code, reason });
        self.skip_starts(None);
        ending::kill_all();
    }

    fn hear_calls(&mut self) {
        for heard in self.controls.hear() {
            match heard {
                Heard::Call(at, call) => self.called(at, call),
                Heard::Garbage(At { element, node }, what) => {
                    self.reports.add(Report::Garbage { element, node, what });
                }
            }
        }
    }

    fn drained(&mut self, purpose: Purpose) {
        match purpose {
            Purpose::Flush(element, node, id) => {
                let token = self.next_flush;
                self.next_flush += 1;
                self.flushes.insert(token, (At { element, node }, id));
                let host = self.known.as_ref().map_or(0, |known| known.placement.own);
                self.reports.send(&Report::Flush { host, token });
            }
            Purpose::StageEnd => self.reports.send(&Report::Drained),
            Purpose::JobEnd => self.finish(),
        }
    }

    /// Takes every child that has ended.
    pub fn reap(&mut self, registry: &Registry) {
        while let Reap::One(reaped) = process::reap() {
            self.ended(reaped);
        }
        self.turn(registry, Instant::now());
    }

    fn ended(&mut self, reaped: Reaped) {
        // Others are orphans that we have inherited.
        let Some(at) = self.running.remove(&reaped.pid) else { return };
        self.pids.remove(&at);
        self.last_end = Some(Instant::now());
        if reaped.status == Status::Signaled(libc::SIGKILL) && self.watch.was_killed() {
            self.exceeded(Kind::Memory);
        }
        // What it has said before its end counts before its end.
        self.controls.mark_ended(at);
        self.hear_calls();
        self.controls.remove(at);
        let Some(known) = &self.known else { return };
        let At { element, node } = at;
        let process = node - known.here.first;
        let counters = self.segments.counters(element, process).unwrap_or_default();
        self.segments.exited(element, process);
        self.sight.ended(element, node);
        if let Some(callers) = self.callers.get_mut(element as usize) {
            callers.ended(node);
        }
        let busy = self.figures.ended(at);
        if known.begin.spec.statistics {
            self.reports.add(Report::Usage(vec![NodeUsage {
                stage: known.stage as u32,
                element,
                node,
                user_ns: reaped.user_ns,
                system_ns: reaped.system_ns,
                max_rss_kib: reaped.max_rss_kib,
                code: code::of_status(reaped.status),
                sent: counters.sent,
                received: counters.received,
                sent_bytes: counters.sent_bytes,
                received_bytes: counters.received_bytes,
                busy_permille: busy.permille(),
            }]));
        }
        match self.starts.failure(at) {
            Some(fault) => self.not_started(at, fault),
            None => {
                let nodes = NodeSet::one(node);
                self.reports.add(Report::Ended { element, nodes, status: reaped.status });
            }
        }
    }

    /// The user's signal to the job: its next processes get it, too, while not all are started.
    pub(super) fn signal_all(&mut self, signal: i32) {
        let is_early = self.starts.is_pending() || self.pids.is_empty();
        if is_early && !self.early.contains(&signal) {
            self.early.push(signal);
        }
        self.signal(None, signal);
    }

    /// Sends a signal to the group of every process that runs, or of those of one element.
    pub(super) fn signal(&self, element: Option<u32>, signal: i32) {
        for (at, pid) in &self.pids {
            if element.is_none_or(|element| element == at.element) {
                process::kill_group(*pid, signal);
            }
        }
    }

    fn go_on_ending(&mut self, now: Instant) {
        let End::Going(until) = self.end else { return };
        let gone = loop {
            match process::reap() {
                Reap::One(_) => {}
                Reap::NoChildren => break true,
                Reap::AllRunning => break false,
            }
        };
        if gone || until <= now {
            self.end = End::Reading;
            self.drain(Purpose::JobEnd);
        } else {
            // A subreaper inherits what its children leave.
            ending::kill_all();
        }
    }

    fn finish(&mut self) {
        if self.end != End::Reading {
            return;
        }
        self.end = End::Done;
        if self.ground.multi_user
            && let Ok(directory) = File::open(&self.ground.directory)
        {
            // As the user, so that root has less to do with it. What cannot go is named by scored.
            let _ = remove::empty(&directory.into());
        }
        let elapsed = match (self.began, self.last_end) {
            (Some(began), Some(end)) => end.saturating_duration_since(began),
            _ => Duration::ZERO,
        };
        let elapsed_ns = u64::try_from(elapsed.as_nanos()).unwrap_or(u64::MAX);
        self.reports.add(Report::Finished { elapsed_ns });
    }
}

impl Ground {
    pub(super) fn of<'a>(&'a self, known: &'a Known) -> start::Ground<'a> {
        start::Ground {
            spec: &known.begin.spec,
            here: &known.here,
            host: known.placement.own,
            hosts: known.placement.hosts.len() as u32,
            directory: &self.directory,
            descriptor_limit: self.descriptor_limit,
            die_with_parent: self.outer_proc.is_none(),
            multi_user: self.multi_user,
            null: &self.null,
        }
    }
}

impl Known {
    /// What was submitted.
    pub fn spec(&self) -> &JobSpec {
        &self.begin.spec
    }

    /// What this host is called: by the job, or by itself.
    pub fn host_name(&self) -> String {
        match self.here.name.as_str() {
            "" => super::files::host_name(),
            name => name.to_owned(),
        }
    }
}
