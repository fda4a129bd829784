//! Computes how long the daemon's loop may wait for events, and enforces the stops whose deadlines
//! have passed.

use std::time::{Duration, Instant};

use score_job::jobs::SessionKey;

use super::client_request::Readiness;
use super::host_jobs::EnforcedStop;
use super::peers::Peers;
use super::service::LogTopic;
use super::session::ClientSession;
use super::{Daemon, is_parent_slow};

impl Daemon {
    /// The time until the earliest deadline of all parts of the daemon. Zero if there is work
    /// already.
    pub(super) fn timeout(&self, now: Instant) -> Option<Duration> {
        let (jobs, peers) = (self.jobs.state(), self.peers.as_ref());
        let may_have_more = |(key, session): (SessionKey, &ClientSession)| {
            session.may_have_more() && self.readiness(key, now) == Readiness::Ready
        };
        if self.sessions.active().any(may_have_more)
            || self.sessions.can_wake(|uid| self.usage.may_be_read(uid, now))
            || self.host_jobs.may_have_more(&self.usage, |job| is_parent_slow(job, jobs, peers))
            || self.peers.as_ref().is_some_and(Peers::may_have_more)
            || self.single_user.may_have_more()
        {
            return Some(Duration::ZERO);
        }
        let link_timeout = self.peers.as_ref().and_then(|peers| peers.deadline(now));
        let service_timeout = self.service.as_ref().map(|service| service.deadline(now));
        let hold_timeout = self.latency_hold.deadline();
        let hold_timeout = hold_timeout.map(|due| due.saturating_duration_since(now));
        // epoll counts milliseconds. The time-out is rounded up; otherwise the loop would spin
        // until the deadline.
        let sessions = self.sessions.active();
        let frame_deadlines = sessions.filter_map(|(_, session)| session.frame_deadline());
        let deadlines =
            [self.host_jobs.deadline(), self.single_user.deadline(), frame_deadlines.min()];
        let deadline = deadlines.into_iter().flatten().min();
        let deadline_timeout = deadline.map(|due| due.saturating_duration_since(now));
        let timeouts = [
            link_timeout,
            self.single_user.accept_retry(),
            service_timeout,
            self.jobs.timeout(),
            hold_timeout,
            deadline_timeout,
            self.sessions.control_deadline(&self.usage, now),
            self.usage.next_control(now),
            self.usage.next_refill(),
            self.service.as_ref().and_then(|service| service.login_deadline(&self.sessions, now)),
            self.service.as_ref().and_then(|service| service.systemd_deadline(now)),
        ];
        timeouts.into_iter().flatten().min().map(|left| left + Duration::from_millis(1))
    }
}

impl Daemon {
    /// The end of the pause in accepting clients, if a client waits and there is room for it.
    pub(super) fn accept_pause_end(&self) -> Option<Instant> {
        self.service.as_ref()?.accept_pause_end(&self.sessions)
    }

    /// Enforces the stops whose deadlines have passed. Logs the first one of each job.
    pub fn enforce_stops(&mut self) {
        for EnforcedStop { job, owner_uid, enforcement } in
            self.host_jobs.enforce_stops(&mut self.usage)
        {
            self.jobs.end_rotation_with(job);
            if let (Some(service), Some(text)) = (&mut self.service, enforcement.log_text()) {
                let topic = owner_uid.map_or(LogTopic::Daemon, LogTopic::User);
                service.warn_about(topic, &format!("job {job}: {text}"));
            }
        }
    }
}
