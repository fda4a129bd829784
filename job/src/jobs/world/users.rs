//! The simulated users. They submit jobs, read output, sometimes suspend or end a job, and check
//! the results.

use std::collections::BTreeMap;
use std::time::Duration;

use score_proto::ids::{HostId, JobHostId, JobId, SessionJobId};
use score_proto::job_control::{JobStart, Owner};
use score_proto::message::{
    ElementSpec, HostSpec, JobRequest, JobSpec, OsBytes, ProgramKind, StageSpec,
};
use score_proto::server_message::JobAnswer;

use super::{Event, LAST_FAULT_AT, MonotonicTime, SERVER_HOST, SLOTS, World};
use crate::cluster::HostShare;
use crate::jobs::{ClientJob, Input, NewJob, SessionKey};

/// The time limit of an honest job without faults. Fewer than twenty other jobs run at the same
/// time. Each computes at most 0.2 s in each of at most two stages. Hostile jobs stop 0.2 s late.
const MAX_JOB_LATENCY: Duration = Duration::from_secs(100);

#[derive(Debug)]
pub struct UserJob {
    pub job: JobId,
    pub uid: u32,
    pub is_hostile: bool,
    /// A fault may have affected the job.
    pub is_faulted: bool,
    /// The user has ended the job.
    is_killed: bool,
    pub hosts: Vec<usize>,
    stages: Vec<usize>,
    submitted_at: MonotonicTime,
    lines: BTreeMap<JobHostId, Vec<String>>,
    pub code: Option<u8>,
}

fn spec(stages: &[usize], hosts: usize) -> JobSpec {
    let element = || {
        ElementSpec::new(
            OsBytes(b"/bin/prog".to_vec()),
            vec![OsBytes(b"prog".to_vec())],
            ProgramKind::Plain,
        )
    };
    let stage = |count: &usize| StageSpec { elements: (0..*count).map(|_| element()).collect() };
    JobSpec {
        hosts: vec![HostSpec::local(1); hosts],
        stages: stages.iter().map(stage).collect(),
        directory: OsBytes(b"/".to_vec()),
        ..JobSpec::default()
    }
}

impl World {
    pub fn submit(&mut self) {
        let job = self.next_job;
        let shares = self.choose_shares();
        let stages: Vec<usize> =
            (0..=self.random.below(2)).map(|_| 1 + self.random.below(2) as usize).collect();
        let is_hostile = self.random.chance(25);
        let uid = if is_hostile { 666 } else { 1000 + self.random.below(3) as u32 };
        let placement = self.placement(&shares);
        let owner = Owner {
            uid,
            gid: uid,
            name: OsBytes(Vec::new()),
            limits: Vec::new(),
            voucher: Vec::new(),
        };
        let spec = spec(&stages, shares.len());
        let start = JobStart { job, secret: 1, spec, owner: Some(owner) };
        self.next_job.0 += 1;
        let user_job = UserJob {
            job,
            uid,
            is_hostile,
            is_faulted: false,
            is_killed: false,
            hosts: shares.iter().map(|(host, _)| *host).collect(),
            stages,
            submitted_at: self.now,
            lines: BTreeMap::new(),
            code: None,
        };
        self.jobs.insert(job, user_job);
        self.plan_requests(job);
        let to_share =
            |(host, procs): &(usize, u32)| HostShare { host: HostId(*host as u32), procs: *procs };
        let allocations = shares.iter().map(to_share).collect();
        let client_job =
            ClientJob { session_key: SessionKey(uid as usize), job: SessionJobId(job.0) };
        let new_job = NewJob { start, placement, client_job, allocations };
        self.input(SERVER_HOST, Input::Begin(Box::new(new_job)));
    }

    /// Some hosts, with one or two processes each.
    fn choose_shares(&mut self) -> Vec<(usize, u32)> {
        let mut free: Vec<usize> = (0..self.hosts.len()).collect();
        let count = match self.random.below(4) {
            0 => 1,
            1 => free.len(),
            _ => 1 + self.random.below(free.len() as u64) as usize,
        };
        let mut take = |free: &mut Vec<usize>| {
            let host = free.swap_remove(self.random.below(free.len() as u64) as usize);
            (host, 1 + self.random.below(SLOTS.into()) as u32)
        };
        (0..count).map(|_| take(&mut free)).collect()
    }

