//! Carrying out what the job's master orders, and what a process asks for that needs no master.

use std::os::fd::{AsFd, OwnedFd};
use std::time::Instant;

use score_proto::message::{Call, Level, Reply, Welcome};
use score_proto::nodeset::NodeSet;
use score_proto::order::{Begin, HostAddress, Order, Report};

use super::callers::Step;
use super::files;
use super::limits::Watch;
use super::output::Purpose;
use super::sight::Subject;
use super::start;
use super::work::{At, Known, Work};
use crate::job::code;
use crate::job::limits::Limits;
use crate::sys::process;

/// The option by which a user forbids to conclude anything from idle flags (manual 3.5.2).
const NO_IDLE: &str = "noidle";

impl Work {
    /// The next order.
    pub fn ordered(&mut self, order: Order) {
        match order {
            // The business of daemons: a shepherd is not asked to end, and starts what is there.
            Order::Hello { .. } | Order::Abandon => {}
            Order::Content { .. } | Order::Lent { .. } => {}
            Order::Place(placement) => {
                self.outputs.host = placement.own;
                self.placement = Some(placement);
            }
            Order::Begin(begin) => self.begin(*begin),
            Order::StartStage(stage) => self.start_stage(stage as usize),
            Order::End { element } => {
                if let Some(callers) = self.callers.get_mut(element as usize) {
                    callers.end();
                }
                self.signal(Some(element), libc::SIGKILL);
                self.skip_starts(Some(element));
            }
            Order::Welcome { element, peers } => {
                if let Err(reason) = self.welcome(element, &peers) {
                    self.reports.add(Report::Broken { element, reason });
                }
            }
            Order::Gone { element, nodes } => {
                self.segments.gone(element, &nodes);
                self.sight.stirred();
            }
            Order::BarrierDone { element } => {
                let callers = self.callers.get_mut(element as usize);
                let steps = callers.map(|callers| callers.barrier_done()).unwrap_or_default();
                for step in &steps {
                    if let Step::Answer(node, _) = step {
                        self.count_barriers(At { element, node: *node });
                    }
                }
                self.take_steps(element, steps);
            }
            Order::Flushed { token, .. } => {
                if let Some((at, id)) = self.flushes.remove(&token) {
                    let callers = self.callers.get_mut(at.element as usize);
                    let step = callers.and_then(|callers| callers.flushed(at.node, id));
                    self.take_steps(at.element, step.into_iter().collect());
                }
            }
            Order::Broadcast { element, serial, signal } => {
                if signal != 0 {
                    self.signal(Some(element), signal);
                }
                if let Some(known) = &self.known {
                    let nodes = NodeSet::from(known.here.range());
                    self.reports.add(Report::Sent { element, serial, nodes });
                }
            }
            Order::BroadcastDone { element, node } => {
                let callers = self.callers.get_mut(element as usize);
                let step = callers.and_then(|callers| callers.broadcast_done(node));
                self.take_steps(element, step.into_iter().collect());
            }
            Order::Drain => {
                self.sight.clear();
                self.drain(Purpose::StageEnd);
            }
            Order::Stdin(bytes) => {
                if !self.input.push(&bytes) {
                    self.lost("scrun sent more input than it was asked for".to_owned());
                }
            }
            Order::StdinEof => self.input.end(),
            Order::OutputTaken(bytes) => self.outputs.taken(bytes, Instant::now()),
            Order::OutputClosed(stream) => self.outputs.close(stream),
            Order::Signal(signal) => self.signal_all(signal),
            // Another socket, and another thread ([`super::switch`]).
            Order::Stop { .. } | Order::Run { .. } => {}
            Order::Look { element, round, stopped } => {
                let seen = self.sight.look(element, round, stopped);
                self.reports.add(Report::Seen { element, round, seen });
            }
            Order::Explain { element } => {
                let now = u64::try_from(self.gate.job_time().as_nanos()).unwrap_or(u64::MAX);
                let waits = self.sight.explain(element, now);
                self.reports.add(Report::Waits { element, waits });
            }
            Order::Watch { period_ms } => self.figures.watch(period_ms, Instant::now()),
            Order::Kill => self.kill(),
            Order::Finish => self.begin_to_end(),
        }
    }

    fn begin(&mut self, begin: Begin) {
        let Some(placement) = self.placement.take() else { return };
        let Some(here) = placement.here().cloned() else { return };
        process::set_umask(begin.spec.umask);
        match Limits::of(&begin.spec.options, self.ground.multi_user) {
            Ok(limits) => {
                let counts = self.ground.counts.clone();
                self.watch = Watch::new(limits, counts, Instant::now());
            }
            Err(reason) => self.lost(reason),
        }
        if begin.spec.statistics {
            self.figures.keep(Instant::now());
        }
        if begin.spec.options.iter().any(|(name, _)| name == NO_IDLE) {
            self.sight.close();
        }
        if placement.own > 0 {
            self.input.leave_to_others();
        } else if !start::feeds(&begin.spec, 0, At { element: 0, node: 0 }) {
            self.input.close();
        }
        self.known = Some(Known { begin, placement, here, stage: 0 });
        self.began = Some(Instant::now());
    }

