//! What the server's shell asks its machine.

use score_proto::peer::{HostId, Incarnation, SERVER};

use super::JobId;
use super::machine::Cluster;

impl Cluster {
    /// The server's own incarnation.
    pub fn server(&self) -> Incarnation {
        self.setting.server
    }

    /// That of another host, while it belongs to the cluster.
    pub fn incarnation_of(&self, host: HostId) -> Option<Incarnation> {
        if host == SERVER { None } else { self.incarnation(host) }
    }

    /// How many jobs wait.
    pub fn waiting(&self) -> usize {
        self.waiting.len()
    }

    /// Whether this user may see all of the jobs of others, and end them.
    pub fn is_operator(&self, uid: u32) -> bool {
        uid == 0 || self.setting.operators.contains(&uid)
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
