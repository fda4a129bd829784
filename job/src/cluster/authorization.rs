//! The only place that decides what a user may do with a job. Whoever acts takes the permit, which
//! nothing else can make. docs/security.md, "Who may send what", has the table; a test compares it
//! with this code.

use super::server::ServerState;
use score_proto::ids::JobId;

/// A user who has logged in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Requester {
    /// The user.
    pub uid: u32,
    /// Root, and the users that the operator of the cluster has named.
    pub is_operator: bool,
}

/// What a user wants to do with a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum JobAction {
    /// End it.
    Kill,
    /// Get its metrics.
    Watch,
    /// Read its processes, and change them: tools do.
    Debug,
    /// See its state, its share and its number of nodes. Number, user and hosts are no secret.
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

    /// A permit that nobody has given: state machines must survive it.
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
        // The processes have the rights of their user, and an operator may have fewer.
        JobAction::Debug => is_own,
    };
    match (is_permitted, action) {
        (true, _) => Ok(JobPermit { uid: requester.uid, job }),
        (false, JobAction::Debug) => Err(no_own_job(job)),
        (false, _) => Err(format!("job {job} is another user's, and you are no operator")),
    }
}

/// A tool's user does not learn whether a job of that number exists.
fn no_own_job(job: JobId) -> String {
    format!("you have no job {job}; scps lists your jobs")
}

/// Decides whether a user may see the daemon's own statistics.
pub fn authorize_statistics(requester: Requester) -> Option<StatisticsPermit> {
    requester.is_operator.then_some(StatisticsPermit(()))
}

impl ServerState {
    /// A user, with the user's role in this cluster.
    pub fn requester(&self, uid: u32) -> Requester {
        Requester { uid, is_operator: self.is_operator(uid) }
    }

    /// Decides on an action on a job, as [`authorize`].
    ///
    /// # Errors
    /// One line for the user; also if there is no such job.
    pub fn authorize(&self, uid: u32, action: JobAction, job: JobId) -> Result<JobPermit, String> {
        let owner_uid = self.owner_of(job).ok_or_else(|| match action {
            JobAction::Debug => no_own_job(job),
            JobAction::Kill | JobAction::Watch | JobAction::SeeDetails => {
                format!("there is no job {job}")
            }
        })?;
        authorize(self.requester(uid), action, job, owner_uid)
    }
}
