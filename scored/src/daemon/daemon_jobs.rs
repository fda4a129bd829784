//! The jobs that this daemon leads and the local parts of jobs, on the daemon's clock.
//! [`score_job::jobs`] makes the decisions. This module gives each input its time, and sets the
//! timer for the next gang switch.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use mio::Registry;
use score_job::cluster::{JobPermit, MonotonicTime};
use score_job::gang::GangConfig;
use score_job::host::usage::Usage;
use score_job::jobs::{Effect, HostIdentity, Input, JobTag, Jobs, LinkId, SessionKey};
use score_job::metrics_subscribers::Subscriber;
use score_proto::frame;
use score_proto::ids::{HostId, JobId};
use score_proto::job_control::{HopOrder, HopReport};
use score_proto::message::{ToolCall, ToolSession};
use score_proto::tool_files::ToolFileChunk;
use score_proto::tool_start::ToolAction;

use super::host_job::IsOnlyReport;
use super::host_jobs::HostJobs;
use super::slice_timer::{JobClock, SliceTimer};

/// The number of sessions that may watch a job at once. Each report is copied for each of them.
const MAX_WATCHERS: usize = 16;
/// Environment variable for tests: a fixed interval of the idle check, in microseconds.
const POLL_INTERVAL_ENV: &str = "SCORE_TEST_PACE";

/// The value of [`POLL_INTERVAL_ENV`].
fn fixed_poll_interval_us() -> Option<u32> {
    std::env::var(POLL_INTERVAL_ENV).ok().and_then(|text| text.parse().ok())
}

/// See the [module](self).
pub struct DaemonJobs {
    jobs: Jobs,
    clock: JobClock,
    slice_timer: SliceTimer,
}

impl DaemonJobs {
    /// Creates the state without jobs. The clock starts now.
    pub fn new(slice_timer: SliceTimer) -> Self {
        let jobs = Jobs::new(fixed_poll_interval_us());
        Self { jobs, clock: JobClock::start(), slice_timer }
    }

    /// The state of the jobs.
    pub fn state(&self) -> &Jobs {
        &self.jobs
    }

    /// The current time on the jobs' clock.
    pub fn now(&self) -> MonotonicTime {
        self.clock.now()
    }

    /// Converts a time of the jobs' clock to a moment.
    pub fn moment_of(&self, time: MonotonicTime) -> Instant {
        self.clock.moment_of(time)
    }

    /// Sets the identity of this host.
    pub fn set_identity(&mut self, identity: HostIdentity) {
        self.jobs.set_identity(identity);
    }

    /// Records that all hosts share the disk of this host.
    pub fn set_shared_disk(&mut self) {
        self.jobs.set_shared_disk();
    }

    /// Enables the sharing of hosts between jobs. `slots` is the number of processors of each host.
    pub fn set_gang(&mut self, config: GangConfig, slots: BTreeMap<HostId, u32>) {
        self.jobs.set_gang(config, slots);
    }

    /// Handles an input. [`DaemonJobs::take_effects`] returns the effects.
    pub fn on(&mut self, input: Input) {
        self.jobs.on(input, self.clock.now());
    }

    /// Takes the effects that have to be carried out.
    pub fn take_effects(&mut self) -> Vec<Effect> {
        self.jobs.take_effects(self.clock.now())
    }

    /// Handles an order that has arrived over a link.
    pub fn on_order(&mut self, link_id: LinkId, tag: JobTag, body: &[u8]) {
        match frame::decode_datagram::<HopOrder>(body) {
            Ok(order) => self.on(Input::Order(link_id, tag, order)),
            Err(_) => eprintln!("scored: job {}: malformed order", tag.job),
        }
    }

    /// Handles a report that has arrived over a link.
    pub fn on_report(&mut self, link_id: LinkId, tag: JobTag, body: &[u8]) {
        match frame::decode_datagram::<HopReport>(body) {
            Ok(report) => self.on(Input::Report(link_id, tag, report)),
            Err(_) => eprintln!("scored: job {}: malformed report", tag.job),
        }
    }

    /// Handles the reports of this host's shepherds, and charges the owners of the jobs with the
    /// time.
    pub fn on_host_reports(&mut self, host_jobs: &mut HostJobs, usage: &mut Usage) {
        let now = self.clock.now();
        for (job, uid, report) in host_jobs.take_reports() {
            let charged = uid.map(|uid| (uid, Instant::now()));
            self.jobs.on(Input::Local(job, report), now);
            if let Some((uid, started_at)) = charged {
                usage.charge_report_time(uid, started_at.elapsed());
            }
        }
    }

    /// The time until the jobs need attention without an event.
    pub fn timeout(&self) -> Option<Duration> {
        self.jobs.deadline().map(|due| due.saturating_sub(self.clock.now()))
    }
}

/// Gang switches.
impl DaemonJobs {
    /// If the running job of a rotation has stopped, starts the next job. Returns true if the next
    /// job has been started and the stop was the shepherd's only report.
    pub fn advance_rotation(
        &mut self,
        host_jobs: &mut HostJobs,
        usage: &mut Usage,
        registry: &Registry,
    ) -> bool {
        let Some((job, switch_seq)) = self.jobs.expected_rotation_stop() else { return false };
        let Some(IsOnlyReport(is_only_report)) = host_jobs.read_rotation_stop(job, switch_seq)
        else {
            return false;
        };
        // The idle states that came with the stop decide whether the rotation continues.
        self.on_host_reports(host_jobs, usage);
        let next = self.jobs.next_rotation_turn(|job| host_jobs.has_shepherd(job));
        if let Some((next, order)) = next
            && host_jobs.start_turn(next, order, registry)
        {
            return is_only_report;
        }
        self.jobs.end_rotation(job, switch_seq);
        false
    }

