//! The jobs of a cluster, as scps lists them.

use serde::{Deserialize, Serialize};

/// Jobs in one [`crate::message::ServerMessage::Jobs`] at most.
pub const MAX_JOBS_PER_MESSAGE: usize = 128;

/// Hosts of a job that are named at most.
pub const MAX_HOST_NAMES: usize = 64;

/// A job. What only its user and operators may know is apart.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct JobEntry {
    /// Its number.
    pub job: u32,
    /// Whose it is.
    pub uid: u32,
    /// How many hosts it has; 0 while it waits.
    pub hosts: u32,
    /// The first [`MAX_HOST_NAMES`] of them.
    pub host_names: Vec<String>,
    /// For its user and for operators.
    pub detail: Option<JobDetail>,
}

impl JobEntry {
    /// The name of its state.
    pub fn state(&self) -> &'static str {
        match self.detail.as_ref().map(|detail| detail.state) {
            None if self.hosts == 0 => "waiting",
            None | Some(JobState::Running) => "running",
            Some(JobState::Waiting { .. }) => "waiting",
            Some(JobState::Suspended) => "suspended",
            Some(JobState::Ending) => "ending",
        }
    }

    /// How many jobs go before it, if that is known.
    pub fn jobs_ahead(&self) -> Option<u32> {
        self.detail.and_then(|detail| match detail.state {
            JobState::Waiting { jobs_ahead: ahead } => Some(ahead),
            _ => None,
        })
    }

    /// As JSON has it.
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

/// What JSON tells of a job everywhere; null is what is not known. Hosts are told in different
/// ways.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct JobJson {
    job: u32,
    uid: u32,
    state: &'static str,
    ahead: Option<u32>,
    priority: Option<u8>,
    nodes: Option<u32>,
    since_ms: Option<u64>,
    share_permille: Option<u16>,
}

/// More of a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct JobDetail {
    /// Where it stands.
    pub state: JobState,
    /// 0 to 15; a smaller number is a larger share.
    pub priority: u8,
    /// Its processes; while it waits, how many it wants at least.
    pub nodes: u32,
    /// Since it was submitted or, once it has hosts, since it got them: in milliseconds.
    pub since_ms: u64,
    /// How much of the time it had its processors lately, of 1000; none while it is not known.
    pub share_permille: Option<u16>,
}

/// Where a job stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum JobState {
    /// For room, behind so many others.
    Waiting {
        /// Those that go before it if all start in turn.
        jobs_ahead: u32,
    },
    /// It has its hosts.
    Running,
    /// Suspended: by its user, or because nobody takes its output.
    Suspended,
    /// It is being ended.
    Ending,
}
