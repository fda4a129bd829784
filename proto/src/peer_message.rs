//! Messages between the daemons of a cluster, on the links of `tree/`. What a holder of the cluster
//! key reports about itself is trusted; numbers of hosts, nodes and jobs are checked all the same.
//!
//! Both sides begin every link with [`PeerMessage::Hello`]. Three groups of messages follow, in any
//! order: membership ([`PeerMessage::Join`] to [`PeerMessage::Refused`]), sessions of scrun
//! ([`PeerMessage::Login`] to [`PeerMessage::SessionEnded`], and
//! [`PeerMessage::ForwardCredit`]) and jobs ([`PeerMessage::Order`],
//! [`PeerMessage::Report`]).
//!
//! docs/dev/cluster.md, defines which message may be sent when.

use std::net::SocketAddr;

use serde::{Deserialize, Serialize};

use crate::ids::{HostId, JobId};
use crate::message::OsBytes;
use crate::nodeset::NodeSet;

/// The server's index.
pub const SERVER: HostId = HostId(0);

/// Distinguishes a daemon from all earlier daemons of the same host. A daemon takes a new
/// incarnation when it has ended everything that it ran: the new number guarantees that nothing is
/// left.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize,
)]
pub struct Incarnation(pub u64);

/// Distinguishes a job from all other jobs of the same number, for example of an earlier server.
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
    /// From the server: connect to this parent (maybe the server itself) and send
    /// [`PeerMessage::AttachChild`].
    AssignParent(ParentAssignment),
    /// To the parent: make the sender a child.
    AttachChild(DaemonInfo),
    /// Up: these hosts have attached to a parent.
    ChildrenJoined(Vec<ChildJoined>),
    /// Up: these children were lost.
    ChildrenLost(Vec<ChildLost>),
    /// Down the tree, from the server: the server is alive.
    Heartbeat(Heartbeat),
    /// Up, in answer to a heartbeat: the sender, and the hosts that its children have reported
    /// since the previous heartbeat. A host that is not reported for a long time counts as lost,
    /// whatever the state of its links.
    PresenceReport(NodeSet),
    /// To a child: the sender has lost its parent; join the server yourself. The link may stay.
    ParentLost,
    /// To the parent: the sender has another parent now. The link may stay.
    DetachChild,
    /// From the server: end everything that you run, and join under a new incarnation.
    Reset {
        /// The daemon that is meant: a daemon that has another incarnation by now ignores the
        /// message.
        incarnation: Incarnation,
        /// For the log.
        reason: String,
    },
    /// From the server: the tree has no position for the receiver.
    Refused {
        /// One line.
        reason: String,
    },
    /// To the server: a user has logged in at the sender.
    Login {
        /// Chosen by the sender; unique within its incarnation.
        session: u64,
        /// What the keeper of the sender's host says about the user.
        #[serde(with = "serde_bytes")]
        voucher: Vec<u8>,
    },
    /// To the server: a later voucher for a session.
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
    /// In either direction: the session has ended; no more messages follow.
    SessionEnded {
        /// The number of the session at the host that is not the server.
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
        /// As in [`PeerMessage::Order`].
        job_incarnation: JobIncarnation,
        /// The encoded report.
        #[serde(with = "serde_bytes")]
        body: Vec<u8>,
    },
    /// From the server: it has handled messages of a session that the receiver has forwarded. Only
    /// so many of one user may be on their way (`job/src/host/usage.rs`).
    ForwardCredit {
        /// The receiver's number of the session.
        session: u64,
        /// The cost of the messages, in bytes.
        cost: u64,
    },
}

/// The identity of the daemon at one end of a link.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hello {
    /// The host's number; None if the daemon does not know it yet.
    pub host: Option<HostId>,
    /// Its name in the cluster's list.
    pub name: String,
    /// Its daemon's incarnation.
    pub incarnation: Incarnation,
}

/// How other daemons reach a daemon, and its state.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DaemonInfo {
    /// The host's number.
    pub host: HostId,
    /// Its daemon's incarnation.
    pub incarnation: Incarnation,
    /// The address at which it accepts links.
    pub address: SocketAddr,
    /// The server that it has belonged to since it took its incarnation: everything that it runs
    /// belongs to that server.
    pub server_incarnation: Option<Incarnation>,
    /// Number of parents since it took its incarnation, from 1: distinguishes late messages from
    /// new ones.
    pub attach_seq: u32,
    /// Bytes of memory of the host; 0 if unknown.
    pub memory: u64,
}

/// A sign that the server is alive, from a parent to one of its children.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Heartbeat {
    /// The server's incarnation.
    pub server_incarnation: Incarnation,
    /// The incarnation of the child that the parent knows, which may be an earlier one: a message
    /// of the child may be lost with a link while another link existed, and the loss is not
    /// reported.
    pub child_incarnation: Incarnation,
    /// As in [`DaemonInfo`].
    pub attach_seq: u32,
}

/// A daemon without a parent.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct JoinRequest {
    /// Its name in the cluster's list.
    pub name: String,
    /// As in [`DaemonInfo`].
    pub incarnation: Incarnation,
    /// As in [`DaemonInfo`].
    pub address: SocketAddr,
    /// As in [`DaemonInfo`].
    pub server_incarnation: Option<Incarnation>,
    /// As in [`DaemonInfo`]: the number of its parents so far.
    pub attach_seq: u32,
    /// The parent that the server had assigned and that it could not reach.
    pub unreachable_parent: Option<HostId>,
}

/// A position in the tree.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ParentAssignment {
    /// The receiver's number.
    pub host: HostId,
    /// The server's incarnation.
    pub server_incarnation: Incarnation,
    /// The parent's number; [`SERVER`] for the server itself.
    pub parent: HostId,
    /// The address at which the parent accepts links; None for the server, whose address the
    /// receiver knows.
    pub parent_address: Option<SocketAddr>,
}

/// A host that has attached to a parent.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ChildJoined {
    /// The child.
    pub daemon: DaemonInfo,
    /// Its parent.
    pub parent: HostId,
}

/// A child that was lost.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ChildLost {
    /// The child.
    pub host: HostId,
    /// Its incarnation when it was lost.
    pub incarnation: Incarnation,
    /// As in [`DaemonInfo`].
    pub attach_seq: u32,
    /// Why: the error of the link.
    pub reason: String,
}

/// A user, as verified by the scored of the login host.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct User {
    /// The uid from SO_PEERCRED.
    pub uid: u32,
    /// Its group.
    pub gid: u32,
    /// The user's name on the login host, as its name services know it.
    pub name: OsBytes,
}
