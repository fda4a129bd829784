//! Carrying out what the job's logic decides, and telling it what has happened.

use std::collections::HashMap;
use std::fs::File;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use mio::{Registry, Token};
use score_proto::message::{Down, JobEnd, JobSpec, Level, NodeUsage, Reply, Stream, Up};

use super::calls::{Controls, Heard};
use super::input::Input;
use super::output::{Outputs, Purpose};
use super::segments::Segments;
use super::start::{self, NotStarted, Starts};
use super::{FIRST, INPUT, ending};
use crate::job::code;
use crate::job::life::{Action, At, Event, Job};
use crate::link::Link;
use crate::sys::process::{self, Reap, Reaped};

/// Processes started in one turn of the loop.
const STARTS: usize = 16;
/// Calls of sc_flush that one process may have under way: one for each of its threads, amply.
pub(super) const MOST_FLUSHES: u32 = 1024;
/// How long output may take to drain after the user has killed the job.
const KILLED_DRAIN: Duration = Duration::from_millis(300);
/// How long killed processes may take to go.
const GOING: Duration = Duration::from_secs(5);

/// What does not change during a job.
#[derive(Debug)]
pub struct Ground {
    pub directory: PathBuf,
    pub job: u32,
    pub outer_proc: Option<OwnedFd>,
    pub descriptor_limit: libc::rlimit,
    pub null: File,
}

/// How far the end of the job has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum End {
    NotYet,
    /// Waiting for killed processes, until then.
    Going(u8, Instant),
    /// Reading what they left.
    Reading(u8),
    Done,
}

/// The job as it stands.
pub struct Work {
    pub(super) ground: Ground,
    pub(super) job: Option<Job>,
    pub outputs: Outputs,
    pub input: Input,
    pub controls: Controls,
    pub(super) starts: Starts,
    pub(super) segments: Segments,
    running: HashMap<i32, At>,
    /// The same the other way round.
    pub(super) pids: HashMap<At, i32>,
    /// Flushes that scrun has been asked for: caller and the id of its call, by token.
    flushes: HashMap<u64, (At, u32)>,
    next_flush: u64,
    /// Calls of sc_flush not answered yet, by caller.
    pub(super) flushing: HashMap<At, u32>,
    usage: Vec<NodeUsage>,
    began: Option<Instant>,
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
    pub fn new(ground: Ground) -> Self {
        Self {
            ground,
            job: None,
            outputs: Outputs::default(),
            input: Input::default(),
            controls: Controls::default(),
            starts: Starts::default(),
            segments: Segments::default(),
            running: HashMap::new(),
            pids: HashMap::new(),
            flushes: HashMap::new(),
            next_flush: 0,
            flushing: HashMap::new(),
            usage: Vec::new(),
            began: None,
            last_end: None,
            killed: false,
            killed_until: None,
            end: End::NotYet,
        }
    }

    /// Everything has been told and nothing is left.
    pub fn is_done(&self) -> bool {
        self.end == End::Done
    }

    /// Whether there is something to do without waiting.
    pub fn is_runnable(&self) -> bool {
        let starts = self.starts.is_pending() && !self.segments.is_stopped();
        starts || self.outputs.is_runnable() || self.controls.is_runnable()
    }

    /// When something is to be done by the clock.
    pub fn next_deadline(&self) -> Option<Instant> {
        let lines = if self.segments.is_stopped() { None } else { self.outputs.next_deadline() };
        let going = match self.end {
            End::Going(_, until) => Some(until),
            _ => None,
        };
        [lines, going, self.killed_until].into_iter().flatten().min()
    }

    /// A message from scrun, by way of scored.
    pub fn told(&mut self, message: Down, link: &mut Link, registry: &Registry) {
        match message {
            Down::Hello { .. } => {}
            Down::Submit(spec) => self.begin(spec, link, registry),
            Down::Stdin(bytes) => {
                if !self.input.push(&bytes) {
                    let reason = "scrun sent more input than it was asked for".to_owned();
                    self.tell_job(Event::Lost(1, reason), link, registry);
                }
            }
            Down::StdinEof => self.input.end(),
            Down::OutputTaken(bytes) => self.outputs.taken(bytes, Instant::now()),
            Down::OutputClosed(stream) => {
                self.tell_job(Event::UserSignal(libc::SIGPIPE), link, registry);
                self.outputs.close(stream);
            }
            Down::Flushed(token) => {
                if let Some((at, id)) = self.flushes.remove(&token) {
                    self.flushing.entry(at).and_modify(|count| *count -= 1);
                    self.answer(at, &Reply::Done { id, error: 0 }, Vec::new(), link, registry);
                }
            }
            Down::Signal(signal) => {
                self.tell_job(Event::UserSignal(signal), link, registry);
                for pid in self.running.keys() {
                    process::kill_group(*pid, signal);
                }
            }
            Down::Suspend => {
                self.segments.stopped(Instant::now());
                self.signal_everything(libc::SIGSTOP);
            }
            Down::Resume => {
                self.signal_everything(libc::SIGCONT);
                self.segments.resumed(Instant::now());
                self.outputs.restart_clocks(Instant::now());
            }
            Down::Kill => {
                self.killed = true;
                self.killed_until = Some(Instant::now() + KILLED_DRAIN);
                self.tell_job(Event::Kill, link, registry);
                ending::kill_all();
            }
        }
    }

