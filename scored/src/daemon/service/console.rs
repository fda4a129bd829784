//! Requests that address jobs by their numbers in the cluster: lists, kills, subscriptions and
//! tools.

use std::collections::{BTreeSet, HashMap};
use std::time::Instant;

use nix::unistd::geteuid;
use score_job::cluster::authorization::{JobPermit, Requester, authorize, authorize_statistics};
use score_job::cluster::{self, JobAction, MonotonicTime};
use score_proto::exit_code::EXIT_REFUSED;
use score_proto::ids::JobId;
use score_proto::job_list::{JobDetail, JobEntry, JobState, MAX_HOST_NAMES, MAX_JOBS_PER_MESSAGE};
use score_proto::message::ConsoleRequest;
use score_proto::server_message::{ConsoleAnswer, ListAnswer};

use super::super::Daemon;
use super::super::daemon_jobs::DaemonJobs;
use super::super::session::ClientSession;
use super::{LogTopic, Role, Service, info};
use score_job::jobs::{Jobs, SessionKey};

impl Daemon {
    /// Handles a request about jobs.
    pub fn console(&mut self, session_key: SessionKey, console: ConsoleRequest) {
        let console = match console {
            ConsoleRequest::Tool(call) => {
                return self.on_tool_request(session_key, call.job, |jobs, permit| {
                    jobs.send_tool_call(session_key, permit, call)
                });
            }
            ConsoleRequest::ToolAction { job, action } => {
                return self.on_tool_request(session_key, job, |jobs, permit| {
                    jobs.send_tool_action(session_key, permit, action)
                });
            }
            ConsoleRequest::ToolFile(chunk) => {
                return self.on_tool_request(session_key, chunk.job, |jobs, permit| {
                    jobs.send_tool_file(session_key, permit, chunk);
                    Ok(())
                });
            }
            ConsoleRequest::ToolSession(session) => {
                return self.on_tool_request(session_key, session.job, |jobs, permit| {
                    jobs.begin_tool_session(session_key, permit, session)
                });
            }
            ConsoleRequest::Processes(job) => {
                return self.on_tool_request(session_key, job, |jobs, permit| {
                    jobs.list_processes(session_key, permit)
                });
            }
            other => other,
        };
        if self.sessions.get(session_key).is_some_and(ClientSession::is_tool) {
            let reason = "single-user mode has no list of jobs".to_owned();
            return self.sessions.refuse_session(session_key, reason, EXIT_REFUSED);
        }
        let Some(uid) = self.sessions.get(session_key).and_then(ClientSession::uid) else {
            return;
        };
        // A session with a uid exists only in a service, and only the server handles its requests.
        let led_jobs = JobsAtTime { jobs: self.jobs.state(), now: self.jobs.now() };
        let Some(service) = &mut self.service else { return };
        let Role::Server(cluster) = &service.role else { return };
        match console {
            ConsoleRequest::List => {
                let lines = service.job_lines(uid, led_jobs);
                let permit = authorize_statistics(cluster.requester(uid));
                let clock = self.loop_clock.phases();
                let statistics =
                    permit.and_then(|permit| Some(clock?.statistics(&permit, Instant::now())));
                for chunk in lines.chunks(MAX_JOBS_PER_MESSAGE) {
                    let jobs = ListAnswer::Jobs(chunk.to_vec());
                    self.sessions.answer_console(session_key, ConsoleAnswer::List(jobs));
                }
                if let Some(statistics) = statistics.map(ListAnswer::Statistics) {
                    self.sessions.answer_console(session_key, ConsoleAnswer::List(statistics));
                }
            }
            ConsoleRequest::Page => {
                let address = match service.page_address(uid) {
                    Ok(address) => address,
                    Err(reason) => {
                        return self.sessions.refuse_session(session_key, reason, EXIT_REFUSED);
                    }
                };
                self.sessions.answer_console(session_key, ConsoleAnswer::Page(address));
            }
            ConsoleRequest::SubscribeMetrics { job, period_ms } => {
                let permit = cluster.authorize(uid, JobAction::Watch, job);
                let watched =
                    permit.and_then(|permit| self.jobs.watch_job(session_key, &permit, period_ms));
                if let Err(reason) = watched {
                    self.sessions.refuse_session(session_key, reason, EXIT_REFUSED);
                }
                // The subscription lasts until the job or the session ends.
                return;
            }
            // The first match has handled these requests.
            ConsoleRequest::Tool(_)
            | ConsoleRequest::ToolAction { .. }
            | ConsoleRequest::ToolFile(_)
            | ConsoleRequest::ToolSession(_)
            | ConsoleRequest::Processes(_) => return,
            ConsoleRequest::Kill(job) => match cluster.authorize(uid, JobAction::Kill, job) {
                Err(reason) => {
                    let text = format!("uid {uid} may not end job {job}: {reason}");
                    service.warn_about(LogTopic::User(uid), &text);
                    return self.sessions.refuse_session(session_key, reason, EXIT_REFUSED);
                }
                Ok(permit) => {
                    info(&format!("uid {uid} ends job {job}"));
                    self.step_server(cluster::ClusterEvent::KillJob(permit));
                }
            },
        }
        self.sessions.answer_console(session_key, ConsoleAnswer::Finished { code: 0 });
    }

