//! Sessions that watch a job of somebody's (`scmon JOB`): they get its figures until it ends.

use score_proto::login::LOGIN;
use score_proto::message::{JobEnd, Up};
use score_proto::sight::Figures;

use super::Daemon;
use crate::job::life::Event;
use crate::job::watchers::Watcher;

impl Daemon {
    /// A session wants figures of a job that this daemon leads.
    ///
    /// # Errors
    /// One line: there is nothing to be seen.
    pub fn watch_job(&mut self, session: usize, job: u32, period_ms: u32) -> Result<(), String> {
        if !self.leads.contains_key(&job) {
            return Err(format!("job {job} waits still: there is nothing to be seen of it"));
        }
        self.unwatch(session);
        self.watching.insert(session, job);
        let period_ms = period_ms.max(1);
        self.lead(Some(job), Event::Watch(Watcher::Session(session), period_ms));
        Ok(())
    }

    /// Figures of a job, for whoever watches it beside its own scrun.
    pub fn show(&mut self, job: u32, figures: Figures) {
        let up = Up::Figures(figures);
        for (session, _) in self.watching.iter().filter(|(_, watched)| **watched == job) {
            if let Some(session) = self.sessions.get_mut(session) {
                session.tell(LOGIN, &up);
            }
        }
    }

    /// A session has gone, or watches no more.
    pub fn unwatch(&mut self, session: usize) {
        if let Some(job) = self.watching.remove(&session) {
            self.lead(Some(job), Event::Watch(Watcher::Session(session), 0));
        }
    }

    /// A job is over: whoever watches it is told.
    pub fn watched_is_over(&mut self, job: u32, code: u8) {
        let all = std::mem::take(&mut self.watching);
        for (session, watched) in all {
            if watched != job {
                self.watching.insert(session, watched);
            } else if let Some(session) = self.sessions.get_mut(&session) {
                let end = JobEnd { code, usage: Vec::new(), elapsed_ns: 0 };
                session.tell(LOGIN, &Up::Finished(end));
            }
        }
    }
}
