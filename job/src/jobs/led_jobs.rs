//! The jobs that a daemon leads, and the watchers of these jobs.

use std::collections::BTreeMap;

use score_proto::ids::{JobHostId, JobId};
use score_proto::job_control::{JobReport, Placement, Report};
use score_proto::message::{JobRequest, ToolSession};
use score_proto::observation::Metrics;
use score_proto::server_message::{ConsoleAnswer, JobAnswer};

use super::tree_positions::TreePosition;
use super::{ClientJob, Effect, Jobs, NewJob, Parent, SessionKey};
use crate::cluster::{HostShare, MonotonicTime};
use crate::host::tree_node::TreeNode;
use crate::master::{GangRequest, JobMaster, MasterAction, MasterEvent};
use crate::metrics_subscribers::Subscriber;

/// A job that this daemon leads.
#[derive(Debug)]
pub(super) struct LedJob {
    master: JobMaster,
    pub client_job: ClientJob,
    pub allocations: Vec<HostShare>,
    /// The names of the job's hosts, in order.
    hosts: Vec<String>,
    /// The job's priority among the jobs that compete with it: 0 to 15.
    pub priority: u8,
    /// Directories of the job on hosts that share this machine's disk.
    directories: BTreeMap<JobHostId, String>,
}

impl Jobs {
    /// Whether this daemon leads a job.
    pub fn leads(&self, job: JobId) -> bool {
        self.led_jobs.contains_key(&job)
    }

    /// The jobs that this daemon leads.
    pub fn led_job_ids(&self) -> Vec<JobId> {
        self.led_jobs.keys().copied().collect()
    }

    /// Whether a job that this daemon leads seems to hang, but no deadlock can be proved.
    pub fn suspects_hang(&self, job: JobId, now: MonotonicTime) -> bool {
        self.led_jobs.get(&job).is_some_and(|led_job| led_job.master.suspects_hang(now))
    }

    /// The next deadline of a job master, or of a node of a job's tree.
    pub fn deadline(&self) -> Option<MonotonicTime> {
        let masters = self.led_jobs.values().filter_map(|led_job| led_job.master.deadline());
        masters.chain(self.tree_deadline()).min()
    }

    pub(super) fn begin(&mut self, new_job: NewJob) {
        let NewJob { start, placement, client_job, allocations } = new_job;
        let job = start.job;
        let hosts = start.spec.hosts.iter().map(|host| host.name.clone()).collect();
        let priority = start.spec.terms.priority;
        let (master, order) = JobMaster::begin(start, placement.clone());
        let directories = BTreeMap::new();
        let led_job = LedJob { master, client_job, hosts, allocations, priority, directories };
        self.led_jobs.insert(job, led_job);
        self.enter_led_tree(job, placement);
        self.on_master_order(job, order);
    }

    /// Enters the tree at the position of the master. The first host of the job may be this host or
    /// another one.
    fn enter_led_tree(&mut self, job: JobId, placement: Placement) {
        let first_name = placement.hosts.first().map(|first| first.name.as_str());
        let own_name = self.identity.as_ref().map(|identity| identity.name.as_str());
        // A daemon without links only has jobs on its own host.
        let is_above_first_host = own_name.is_some() && first_name != own_name;
        let (position, tree_node) = match is_above_first_host {
            true => (TreePosition::above_first_host(job), TreeNode::at_master(placement)),
            false => (TreePosition::host(job), TreeNode::new(placement)),
        };
        self.enter_tree(position, tree_node, Parent::Master);
    }

    pub(super) fn on_request(&mut self, job: JobId, request: JobRequest) {
        self.step_master(job, MasterEvent::FromClient(request));
    }

    pub(super) fn fail(&mut self, job: JobId, code: u8, reason: String) {
        let report = Report::Job(JobReport::JobFailed { code, reason });
        self.step_master(job, MasterEvent::Report(report));
    }