    /// Forwards a request of a tool to a job if the user may debug the job. The job master answers.
    fn on_tool_request(
        &mut self,
        session_key: SessionKey,
        job: JobId,
        send: impl FnOnce(&mut DaemonJobs, &JobPermit) -> Result<(), String>,
    ) {
        let session = self.sessions.get(session_key);
        let permit = authorize_tool(session, self.service.as_ref(), job);
        if let Err(reason) = permit.and_then(|permit| send(&mut self.jobs, &permit)) {
            self.sessions.refuse_session(session_key, reason, EXIT_REFUSED);
        }
    }
}

/// The permit to debug a job.
fn authorize_tool(
    session: Option<&ClientSession>,
    service: Option<&Service>,
    job: JobId,
) -> Result<JobPermit, String> {
    if session.is_some_and(ClientSession::is_tool) {
        // The kernel reported that the client runs as this daemon's user.
        let uid = geteuid().as_raw();
        let requester = Requester { uid, is_operator: false };
        return authorize(requester, JobAction::Debug, job, uid);
    }
    match (session.and_then(ClientSession::uid), service.map(|service| &service.role)) {
        (Some(uid), Some(Role::Server(cluster))) => cluster.authorize(uid, JobAction::Debug, job),
        // Sessions in other states cannot send such a request.
        _ => Err(format!("job {job}: this daemon has no jobs")),
    }
}

/// The jobs that the daemon leads, at a moment.
#[derive(Debug, Clone, Copy)]
pub struct JobsAtTime<'a> {
    /// The jobs.
    pub jobs: &'a Jobs,
    /// The moment, on the jobs' clock.
    pub now: MonotonicTime,
}

impl Service {
    /// The entries of all jobs of the cluster for this user. The user sees details of their own
    /// jobs only. An operator sees the details of all jobs.
    pub fn job_lines(&self, uid: u32, led_jobs: JobsAtTime<'_>) -> Vec<JobEntry> {
        let Role::Server(cluster) = &self.role else { return Vec::new() };
        let requester = cluster.requester(uid);
        let jobs: Vec<_> = cluster.list().collect();
        let started_at: HashMap<_, _> = jobs.iter().map(|job| (job.job, job.state_since)).collect();
        let shares = self
            .page
            .as_ref()
            .map(|page| page.history.shares(self.now(), |job| started_at.get(&job).copied()));
        let shares = shares.unwrap_or_default();
        let uids: BTreeSet<u32> = jobs.iter().map(|job| job.uid).collect();
        let visible_uids = uids.into_iter().filter(|one| requester.is_operator || *one == uid);
        let jobs_ahead: HashMap<JobId, usize> =
            visible_uids.flat_map(|uid| cluster.jobs_ahead_of_each(uid)).collect();
        let to_line = |job: cluster::Summary| {
            let host_names =
                job.shares.iter().take(MAX_HOST_NAMES).map(|share| cluster.name(share.host));
            let permit = authorize(requester, JobAction::SeeDetails, job.job, job.uid);
            let ahead = jobs_ahead.get(&job.job).copied();
            let visible_detail = permit.ok().map(|_| detail(&job, ahead, self.now(), led_jobs));
            let share = shares.get(&job.job).copied();
            let detail = visible_detail.map(|detail| JobDetail { share_permille: share, ..detail });
            JobEntry {
                job: job.job,
                uid: job.uid,
                hosts: u32::try_from(job.shares.len()).unwrap_or(u32::MAX),
                host_names: host_names.map(str::to_owned).collect(),
                detail,
            }
        };
        jobs.into_iter().map(to_line).collect()
    }
}

/// The details of a job. `jobs_ahead`: the number of jobs that start before it, if it waits.
fn detail(
    job: &cluster::Summary,
    jobs_ahead: Option<usize>,
    now: MonotonicTime,
    led_jobs: JobsAtTime<'_>,
) -> JobDetail {
    let state = match jobs_ahead {
        Some(ahead) => JobState::Waiting { jobs_ahead: u32::try_from(ahead).unwrap_or(u32::MAX) },
        None if job.ending.is_some() => JobState::Ending,
        None if led_jobs.jobs.gang().is_suspended(job.job) => JobState::Suspended,
        None if led_jobs.jobs.suspects_hang(job.job, led_jobs.now) => JobState::SuspectedHang,
        None => JobState::Running,
    };
    let since_ms = now.saturating_sub(job.state_since).as_millis();
    JobDetail {
        state,
        priority: job.priority,
        nodes: job.nodes,
        since_ms: u64::try_from(since_ms).unwrap_or(u64::MAX),
        share_permille: None,
    }
}
