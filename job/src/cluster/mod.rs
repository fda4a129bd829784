//! The logic of a cluster: membership, logins and the placement of jobs. It consists of pure state
//! machines `(state, event, now) -> actions`, without sockets and clocks. [`ServerState`] runs in
//! the server, [`tree_member::Member`] in the daemon of every other host. The daemon (crate scored)
//! carries their messages.
//!
//! # A whole lifecycle
//!
//! | event | actions |
//! |---|---|
//! | a daemon dials: `Received(Join)` | `Send(AssignParent)`: its parent is host 0 |
//! | it dials its parent, the server: `Received(AttachChild)` | `HostUp`; then `Send(Heartbeat)`s |
//! | its scrun logs in: `Login` | none; or `SessionClosed` with the reason |
//! | `Submit` with a tag | `Start` with the hosts; or `Queued`, then `Start`; or `Refused` |
//! | the job's logic has ended: `Finished` | none: the hosts have not confirmed their cleanup |
//! | all hosts have reclaimed their share: `Released` | `Ended` for the session |
//! | the job's link to a host is lost: `HostsLost` | none: the slots stay in use for a time |
//! | scrun disconnects: `Logout` | none; `End` for each job that it still has |
//! | a link of the tree is dead: `LinkLost`, `ChildrenLost` | none: the host has its grace |
//! | the host did not return: `Tick` | `HostDown`; `End` for its jobs, with its name |
//! | it returns after that: `Received(Join)` | `Send(Reset)`; it cleans up and joins again |
//!
//! The daemon calls [`ServerState::on`] with every event, and with `Tick` at
//! [`ServerState::deadline`]. It performs all actions in order. Messages may be late, duplicated or
//! lost with their link. Links may break at any time.
//!
//! # Obligations of the daemon
//!
//! - A daemon refuses a part of a job that is meant for another incarnation. The job's master then
//!   counts the host as lost.
//! - If a link of a job breaks, the daemon below it kills its part of that job. The job's master
//!   counts the hosts below the link as lost, and ends the other parts. The daemon of the server
//!   reports `HostsLost`, because the daemon below may notice the loss later than the master.
//! - When each host of a job has finished or is lost, the daemon of the server reports `Finished`
//!   and `Released`.
//! - Received messages are read before `Tick` is reported. A machine that was stopped first reads
//!   the messages that arrived during the stop.
//! - [`Timeouts::silence`] is longer than an interruption of the network that must not end jobs.
//!   After an interruption of 5 s, TCP retransmits about 6 s after the beginning of the
//!   interruption.

use std::time::Duration;

use score_proto::allocation_request::AllocationRequest;
use score_proto::ids::{HostId, JobId, SessionJobId};
use score_proto::nodeset::NodeSet;
use score_proto::peer_message::{Incarnation, PeerMessage, User};

pub mod authorization;
mod pending_queue;
pub mod placement;
mod server;
#[cfg(test)]
mod tests;
pub mod tree_member;

pub use authorization::{JobAction, JobPermit};
pub use placement::HostShare;
pub use server::{ServerState, Summary};

/// The time since a fixed moment, on a clock that does not jump.
pub type MonotonicTime = Duration;

/// A login: the host of the scrun, the incarnation of that host's daemon, and that daemon's number
/// for the login.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SessionId {
    /// The host where scrun runs.
    pub host: HostId,
    /// The incarnation of the daemon on that host.
    pub incarnation: Incarnation,
    /// Unique while that incarnation lasts.
    pub number: u64,
}

/// A cluster as it is configured.
#[derive(Debug, Clone)]
pub struct ClusterConfig {
    /// This server's own incarnation.
    pub server_incarnation: Incarnation,
    /// All hosts in their order. The first is the server's; it has no slots if it runs no jobs.
    pub hosts: Vec<HostConfig>,
    /// The time limits.
    pub times: Timeouts,
    /// The number of the first job. A restarted server must not reuse the numbers of its
    /// predecessor.
    pub first_job: JobId,
    /// The number of jobs that may use a slot alternately.
    pub rows: u32,
    /// Bytes of memory of the server's own host; 0 if unknown.
    pub memory: u64,
    /// Users who may watch and end the jobs of others. Root always may.
    pub operators: Vec<u32>,
    /// Limits on the requests of one user and of all users together.
    pub limits: ClusterLimits,
}

/// A host as it is configured.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HostConfig {
    /// The name of the host.
    pub name: String,
    /// The number of processes that jobs may have on the host. The default is its number of
    /// processors.
    pub slots: u32,
    /// The hosts that this host replaces while they are missing. Empty if the host is not a spare.
    pub spare_for: NodeSet,
    /// The host is marked as defective and never used.
    pub defect: bool,
}

/// Time limits. A host is reported as down at most `silence + grace` after its death. If its parent
/// in the tree died at the same time, the limit is `2 * silence + grace`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Timeouts {
    /// The limit of [`score_tree::link::LinkTimeouts::silence_timeout`].
    pub silence: Duration,
    /// The time from the loss of a host until it is declared down. In this time the host may
    /// connect again.
    pub grace: Duration,
    /// The longest time from a job's end until its user is notified, even if a host has not
    /// confirmed its cleanup.
    pub cleanup: Duration,
    /// Membership changes on their way up the tree wait this long for more changes.
    pub merge: Duration,
}

