//! A model of a shepherd and its processes. An honest shepherd carries out its orders, and its
//! processes compute only while the job runs. A hostile shepherd does anything (`hostile.rs`).

use std::ops::Range;
use std::time::Duration;

use score_proto::ids::{ElementIndex, JobHostId, JobId};
use score_proto::job_control::{
    ElementOrder, ElementReport, JobOrder, JobReport, OutputReport, ShepherdOrder, ShepherdReport,
    Status, StopCondition, SwitchOrder, SwitchReport, SwitchSeq,
};
use score_proto::message::Stream;

use super::{Event, MonotonicTime, SLOTS, World};
use crate::jobs::{Launch, LocalReport};

/// The daemon enforces a stop that is late by this time.
const ENFORCEMENT_DELAY: Duration = Duration::from_millis(200);
/// The daemon kills the shepherd of a killed job after this time.
const KILL_DELAY: Duration = Duration::from_secs(30);

#[derive(Debug, Clone)]
pub enum Step {
    /// A report reaches the daemon.
    Report(LocalReport),
    /// All processes of the stage have finished their work, unless they were stopped meanwhile.
    WorkDone { interval: u64 },
    /// The job stops by its timer, unless it was stopped meanwhile.
    TimedStop { switch_seq: SwitchSeq, interval: u64 },
    /// The daemon enforces the stop of a job, unless there was another order since.
    EnforceStop { switch_seq: SwitchSeq, order: u64 },
    /// The shepherd dies.
    Die,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Life {
    Alive,
    /// The shepherd has sent its last report, or has died.
    Ended,
}

#[derive(Debug)]
pub struct Shepherd {
    life: Life,
    is_hostile: bool,
    host: JobHostId,
    nodes: Range<u32>,
    /// The number of elements of each stage.
    stages: Vec<usize>,
    stage: u32,
    /// Whether processes of each element of the stage are alive.
    living: Vec<bool>,
    /// The computing time that the processes still need.
    work: Duration,
    running_since: Option<MonotonicTime>,
    /// Counts the intervals between a run and a stop.
    interval: u64,
    /// Counts the orders to run and to stop.
    order: u64,
    /// The number of the last stop that the daemon has recorded.
    stopped_seq: SwitchSeq,
    control_arrival: MonotonicTime,
    switch_arrival: MonotonicTime,
}

impl Shepherd {
    pub fn has_ended(&self) -> bool {
        self.life == Life::Ended
    }

    fn is_computing(&self) -> bool {
        self.running_since.is_some() && self.living.contains(&true)
    }

    fn stop(&mut self, now: MonotonicTime) {
        if let Some(since) = self.running_since.take() {
            self.work = self.work.saturating_sub(now - since);
        }
        self.interval += 1;
    }
}

fn about(element: usize, report: ElementReport) -> LocalReport {
    let element = ElementIndex(element as u32);
    LocalReport::Shepherd(ShepherdReport::Element { element, report })
}

impl World {
    pub fn launch(&mut self, host: usize, launch: &Launch) {
        let job = launch.start.job;
        let user_job = &self.jobs[&job];
        let owner = launch.start.owner.as_ref().map(|owner| owner.uid);
        assert_eq!(owner, Some(user_job.uid), "{job} has another owner");
        let own = launch.placement.self_placement().unwrap();
        let shepherd = Shepherd {
            life: Life::Alive,
            is_hostile: user_job.is_hostile,
            host: launch.placement.self_host,
            nodes: own.node_range(),
            stages: launch.start.spec.stages.iter().map(|stage| stage.elements.len()).collect(),
            stage: 0,
            living: Vec::new(),
            work: Duration::ZERO,
            running_since: None,
            interval: 0,
            order: 0,
            stopped_seq: SwitchSeq::NONE,
            control_arrival: self.now,
            switch_arrival: self.now,
        };
        self.hosts[host].shepherds.insert(job, shepherd);
        self.report(host, job, LocalReport::Job(JobReport::Ready));
    }

    /// Sends a report of a shepherd. Reports on the same socket stay in order.
    pub fn report(&mut self, host: usize, job: JobId, report: LocalReport) {
        let arrival = self.now + self.short_delay();
        let Some(shepherd) = self.hosts[host].shepherds.get_mut(&job) else { return };
        let last_arrival = match report {
            LocalReport::Switch(_) => &mut shepherd.switch_arrival,
            _ => &mut shepherd.control_arrival,
        };
        *last_arrival = arrival.max(*last_arrival);
        let delay = *last_arrival - self.now;
        self.step_after(delay, host, job, Step::Report(report));
    }