    fn signal_everything(&self, signal: i32) {
        if std::process::id() == 1 {
            process::kill_namespace(signal);
        } else {
            for pid in process::descendants() {
                process::kill(pid, signal);
            }
        }
    }

    fn begin(&mut self, spec: JobSpec, link: &mut Link, registry: &Registry) {
        if self.job.is_some() {
            return;
        }
        process::set_umask(spec.umask);
        let head = At { element: 0, node: 0 };
        if !start::feeds(&spec, 0, head) {
            self.input.close();
        }
        self.job = Some(Job::new(spec));
        self.began = Some(Instant::now());
        self.tell_job(Event::Begin, link, registry);
    }

    /// One turn of the loop: everything that is ready, a bounded amount of each.
    pub fn turn(&mut self, link: &mut Link, registry: &Registry, now: Instant) {
        self.start_some(link, registry);
        self.outputs.pump(link, now);
        if !self.segments.is_stopped() {
            self.outputs.expire(link, now);
        }
        if self.job.is_some() {
            self.input.pump(link);
        }
        self.hear_calls(link, registry);
        if self.killed_until.is_some_and(|until| until <= now) {
            self.killed_until = None;
            self.outputs.abandon(Purpose::StageEnd);
            self.outputs.abandon(Purpose::JobEnd);
        }
        loop {
            self.go_on_ending(now);
            match self.outputs.drained(link) {
                Some(purpose) => self.drained(purpose, link, registry),
                None => break,
            }
        }
    }

    pub(super) fn tell_job(&mut self, event: Event, link: &mut Link, registry: &Registry) {
        let mut events = vec![event];
        while let Some(event) = events.pop() {
            let Some(job) = &mut self.job else { return };
            for action in job.on(event) {
                self.act(action, &mut events, link, registry);
            }
        }
    }

    pub(super) fn notice(&mut self, level: Level, text: String, link: &mut Link) {
        self.outputs.send_batch(link);
        link.queue(&Up::Notice { level, text });
    }

    fn act(
        &mut self,
        action: Action,
        events: &mut Vec<Event>,
        link: &mut Link,
        registry: &Registry,
    ) {
        match action {
            Action::StartStage(stage) => {
                if let Err(error) = self.start_stage(stage) {
                    let reason = format!("no memory to start processes: {error}");
                    events.push(Event::Lost(1, reason));
                }
            }
            Action::Element(element, step) => self.step(element, step, events, link, registry),
            Action::Drain => self.drain(Purpose::StageEnd),
            Action::Notice(level, text) => self.notice(level, text, link),
            Action::Finish(code) => {
                self.input.close();
                let until = Instant::now() + GOING;
                self.end = End::Going(code, until);
                ending::kill_all();
            }
        }
    }

    fn drain(&mut self, purpose: Purpose) {
        if self.killed {
            self.killed_until = Some(Instant::now() + KILLED_DRAIN);
        }
        self.outputs.drain(purpose, None);
    }

    fn start_stage(&mut self, stage: usize) -> std::io::Result<()> {
        let Some(job) = &self.job else { return Ok(()) };
        let spec = job.spec();
        if stage > 0 {
            self.input.close();
        }
        self.segments.clear();
        self.flushes.clear();
        self.flushing.clear();
        self.controls.reset(spec.stages[stage].elements.len(), spec.nodes());
        let ground = self.ground.of(spec);
        self.starts.begin(&ground, stage)
    }

    fn start_some(&mut self, link: &mut Link, registry: &Registry) {
        for _ in 0..STARTS {
            if self.segments.is_stopped() {
                return;
            }
            let Some(at) = self.starts.next() else { return };
            let Some(job) = &self.job else { return };
            let stage = job.stage();
            let ground = self.ground.of(job.spec());
            let event = match self.starts.start(&ground, stage, at) {
                Ok(started) => match self.keep(started, stage, at, link, registry) {
                    Ok(()) => continue,
                    Err(error) => Event::Lost(1, format!("node {}: {error}", at.node)),
                },
                Err(NotStarted::Skipped) => Event::Skipped(at),
                Err(NotStarted::Program(code, why)) => Event::NotStarted(at, code, why),
                Err(NotStarted::Job(why)) => {
                    self.tell_job(Event::Lost(1, why), link, registry);
                    Event::Skipped(at)
                }
            };
            self.tell_job(event, link, registry);
        }
    }

