//! The jobs that a daemon leads, and the watchers of these jobs.

use std::collections::BTreeMap;

use score_proto::ids::{JobHostId, JobId};
use score_proto::job_control::{JobReport, Report};
use score_proto::message::{JobRequest, ToolSession};
use score_proto::observation::Metrics;
use score_proto::server_message::ConsoleAnswer;
use score_proto::tool_start::ToolAction;

use super::tree_positions::TreePosition;
use super::{ClientJob, Effect, Jobs, SessionKey};
use crate::cluster::{HostShare, MonotonicTime};
use crate::master::{GangRequest, JobMaster, MasterEvent};
use crate::metrics_subscribers::Subscriber;

/// A job that this daemon leads.
#[derive(Debug)]
pub(super) struct LedJob {
    pub master: JobMaster,
    pub client_job: ClientJob,
    pub allocations: Vec<HostShare>,
    /// The names of the job's hosts, in order.
    pub hosts: Vec<String>,
    /// The job's priority among the jobs that compete with it: 0 to 15.
    pub priority: u8,
    /// Directories of the job on hosts that share this machine's disk.
    pub directories: BTreeMap<JobHostId, String>,
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
        masters.chain(self.tree.deadline()).min()
    }

    pub(super) fn on_request(&mut self, job: JobId, request: JobRequest) {
        self.step_master(job, MasterEvent::FromClient(request));
    }

    pub(super) fn fail(&mut self, job: JobId, code: u8, reason: String) {
        let report = Report::Job(JobReport::JobFailed { code, reason });
        self.step_master(job, MasterEvent::Report(report));
    }

    /// Removes the master of a job, and requests the removal of directories that lost hosts have
    /// left. Returns whether the job had a master.
    pub(super) fn forget_led_job(&mut self, job: JobId) -> bool {
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
        self.tree.abort(TreePosition::above_first_host(job), &mut self.effects);
        self.tree.abort(TreePosition::host(job), &mut self.effects);
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

    pub(super) fn on_tool_action(
        &mut self,
        session_key: SessionKey,
        job: JobId,
        action: ToolAction,
    ) {
        if matches!(action, ToolAction::Start { files: Some(_), .. }) {
            // The end of this session ends the transfer of the files.
            self.tool_sessions.insert(session_key, job);
        }
        self.step_master(job, MasterEvent::ToolAction(session_key, action));
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

    /// The job of a session of a tool that keeps state in processes, or that sends files.
    pub fn job_of_tool_session(&self, session_key: SessionKey) -> Option<JobId> {
        self.tool_sessions.get(&session_key).copied()
    }

    /// The job that a session watches.
    pub fn watched_job(&self, session_key: SessionKey) -> Option<JobId> {
        self.watchers.get(&session_key).copied()
    }

    /// The number of sessions that watch a job.
    pub fn watcher_count(&self, job: JobId) -> usize {
        self.watchers.values().filter(|watched_job| **watched_job == job).count()
    }

    pub(super) fn publish_metrics(&mut self, job: JobId, metrics: Metrics) {
        let answer = ConsoleAnswer::Metrics(metrics.clone());
        let sessions = self.watchers.iter().filter(|(_, watched_job)| **watched_job == job);
        let to_watchers =
            sessions.map(|(session_key, _)| Effect::ToSession(*session_key, answer.clone()));
        self.effects.extend(to_watchers);
        self.effects.push(Effect::PageMetrics(job, metrics));
    }

    /// A job has ended. The sessions that watch it are notified.
    pub(super) fn end_watchers(&mut self, job: JobId, code: u8) {
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
