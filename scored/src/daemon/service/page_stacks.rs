//! Stacks of jobs on the status page: checks which user may read them, and passes the stacks to
//! [`crate::http::stack_trees`].

use score_job::cluster::JobAction;
use score_job::jobs::Jobs;
use score_job::master::PageStacks;
use score_proto::ids::JobId;
use score_proto::server_message::ReportedStacks;

use super::{Role, Service};
use crate::http::response::Status;
use crate::sys::wall_clock::unix_seconds;

impl Service {
    /// Returns the response to a request for the stacks of a job. If the stacks are to be read now,
    /// also returns the job. `reads` says whether the user requests a new reading. Only the owner
    /// of the job may request a reading, as with all tools. An unknown number gets the same
    /// response as a job of another user.
    pub(super) fn stacks_response(
        &mut self,
        uid: u32,
        job: &str,
        reads: bool,
        led_jobs: &Jobs,
    ) -> Result<(String, Option<JobId>), Status> {
        let now = self.now();
        let (Role::Server(cluster), Some(page)) = (&self.role, &mut self.page) else {
            return Err(Status::NotFound);
        };
        let job = JobId(job.parse().map_err(|_| Status::NotFound)?);
        let mut reading = None;
        if reads {
            let permit = cluster.authorize(uid, JobAction::Debug, job);
            let job = permit.map_err(|_| Status::NotFound)?.job();
            let begun = page.stacks.begin(job, uid, now, unix_seconds());
            if begun.map_err(|_| Status::TooManyRequests)? {
                match led_jobs.leads(job) {
                    true => reading = Some(job),
                    false => {
                        let reason = "it has no processes now: it is queued, or ends".to_owned();
                        page.stacks.on_stacks(job, PageStacks::Refused(reason));
                    }
                }
            }
        }
        // The kept stacks belong to the user who requested the reading, even after the end of the
        // job.
        let answer = page.stacks.json(job, uid, now).ok_or(Status::NotFound)?;
        Ok((answer, reading))
    }
}

impl Service {
    /// Stores stacks of a job that a reader of the page has requested.
    pub fn update_page_stacks(&mut self, job: JobId, stacks: PageStacks) {
        if let Some(page) = &mut self.page {
            page.stacks.on_stacks(job, stacks);
        }
    }

    /// Keeps the stacks of a job that its user gets with a deadlock or crash report, for the page.
    pub fn keep_reported_stacks(&mut self, job: JobId, stacks: &ReportedStacks) {
        let now = self.now();
        let (Role::Server(cluster), Some(page)) = (&self.role, &mut self.page) else { return };
        let owner = || cluster.list().find(|line| line.job == job).map(|line| line.uid);
        page.stacks.on_report(job, owner, stacks, now, unix_seconds());
    }
}
