//! What users and operators ask about jobs.

use std::collections::HashMap;

use score_proto::listing::{JobDetail, JobLine, JobState, LINES, NAMED};
use score_proto::login::LOGIN;
use score_proto::message::{Console, JobEnd, Up};

use super::super::session::Lane;
use super::super::slices::Slices;
use super::super::{Daemon, REFUSED};
use super::{Role, Service, info, warn};
use crate::cluster::{self, Cluster};

impl Daemon {
    /// Somebody asks about jobs.
    pub fn console(&mut self, number: usize, console: Console) {
        let Some(owner) = self.sessions.get(&number).and_then(|one| one.owner.clone()) else {
            return self.refuse(Lane::of(number), "log in first".to_owned(), REFUSED);
        };
        let serves_one = || "this scored serves one user only".to_owned();
        let Some(service) = &mut self.service else {
            return self.refuse(Lane::of(number), serves_one(), REFUSED);
        };
        let Role::Server(cluster) = &service.role else {
            return self.refuse(Lane::of(number), serves_one(), REFUSED);
        };
        match console {
            Console::List => {
                let lines = service.job_lines(owner.uid, &self.slices);
                let Some(session) = self.sessions.get_mut(&number) else { return };
                for some in lines.chunks(LINES) {
                    session.tell(LOGIN, &Up::Jobs(some.to_vec()));
                }
            }
            Console::Page => {
                let told = match service.page_of(owner.uid) {
                    Ok(told) => told,
                    Err(reason) => return self.refuse(Lane::of(number), reason, REFUSED),
                };
                self.sessions.get_mut(&number).into_iter().for_each(|one| one.tell(LOGIN, &told));
            }
            Console::Watch { job, period_ms } => {
                let allowed = cluster.may_stop(owner.uid, job);
                if let Err(reason) = allowed.and_then(|()| self.watch_job(number, job, period_ms)) {
                    self.refuse(Lane::of(number), reason, REFUSED);
                }
                // Until the job is over, or the session.
                return;
            }
            Console::Kill(job) => match cluster.may_stop(owner.uid, job) {
                Err(reason) => {
                    warn(&format!("uid {} wants job {job} ended: {reason}", owner.uid));
                    return self.refuse(Lane::of(number), reason, REFUSED);
                }
                Ok(()) => {
                    info(&format!("uid {} has job {job} ended", owner.uid));
                    self.cluster(cluster::Event::Stop { uid: owner.uid, job });
                }
            },
        }
        let end = JobEnd { code: 0, usage: Vec::new(), elapsed_ns: 0 };
        if let Some(session) = self.sessions.get_mut(&number) {
            session.tell(LOGIN, &Up::Finished(end));
        }
    }
}

impl Service {
    /// All jobs of the cluster as this user may see them: details of the own ones only, unless it
    /// is an operator.
    pub fn job_lines(&self, uid: u32, slices: &Slices) -> Vec<JobLine> {
        let Role::Server(cluster) = &self.role else { return Vec::new() };
        let sees_all = cluster.is_operator(uid);
        let jobs: Vec<_> = cluster.list().collect();
        let born: HashMap<_, _> = jobs.iter().map(|job| (job.job, job.since)).collect();
        let shares = self
            .page
            .as_ref()
            .map(|page| page.history.shares(self.now(), |job| born.get(&job).copied()));
        let shares = shares.unwrap_or_default();
        let line = |job: cluster::Summary| {
            let named = job.shares.iter().take(NAMED).map(|share| cluster.name(share.host));
            let seen =
                (sees_all || job.uid == uid).then(|| detail(&job, cluster, self.now(), slices));
            let share = shares.get(&job.job).copied();
            let detail = seen.map(|detail| JobDetail { share, ..detail });
            JobLine {
                job: job.job,
                uid: job.uid,
                hosts: u32::try_from(job.shares.len()).unwrap_or(u32::MAX),
                names: named.map(str::to_owned).collect(),
                detail,
            }
        };
        jobs.into_iter().map(line).collect()
    }
}

fn detail(
    job: &cluster::Summary,
    cluster: &Cluster,
    now: cluster::Time,
    slices: &Slices,
) -> JobDetail {
    let state = match cluster.ahead(job.job) {
        Some(ahead) => JobState::Waiting { ahead: u32::try_from(ahead).unwrap_or(u32::MAX) },
        None if job.ending.is_some() => JobState::Ending,
        None if slices.is_suspended(job.job) => JobState::Suspended,
        None => JobState::Running,
    };
    let since_ms = now.saturating_sub(job.since).as_millis();
    JobDetail {
        state,
        priority: job.priority,
        nodes: job.nodes,
        since_ms: u64::try_from(since_ms).unwrap_or(u64::MAX),
        share: None,
    }
}
