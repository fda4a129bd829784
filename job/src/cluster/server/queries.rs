//! Queries of the daemon about the state of the cluster.

use score_proto::ids::{HostId, JobId};
use score_proto::peer_message::{Incarnation, SERVER};

use super::ServerState;
use crate::cluster::JobPermit;
use crate::cluster::authorization::{self, JobAction, Requester};

impl ServerState {
    /// The server's own incarnation.
    pub fn server_incarnation(&self) -> Incarnation {
        self.config.server_incarnation
    }

    /// The incarnation of another host, while the host belongs to the cluster.
    pub fn incarnation_of(&self, host: HostId) -> Option<Incarnation> {
        if host == SERVER { None } else { self.membership.incarnation(host) }
    }

    /// The number of waiting jobs.
    pub fn pending_count(&self) -> usize {
        self.pending.len()
    }

    /// The number of jobs of all users, including waiting jobs.
    pub fn job_count(&self) -> usize {
        self.jobs.len()
    }

    /// Whether this user is root or an operator of the cluster.
    pub fn is_operator(&self, uid: u32) -> bool {
        uid == 0 || self.config.operators.contains(&uid)
    }

    /// The user of a job.
    pub fn owner_of(&self, job: JobId) -> Option<u32> {
        Some(self.jobs.get(&job)?.uid)
    }

    /// A user, with the user's role in this cluster.
    pub fn requester(&self, uid: u32) -> Requester {
        Requester { uid, is_operator: self.is_operator(uid) }
    }

    /// Decides on an action on a job, like [`authorization::authorize`].
    ///
    /// # Errors
    /// One line for the user, also if there is no such job.
    pub fn authorize(&self, uid: u32, action: JobAction, job: JobId) -> Result<JobPermit, String> {
        let owner_uid = self.owner_of(job).ok_or_else(|| match action {
            JobAction::Debug => authorization::no_own_job(job),
            JobAction::Kill | JobAction::Watch | JobAction::SeeDetails => {
                format!("there is no job {job}")
            }
        })?;
        authorization::authorize(self.requester(uid), action, job, owner_uid)
    }
}