    /// Passes an event to the master of a job, and carries out the resulting actions.
    pub(super) fn step_master(&mut self, job: JobId, event: MasterEvent) {
        let Some(led_job) = self.led_jobs.get_mut(&job) else { return };
        if let MasterEvent::Report(Report::HostsLost { hosts, .. }) = &event {
            let lost_hosts = led_job.hosts.get(hosts.start as usize..hosts.end as usize);
            let lost_hosts = lost_hosts.unwrap_or_default().to_vec();
            self.effects.push(Effect::HostsLost(lost_hosts));
        }
        led_job.master.set_time(self.now);
        let actions = led_job.master.on(event);
        let (client_job, is_done) = (led_job.client_job, led_job.master.is_done());
        if is_done {
            self.forget_led_job(job);
        }
        let mut code = 0;
        for action in actions {
            match action {
                MasterAction::ToClient(answer) => {
                    match &answer {
                        JobAnswer::Finished(end) => code = end.code,
                        JobAnswer::Refused { code: refusal_code, .. } => code = *refusal_code,
                        _ => {}
                    }
                    self.effects.push(Effect::ToClient(job, client_job, answer));
                }
                MasterAction::Metrics(metrics) => self.publish_metrics(job, metrics),
                MasterAction::ToSession(session_key, answer) => {
                    self.effects.push(Effect::ToSession(session_key, answer));
                }
                MasterAction::ToPage(stacks) => {
                    self.effects.push(Effect::PageStacks(job, stacks));
                }
                MasterAction::RefuseTool(session_key, reason) => {
                    self.effects.push(Effect::RefuseSession(session_key, reason));
                }
                MasterAction::Order(order) => self.on_master_order(job, order),
                MasterAction::Gang(request) => self.gang.queue(job, request),
            }
        }
        if is_done {
            self.end_watchers(job, code);
            self.effects.push(Effect::Finished(job, code));
        }
        self.handle_gang_requests();
    }

    /// Removes the master of a job, and requests the removal of directories that lost hosts have
    /// left. Returns whether the job had a master.
    fn forget_led_job(&mut self, job: JobId) -> bool {
        let Some(led_job) = self.led_jobs.remove(&job) else { return false };
        self.gang.forget_output(job);
        if !led_job.directories.is_empty() {
            let paths = led_job.directories.into_values().collect();
            self.effects.push(Effect::RemoveDirectories(paths));
        }
        true
    }

    pub(super) fn tick_masters(&mut self) {
        let is_due =
            |led_job: &LedJob| led_job.master.deadline().is_some_and(|due| due <= self.now);
        let due_jobs = self.led_jobs.iter().filter(|(_, led_job)| is_due(led_job));
        let due_jobs: Vec<JobId> = due_jobs.map(|(job, _)| *job).collect();
        due_jobs.into_iter().for_each(|job| self.step_master(job, MasterEvent::Tick));
    }

    /// A host has reported where the job's directory will be.
    pub(super) fn note_directory(&mut self, job: JobId, host: JobHostId, path: String) {
        if let Some(led_job) = self.led_jobs.get_mut(&job).filter(|_| self.keeps_directories) {
            led_job.directories.insert(host, path);
        }
    }

    pub(super) fn abort(&mut self, job: JobId) {
        if self.forget_led_job(job) {
            self.gang.queue(job, GangRequest::Leave);
            self.handle_gang_requests();
        }
        self.abort_position(TreePosition::above_first_host(job));
        self.abort_position(TreePosition::host(job));
    }

    pub(super) fn subscribe(&mut self, job: JobId, subscriber: Subscriber, period_ms: u32) {
        if let Subscriber::Session(session_key) = subscriber {
            match period_ms {
                0 => _ = self.watchers.remove(&session_key),
                _ => _ = self.watchers.insert(session_key, job),
            }
        }
        self.step_master(job, MasterEvent::SubscribeMetrics(subscriber, period_ms));
    }

    pub(super) fn begin_tool_session(&mut self, session_key: SessionKey, session: ToolSession) {
        let job = session.job;
        self.tool_sessions.insert(session_key, job);
        self.step_master(job, MasterEvent::ToolSession(session_key, session));
    }

    pub(super) fn end_tool_session(&mut self, session_key: SessionKey) {
        if let Some(job) = self.tool_sessions.remove(&session_key) {
            self.step_master(job, MasterEvent::ToolSessionEnded(session_key));
        }
    }

    /// Whether this session belongs to a tool that keeps state in processes.
    pub fn is_tool_session(&self, session_key: SessionKey) -> bool {
        self.tool_sessions.contains_key(&session_key)
    }

    /// The job that a session watches.
    pub fn watched_job(&self, session_key: SessionKey) -> Option<JobId> {
        self.watchers.get(&session_key).copied()
    }

    fn publish_metrics(&mut self, job: JobId, metrics: Metrics) {
        let answer = ConsoleAnswer::Metrics(metrics.clone());
        let sessions = self.watchers.iter().filter(|(_, watched_job)| **watched_job == job);
        let to_watchers =
            sessions.map(|(session_key, _)| Effect::ToSession(*session_key, answer.clone()));
        self.effects.extend(to_watchers);
        self.effects.push(Effect::PageMetrics(job, metrics));
    }

    /// A job has ended. The sessions that watch it are notified.
    fn end_watchers(&mut self, job: JobId, code: u8) {
        let effects = &mut self.effects;
        self.watchers.retain(|session_key, watched_job| {
            if *watched_job == job {
                let end = ConsoleAnswer::Finished { code };
                effects.push(Effect::ToSession(*session_key, end));
            }
            *watched_job != job
        });
    }
}
