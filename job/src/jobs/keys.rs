//! The numbers by which a daemon distinguishes its links, its sessions and the jobs on them.

use score_proto::client_session::SESSION_JOB;
use score_proto::ids::{JobId, SessionJobId};
use score_proto::peer_message::JobIncarnation;

/// The daemon's number of a link to another daemon. The daemon never reuses a number while it runs,
/// so a late event of a closed link cannot be attributed to another link.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LinkId(pub usize);

/// The daemon's number of a session with a front end, on this host or another one. The daemon never
/// reuses a number while it runs. In messages to other daemons and to the keeper, it identifies the
/// session at its own host.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SessionKey(pub usize);

impl SessionKey {
    /// The number as it is used in messages.
    pub fn number(self) -> u64 {
        self.0 as u64
    }

    /// The session with this number, if a session of this daemon can have it.
    pub fn from_number(number: u64) -> Option<Self> {
        usize::try_from(number).ok().map(Self)
    }
}

/// A job, identified by its session and the number that its scrun uses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ClientJob {
    /// The session.
    pub session_key: SessionKey,
    /// The number that scrun has given the job. [`SESSION_JOB`] means the session itself.
    pub job: SessionJobId,
}

impl ClientJob {
    /// The session itself.
    pub fn session_itself(session_key: SessionKey) -> Self {
        Self { session_key, job: SESSION_JOB }
    }
}

/// The number of a job, and a value that distinguishes it from all other jobs with this number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct JobTag {
    /// The number.
    pub job: JobId,
    /// A random number.
    pub incarnation: JobIncarnation,
}
