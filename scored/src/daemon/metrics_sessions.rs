//! Sessions that watch a job (`scmon JOB`): they get its metrics until the job ends.

use score_job::cluster::JobPermit;
use score_job::master::MasterEvent;
use score_job::metrics_subscribers::Subscriber;
use score_proto::client_session::SESSION_JOB;
use score_proto::message::{JobEnd, ServerMessage};
use score_proto::observation::Metrics;

use super::Daemon;

impl Daemon {
    /// A session subscribes to the metrics of a job that this daemon leads.
    ///
    /// # Errors
    /// One line: the job has no metrics yet.
    pub fn watch_job(
        &mut self,
        session_key: usize,
        permit: &JobPermit,
        period_ms: u32,
    ) -> Result<(), String> {
        let job = permit.job();
        if !self.led_jobs.contains_key(&job) {
            return Err(format!("job {job} is still queued; no metrics are available yet"));
        }
        self.unwatch(session_key);
        self.metrics_sessions.insert(session_key, job);
        let period_ms = period_ms.max(1);
        self.step_master(
            Some(job),
            MasterEvent::SubscribeMetrics(Subscriber::Session(session_key), period_ms),
        );
        Ok(())
    }

    /// Sends a job's metrics to the sessions that watch it, in addition to the job's own scrun.
    pub fn send_metrics_to_watchers(&mut self, job: u32, metrics: Metrics) {
        let message = ServerMessage::Metrics(metrics);
        for (session_key, _) in
            self.metrics_sessions.iter().filter(|(_, watched_job)| **watched_job == job)
        {
            if let Some(session) = self.sessions.get_mut(session_key) {
                session.send(SESSION_JOB, &message);
            }
        }
    }

    /// A session has ended, or does not watch a job any more.
    pub fn unwatch(&mut self, session_key: usize) {
        if let Some(job) = self.metrics_sessions.remove(&session_key) {
            self.step_master(
                Some(job),
                MasterEvent::SubscribeMetrics(Subscriber::Session(session_key), 0),
            );
        }
    }

    /// A job has ended. The sessions that watch it are notified.
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
