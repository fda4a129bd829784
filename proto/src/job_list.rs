//! The jobs of a cluster, in the form in which scps lists them.

use crate::ids::JobId;
use serde::{Deserialize, Serialize};

/// Largest number of jobs in one [`crate::server_message::ListAnswer::Jobs`].
pub const MAX_JOBS_PER_MESSAGE: usize = 128;

/// Largest number of hosts of a job whose names are listed.
pub const MAX_HOST_NAMES: usize = 64;

/// A job. `detail` contains the part that only its user and operators may see.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct JobEntry {
    /// The number of the job.
    pub job: JobId,
    /// The owner of the job.
    pub uid: u32,
    /// Number of hosts of the job; 0 while the job waits.
    pub hosts: u32,
    /// The names of the first [`MAX_HOST_NAMES`] of these hosts.
    pub host_names: Vec<String>,
    /// Details, for its user and for operators.
    pub detail: Option<JobDetail>,
}

impl JobEntry {
    /// The name of the job's state, for the user.
    pub fn state(&self) -> &'static str {
        match self.detail.as_ref().map(|detail| detail.state) {
            None if self.hosts == 0 => "waiting",
            None | Some(JobState::Running) => "running",
            Some(JobState::Waiting { .. }) => "waiting",
            Some(JobState::Suspended) => "suspended",
            Some(JobState::SuspectedHang) => "suspected-hang",
            Some(JobState::Ending) => "ending",
        }
    }

    /// Number of jobs that precede this job in the queue, if known.
    pub fn jobs_ahead(&self) -> Option<u32> {
        self.detail.and_then(|detail| match detail.state {
            JobState::Waiting { jobs_ahead: ahead } => Some(ahead),
            _ => None,
        })
    }

    /// The job as JSON.
    pub fn to_json(&self) -> JobJson {
        let detail = self.detail.as_ref();
        JobJson {
            job: self.job,
            uid: self.uid,
            state: self.state(),
            ahead: self.jobs_ahead(),
            priority: detail.map(|detail| detail.priority),
            nodes: detail.map(|detail| detail.nodes),
            since_ms: detail.map(|detail| detail.since_ms),
            share_permille: detail.and_then(|detail| detail.share_permille),
        }
    }
}

/// The fields of a job that all JSON output has. null means unknown. Each output adds hosts in its
/// own way.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct JobJson {
    job: JobId,
    uid: u32,
    state: &'static str,
    ahead: Option<u32>,
    priority: Option<u8>,
    nodes: Option<u32>,
    since_ms: Option<u64>,
    share_permille: Option<u16>,
}

/// Details of a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct JobDetail {
    /// The state of the job.
    pub state: JobState,
    /// The priority of the job, from 0 to 15. A smaller number means a larger fraction of processor
    /// time.
    pub priority: u8,
    /// The number of processes of the job. While the job waits, the smallest number that it
    /// requests.
    pub nodes: u32,
    /// Milliseconds since the job was submitted. If the job has hosts, milliseconds since it got
    /// them.
    pub since_ms: u64,
    /// The fraction of recent time in which the job had its processors, in thousandths, if known.
    pub share_permille: Option<u16>,
}

/// The state of a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum JobState {
    /// The job waits for hosts.
    Waiting {
        /// Number of jobs that start before it if all jobs start in order.
        jobs_ahead: u32,
    },
    /// The job has its hosts.
    Running,
    /// All processes of the job have waited for each other for a long time. It cannot be proved
    /// that they will wait for ever.
    SuspectedHang,
    /// The job is suspended by its user, or because its output is not being read.
    Suspended,
    /// The job is being ended.
    Ending,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_state_of_a_job_is_named_and_only_a_waiting_job_has_a_position() {
        for (hosts, state, name, jobs_ahead) in [
            (0, None, "waiting", None),
            (2, None, "running", None),
            (0, Some(JobState::Waiting { jobs_ahead: 3 }), "waiting", Some(3)),
            (2, Some(JobState::Running), "running", None),
            (2, Some(JobState::SuspectedHang), "suspected-hang", None),
            (2, Some(JobState::Suspended), "suspended", None),
            (2, Some(JobState::Ending), "ending", None),
        ] {
            let detail = state.map(|state| JobDetail {
                state,
                priority: 8,
                nodes: 4,
                since_ms: 5000,
                share_permille: None,
            });
            let entry = JobEntry { job: JobId(1), uid: 1000, hosts, host_names: vec![], detail };
            assert_eq!((entry.state(), entry.jobs_ahead()), (name, jobs_ahead));
            assert_eq!(entry.to_json().ahead, jobs_ahead);
        }
    }
}
