//! Decides what a user may do with a job. No other code decides this. Functions that act on a job
//! take a permit, which only this module can make. The table of permissions is in
//! docs/admin/security.md, "Who may send what". A test compares the table with this code.

use score_proto::ids::JobId;

/// A user who has logged in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Requester {
    /// The user.
    pub uid: u32,
    /// True for root, and for users that the cluster's configuration names as operators.
    pub is_operator: bool,
}

/// An action of a user on a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum JobAction {
    /// End the job.
    Kill,
    /// Get the metrics of the job.
    Watch,
    /// Read and change the processes of the job, as tools do.
    Debug,
    /// See the state, the fraction of processor time and the number of nodes of the job. Its
    /// number, user and hosts are public.
    SeeDetails,
}

/// The permission for an action on one job.
#[derive(Debug, PartialEq, Eq)]
#[cfg_attr(test, derive(Clone))]
pub struct JobPermit {
    uid: u32,
    job: JobId,
}

/// The permission to see the daemon's own statistics.
#[derive(Debug, PartialEq, Eq)]
pub struct StatisticsPermit(());

impl JobPermit {
    /// The user who acts.
    pub fn uid(&self) -> u32 {
        self.uid
    }

    /// The job.
    pub fn job(&self) -> JobId {
        self.job
    }

    /// A permit that was not granted. State machines must survive it.
    #[cfg(test)]
    pub fn forged(uid: u32, job: JobId) -> Self {
        Self { uid, job }
    }
}

/// Decides on an action on a job of this owner.
///
/// # Errors
/// One line for the user.
pub fn authorize(
    requester: Requester,
    action: JobAction,
    job: JobId,
    owner_uid: u32,
) -> Result<JobPermit, String> {
    let is_own = requester.uid == owner_uid;
    let is_permitted = match action {
        JobAction::Kill | JobAction::Watch | JobAction::SeeDetails => {
            is_own || requester.is_operator
        }
        // The processes have the rights of their user. An operator may have fewer rights.
        JobAction::Debug => is_own,
    };
    match (is_permitted, action) {
        (true, _) => Ok(JobPermit { uid: requester.uid, job }),
        (false, JobAction::Debug) => Err(no_own_job(job)),
        (false, _) => Err(format!("job {job} is another user's, and you are not an operator")),
    }
}

/// An error that does not show the user of a tool whether a job of another user exists.
pub(super) fn no_own_job(job: JobId) -> String {
    format!("you have no job {job}; scps lists your jobs")
}

/// Decides whether a user may see the daemon's own statistics.
pub fn authorize_statistics(requester: Requester) -> Option<StatisticsPermit> {
    requester.is_operator.then_some(StatisticsPermit(()))
}