    fn keep(
        &mut self,
        started: start::Started,
        stage: usize,
        at: At,
        link: &mut Link,
        registry: &Registry,
    ) -> std::io::Result<()> {
        self.running.insert(started.pid, at);
        self.pids.insert(at, started.pid);
        let owner = (stage, at.element);
        if let Some(stdin) = started.stdin {
            self.input.open(stdin, link, registry, INPUT)?;
        }
        if let Some(stdout) = started.stdout {
            self.outputs.add(stdout, Stream::Stdout, owner, registry, output_token)?;
        }
        self.outputs.add(started.stderr, Stream::Stderr, owner, registry, output_token)?;
        self.controls.add(at, started.control, registry, control_token)
    }

    fn hear_calls(&mut self, link: &mut Link, registry: &Registry) {
        for heard in self.controls.hear() {
            let event = match heard {
                Heard::Call(at, call) => Event::Called(at, call),
                Heard::Garbage(at, what) => Event::Garbage(at, what),
            };
            self.tell_job(event, link, registry);
        }
    }

    fn drained(&mut self, purpose: Purpose, link: &mut Link, registry: &Registry) {
        match purpose {
            Purpose::Flush(element, node, id) => {
                let token = self.next_flush;
                self.next_flush += 1;
                self.flushes.insert(token, (At { element, node }, id));
                link.queue(&Up::Flush(token));
            }
            Purpose::StageEnd => self.tell_job(Event::Drained, link, registry),
            Purpose::JobEnd => {
                if let End::Reading(code) = self.end {
                    self.finish(code, link);
                }
            }
        }
    }

    /// Takes every child that has ended.
    pub fn reap(&mut self, link: &mut Link, registry: &Registry) {
        loop {
            match process::reap() {
                Reap::One(reaped) => self.ended(reaped, link, registry),
                Reap::AllRunning => break,
                Reap::NoChildren => break,
            }
        }
        let now = Instant::now();
        self.turn(link, registry, now);
    }

    fn ended(&mut self, reaped: Reaped, link: &mut Link, registry: &Registry) {
        // Others are orphans that we have inherited.
        let Some(at) = self.running.remove(&reaped.pid) else { return };
        self.pids.remove(&at);
        self.last_end = Some(Instant::now());
        // What it has said before its end counts before its end.
        self.controls.mark_ended(at);
        self.hear_calls(link, registry);
        self.controls.remove(at);
        self.segments.exited(at.element, at.node);
        let Some(job) = &self.job else { return };
        if job.spec().statistics {
            self.usage.push(NodeUsage {
                stage: job.stage() as u32,
                element: at.element,
                node: at.node,
                user_ns: reaped.user_ns,
                system_ns: reaped.system_ns,
                max_rss_kib: reaped.max_rss_kib,
                code: code::of_status(reaped.status),
            });
        }
        let event = match self.starts.failure(at) {
            None => Event::Ended(at, reaped.status),
            Some(NotStarted::Program(code, why)) => Event::NotStarted(at, code, why),
            Some(NotStarted::Skipped) => Event::Skipped(at),
            Some(NotStarted::Job(why)) => {
                self.tell_job(Event::Lost(1, why), link, registry);
                Event::Skipped(at)
            }
        };
        self.tell_job(event, link, registry);
    }

    fn go_on_ending(&mut self, now: Instant) {
        let End::Going(code, until) = self.end else { return };
        let gone = loop {
            match process::reap() {
                Reap::One(_) => {}
                Reap::NoChildren => break true,
                Reap::AllRunning => break false,
            }
        };
        if gone || until <= now {
            self.end = End::Reading(code);
            self.drain(Purpose::JobEnd);
        } else {
            // A subreaper inherits what its children leave.
            ending::kill_all();
        }
    }

    fn finish(&mut self, code: u8, link: &mut Link) {
        self.end = End::Done;
        let elapsed = match (self.began, self.last_end) {
            (Some(began), Some(end)) => end.saturating_duration_since(began),
            _ => Duration::ZERO,
        };
        let elapsed_ns = u64::try_from(elapsed.as_nanos()).unwrap_or(u64::MAX);
        let usage = std::mem::take(&mut self.usage);
        self.outputs.send_batch(link);
        link.queue(&Up::Finished(JobEnd { code, usage, elapsed_ns }));
    }
}

impl Ground {
    fn of<'a>(&'a self, spec: &'a JobSpec) -> start::Ground<'a> {
        start::Ground {
            spec,
            directory: &self.directory,
            descriptor_limit: self.descriptor_limit,
            die_with_parent: self.outer_proc.is_none(),
            null: &self.null,
        }
    }
}