impl Timeouts {
    /// The longest time for which a host that has lost its links may still run jobs. The host
    /// notices the loss within the silence limit, or later if its daemon is suspended. A daemon
    /// that is suspended for longer than the silence limit and the grace is down.
    pub fn isolation_limit(&self) -> Duration {
        self.silence * 2 + self.grace
    }
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

/// Limits on the requests of users.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ClusterLimits {
    /// Logins of all users together.
    pub sessions: usize,
    /// Logins of one user.
    pub sessions_per_user: usize,
    /// Waiting jobs of all users.
    pub queued: usize,
    /// Waiting jobs of one user.
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

/// The slots of a host that a job needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SlotUse {
    /// One slot for each process.
    PerProcess,
    /// All slots, because the threads of its processes use all processors.
    WholeHosts,
}

/// The request of a job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JobRequest {
    /// Hosts and processes.
    pub allocation: AllocationRequest,
    /// The job gets hosts of one of these sets. If the list is empty, it gets any hosts.
    pub pools: Vec<NodeSet>,
    /// Whether the job waits in the queue if it cannot start now.
    pub wait: bool,
    /// 0 to 15. Among the waiting jobs of one user, the smallest priority goes first.
    pub priority: u8,
    /// The slots that the job needs on each of its hosts.
    pub slot_use: SlotUse,
    /// Bytes of memory that the job may use on each of its hosts; 0 if the job does not specify it.
    pub memory: u64,
    /// Bytes that the daemon keeps for the job (its JobSpec), counted against the limits.
    pub spec_bytes: u64,
}

impl JobRequest {
    /// All hosts that the job may use. None means any hosts.
    pub fn allowed_hosts(&self) -> Option<NodeSet> {
        self.pools.iter().cloned().reduce(|mut all, pool| {
            all.union(&pool);
            all
        })
    }
}

/// An event of the cluster.
#[derive(Debug, PartialEq, Eq)]
#[cfg_attr(test, derive(Clone))]
pub enum ClusterEvent {
    /// A daemon has sent a membership message. Other messages do not concern this state machine.
    Received {
        /// The host that the Hello of this link has named. A sender that does not know its number
        /// yet may use any number.
        from: HostId,
        /// The message.
        message: PeerMessage,
    },
    /// The last link to a host is lost, or could not be made.
    LinkLost {
        /// The host.
        host: HostId,
        /// The reason that the link reported.
        reason: String,
    },
    /// A user has logged in. The daemon of the user's host confirms the identity.
    Login {
        /// The login.
        session: SessionId,
        /// The user.
        user: User,
    },
    /// A session submits a job.
    Submit {
        /// The session of the job.
        session: SessionId,
        /// The session's own number for the job, repeated in the answer.
        tag: SessionJobId,
        /// The request.
        request: JobRequest,
    },
    /// The session requests the end of its job.
    Cancel {
        /// The session of the job.
        session: SessionId,
        /// The session's number for the job.
        tag: SessionJobId,
    },
    /// The session has ended.
    Logout {
        /// The session.
        session: SessionId,
    },
    /// These hosts of the job (numbers in the order of its shares) have released all of its
    /// resources.
    Released {
        /// The job.
        job: JobId,
        /// The hosts, by their index in the shares of the job.
        hosts: NodeSet,
    },
    /// These hosts are lost for the job, but may still run their parts. The server keeps their
    /// slots in use until they are down, or for [`Timeouts::isolation_limit`].
    HostsLost {
        /// The job.
        job: JobId,
        /// The hosts, by their index in the shares of the job.
        hosts: NodeSet,
    },
    /// The job's logic has ended.
    Finished {
        /// The job.
        job: JobId,
        /// Exit code.
        code: u8,
    },
    /// A user ends a job.
    KillJob(JobPermit),
    /// The time [`ServerState::deadline`] is reached.
    Tick,
}

/// An action for the daemon.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ClusterAction {
    /// Send this over the existing link, or open a link. If it cannot be sent, the daemon reports
    /// `LinkLost`.
    Send {
        /// The destination.
        to: HostId,
        /// The message.
        message: PeerMessage,
    },
    /// A host has joined.
    HostUp {
        /// The host.
        host: HostId,
        /// The incarnation of its daemon.
        incarnation: Incarnation,
    },
    /// A host is declared down: close its link. [`ClusterAction::End`] follows for each of its
    /// jobs.
    HostDown {
        /// The host.
        host: HostId,
        /// The incarnation of its daemon.
        incarnation: Incarnation,
        /// The reason, with the host's name.
        reason: String,
    },
    /// The job waits in the queue.
    Queued {
        /// The session of the job.
        session: SessionId,
        /// The session's number for the job.
        tag: SessionJobId,
        /// The job.
        job: JobId,
    },
    /// The job is not accepted.
    Refused {
        /// The session of the job.
        session: SessionId,
        /// The session's number for the job.
        tag: SessionJobId,
        /// The reason, in one line.
        reason: String,
    },
    /// Run the job on these hosts, in this order.
    Start {
        /// The session of the job.
        session: SessionId,
        /// The session's number for the job.
        tag: SessionJobId,
        /// The job.
        job: JobId,
        /// Hosts and processes.
        shares: Vec<HostShare>,
        /// The daemon of each share's host. No other incarnation may run the share.
        incarnations: Vec<Incarnation>,
    },
    /// Kill the job on all hosts that it still has, and report the reason to the user.
    End {
        /// The job.
        job: JobId,
        /// The reason, in one line.
        reason: String,
    },
    /// The only final message about a job that was queued or started.
    Ended {
        /// The session of the job.
        session: SessionId,
        /// The session's number for the job.
        tag: SessionJobId,
        /// The job.
        job: JobId,
        /// The code of [`ClusterEvent::Finished`], if the job has finished.
        code: Option<u8>,
        /// The reason if the job was ended early.
        reason: Option<String>,
    },
    /// The session is closed.
    SessionClosed {
        /// The session.
        session: SessionId,
        /// The reason, in one line.
        reason: String,
    },
    /// A line for the log.
    Log(String),
}
