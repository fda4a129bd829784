//! What users and operators ask about jobs.

use score_proto::listing::{JobDetail, JobLine, JobState, LINES, NAMED};
use score_proto::login::LOGIN;
use score_proto::message::{Console, JobEnd, Up};

use super::super::session::Lane;
use super::super::{Daemon, REFUSED};
use super::{Role, info, warn};
use crate::cluster::{self, Cluster};

impl Daemon {
    /// Somebody asks about jobs.
    pub fn console(&mut self, number: usize, console: Console) {
        let Some(owner) = self.sessions.get(&number).and_then(|one| one.owner.clone()) else {
            return self.refuse(Lane::of(number), "log in first".to_owned(), REFUSED);
        };
        let Some(Role::Server(cluster)) = self.service.as_ref().map(|service| &service.role) else {
            return self.refuse(
                Lane::of(number),
                "this scored serves one user only".to_owned(),
                REFUSED,
            );
        };
        match console {
            Console::List => {
                let lines = self.job_lines(owner.uid);
                let Some(session) = self.sessions.get_mut(&number) else { return };
                for some in lines.chunks(LINES) {
                    session.tell(LOGIN, &Up::Jobs(some.to_vec()));
                }
            }
            Console::Page => {
                let reason = "the scored of this cluster has no page".to_owned();
                return self.refuse(Lane::of(number), reason, REFUSED);
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

    /// All jobs of the cluster as this user may see them: details of the own ones only, unless it
    /// is an operator.
    pub fn job_lines(&self, uid: u32) -> Vec<JobLine> {
        let Some(service) = &self.service else { return Vec::new() };
        let Role::Server(cluster) = &service.role else { return Vec::new() };
        let sees_all = cluster.is_operator(uid);
        let line = |job: cluster::Summary| {
            let named = job.shares.iter().take(NAMED).map(|share| cluster.name(share.host));
            let detail = (sees_all || job.uid == uid).then(|| detail(&job, cluster, service.now()));
            JobLine {
                job: job.job,
                uid: job.uid,
                hosts: u32::try_from(job.shares.len()).unwrap_or(u32::MAX),
                names: named.map(str::to_owned).collect(),
                detail,
            }
        };
        cluster.list().map(line).collect()
    }
}

fn detail(job: &cluster::Summary, cluster: &Cluster, now: cluster::Time) -> JobDetail {
    let state = match cluster.ahead(job.job) {
        Some(ahead) => JobState::Waiting { ahead: u32::try_from(ahead).unwrap_or(u32::MAX) },
        None if job.ending.is_some() => JobState::Ending,
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
