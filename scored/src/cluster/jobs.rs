//! Logins and jobs: who may submit, where a job runs, and that each comes to exactly one end.

use std::collections::BTreeMap;

use score_proto::nodeset::NodeSet;
use score_proto::peer::{HostId, SERVER, User};
use score_proto::shape::Shape;

use super::machine::Cluster;
use super::place::Share;
use super::search::View;
use super::{Action, JobId, Request, SessionId, Time};

/// The largest priority (manual, scrun(1), `priority`).
const LAST_PRIORITY: u8 = 15;
/// Jobs of others that may start before a job that waits for room there; then it comes first.
const PASSED: u32 = 32;

/// A login.
#[derive(Debug)]
pub struct Session {
    user: User,
    jobs: BTreeMap<u64, JobId>,
}

/// What one user has.
#[derive(Debug, Default)]
pub struct Usage {
    sessions: usize,
    bytes: u64,
}

/// A job that was accepted.
#[derive(Debug)]
pub struct Job {
    session: SessionId,
    tag: u64,
    pub(super) uid: u32,
    request: Request,
    state: State,
    /// Since when it waits, or has its hosts.
    since: Time,
}

/// Where a job stands.
#[derive(Debug)]
enum State {
    Waiting {
        rank: (u8, u64),
        /// Jobs of others that were started before it on hosts that it may have.
        passed: u32,
    },
    Running(Run),
}

/// A job that has hosts.
#[derive(Debug)]
struct Run {
    shares: Vec<Share>,
    /// Shares whose hosts may still hold something of it.
    held: NodeSet,
    code: Option<u8>,
    /// Why it is ended before its time.
    reason: Option<String>,
    /// When its user is told in any case.
    due: Option<Time>,
    answered: bool,
}

impl Job {
    pub fn deadline(&self) -> Option<Time> {
        match &self.state {
            State::Running(Run { due, answered: false, .. }) => *due,
            _ => None,
        }
    }
}

/// A job as an operator sees it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Summary {
    /// Its number.
    pub job: JobId,
    /// Whose it is.
    pub uid: u32,
    /// Where it runs; empty while it waits.
    pub shares: Vec<Share>,
    /// Why it is being ended, if it is.
    pub ending: Option<String>,
    /// As it was asked for.
    pub priority: u8,
    /// Its processes; while it waits, how many it wants at least.
    pub nodes: u32,
    /// Since when it waits, or has its hosts.
    pub since: Time,
}

