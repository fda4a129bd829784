//! Messages between the daemons of a cluster, on the links of `tree/`. A daemon with the cluster
//! key is trusted in its reports about itself. The receiver nevertheless checks the numbers of
//! hosts, nodes and jobs.
//!
//! Both sides begin every link with [`PeerMessage::Hello`]. Three groups of messages follow, in any
//! order:
//! - membership ([`PeerMessage::Join`] to [`PeerMessage::Refused`]),
//! - sessions of scrun ([`PeerMessage::Login`] to [`PeerMessage::SessionEnded`], and
//!   [`PeerMessage::ForwardCredit`]),
//! - jobs ([`PeerMessage::Order`], [`PeerMessage::Report`]).
//!
//! docs/dev/protocol.md defines which side may send which message.

use std::net::SocketAddr;

use serde::{Deserialize, Serialize};

use crate::ids::{HostId, JobId};
use crate::message::OsBytes;
use crate::nodeset::NodeSet;

/// The number of the server.
pub const SERVER: HostId = HostId(0);

/// Distinguishes a daemon from all earlier daemons of the same host. A daemon takes a new
/// incarnation when it has ended all of its jobs and sessions. The new number guarantees that no
/// job or session of the earlier incarnation is left.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize,
)]
pub struct Incarnation(pub u64);

/// Distinguishes a job from all other jobs with the same number, for example the jobs of an earlier
/// server.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct JobIncarnation(pub u64);

/// A message from one daemon to another.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum PeerMessage {
    /// The first message on every link: the identity of the sender.
    Hello(Hello),
    /// To the server: the sender has no parent. Answered by [`PeerMessage::AssignParent`],
    /// [`PeerMessage::Reset`] or [`PeerMessage::Refused`].
    Join(JoinRequest),
    /// From the server: connect to this parent, which may be the server itself, and send
    /// [`PeerMessage::AttachChild`].
    AssignParent(ParentAssignment),
    /// To the parent: accept the sender as a child.
    AttachChild(DaemonInfo),
    /// Up the tree: these hosts have attached to a parent.
    ChildrenJoined(Vec<ChildJoined>),
    /// Up the tree: these children were lost.
    ChildrenLost(Vec<ChildLost>),
    /// Down the tree, from the server: the server is alive.
    Heartbeat(Heartbeat),
    /// Up the tree, in answer to a heartbeat: the sender, and the hosts that its children have
    /// reported since the previous heartbeat. A host that is not reported for a long time counts as
    /// lost, independently of the state of its links.
    PresenceReport(NodeSet),
    /// To a child: the sender has lost its parent, and the child has to send [`PeerMessage::Join`]
    /// to the server. The link may stay.
    ParentLost,
    /// To the parent: the sender has another parent now. The link may stay.
    DetachChild,
    /// From the server: end all jobs and sessions of the host, and join with a new incarnation.
    Reset {
        /// The incarnation of the addressed daemon. A daemon with another incarnation ignores the
        /// message.
        incarnation: Incarnation,
        /// The reason, for the log.
        reason: String,
    },
    /// From the server: the tree has no position for the receiver.
    Refused {
        /// The reason, in one line.
        reason: String,
    },
    /// To the server: a user has logged in at the sender.
    Login {
        /// Chosen by the sender, and unique within its incarnation.
        session: u64,
        /// The voucher of the keeper on the sender's host, which confirms the user.
        #[serde(with = "serde_bytes")]
        voucher: Vec<u8>,
    },
    /// To the server: a newer voucher for a session.
    RenewVoucher {
        /// The sender's number of the session.
        session: u64,
        /// The voucher.
        #[serde(with = "serde_bytes")]
        voucher: Vec<u8>,
    },
    /// To the server: a message of scrun ([`crate::message::UserRequest`]).
    SessionClientMessage {
        /// The sender's number of the session.
        session: u64,
        /// The encoded message.
        #[serde(with = "serde_bytes")]
        body: Vec<u8>,
    },
    /// From the server: a message for scrun ([`crate::server_message::ServerMessage`]).
    SessionServerMessage {
        /// The receiver's number of the session.
        session: u64,
        /// The encoded message.
        #[serde(with = "serde_bytes")]
        body: Vec<u8>,
    },
    /// In either direction: the session has ended. No more messages about it follow.
    SessionEnded {
        /// The number of the session on the host that is not the server.
        session: u64,
        /// The text for scrun, if the server ends the session.
        reason: String,
    },
    /// Down the tree of a job.
    Order {
        /// The job.
        job: JobId,
        /// Distinguishes this job from all others that ever had its number:
        /// [`crate::job_control::Placement::job_incarnation`].
        job_incarnation: JobIncarnation,
        /// The encoded order.
        #[serde(with = "serde_bytes")]
        body: Vec<u8>,
    },
    /// Up the tree of a job.
    Report {
        /// The job.
        job: JobId,
        /// See [`PeerMessage::Order`].
        job_incarnation: JobIncarnation,
        /// The encoded report.
        #[serde(with = "serde_bytes")]
        body: Vec<u8>,
    },
    /// From the server: it has handled messages of a session that the receiver has forwarded. The
    /// amount of one user's messages in transit is limited (`job/src/host/usage.rs`).
    ForwardCredit {
        /// The receiver's number of the session.
        session: u64,
        /// The cost of the messages in bytes.
        cost: u64,
    },
}

