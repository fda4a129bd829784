//! Logins and jobs: admission of users, placement of jobs, and exactly one end for each job.

use std::collections::BTreeMap;

use score_proto::allocation_request::AllocationRequest;
use score_proto::ids::{HostId, JobId, SessionJobId};
use score_proto::nodeset::NodeSet;
use score_proto::peer_message::{SERVER, User};

use super::ServerState;
use super::host_selection::HostScope;
use super::membership::Reservation;
use crate::cluster::{ClusterAction, HostShare, JobPermit, JobRequest, MonotonicTime, SessionId};

/// The largest value of a priority (scrun(1), `priority`).
const LOWEST_PRIORITY: u8 = 15;
/// The number of jobs that may overtake a waiting job on its hosts. After that, the waiting job is
/// placed first.
const MAX_BYPASSES: u32 = 32;

/// A login.
#[derive(Debug)]
pub struct UserSession {
    user: User,
    jobs: BTreeMap<SessionJobId, JobId>,
}

/// The resources that one user occupies.
#[derive(Debug, Default)]
pub struct UserUsage {
    session_count: usize,
    spec_bytes: u64,
}

/// A job that was accepted.
#[derive(Debug)]
pub struct ClusterJob {
    session: SessionId,
    tag: SessionJobId,
    pub(super) uid: u32,
    request: JobRequest,
    state: State,
    /// When the job began to wait, or got its hosts.
    state_since: MonotonicTime,
}

/// The state of a job.
#[derive(Debug)]
enum State {
    Waiting {
        queue_key: (u8, u64),
        /// The number of jobs that were started on hosts that this job may use, while this job was
        /// the next one of its user.
        bypass_count: u32,
    },
    Running(RunningJob),
}

/// A job that has hosts.
#[derive(Debug)]
struct RunningJob {
    shares: Vec<HostShare>,
    /// Shares whose hosts may still hold resources of the job.
    unreleased_shares: NodeSet,
    code: Option<u8>,
    /// Why the job is being ended early.
    reason: Option<String>,
    /// The time by which the user is notified in any case.
    report_deadline: Option<MonotonicTime>,
    end_reported: bool,
}

/// A share of a host that is lost for the job of the share. The host may still run its part.
#[derive(Debug)]
pub struct HeldShare {
    host: HostId,
    reservation: Reservation,
    /// By this time the host has ended its part.
    until: MonotonicTime,
}

impl HeldShare {
    pub fn deadline(&self) -> MonotonicTime {
        self.until
    }
}

impl ClusterJob {
    pub fn deadline(&self) -> Option<MonotonicTime> {
        match &self.state {
            State::Running(RunningJob { report_deadline, end_reported: false, .. }) => {
                *report_deadline
            }
            _ => None,
        }
    }
}

/// The state of a job, for operators.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Summary {
    /// The number of the job.
    pub job: JobId,
    /// The user of the job.
    pub uid: u32,
    /// The hosts of the job. Empty while it waits.
    pub shares: Vec<HostShare>,
    /// Why the job is being ended, if it is.
    pub ending: Option<String>,
    /// The requested priority.
    pub priority: u8,
    /// The number of its processes. While the job waits, the smallest number that it accepts.
    pub nodes: u32,
    /// When the job began to wait, or got its hosts.
    pub state_since: MonotonicTime,
}