    /// Ends the rotation of a job whose shepherd has not stopped it in time.
    pub fn end_rotation_with(&mut self, job: JobId) {
        self.jobs.end_rotation_with(job);
    }

    /// Sets the slice timer to the next deadline of the gang scheduler, or to an earlier one of
    /// these moments.
    pub fn set_slice_timer(&mut self, moments: impl IntoIterator<Item = Instant>) {
        let gang_deadline = self.jobs.gang().deadline();
        let times = moments.into_iter().map(|moment| self.clock.time_of(moment));
        self.slice_timer.set(times.chain(gang_deadline).min(), self.clock.now());
    }
}

/// Requests of sessions to running jobs: subscriptions to metrics (`scmon JOB`), and tools.
impl DaemonJobs {
    /// The permit's job, which this daemon leads.
    ///
    /// # Errors
    /// One line: the job has no processes.
    fn led_job(&self, permit: &JobPermit) -> Result<JobId, String> {
        let job = permit.job();
        match self.jobs.leads(job) {
            true => Ok(job),
            false => Err(format!("job {job} has no processes now: it is queued, or has ended")),
        }
    }

    /// Subscribes a session to the metrics of a job that this daemon leads, until the job ends.
    ///
    /// # Errors
    /// One line: the job has no processes, or is watched by too many sessions.
    pub fn watch_job(
        &mut self,
        session_key: SessionKey,
        permit: &JobPermit,
        period_ms: u32,
    ) -> Result<(), String> {
        let job = self.led_job(permit)?;
        self.unwatch(session_key);
        if self.jobs.watcher_count(job) >= MAX_WATCHERS {
            return Err(format!("job {job} is watched by {MAX_WATCHERS} clients: end one of them"));
        }
        let (subscriber, period_ms) = (Subscriber::Session(session_key), period_ms.max(1));
        self.on(Input::Subscribe { job, subscriber, period_ms });
        Ok(())
    }

    /// Sends a tool's command to the processes of the permit's job, which this daemon leads.
    ///
    /// # Errors
    /// One line: the job has no processes.
    pub fn send_tool_call(
        &mut self,
        session_key: SessionKey,
        permit: &JobPermit,
        call: ToolCall,
    ) -> Result<(), String> {
        let job = self.led_job(permit)?;
        self.on(Input::Tool(session_key, ToolCall { job, ..call }));
        Ok(())
    }

    /// Starts a tool next to a job that this daemon leads, or signals such a tool.
    ///
    /// # Errors
    /// One line: the job has no processes, or the connection already sends files or has a tool
    /// session.
    pub fn send_tool_action(
        &mut self,
        session_key: SessionKey,
        permit: &JobPermit,
        action: ToolAction,
    ) -> Result<(), String> {
        let job = self.led_job(permit)?;
        let has_files = matches!(action, ToolAction::Start { files: Some(_), .. });
        if has_files && self.jobs.job_of_tool_session(session_key).is_some() {
            return Err("this connection is in use by another tool".to_owned());
        }
        self.on(Input::ToolAction(session_key, job, action));
        Ok(())
    }

    /// Forwards bytes of the files of the tool that the session starts. The job master drops bytes
    /// that no host has requested.
    pub fn send_tool_file(
        &mut self,
        session_key: SessionKey,
        permit: &JobPermit,
        chunk: ToolFileChunk,
    ) {
        let chunk = ToolFileChunk { job: permit.job(), ..chunk };
        self.on(Input::ToolFile(session_key, chunk));
    }

    /// Requests the list of processes of a job that this daemon leads.
    ///
    /// # Errors
    /// One line: the job has no processes.
    pub fn list_processes(
        &mut self,
        session_key: SessionKey,
        permit: &JobPermit,
    ) -> Result<(), String> {
        let job = self.led_job(permit)?;
        self.on(Input::ListProcesses(session_key, job));
        Ok(())
    }

    /// Makes the session a tool session: the tool keeps state in processes of a job that this
    /// daemon leads. The state is removed when the session ends.
    ///
    /// # Errors
    /// One line: the job has no processes, or the connection already sends files or has a tool
    /// session.
    pub fn begin_tool_session(
        &mut self,
        session_key: SessionKey,
        permit: &JobPermit,
        session: ToolSession,
    ) -> Result<(), String> {
        let job = self.led_job(permit)?;
        if self.jobs.job_of_tool_session(session_key).is_some() {
            return Err("this connection is in use by another tool".to_owned());
        }
        self.on(Input::ToolSession(session_key, ToolSession { job, ..session }));
        Ok(())
    }

    /// Ends a session's subscription, tool session and transfer of files.
    pub fn end_subscriptions(&mut self, session_key: SessionKey) {
        self.unwatch(session_key);
        if self.jobs.job_of_tool_session(session_key).is_some() {
            self.on(Input::ToolSessionEnded(session_key));
        }
    }

    /// Ends a session's subscription to the metrics of a job.
    pub fn unwatch(&mut self, session_key: SessionKey) {
        if let Some(job) = self.jobs.watched_job(session_key) {
            let subscriber = Subscriber::Session(session_key);
            self.on(Input::Subscribe { job, subscriber, period_ms: 0 });
        }
    }
}
