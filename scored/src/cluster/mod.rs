//! The logic of a cluster: which hosts are there, who may log in, where jobs run. Pure machines
//! `(state, event, now) -> actions`: no sockets and no clocks. [`ServerState`] runs in the server,
//! [`tree_member::Member`] in the daemon of every other host; the shell carries their messages.
//!
//! # A whole life
//!
//! | event | actions |
//! |---|---|
//! | a daemon dials: `Received(Join)` | `Send(Place)`: your parent is host 0 |
//! | it dials its parent, the server: `Received(AttachChild)` | `HostUp`; from then on `Send(Heartbeat)` |
//! | its scrun logs in: `Login` | none; or `SessionClosed` with the reason |
//! | `Submit` with a tag | `Start` with the hosts; or `Queued`, then `Start`; or `Refused` |
//! | the job's logic is done: `Finished` | none: the hosts have not said that they are clean |
//! | hosts have reclaimed it all: `Released` | `Ended` for the session |
//! | scrun goes: `Logout` | none; `End` for each job that it still has |
//! | a link of the tree is dead: `LinkLost`, or a parent's `Lost` | none: the host has its grace |
//! | the host did not come back: `Tick` | `HostDown`; `End` for its jobs, with its name |
//! | it comes back after that: `Received(Join)` | `Send(Reset)`; it cleans up and joins anew |
//!
//! The shell calls [`ServerState::on`] with everything that happens, `Tick` at
//! [`ServerState::deadline`], and carries every action out in order. Messages may be late, doubled or
//! lost with their link; links may break at any time.
//!
//! # What the shell owes
//!
//! - A daemon refuses to start a share for another incarnation than its own, and says that it is
//!   free of it. One that is asked to kill what it does not have says the same.
//! - Kill orders are repeated until `Released` or `HostDown`: the link may have broken under one.
//! - When a link of a job breaks, the daemon below it kills what it runs of that job, and the
//!   server is told: `JobHostFailed`, with the host.
//! - What has come is read before `Tick` is reported, and a machine that was stopped reads first.
//! - [`Timeouts::silence`] is longer than an interruption that shall do no harm: TCP tries again some
//!   6 s after the beginning of one that lasts 5 s.

use std::time::Duration;

use score_proto::allocation_request::AllocationRequest;
use score_proto::nodeset::NodeSet;
use score_proto::peer_message::{HostId, Incarnation, PeerMessage, User};

mod host_selection;
mod jobs;
mod membership;
mod pending_queue;
pub mod placement;
mod queries;
mod server;
#[cfg(test)]
mod tests;
pub mod tree_member;

pub use jobs::Summary;
pub use placement::HostShare;
pub use server::ServerState;

/// What has passed since any fixed moment, on a clock that does not jump.
pub type MonotonicTime = Duration;

/// A job's number, from 1; what `sc_getpid` gives.
pub type JobId = u32;

/// A login: the host of the scrun, its daemon's incarnation, and that daemon's number for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SessionId {
    /// Where scrun runs.
    pub host: HostId,
    /// Of the daemon there.
    pub incarnation: Incarnation,
    /// Unique while that incarnation lasts.
    pub number: u64,
}

/// A cluster as it is configured.
#[derive(Debug, Clone)]
pub struct ClusterConfig {
    /// This server's own incarnation.
    pub server_incarnation: Incarnation,
    /// All hosts in their order. The first is the server's; with no slots when it runs no jobs.
    pub hosts: Vec<HostConfig>,
    /// Times.
    pub times: Timeouts,
    /// The first job's number. A restarted server must not begin with those of its predecessor.
    pub first_job: JobId,
    /// Jobs that may share a slot, each in its time.
    pub rows: u32,
    /// Bytes of memory of the server's own host; 0 where that is not known.
    pub memory: u64,
    /// Single-user mode: a job alone on the cluster may have more processes than there are slots.
    pub oversubscribe: bool,
    /// Users that may stop the jobs of others; root always may.
    pub operators: Vec<u32>,
    /// What one user and all together may ask for.
    pub limits: ClusterLimits,
}

/// A host as it is configured.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HostConfig {
    /// Its name.
    pub name: String,
    /// Processes that jobs may have there: its processors, unless the operator says otherwise.
    pub slots: u32,
    /// The hosts in whose place it is used while they are missing; empty where it is no spare.
    pub spare_for: NodeSet,
    /// Marked as defect: never used.
    pub defect: bool,
}

/// How long things may take. A host is named at the latest `silence + grace` after it has died;
/// when its parent in the tree died with it, `2 * silence + grace`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Timeouts {
    /// The limit of [`score_tree::link::LinkTimeouts::silence_timeout`].
    pub silence: Duration,
    /// From the loss of a host until it is down: it may dial again.
    pub grace: Duration,
    /// From a job's end until its user is told, though a host has not said that it is clean.
    pub cleanup: Duration,
    /// News on its way up the tree waits that long for more.
    pub merge: Duration,
}

impl Default for Timeouts {
    fn default() -> Self {
        Self {
            silence: Duration::from_secs(10),
            grace: Duration::from_secs(2),
            cleanup: Duration::from_secs(15),
            merge: Duration::from_millis(3),
        }
    }
}

/// Bounds on what users may ask for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ClusterLimits {
    /// Logins of all users.
    pub sessions: usize,
    /// Logins of one user.
    pub sessions_per_user: usize,
    /// Jobs of all users that wait.
    pub queued: usize,
    /// Jobs of one user that wait.
    pub queued_per_user: usize,
    /// Bytes of all jobs ([`JobRequest::spec_bytes`]).
    pub spec_bytes: u64,
    /// Bytes of one user's jobs.
    pub spec_bytes_per_user: u64,
}