    /// Schedules requests of the user, and perhaps a fault.
    fn plan_requests(&mut self, job: JobId) {
        let is_hostile = self.jobs[&job].is_hostile;
        if self.random.chance(self.faults_percent) && self.now < LAST_FAULT_AT {
            let delay = self.random.time(0, 2000);
            self.at(delay, Event::Fault);
        }
        if is_hostile {
            self.counts.hostile += 1;
            self.at(Duration::ZERO, Event::Attack(job));
            self.at(LAST_FAULT_AT, Event::Request(job, JobRequest::Kill));
        } else if self.random.chance(10) {
            let delay = self.random.time(0, 1000);
            self.jobs.get_mut(&job).into_iter().for_each(|one| one.is_killed = true);
            self.at(delay, Event::Request(job, JobRequest::Kill));
        } else if self.random.chance(20) {
            let (stop, pause) = (self.random.time(0, 500), self.random.time(0, 500));
            self.at(stop, Event::Request(job, JobRequest::Suspend));
            self.at(stop + pause, Event::Request(job, JobRequest::Resume));
        }
    }

    pub fn on_client_message(&mut self, job: JobId, message: JobAnswer) {
        let Some(user_job) = self.jobs.get_mut(&job) else { panic!("nobody's job {job}") };
        assert!(user_job.code.is_none(), "job {job} has ended before: {message:?}");
        match message {
            JobAnswer::Output { host, bytes, .. } => {
                let ack = JobRequest::OutputAck(bytes.len() as u64);
                let text = String::from_utf8_lossy(&bytes);
                let lines = text.split_inclusive('\n').map(str::to_owned);
                user_job.lines.entry(host).or_default().extend(lines);
                let delay = self.short_delay();
                self.at(delay, Event::Request(job, ack));
            }
            JobAnswer::Flush(token) => {
                let delay = self.short_delay();
                self.at(delay, Event::Request(job, JobRequest::Flushed(token)));
            }
            JobAnswer::Finished(end) => self.on_end(job, end.code),
            JobAnswer::Refused { code, .. } => self.on_end(job, code),
            _ => {}
        }
    }

    fn on_end(&mut self, job: JobId, code: u8) {
        let Some(user_job) = self.jobs.get_mut(&job) else { return };
        user_job.code = Some(code);
        let has_ended_well = code == 0;
        match has_ended_well {
            true => self.counts.completed += 1,
            false => self.counts.failed += 1,
        }
        let user_job = &self.jobs[&job];
        if user_job.is_hostile || user_job.is_faulted || user_job.is_killed {
            return;
        }
        assert_eq!(code, 0, "{user_job:?}");
        assert!(self.now - user_job.submitted_at < MAX_JOB_LATENCY, "{user_job:?}");
        for host in (0..user_job.hosts.len() as u32).map(JobHostId) {
            let stages = user_job.stages.iter().enumerate();
            let expected = stages.flat_map(|(stage, elements)| {
                (0..*elements).map(move |element| format!("stage {stage} element {element}\n"))
            });
            let lines = user_job.lines.get(&host).cloned().unwrap_or_default();
            assert_eq!(lines, expected.collect::<Vec<_>>(), "{user_job:?}");
        }
    }

    /// The server and all its sessions have died.
    pub fn lose_all_sessions(&mut self) {
        for user_job in self.jobs.values_mut().filter(|user_job| user_job.code.is_none()) {
            user_job.code = Some(1);
            self.counts.failed += 1;
        }
    }

    pub fn mark_faulted(&mut self, is_hit: impl Fn(&UserJob) -> bool) {
        let hit = self.jobs.values_mut().filter(|user_job| is_hit(user_job));
        hit.for_each(|user_job| user_job.is_faulted = true);
    }

    pub fn unfinished_jobs(&self) -> Vec<&UserJob> {
        self.jobs.values().filter(|user_job| user_job.code.is_none()).collect()
    }

    /// Checks that every job has ended and that no host has remains of a job.
    pub fn check_end(&self) {
        let led_jobs = &self.hosts[SERVER_HOST].jobs.led_jobs;
        if let Some(UserJob { job, .. }) = self.unfinished_jobs().first() {
            panic!("job {job} does not end: {:?}", led_jobs.get(job));
        }
        for (index, host) in self.hosts.iter().enumerate() {
            assert!(host.shepherds.is_empty(), "left on host {index}: {:?}", host.shepherds);
            let deadlines = [host.jobs.gang().deadline(), host.jobs.deadline()];
            let is_idle = host.jobs.is_empty() && deadlines == [None, None];
            assert!(is_idle, "left on host {index}: {:?}", host.jobs);
        }
    }
}