    fn step_after(&mut self, delay: Duration, host: usize, job: JobId, step: Step) {
        let incarnation = self.hosts[host].incarnation;
        self.at(delay, Event::Shepherd { host, incarnation, job, step });
    }

    pub fn on_shepherd_order(&mut self, host: usize, job: JobId, order: ShepherdOrder) {
        if order == ShepherdOrder::Job(JobOrder::Kill) {
            self.step_after(KILL_DELAY, host, job, Step::Die);
        }
        let Some(shepherd) = self.hosts[host].shepherds.get_mut(&job) else { return };
        if shepherd.has_ended() || shepherd.is_hostile && self.random.chance(40) {
            return;
        }
        match order {
            ShepherdOrder::Job(JobOrder::StartStage(stage)) => {
                shepherd.stage = stage;
                shepherd.living = vec![true; shepherd.stages[stage as usize]];
                let work = self.random.time(0, 200);
                let shepherd = self.hosts[host].shepherds.get_mut(&job).unwrap();
                shepherd.work = work;
                self.compute(host, job);
            }
            ShepherdOrder::Job(JobOrder::Drain) => {
                let drained = ShepherdReport::Output(OutputReport::Drained);
                self.report(host, job, LocalReport::Shepherd(drained));
            }
            ShepherdOrder::Job(JobOrder::Kill) => self.end_processes(host, job, None),
            ShepherdOrder::Element { element, order: ElementOrder::End } => {
                self.end_processes(host, job, Some(element.index()));
            }
            ShepherdOrder::Job(JobOrder::Finish) => {
                self.report(host, job, LocalReport::Job(JobReport::Finished { elapsed_ns: 1 }));
            }
            _ => {}
        }
    }

    /// Ends the processes of one element, or of all.
    fn end_processes(&mut self, host: usize, job: JobId, only: Option<usize>) {
        let Some(shepherd) = self.hosts[host].shepherds.get_mut(&job) else { return };
        let nodes = shepherd.nodes.clone();
        let chosen = |element| only.is_none_or(|only| only == element);
        let living = shepherd.living.iter_mut().enumerate();
        let ended = living.filter(|(element, lives)| **lives && chosen(*element));
        let ended: Vec<usize> = ended.map(|(element, lives)| (element, *lives = false).0).collect();
        for element in ended {
            let (nodes, status) = (nodes.clone().into(), Status::Signaled(9));
            self.report(host, job, about(element, ElementReport::Ended { nodes, status }));
        }
    }

    pub fn on_switch_order(&mut self, host: usize, job: JobId, order: SwitchOrder) {
        let now = self.now;
        let Some(shepherd) = self.hosts[host].shepherds.get_mut(&job) else { return };
        match order {
            SwitchOrder::Stop { switch_seq, .. } => {
                shepherd.order += 1;
                let enforce = Step::EnforceStop { switch_seq, order: shepherd.order };
                self.stop_job(host, job, switch_seq);
                self.step_after(ENFORCEMENT_DELAY, host, job, enforce);
            }
            SwitchOrder::Run { stop_condition: StopCondition::Unchanged, .. } => {}
            SwitchOrder::Run { stop_condition, .. } => {
                shepherd.stop(now);
                shepherd.running_since = Some(now);
                shepherd.order += 1;
                let (interval, order) = (shepherd.interval, shepherd.order);
                if let StopCondition::After { run_us, switch_seq } = stop_condition {
                    let run_time = Duration::from_micros(run_us.into());
                    let timed_stop = Step::TimedStop { switch_seq, interval };
                    self.step_after(run_time, host, job, timed_stop);
                    let enforce = Step::EnforceStop { switch_seq, order };
                    self.step_after(run_time + ENFORCEMENT_DELAY, host, job, enforce);
                }
                self.compute(host, job);
            }
        }
    }

    fn stop_job(&mut self, host: usize, job: JobId, switch_seq: SwitchSeq) {
        let now = self.now;
        let Some(shepherd) = self.hosts[host].shepherds.get_mut(&job) else { return };
        if shepherd.is_hostile && self.random.chance(40) {
            return;
        }
        shepherd.stop(now);
        self.report(host, job, LocalReport::Switch(SwitchReport::Stopped { switch_seq }));
    }

    /// Lets the processes continue if their job runs.
    fn compute(&mut self, host: usize, job: JobId) {
        let now = self.now;
        let Some(shepherd) = self.hosts[host].shepherds.get_mut(&job) else { return };
        if !shepherd.is_computing() {
            return;
        }
        shepherd.running_since = Some(now);
        let (work, interval) = (shepherd.work, shepherd.interval);
        self.step_after(work, host, job, Step::WorkDone { interval });
        self.check_slots(host);
    }