impl Default for ClusterLimits {
    fn default() -> Self {
        Self {
            sessions: 32_768,
            sessions_per_user: 12_288,
            queued: 65_536,
            queued_per_user: 16_384,
            spec_bytes: 512 << 20,
            spec_bytes_per_user: 128 << 20,
        }
    }
}

/// What a job asks for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JobRequest {
    /// Hosts and processes.
    pub shape: AllocationRequest,
    /// It has hosts of one of these sets; where there is none, any hosts.
    pub pools: Vec<NodeSet>,
    /// Whether it queues when there is no room.
    pub wait: bool,
    /// 0 to 15; among the waiting jobs of its user a smaller one goes first.
    pub priority: u8,
    /// Bytes of memory that it may use on each of its hosts; 0 for a job that does not say.
    pub memory: u64,
    /// What the shell holds for it (its JobSpec), for the limits.
    pub spec_bytes: u64,
}

impl JobRequest {
    /// All hosts that it may have; None for any.
    pub fn allowed_hosts(&self) -> Option<NodeSet> {
        self.pools.iter().cloned().reduce(|mut all, pool| {
            all.union(&pool);
            all
        })
    }
}

/// What has happened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ClusterEvent {
    /// A daemon has sent a message of membership; others are not for this machine.
    Received {
        /// Who, as its Hello on this link said (any number while it does not know its own).
        from: HostId,
        /// The message.
        message: PeerMessage,
    },
    /// The last link to a host is gone, or could not be made.
    LinkLost {
        /// The host.
        host: HostId,
        /// What the link said.
        reason: String,
    },
    /// A user has logged in; the daemon of its host vouches for it.
    Login {
        /// The login.
        session: SessionId,
        /// Who.
        user: User,
    },
    /// A job.
    Submit {
        /// Whose.
        session: SessionId,
        /// The session's own number for it, repeated in the answer.
        tag: u64,
        /// What it asks for.
        request: JobRequest,
    },
    /// The session wants its job ended.
    Cancel {
        /// Whose.
        session: SessionId,
        /// Its number for it.
        tag: u64,
    },
    /// The session is over.
    Logout {
        /// Which.
        session: SessionId,
    },
    /// These hosts of the job (numbers in the order of its shares) hold nothing of it any more.
    Released {
        /// The job.
        job: JobId,
        /// Its hosts.
        hosts: NodeSet,
    },
    /// The job's logic has come to its end.
    Finished {
        /// The job.
        job: JobId,
        /// Exit code.
        code: u8,
    },
    /// A host of the job cannot be reached, though the cluster sees it, or cannot go on with it.
    #[cfg_attr(not(test), expect(dead_code, reason = "no message asks for it yet"))]
    JobHostFailed {
        /// The job.
        job: JobId,
        /// The host.
        host: HostId,
        /// Why.
        reason: String,
    },
    /// A user wants a job ended.
    KillJob {
        /// Who, as the scored of its host vouches for it.
        uid: u32,
        /// The job.
        job: JobId,
    },
    /// The operator marks a host as defect, or as repaired.
    #[cfg_attr(not(test), expect(dead_code, reason = "no message asks for it yet"))]
    SetDefective {
        /// The host.
        host: HostId,
        /// Which of the two.
        defect: bool,
    },
    /// [`ServerState::deadline`] has come.
    Tick,
}

/// What the shell shall do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ClusterAction {
    /// Send this, over the link there is or by dialling. When it cannot be sent: `LinkLost`.
    Send {
        /// To whom.
        to: HostId,
        /// What.
        message: PeerMessage,
    },
    /// A host has been taken in.
    HostUp {
        /// The host.
        host: HostId,
        /// Its daemon.
        incarnation: Incarnation,
    },
    /// A host is given up: close its link. [`ClusterAction::End`] follows for each of its jobs.
    HostDown {
        /// The host.
        host: HostId,
        /// Its daemon.
        incarnation: Incarnation,
        /// With the host's name.
        reason: String,
    },
    /// The job waits.
    Queued {
        /// Whose.
        session: SessionId,
        /// Its number for it.
        tag: u64,
        /// The job.
        job: JobId,
    },
    /// The job is not accepted.
    Refused {
        /// Whose.
        session: SessionId,
        /// Its number for it.
        tag: u64,
        /// One line.
        reason: String,
    },
    /// Run the job on these hosts, in this order.
    Start {
        /// Whose.
        session: SessionId,
        /// Its number for it.
        tag: u64,
        /// The job.
        job: JobId,
        /// Hosts and processes.
        shares: Vec<HostShare>,
        /// The daemon of each share's host: no other may run it.
        incarnations: Vec<Incarnation>,
    },
    /// Kill the job on all hosts that it still has, and tell the user why.
    End {
        /// The job.
        job: JobId,
        /// One line.
        reason: String,
    },
    /// The one and last word about a job that was queued or started.
    Ended {
        /// Whose.
        session: SessionId,
        /// Its number for it.
        tag: u64,
        /// The job.
        job: JobId,
        /// What [`ClusterEvent::Finished`] said, if it did.
        code: Option<u8>,
        /// Why it was ended before its time, if it was.
        reason: Option<String>,
    },
    /// The session is closed.
    SessionClosed {
        /// Which.
        session: SessionId,
        /// One line.
        reason: String,
    },
    /// A line for the log.
    Log(String),
}