impl Cluster {
    /// All jobs that wait, run, or are being cleaned up after, by number.
    pub fn list(&self) -> impl Iterator<Item = Summary> + '_ {
        self.jobs.iter().map(|(number, job)| {
            let (shares, ending) = match &job.state {
                State::Waiting { .. } => (Vec::new(), None),
                State::Running(run) => (run.shares.clone(), run.reason.clone()),
            };
            let (priority, since) = (job.request.priority, job.since);
            let nodes = match shares.is_empty() {
                true => u32::try_from(job.request.shape.least()).unwrap_or(u32::MAX),
                false => shares.iter().map(|share| share.procs).sum(),
            };
            Summary { job: *number, uid: job.uid, shares, ending, priority, nodes, since }
        })
    }

    /// Where a job runs.
    pub(super) fn shares(&self, job: JobId) -> Option<&[Share]> {
        match &self.jobs.get(&job)?.state {
            State::Running(run) => Some(&run.shares),
            State::Waiting { .. } => None,
        }
    }

    /// Whether a job has asked for hosts of its own.
    pub fn wants_whole_hosts(&self, job: JobId) -> bool {
        let found = self.jobs.get(&job);
        found.is_some_and(|job| matches!(job.request.shape, Shape::Whole { .. }))
    }

    /// How many jobs go before a waiting one, if all of them start in turn.
    pub fn ahead(&self, number: JobId) -> Option<usize> {
        let job = self.jobs.get(&number)?;
        let State::Waiting { rank, .. } = job.state else { return None };
        Some(self.waiting.ahead(job.uid, rank))
    }

    pub(super) fn login(&mut self, session: SessionId, user: User) {
        let (limits, uid) = (self.setting.limits, user.uid);
        let current = self.incarnation(session.host) == Some(session.incarnation);
        let sessions = self.users.get(&uid).map_or(0, |usage| usage.sessions);
        let reason = if !current || !(session.host == SERVER || self.is_up(session.host)) {
            format!("host {} is not in the cluster", self.name(session.host))
        } else if self.sessions.contains_key(&session) {
            "the session has logged in before".to_owned()
        } else if self.sessions.len() >= limits.sessions {
            format!("{} users and programs are logged in, which is the limit", limits.sessions)
        } else if sessions >= limits.sessions_of_user {
            format!("you are logged in {sessions} times, which is the limit for one user")
        } else {
            self.users.entry(uid).or_default().sessions += 1;
            self.sessions.insert(session, Session { user, jobs: BTreeMap::new() });
            return;
        };
        self.log(format!("login of uid {uid} from {}: {reason}", self.name(session.host)));
        self.actions.push(Action::Dismissed { session, reason });
    }

    pub(super) fn submit(&mut self, session: SessionId, tag: u64, request: Request) {
        match self.accept(session, tag, request) {
            Ok(()) => {}
            Err(reason) => self.actions.push(Action::Refused { session, tag, reason }),
        }
    }

    fn accept(&mut self, session: SessionId, tag: u64, request: Request) -> Result<(), String> {
        let found = self.sessions.get(&session).ok_or("nobody has logged in here")?;
        let uid = found.user.uid;
        if found.jobs.contains_key(&tag) {
            return Err(format!("the session has a job {tag} already"));
        }
        self.check(uid, &request)?;
        let kept = self.kept();
        let free = self.search(&request, View::Free, &kept);
        if free.is_none() {
            self.search(&request, View::Known, &NodeSet::new())
                .ok_or_else(|| self.shortage(&request, View::Known))?;
            if !request.wait {
                return Err(self.shortage(&request, View::Free));
            }
            let (limits, all, own) =
                (self.setting.limits, self.waiting.len(), self.waiting.of(uid));
            if all >= limits.queued {
                return Err(format!("{all} jobs wait, which is the limit"));
            } else if own >= limits.queued_of_user {
                return Err(format!("{own} of your jobs wait, which is the limit for one user"));
            }
        }
        let job = self.number();
        let wait = request.wait;
        self.bytes += request.bytes;
        self.users.entry(uid).or_default().bytes += request.bytes;
        self.sessions.entry(session).and_modify(|found| _ = found.jobs.insert(tag, job));
        let rank = if wait { self.waiting.push(uid, request.priority, job) } else { (0, 0) };
        let state = State::Waiting { rank, passed: 0 };
        self.jobs.insert(job, Job { session, tag, uid, request, state, since: self.now });
        if let Some(shares) = free.filter(|_| !wait) {
            self.start(job, shares);
        } else {
            // Even when there is room: others may have been waiting longer for it.
            self.schedule();
            let waits = matches!(self.jobs[&job].state, State::Waiting { .. });
            // It fits only as long as some host is down, and others come first.
            if waits && let Some(never) = self.why_never(job) {
                self.waiting.remove(uid, rank);
                self.forget(job);
                return Err(never);
            }
            if waits {
                self.actions.push(Action::Queued { session, tag, job });
            }
        }
        Ok(())
    }

    fn why_never(&self, job: JobId) -> Option<String> {
        let request = &self.jobs.get(&job)?.request;
        let found = self.search(request, View::Known, &NodeSet::new());
        found.is_none().then(|| self.shortage(request, View::Known))
    }

    fn check(&self, uid: u32, request: &Request) -> Result<(), String> {
        let limits = self.setting.limits;
        let bytes = self.users.get(&uid).map_or(0, |usage| usage.bytes);
        if let Some(fault) = request.shape.fault() {
            return Err(fault);
        }
        if request.priority > LAST_PRIORITY {
            return Err(format!("priority {}: at most {LAST_PRIORITY}", request.priority));
        }
        let last = request.pools.iter().filter_map(NodeSet::last).max();
        if last.is_some_and(|last| last as usize >= self.hosts.len()) {
            return Err("a host that is not in the cluster is wanted".to_owned());
        }
        if bytes.saturating_add(request.bytes) > limits.bytes_of_user {
            return Err(format!(
                "your jobs take {bytes} bytes of the server; at most {} are given to one user",
                limits.bytes_of_user
            ));
        }
        if self.bytes.saturating_add(request.bytes) > limits.bytes {
            return Err(format!("all jobs take {} bytes of the server: no more fit", self.bytes));
        }
        Ok(())
    }

    /// A number that no living job has, and that none had for long.
    fn number(&mut self) -> JobId {
        loop {
            let job = self.next_job;
            self.next_job = if job >= i32::MAX as u32 { 1 } else { job + 1 };
            if !self.jobs.contains_key(&job) {
                return job;
            }
        }
    }

    /// Hosts that are kept for jobs which were passed too often.
    fn kept(&self) -> NodeSet {
        let mut kept = NodeSet::new();
        for job in self.waiting.heads() {
            let job = &self.jobs[&job];
            let State::Waiting { passed: PASSED.., .. } = job.state else { continue };
            // What needs hosts that are down keeps nobody else waiting.
            if self.search(&job.request, View::Present, &kept).is_some() {
                let all = || NodeSet::from(0..self.hosts.len() as u32);
                kept.union(&job.request.allowed().unwrap_or_else(all));
            }
        }
        kept
    }

    /// Starts what fits: each user's first job in turn, those that were passed too often before
    /// all others.
    pub(super) fn schedule(&mut self) {
        self.room = false;
        loop {
            let passed = |job: &JobId| match self.jobs[job].state {
                State::Waiting { passed, .. } => passed >= PASSED,
                State::Running(_) => false,
            };
            let (first, then): (Vec<_>, Vec<_>) = self.waiting.heads().partition(passed);
            let mut started = false;
            let mut kept = NodeSet::new();
            for (job, is_first) in
                first.into_iter().map(|job| (job, true)).chain(then.into_iter().map(|j| (j, false)))
            {
                let request = &self.jobs[&job].request;
                if let Some(shares) = self.search(request, View::Free, &kept) {
                    self.start(job, shares);
                    started = true;
                } else if is_first && self.search(request, View::Present, &kept).is_some() {
                    let all = || NodeSet::from(0..self.hosts.len() as u32);
                    kept.union(&request.allowed().unwrap_or_else(all));
                }
            }
            if !started {
                return;
            }
        }
    }

    fn start(&mut self, number: JobId, shares: Vec<Share>) {
        let Some(job) = self.jobs.get_mut(&number) else { return };
        if let (State::Waiting { rank, .. }, true) = (&job.state, job.request.wait) {
            self.waiting.took_turn(job.uid);
            self.waiting.remove(job.uid, *rank);
        }
        let (session, tag) = (job.session, job.tag);
        job.since = self.now;
        job.state = State::Running(Run {
            held: NodeSet::from(0..shares.len() as u32),
            shares: shares.clone(),
            code: None,
            reason: None,
            due: None,
            answered: false,
        });
        let memory = job.request.memory;
        for share in &shares {
            self.hosts[share.host as usize].take(share.procs, memory);
        }
        for other in self.waiting.heads().collect::<Vec<_>>() {
            let Some(other) = self.jobs.get_mut(&other) else { continue };
            let pools = &other.request.pools;
            let touches = |share: &Share| {
                pools.is_empty() || pools.iter().any(|pool| pool.contains(share.host))
            };
            if let State::Waiting { passed, .. } = &mut other.state
                && shares.iter().any(touches)
            {
                *passed += 1;
            }
        }
        let incarnations =
            shares.iter().map(|share| self.incarnation(share.host).unwrap_or_default()).collect();
        self.actions.push(Action::Start { session, tag, job: number, shares, incarnations });
    }

    /// Has a running job killed; the first reason is the one that is told.
    fn end(&mut self, number: JobId, reason: &str, now: Time) {
        let due = now + self.setting.times.cleanup;
        let Some(Job { state: State::Running(run), .. }) = self.jobs.get_mut(&number) else {
            return;
        };
        if run.reason.is_none() && run.code.is_none() {
            run.reason = Some(reason.to_owned());
            run.due.get_or_insert(due);
            self.actions.push(Action::End { job: number, reason: reason.to_owned() });
        }
        self.settle(number);
    }

    pub(super) fn released(&mut self, number: JobId, hosts: &NodeSet) {
        let Some(Job { state: State::Running(run), request, .. }) = self.jobs.get_mut(&number)
        else {
            return;
        };
        for (index, share) in (0..).zip(&run.shares) {
            if hosts.contains(index) && run.held.remove(index) {
                self.hosts[share.host as usize].give_back(share.procs, request.memory);
                self.room = true;
            }
        }
        self.settle(number);
    }

    pub(super) fn finished(&mut self, number: JobId, code: u8, now: Time) {
        let due = now + self.setting.times.cleanup;
        if let Some(Job { state: State::Running(run), .. }) = self.jobs.get_mut(&number) {
            run.code.get_or_insert(code);
            run.due.get_or_insert(due);
            self.settle(number);
        }
    }

    /// Tells the user once everything is clean, and forgets the job.
    fn settle(&mut self, number: JobId) {
        let Some(job) = self.jobs.get_mut(&number) else { return };
        let State::Running(run) = &mut job.state else { return };
        let over = run.held.is_empty() && (run.code.is_some() || run.reason.is_some());
        if over && !run.answered {
            run.answered = true;
            let (session, tag) = (job.session, job.tag);
            let (code, reason) = (run.code, run.reason.clone());
            self.actions.push(Action::Ended { session, tag, job: number, code, reason });
        }
        if over {
            self.forget(number);
        }
    }

    fn forget(&mut self, number: JobId) {
        let Some(job) = self.jobs.remove(&number) else { return };
        self.bytes -= job.request.bytes;
        if let Some(session) = self.sessions.get_mut(&job.session) {
            session.jobs.remove(&job.tag);
        }
        if let Some(usage) = self.users.get_mut(&job.uid) {
            usage.bytes -= job.request.bytes;
        }
        self.drop_usage(job.uid);
        self.room = true;
    }

    fn drop_usage(&mut self, uid: u32) {
        let unused = |usage: &Usage| usage.sessions == 0 && usage.bytes == 0;
        if self.users.get(&uid).is_some_and(unused) {
            self.users.remove(&uid);
        }
    }

    pub(super) fn cancel(&mut self, session: SessionId, tag: u64, now: Time) {
        let job = self.sessions.get(&session).and_then(|found| found.jobs.get(&tag).copied());
        if let Some(job) = job {
            self.end_any(job, "its user has ended it", now);
        }
    }

    pub(super) fn stop(&mut self, uid: u32, number: JobId, now: Time) {
        let Some(job) = self.jobs.get(&number) else { return };
        let by = if job.uid == uid { "its user" } else { "an operator" };
        if job.uid != uid && !self.is_operator(uid) {
            return self.log(format!("uid {uid} may not end job {number} of uid {}", job.uid));
        }
        self.end_any(number, &format!("{by} has ended it"), now);
    }

    fn end_any(&mut self, number: JobId, reason: &str, now: Time) {
        let Some(job) = self.jobs.get(&number) else { return };
        if let State::Waiting { rank, .. } = job.state {
            let (session, tag, reason) = (job.session, job.tag, Some(reason.to_owned()));
            self.waiting.remove(job.uid, rank);
            self.actions.push(Action::Ended { session, tag, job: number, code: None, reason });
            self.forget(number);
        } else {
            self.end(number, reason, now);
        }
    }

    pub(super) fn logout(&mut self, session: SessionId, reason: &str, now: Time) {
        let Some(found) = self.sessions.remove(&session) else { return };
        for job in found.jobs.into_values() {
            self.end_any(job, reason, now);
        }
        if let Some(usage) = self.users.get_mut(&found.user.uid) {
            usage.sessions -= 1;
        }
        self.drop_usage(found.user.uid);
    }

    pub(super) fn broken(&mut self, number: JobId, host: HostId, reason: &str, now: Time) {
        let text = format!("host {}: {reason}", self.name(host));
        self.end(number, &text, now);
    }

    /// A host was given up: what it had of any job is gone, and with it the job.
    pub(super) fn lose_host(&mut self, host: HostId, reason: &str, now: Time) {
        let has = |run: &Run| run.held.iter().any(|index| run.shares[index as usize].host == host);
        let lost: Vec<_> = self
            .jobs
            .iter()
            .filter(|(_, job)| matches!(&job.state, State::Running(run) if has(run)))
            .map(|(number, _)| *number)
            .collect();
        for number in lost {
            if let Some(Job { state: State::Running(run), request, .. }) =
                self.jobs.get_mut(&number)
            {
                for (index, share) in (0..).zip(&run.shares) {
                    if share.host == host && run.held.remove(index) {
                        self.hosts[host as usize].give_back(share.procs, request.memory);
                    }
                }
            }
            self.end(number, reason, now);
        }
        let gone = |session: &&SessionId| session.host == host;
        for session in self.sessions.keys().filter(gone).copied().collect::<Vec<_>>() {
            self.actions.push(Action::Dismissed { session, reason: reason.to_owned() });
            self.logout(session, reason, now);
        }
        self.room = true;
    }

    /// A job that is over and whose hosts do not all say that they are clean: its user need not
    /// wait for them.
    pub(super) fn tick_jobs(&mut self, now: Time) {
        let due = |job: &Job| job.deadline().is_some_and(|due| due <= now);
        let late = self.jobs.iter().filter(|(_, job)| due(job)).map(|(number, _)| *number);
        for number in late.collect::<Vec<_>>() {
            let Some(job) = self.jobs.get_mut(&number) else { continue };
            let (session, tag) = (job.session, job.tag);
            let State::Running(run) = &mut job.state else { continue };
            run.answered = true;
            let (code, reason) = (run.code, run.reason.clone());
            let held = run.held.iter().map(|index| run.shares[index as usize].host);
            let held: Vec<_> = held.take(8).collect();
            self.actions.push(Action::Ended { session, tag, job: number, code, reason });
            let names: Vec<_> = held.into_iter().map(|host| self.name(host)).collect();
            self.log(format!("job {number} is over and still held by {}", names.join(", ")));
        }
    }
}