    /// A process has called.
    pub(super) fn called(&mut self, at: At, call: Call) {
        let Some(callers) = self.callers.get_mut(at.element as usize) else { return };
        let is_first = callers.is_first_attach();
        let is_barrier = matches!(call, Call::Barrier { .. });
        let mut steps = callers.called(at.node, call);
        if is_barrier {
            self.count_barriers(at);
        }
        for step in &mut steps {
            if let Step::Report(Report::Attached { addresses, .. }) = step
                && is_first
            {
                match self.open_networks(at.element) {
                    Ok(found) => *addresses = found,
                    Err(reason) => {
                        *step = Step::Report(Report::Broken { element: at.element, reason });
                    }
                }
            }
        }
        self.take_steps(at.element, steps);
    }

    /// Before an answer is sent, so that who still waits for it is not idle.
    fn count_barriers(&self, at: At) {
        if let Some(callers) = self.callers.get(at.element as usize) {
            self.sight.barriers(at.element, at.node, callers.barriers(at.node));
        }
    }

    /// The first node of an element has attached here: where its networks can be reached from
    /// other hosts.
    fn open_networks(&mut self, element: u32) -> Result<Vec<HostAddress>, String> {
        let Some(known) = &self.known else { return Ok(Vec::new()) };
        self.segments.open(element, known, self.ground.raw.as_ref())
    }

    fn take_steps(&mut self, element: u32, steps: Vec<Step>) {
        for step in steps {
            match step {
                Step::Answer(node, reply) => {
                    self.answer(At { element, node }, &reply, Vec::new());
                }
                Step::Report(report) => self.reports.add(report),
                Step::Flush(node, id) => {
                    let stage = self.known.as_ref().map_or(0, |known| known.stage);
                    let owner = Some((stage, element));
                    self.outputs.drain(Purpose::Flush(element, node, id), owner);
                }
                Step::Inspect(node, signal, display) => {
                    let text = self.inspection(At { element, node }, signal, display);
                    self.reports.add(Report::Inspect { element, signal, text });
                }
            }
        }
    }

    fn answer(&mut self, at: At, reply: &Reply, descriptors: Vec<OwnedFd>) {
        if !self.controls.answer(at, reply, descriptors) {
            let what = "it does not read the answers to its calls".to_owned();
            let At { element, node } = at;
            self.reports.add(Report::Garbage { element, node, what });
        }
    }

    fn welcome(&mut self, element: u32, peers: &[HostAddress]) -> Result<(), String> {
        let Some(known) = &self.known else { return Ok(()) };
        let (spec, here) = (known.spec(), &known.here);
        let elements = spec.stages[known.stage].elements.len();
        let oversubscribed = elements * here.nodes as usize > super::processors();
        let told =
            self.segments.create(element, &known.placement, peers, oversubscribed, &self.gate)?;
        if let Some(callers) = self.callers.get_mut(element as usize) {
            callers.welcome();
        }
        // Once for the job, and by one host, which knows what all have.
        if known.placement.own == 0 && !std::mem::replace(&mut self.told_networks, true) {
            let wires = told.wires.into_iter().filter(|_| spec.statistics);
            let wires = wires.map(|text| (Level::Info, text));
            for (level, text) in told.notes.into_iter().chain(wires) {
                self.reports.add(Report::Notice { level, text });
            }
        }
        if let Some((area, gauges)) = self.segments.watched(element) {
            let pid = |node| self.pids.get(&At { element, node }).copied().unwrap_or(0);
            let pids = here.range().map(pid).collect();
            self.sight.watch(element, Subject { first: here.first, area, gauges, pids })?;
        }
        let networks = self.segments.network_sets(element, &known.placement);
        for (process, node) in (0..).zip(here.range()) {
            let welcome = Welcome {
                job: known.begin.job,
                area: process,
                self_node: node,
                num_node: spec.nodes(),
                self_proc: process,
                num_proc: here.nodes,
                self_host: known.placement.own,
                num_host: known.placement.hosts.len() as u32,
                networks: networks.clone(),
                options: spec.options.clone(),
                dir: self.ground.directory.to_string_lossy().into_owned(),
                bell: self.sight.bell().to_vec(),
            };
            let descriptors = self.segments.descriptors(element, process)?;
            let at = At { element, node };
            self.controls.answer(at, &Reply::Welcome(Box::new(welcome)), descriptors);
        }
        Ok(())
    }

    fn inspection(&self, at: At, signal: i32, display: Option<String>) -> String {
        let host = match &self.known {
            Some(known) if known.placement.hosts.len() > 1 => known.here.name.clone(),
            _ => files::host_name(),
        };
        let inner = self.pids.get(&at).copied().unwrap_or(0);
        let pid = match &self.ground.outer_proc {
            Some(proc_dir) => process::outer_pid(proc_dir.as_fd(), inner, super::own_namespace()),
            None => Some(inner),
        };
        let pid = pid.map_or_else(|| "?".to_owned(), |pid| pid.to_string());
        let signal = code::signal_name(signal);
        let wanted = display.map_or_else(String::new, |display| format!(" on display {display}"));
        format!(
            "node {} on host {host} (process {pid}) called sc_inspectme() for {signal}{wanted}: its \
             parallel process is ended. To look at such a process while it runs: gdb -p {pid}",
            at.node
        )
    }
}
