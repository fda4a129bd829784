//! Queries of the daemon about the state of the cluster.

use score_proto::ids::{HostId, JobId};
use score_proto::peer_message::{Incarnation, SERVER};

use super::server::ServerState;

impl ServerState {
    /// The server's own incarnation.
    pub fn server_incarnation(&self) -> Incarnation {
        self.config.server_incarnation
    }

    /// The incarnation of another host, while the host belongs to the cluster.
    pub fn incarnation_of(&self, host: HostId) -> Option<Incarnation> {
        if host == SERVER { None } else { self.incarnation(host) }
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
}
