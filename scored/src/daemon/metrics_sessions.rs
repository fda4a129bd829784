//! Sessions that watch a job of somebody's (`scmon JOB`): they get its figures until it ends.

use score_proto::client_session::SESSION_JOB;
use score_proto::message::{JobEnd, ServerMessage};
use score_proto::observation::Metrics;

use super::Daemon;
use crate::job::master::MasterEvent;
use crate::job::metrics_subscribers::Subscriber;

impl Daemon {
    /// A session wants figures of a job that this daemon leads.
    ///
    /// # Errors
    /// One line: there is nothing to be seen.
    pub fn watch_job(
        &mut self,
        session_key: usize,
        job: u32,
        period_ms: u32,
    ) -> Result<(), String> {
        if !self.led_jobs.contains_key(&job) {
            return Err(format!("job {job} waits still: there is nothing to be seen of it"));
        }
        self.unwatch(session_key);
        self.metrics_sessions.insert(session_key, job);
        let period_ms = period_ms.max(1);
        self.step_master(
            Some(job),
            MasterEvent::Watch(Subscriber::Session(session_key), period_ms),
        );
        Ok(())
    }

    /// Figures of a job, for whoever watches it beside its own scrun.
    pub fn send_metrics_to_watchers(&mut self, job: u32, figures: Metrics) {
        let up = ServerMessage::Metrics(figures);
        for (session_key, _) in
            self.metrics_sessions.iter().filter(|(_, watched_job)| **watched_job == job)
        {
            if let Some(session) = self.sessions.get_mut(session_key) {
                session.send(SESSION_JOB, &up);
            }
        }
    }

    /// A session has gone, or watches no more.
    pub fn unwatch(&mut self, session_key: usize) {
        if let Some(job) = self.metrics_sessions.remove(&session_key) {
            self.step_master(Some(job), MasterEvent::Watch(Subscriber::Session(session_key), 0));
        }
    }

    /// A job is over: whoever watches it is told.
    pub fn on_watched_job_end(&mut self, job: u32, code: u8) {
        let watchers = std::mem::take(&mut self.metrics_sessions);
        for (session_key, watched_job) in watchers {
            if watched_job != job {
                self.metrics_sessions.insert(session_key, watched_job);
            } else if let Some(session) = self.sessions.get_mut(&session_key) {
                let end = JobEnd { code, usage: Vec::new(), elapsed_ns: 0 };
                session.send(SESSION_JOB, &ServerMessage::Finished(end));
            }
        }
    }
}
