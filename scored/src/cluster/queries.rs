//! Queries that the server's shell makes on the cluster state.

use score_proto::peer_message::{HostId, Incarnation, SERVER};

use super::JobId;
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

    /// The number of jobs that wait.
    pub fn pending_count(&self) -> usize {
        self.pending.len()
    }

    /// The number of jobs of all users, those that wait included.
    pub fn job_count(&self) -> usize {
        self.jobs.len()
    }

    /// Whether this user may see all jobs of other users, and end them.
    pub fn is_operator(&self, uid: u32) -> bool {
        uid == 0 || self.config.operators.contains(&uid)
    }

    /// Whether this user may end a job.
    ///
    /// # Errors
    /// One line.
    pub fn may_stop(&self, uid: u32, job: JobId) -> Result<(), String> {
        match self.jobs.get(&job) {
            None => Err(format!("there is no job {job}")),
            Some(found) if found.uid != uid && !self.is_operator(uid) => {
                Err(format!("job {job} is another user's, and you are no operator"))
            }
            Some(_) => Ok(()),
        }
    }
}