impl ServerState {
    /// All jobs that wait, run or are being cleaned up, by number.
    pub fn list(&self) -> impl Iterator<Item = Summary> + '_ {
        self.jobs.iter().map(|(number, job)| {
            let (shares, ending) = match &job.state {
                State::Waiting { .. } => (Vec::new(), None),
                State::Running(run) => (run.shares.clone(), run.reason.clone()),
            };
            let (priority, state_since) = (job.request.priority, job.state_since);
            let nodes = match shares.is_empty() {
                true => u32::try_from(job.request.allocation.min_slots()).unwrap_or(u32::MAX),
                false => shares.iter().map(|share| share.procs).sum(),
            };
            Summary { job: *number, uid: job.uid, shares, ending, priority, nodes, state_since }
        })
    }

    /// The request of a running job, and its hosts and processes.
    pub(super) fn allocation(&self, job: JobId) -> Option<(&JobRequest, &[HostShare])> {
        match self.jobs.get(&job)? {
            ClusterJob { request, state: State::Running(run), .. } => Some((request, &run.shares)),
            ClusterJob { state: State::Waiting { .. }, .. } => None,
        }
    }

    /// Whether a job has requested whole hosts.
    pub fn wants_whole_hosts(&self, job: JobId) -> bool {
        let found = self.jobs.get(&job);
        found.is_some_and(|job| {
            matches!(job.request.allocation, AllocationRequest::Exclusive { .. })
        })
    }

    /// The number of jobs that start before a waiting job, if all of them start in order.
    pub fn jobs_ahead(&self, number: JobId) -> Option<usize> {
        let job = self.jobs.get(&number)?;
        let State::Waiting { queue_key, .. } = job.state else { return None };
        Some(self.pending.jobs_ahead(job.uid, queue_key))
    }

    /// The waiting jobs of a user, each with the number of jobs that start before it.
    pub fn jobs_ahead_of_each(&self, uid: u32) -> impl Iterator<Item = (JobId, usize)> + '_ {
        self.pending.jobs_ahead_of_each(uid)
    }

    pub(super) fn on_login(&mut self, session: SessionId, user: User) {
        let (limits, uid) = (self.config.limits, user.uid);
        let is_current = self.membership.incarnation(session.host) == Some(session.incarnation);
        let user_sessions = self.users.get(&uid).map_or(0, |usage| usage.session_count);
        let reason = if !is_current || !(session.host == SERVER || self.is_up(session.host)) {
            format!("host {} is not in the cluster", self.name(session.host))
        } else if self.sessions.contains_key(&session) {
            "the session has logged in before".to_owned()
        } else if self.sessions.len() >= limits.sessions {
            format!("{} users and programs are logged in, which is the limit", limits.sessions)
        } else if user_sessions
            >= limits.sessions_per_user.min(limits.sessions - self.sessions.len())
        {
            // No user may have more logins than are left for all other users. Thus a few users
            // cannot take all logins.
            format!("you are logged in {user_sessions} times, which is the limit for one user now")
        } else {
            self.users.entry(uid).or_default().session_count += 1;
            self.sessions.insert(session, UserSession { user, jobs: BTreeMap::new() });
            return;
        };
        self.log(format!("login of uid {uid} from {}: {reason}", self.name(session.host)));
        self.actions.push(ClusterAction::SessionClosed { session, reason });
    }

    pub(super) fn on_submit(&mut self, session: SessionId, tag: SessionJobId, request: JobRequest) {
        match self.accept(session, tag, request) {
            Ok(()) => {}
            Err(reason) => self.actions.push(ClusterAction::Refused { session, tag, reason }),
        }
    }

    fn accept(
        &mut self,
        session: SessionId,
        tag: SessionJobId,
        request: JobRequest,
    ) -> Result<(), String> {
        let found = self.sessions.get(&session).ok_or("no user has logged in to this session")?;
        let uid = found.user.uid;
        if found.jobs.contains_key(&tag) {
            return Err(format!("the session has a job {tag} already"));
        }
        self.check_limits(uid, &request)?;
        let reserved = self.reserved_hosts();
        let free_shares = self.search(&request, HostScope::AvailableNow, &reserved);
        if free_shares.is_none() {
            self.search(&request, HostScope::AllUsable, &NodeSet::new())
                .ok_or_else(|| self.shortage(&request, HostScope::AllUsable))?;
            if !request.wait {
                return Err(self.shortage(&request, HostScope::AvailableNow));
            }
            let (limits, total_pending, user_pending) =
                (self.config.limits, self.pending.len(), self.pending.user_job_count(uid));
            if total_pending >= limits.queued {
                return Err(format!("{total_pending} jobs wait, which is the limit"));
            } else if user_pending >= limits.queued_per_user.min(limits.queued - total_pending) {
                return Err(format!(
                    "{user_pending} of your jobs wait, which is the limit for one user now"
                ));
            }
        }
        let job = self.allocate_job_id();
        let wait = request.wait;
        self.spec_bytes += request.spec_bytes;
        self.users.entry(uid).or_default().spec_bytes += request.spec_bytes;
        self.sessions.entry(session).and_modify(|found| _ = found.jobs.insert(tag, job));
        let queue_key = if wait { self.pending.push(uid, request.priority, job) } else { (0, 0) };
        let state = State::Waiting { queue_key, bypass_count: 0 };
        self.jobs
            .insert(job, ClusterJob { session, tag, uid, request, state, state_since: self.now });
        if let Some(shares) = free_shares.filter(|_| !wait) {
            self.start(job, shares);
        } else {
            // The queue applies even if there are free slots: other jobs may have waited longer for
            // these slots.
            self.schedule();
            let is_waiting = matches!(self.jobs[&job].state, State::Waiting { .. });
            // The job fits only because a host is down, and other jobs come first.
            if is_waiting && let Some(rejection) = self.unsatisfiable_reason(job) {
                self.pending.remove(uid, queue_key);
                self.remove_job(job);
                return Err(rejection);
            }
            if is_waiting {
                self.actions.push(ClusterAction::Queued { session, tag, job });
            }
        }
        Ok(())
    }

    fn unsatisfiable_reason(&self, job: JobId) -> Option<String> {
        let request = &self.jobs.get(&job)?.request;
        let found = self.search(request, HostScope::AllUsable, &NodeSet::new());
        found.is_none().then(|| self.shortage(request, HostScope::AllUsable))
    }

    fn check_limits(&self, uid: u32, request: &JobRequest) -> Result<(), String> {
        let limits = self.config.limits;
        let bytes = self.users.get(&uid).map_or(0, |usage| usage.spec_bytes);
        if let Some(error) = request.allocation.invalid_reason() {
            return Err(error);
        }
        if request.priority > LOWEST_PRIORITY {
            return Err(format!("priority {}: at most {LOWEST_PRIORITY}", request.priority));
        }
        let last = request.pools.iter().filter_map(NodeSet::last).max();
        if last.is_some_and(|last| last as usize >= self.membership.hosts.len()) {
            return Err("a requested host is not in the cluster".to_owned());
        }
        let left = limits.spec_bytes.saturating_sub(self.spec_bytes);
        let wanted = bytes.saturating_add(request.spec_bytes);
        if request.spec_bytes > left && wanted <= limits.spec_bytes_per_user {
            return Err(format!(
                "all jobs take {} bytes of the server: no more fit",
                self.spec_bytes
            ));
        }
        // No user may have more bytes than are left for all other users. Thus a few users cannot
        // take all bytes.
        let max_bytes = limits.spec_bytes_per_user.min(left);
        if wanted > max_bytes {
            return Err(format!(
                "your jobs take {bytes} bytes of the server; the limit for one user is \
                 now {max_bytes}"
            ));
        }
        Ok(())
    }

    /// Returns a number that no existing job has, and that was not used for a long time.
    fn allocate_job_id(&mut self) -> JobId {
        loop {
            let job = self.next_job;
            self.next_job = JobId(if job.0 >= i32::MAX as u32 { 1 } else { job.0 + 1 });
            if !self.jobs.contains_key(&job) {
                return job;
            }
        }
    }

    /// Hosts that are reserved for jobs that were overtaken too often.
    fn reserved_hosts(&self) -> NodeSet {
        let mut reserved = NodeSet::new();
        for job in self.pending.heads() {
            let job = &self.jobs[&job];
            let State::Waiting { bypass_count: MAX_BYPASSES.., .. } = job.state else { continue };
            // If a waiting job needs hosts that are down, it does not delay other jobs.
            if self.search(&job.request, HostScope::AllUp, &reserved).is_some() {
                let all_hosts = || NodeSet::from(0..self.membership.hosts.len() as u32);
                reserved.union(&job.request.allowed_hosts().unwrap_or_else(all_hosts));
            }
        }
        reserved
    }

    /// Starts the jobs that fit: the first job of each user, users alternately. Jobs that were
    /// overtaken too often come before all others.
    pub(super) fn schedule(&mut self) {
        self.needs_scheduling = false;
        loop {
            let is_bypassed_too_often = |job: &JobId| match self.jobs[job].state {
                State::Waiting { bypass_count, .. } => bypass_count >= MAX_BYPASSES,
                State::Running(_) => false,
            };
            let (starved, others): (Vec<_>, Vec<_>) =
                self.pending.heads().partition(is_bypassed_too_often);
            let mut started = false;
            let mut reserved = NodeSet::new();
            for (job, is_starved) in starved
                .into_iter()
                .map(|job| (job, true))
                .chain(others.into_iter().map(|j| (j, false)))
            {
                let request = &self.jobs[&job].request;
                if let Some(shares) = self.search(request, HostScope::AvailableNow, &reserved) {
                    self.start(job, shares);
                    started = true;
                } else if is_starved && self.search(request, HostScope::AllUp, &reserved).is_some()
                {
                    let all_hosts = || NodeSet::from(0..self.membership.hosts.len() as u32);
                    reserved.union(&request.allowed_hosts().unwrap_or_else(all_hosts));
                }
            }
            if !started {
                return;
            }
        }
    }

    fn start(&mut self, number: JobId, shares: Vec<HostShare>) {
        // A job that becomes the next one of its user now is not overtaken by its predecessor.
        let waiting: Vec<JobId> = self.pending.heads().collect();
        let Some(job) = self.jobs.get_mut(&number) else { return };
        if let (State::Waiting { queue_key, .. }, true) = (&job.state, job.request.wait) {
            self.pending.rotate_user(job.uid);
            self.pending.remove(job.uid, *queue_key);
        }
        let (session, tag) = (job.session, job.tag);
        job.state_since = self.now;
        job.state = State::Running(RunningJob {
            unreleased_shares: NodeSet::from(0..shares.len() as u32),
            shares: shares.clone(),
            code: None,
            reason: None,
            report_deadline: None,
            end_reported: false,
        });
        for share in &shares {
            let host = &mut self.membership.hosts[share.host.index()];
            host.allocate(host.reservation(&job.request, share.procs));
        }
        for other in waiting {
            let Some(other) = self.jobs.get_mut(&other) else { continue };
            let pools = &other.request.pools;
            let touches = |share: &HostShare| {
                pools.is_empty() || pools.iter().any(|pool| pool.contains(share.host.0))
            };
            if let State::Waiting { bypass_count, .. } = &mut other.state
                && shares.iter().any(touches)
            {
                *bypass_count += 1;
            }
        }
        let incarnations = shares
            .iter()
            .map(|share| self.membership.incarnation(share.host).unwrap_or_default())
            .collect();
        self.actions.push(ClusterAction::Start { session, tag, job: number, shares, incarnations });
    }

    /// Kills a running job. If there are several reasons, the first one is reported.
    fn end_running(&mut self, number: JobId, reason: &str, now: MonotonicTime) {
        let report_deadline = now + self.config.times.cleanup;
        let Some(ClusterJob { state: State::Running(run), .. }) = self.jobs.get_mut(&number) else {
            return;
        };
        if run.reason.is_none() && run.code.is_none() {
            run.reason = Some(reason.to_owned());
            run.report_deadline.get_or_insert(report_deadline);
            self.actions.push(ClusterAction::End { job: number, reason: reason.to_owned() });
        }
        self.complete_if_released(number);
    }

    pub(super) fn on_released(&mut self, number: JobId, hosts: &NodeSet) {
        let Some(ClusterJob { state: State::Running(run), request, .. }) =
            self.jobs.get_mut(&number)
        else {
            return;
        };
        for (index, share) in (0..).zip(&run.shares) {
            if hosts.contains(index) && run.unreleased_shares.remove(index) {
                let host = &mut self.membership.hosts[share.host.index()];
                host.release(host.reservation(request, share.procs));
                self.needs_scheduling = true;
            }
        }
        self.complete_if_released(number);
    }

    pub(super) fn on_hosts_lost(&mut self, number: JobId, hosts: &NodeSet, now: MonotonicTime) {
        let until = now + self.config.times.isolation_limit();
        let Some(ClusterJob { state: State::Running(run), request, .. }) =
            self.jobs.get_mut(&number)
        else {
            return;
        };
        for (index, HostShare { host, procs }) in (0..).zip(run.shares.iter().copied()) {
            if hosts.contains(index) && run.unreleased_shares.remove(index) {
                let reservation = self.membership.hosts[host.index()].reservation(request, procs);
                self.held_shares.push(HeldShare { host, reservation, until });
            }
        }
        self.complete_if_released(number);
    }

    fn release_held_shares(&mut self, is_over: impl Fn(&HeldShare) -> bool) {
        for HeldShare { host, reservation, .. } in
            self.held_shares.extract_if(.., |held_share| is_over(held_share))
        {
            self.membership.hosts[host.index()].release(reservation);
            self.needs_scheduling = true;
        }
    }

    pub(super) fn on_finished(&mut self, number: JobId, code: u8, now: MonotonicTime) {
        let report_deadline = now + self.config.times.cleanup;
        if let Some(ClusterJob { state: State::Running(run), .. }) = self.jobs.get_mut(&number) {
            run.code.get_or_insert(code);
            run.report_deadline.get_or_insert(report_deadline);
            self.complete_if_released(number);
        }
    }

    /// Notifies the user when all hosts have released the job, and removes the job.
    fn complete_if_released(&mut self, number: JobId) {
        let Some(job) = self.jobs.get_mut(&number) else { return };
        let State::Running(run) = &mut job.state else { return };
        let is_done =
            run.unreleased_shares.is_empty() && (run.code.is_some() || run.reason.is_some());
        if is_done && !run.end_reported {
            run.end_reported = true;
            let (session, tag) = (job.session, job.tag);
            let (code, reason) = (run.code, run.reason.clone());
            self.actions.push(ClusterAction::Ended { session, tag, job: number, code, reason });
        }
        if is_done {
            self.remove_job(number);
        }
    }

    fn remove_job(&mut self, number: JobId) {
        let Some(job) = self.jobs.remove(&number) else { return };
        self.spec_bytes -= job.request.spec_bytes;
        if let Some(session) = self.sessions.get_mut(&job.session) {
            session.jobs.remove(&job.tag);
        }
        if let Some(usage) = self.users.get_mut(&job.uid) {
            usage.spec_bytes -= job.request.spec_bytes;
        }
        self.drop_usage_if_unused(job.uid);
        self.needs_scheduling = true;
    }

    fn drop_usage_if_unused(&mut self, uid: u32) {
        let unused = |usage: &UserUsage| usage.session_count == 0 && usage.spec_bytes == 0;
        if self.users.get(&uid).is_some_and(unused) {
            self.users.remove(&uid);
        }
    }

    pub(super) fn on_cancel(&mut self, session: SessionId, tag: SessionJobId, now: MonotonicTime) {
        let job = self.sessions.get(&session).and_then(|found| found.jobs.get(&tag).copied());
        if let Some(job) = job {
            self.end_job(job, "its user has ended it", now);
        }
    }

    pub(super) fn on_kill_job(&mut self, permit: &JobPermit, now: MonotonicTime) {
        let number = permit.job();
        let Some(job) = self.jobs.get(&number) else { return };
        let killed_by = if job.uid == permit.uid() { "its user" } else { "an operator" };
        self.end_job(number, &format!("{killed_by} has ended it"), now);
    }

    fn end_job(&mut self, number: JobId, reason: &str, now: MonotonicTime) {
        let Some(job) = self.jobs.get(&number) else { return };
        if let State::Waiting { queue_key, .. } = job.state {
            let (session, tag, reason) = (job.session, job.tag, Some(reason.to_owned()));
            self.pending.remove(job.uid, queue_key);
            self.actions.push(ClusterAction::Ended {
                session,
                tag,
                job: number,
                code: None,
                reason,
            });
            self.remove_job(number);
        } else {
            self.end_running(number, reason, now);
        }
    }

    pub(super) fn on_logout(&mut self, session: SessionId, reason: &str, now: MonotonicTime) {
        let Some(found) = self.sessions.remove(&session) else { return };
        for job in found.jobs.into_values() {
            self.end_job(job, reason, now);
        }
        if let Some(usage) = self.users.get_mut(&found.user.uid) {
            usage.session_count -= 1;
        }
        self.drop_usage_if_unused(found.user.uid);
    }

    /// A host was declared down: its shares of all jobs are lost, and these jobs end.
    pub(super) fn on_host_down(&mut self, host: HostId, reason: &str, now: MonotonicTime) {
        self.release_held_shares(|held_share| held_share.host == host);
        let has_share_there = |run: &RunningJob| {
            run.unreleased_shares.iter().any(|index| run.shares[index as usize].host == host)
        };
        let lost_jobs: Vec<_> = self
            .jobs
            .iter()
            .filter(|(_, job)| matches!(&job.state, State::Running(run) if has_share_there(run)))
            .map(|(number, _)| *number)
            .collect();
        for number in lost_jobs {
            if let Some(ClusterJob { state: State::Running(run), request, .. }) =
                self.jobs.get_mut(&number)
            {
                for (index, share) in (0..).zip(&run.shares) {
                    if share.host == host && run.unreleased_shares.remove(index) {
                        let host = &mut self.membership.hosts[host.index()];
                        host.release(host.reservation(request, share.procs));
                    }
                }
            }
            self.end_running(number, reason, now);
        }
        let is_on_host = |session: &&SessionId| session.host == host;
        for session in self.sessions.keys().filter(is_on_host).copied().collect::<Vec<_>>() {
            self.actions.push(ClusterAction::SessionClosed { session, reason: reason.to_owned() });
            self.on_logout(session, reason, now);
        }
        self.needs_scheduling = true;
    }

    /// Handles jobs that have ended while some of their hosts have not confirmed their cleanup.
    /// After the deadline, the user of such a job is notified without these confirmations.
    pub(super) fn tick_jobs(&mut self, now: MonotonicTime) {
        self.release_held_shares(|held_share| held_share.until <= now);
        let is_due = |job: &ClusterJob| job.deadline().is_some_and(|due| due <= now);
        let overdue = self.jobs.iter().filter(|(_, job)| is_due(job)).map(|(number, _)| *number);
        for number in overdue.collect::<Vec<_>>() {
            let Some(job) = self.jobs.get_mut(&number) else { continue };
            let (session, tag) = (job.session, job.tag);
            let State::Running(run) = &mut job.state else { continue };
            run.end_reported = true;
            let (code, reason) = (run.code, run.reason.clone());
            let unreleased =
                run.unreleased_shares.iter().map(|index| run.shares[index as usize].host);
            let unreleased: Vec<_> = unreleased.take(8).collect();
            self.actions.push(ClusterAction::Ended { session, tag, job: number, code, reason });
            let names: Vec<_> = unreleased.into_iter().map(|host| self.name(host)).collect();
            self.log(format!("job {number} has ended but is held by {}", names.join(", ")));
        }
    }
}