/// The identity of the daemon at one end of a link.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hello {
    /// The host's number, or `None` if the daemon does not know it yet.
    pub host: Option<HostId>,
    /// The host's name in the cluster's list.
    pub name: String,
    /// The daemon's incarnation.
    pub incarnation: Incarnation,
}

/// The address and the state of a daemon, for other daemons.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DaemonInfo {
    /// The host's number.
    pub host: HostId,
    /// The daemon's incarnation.
    pub incarnation: Incarnation,
    /// The address at which the daemon accepts links.
    pub address: SocketAddr,
    /// The server to which the daemon has belonged since it took its incarnation. All jobs and
    /// sessions of the daemon belong to that server.
    pub server_incarnation: Option<Incarnation>,
    /// Number of parents since the daemon took its incarnation, from 1. It distinguishes late
    /// messages from new ones.
    pub attach_seq: u32,
    /// Memory of the host in bytes; 0 if unknown.
    pub memory: u64,
}

/// A sign that the server is alive, from a parent to one of its children.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Heartbeat {
    /// The server's incarnation.
    pub server_incarnation: Incarnation,
    /// The incarnation of the child according to the parent. It may be an earlier incarnation: if a
    /// message of the child is lost with a link while another link exists, the loss goes unnoticed.
    pub child_incarnation: Incarnation,
    /// See [`DaemonInfo::attach_seq`].
    pub attach_seq: u32,
}

/// The request of a daemon that has no parent.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct JoinRequest {
    /// The host's name in the cluster's list.
    pub name: String,
    /// See [`DaemonInfo::incarnation`].
    pub incarnation: Incarnation,
    /// See [`DaemonInfo::address`].
    pub address: SocketAddr,
    /// See [`DaemonInfo::server_incarnation`].
    pub server_incarnation: Option<Incarnation>,
    /// See [`DaemonInfo::attach_seq`].
    pub attach_seq: u32,
    /// The parent that the server had assigned, if the daemon could not reach it.
    pub unreachable_parent: Option<HostId>,
}

/// A position in the tree.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ParentAssignment {
    /// The receiver's number.
    pub host: HostId,
    /// The server's incarnation.
    pub server_incarnation: Incarnation,
    /// The parent's number, which is [`SERVER`] for the server itself.
    pub parent: HostId,
    /// The address at which the parent accepts links. None for the server, whose address the
    /// receiver knows.
    pub parent_address: Option<SocketAddr>,
}

/// A host that has attached to a parent.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ChildJoined {
    /// The child.
    pub daemon: DaemonInfo,
    /// The parent of the child.
    pub parent: HostId,
}

/// A child that was lost.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ChildLost {
    /// The child.
    pub host: HostId,
    /// The child's incarnation when it was lost.
    pub incarnation: Incarnation,
    /// See [`DaemonInfo::attach_seq`].
    pub attach_seq: u32,
    /// The error of the link.
    pub reason: String,
}

/// A user, as verified by the scored of the login host.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct User {
    /// The uid from SO_PEERCRED.
    pub uid: u32,
    /// The user's group.
    pub gid: u32,
    /// The user's name on the login host, according to the name services of that host.
    pub name: OsBytes,
}