    /// Checks that a host computes no more honest processes than it has processors.
    fn check_slots(&self, host: usize) {
        let shepherds = self.hosts[host].shepherds.iter().filter(|(job, shepherd)| {
            shepherd.is_computing() && !self.jobs[*job].is_faulted && !shepherd.is_hostile
        });
        let procs: usize = shepherds.map(|(_, shepherd)| shepherd.nodes.len()).sum();
        assert!(procs <= SLOTS as usize, "{procs} processes compute on host {host}");
    }

    pub fn on_shepherd_step(&mut self, host: usize, job: JobId, step: Step) {
        let Some(shepherd) = self.hosts[host].shepherds.get_mut(&job) else { return };
        if shepherd.has_ended() {
            return;
        }
        match step {
            Step::Report(LocalReport::Switch(SwitchReport::Stopped { switch_seq })) => {
                shepherd.stopped_seq = shepherd.stopped_seq.max(switch_seq);
                self.on_stop_reported(host, job, switch_seq);
            }
            Step::Report(report) => {
                if matches!(report, LocalReport::Job(JobReport::Finished { .. })) {
                    shepherd.life = Life::Ended;
                }
                self.local(host, job, report);
            }
            Step::WorkDone { interval } if interval == shepherd.interval => {
                self.complete_stage(host, job);
            }
            Step::TimedStop { switch_seq, interval } if interval == shepherd.interval => {
                self.stop_job(host, job, switch_seq);
            }
            Step::EnforceStop { switch_seq, order }
                if shepherd.order == order && shepherd.stopped_seq < switch_seq =>
            {
                self.counts.late_stops += 1;
                shepherd.stopped_seq = switch_seq;
                shepherd.stop(self.now);
                self.hosts[host].jobs.end_rotation_with(job);
                let stopped = LocalReport::Switch(SwitchReport::Stopped { switch_seq });
                self.local(host, job, stopped);
            }
            Step::Die => self.kill_shepherd(host, job),
            Step::WorkDone { .. } | Step::TimedStop { .. } | Step::EnforceStop { .. } => {}
        }
    }

    /// Handles the report of a stop like the daemon: the next job of a rotation starts at once.
    fn on_stop_reported(&mut self, host: usize, job: JobId, switch_seq: SwitchSeq) {
        let Self { hosts, .. } = self;
        let daemon = &mut hosts[host];
        let report = LocalReport::Switch(SwitchReport::Stopped { switch_seq });
        if daemon.jobs.expected_rotation_stop() != Some((job, switch_seq)) {
            return self.local(host, job, report);
        }
        let shepherds = &daemon.shepherds;
        let lives = |job| shepherds.get(&job).is_some_and(|shepherd| !shepherd.has_ended());
        match daemon.jobs.next_rotation_turn(lives) {
            Some((next, order)) => self.on_switch_order(host, next, order),
            None => {
                daemon.jobs.end_rotation(job, switch_seq);
                self.settle(host);
            }
        }
    }

    fn complete_stage(&mut self, host: usize, job: JobId) {
        let Some(shepherd) = self.hosts[host].shepherds.get_mut(&job) else { return };
        let (nodes, stage, job_host) = (shepherd.nodes.clone(), shepherd.stage, shepherd.host);
        let elements = std::mem::take(&mut shepherd.living).into_iter().enumerate();
        let living: Vec<usize> =
            elements.filter(|(_, lives)| *lives).map(|(element, _)| element).collect();
        for element in living {
            let bytes = format!("stage {stage} element {element}\n").into_bytes();
            let text = OutputReport::Text {
                host: job_host,
                stream: Stream::Stdout,
                bytes,
                is_partial_line: false,
            };
            self.report(host, job, LocalReport::Shepherd(ShepherdReport::Output(text)));
            let (nodes, status) = (nodes.clone().into(), Status::Exited(0));
            self.report(host, job, about(element, ElementReport::Ended { nodes, status }));
        }
    }

    pub fn kill_shepherd(&mut self, host: usize, job: JobId) {
        let Some(shepherd) = self.hosts[host].shepherds.get_mut(&job) else { return };
        if !shepherd.has_ended() {
            shepherd.life = Life::Ended;
            let reason = "the shepherd has died".to_owned();
            self.local(host, job, LocalReport::Lost { code: 137, reason });
        }
    }
}
