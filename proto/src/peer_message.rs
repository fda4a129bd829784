//! Messages between the daemons of a cluster, on the links of `tree/`. Whoever holds the cluster
//! key is believed about itself; numbers of hosts, nodes and jobs are checked all the same.
//!
//! Every link begins with [`PeerMessage::Hello`], both ways. Then come messages of membership
//! ([`PeerMessage::Join`] to [`PeerMessage::Refused`]), of the sessions of scrun ([`PeerMessage::Login`] to
//! [`PeerMessage::SessionEnded`]) and of jobs ([`PeerMessage::Order`], [`PeerMessage::Report`]), in any order.
//!
//! What may come when is told in docs/ARCHITECTURE.md, "Many hosts".

use std::net::SocketAddr;

use serde::{Deserialize, Serialize};

use crate::job_control::Limit;
use crate::message::OsBytes;
use crate::nodeset::NodeSet;

/// A host's place in the cluster's list and in its tree; the server has number 0.
pub type HostId = u32;

/// The server's place.
pub const SERVER: HostId = 0;

/// Distinguishes a daemon from all that ran before it on the same host. A daemon takes a new one
/// when it has ended everything that it ran: a new number is the promise that nothing is left.
pub type Incarnation = u64;

/// One daemon to another.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum PeerMessage {
    /// First on every link: who is here.
    Hello(Hello),
    /// To the server: I am here and have no parent. Answered by [`PeerMessage::AssignParent`], [`PeerMessage::Reset`]
    /// or [`PeerMessage::Refused`].
    Join(JoinRequest),
    /// From the server: dial this parent, the server itself perhaps, and say [`PeerMessage::AttachChild`].
    AssignParent(ParentAssignment),
    /// To the parent: take me as your child.
    AttachChild(DaemonInfo),
    /// Up: these hosts have found a parent.
    ChildrenJoined(Vec<ChildJoined>),
    /// Up: these children were lost.
    ChildrenLost(Vec<ChildLost>),
    /// Down the tree, from the server: it lives.
    Heartbeat(Heartbeat),
    /// Up, in answer to a beat: the sender, and the hosts that its children reported since the
    /// last one. Who is not reported for long is lost, whatever the links say.
    PresenceReport(NodeSet),
    /// To a child: I have no parent any more, join for yourself. The link may stay.
    ParentLost,
    /// To the parent: I have another one now. The link may stay.
    DetachChild,
    /// From the server: end everything that you run, and join under a new incarnation.
    Reset {
        /// Whom it is for; a daemon that has another incarnation by now ignores it.
        incarnation: Incarnation,
        /// For the log.
        reason: String,
    },
    /// From the server: there is no place for you.
    Refused {
        /// One line.
        reason: String,
    },
    /// To the server: a user has logged in at the sender, which vouches for who it is.
    Login {
        /// Chosen by the sender, unique while its incarnation lasts.
        session: u64,
        /// Who.
        user: User,
        /// What its scrun is limited to.
        limits: Vec<Limit>,
    },
    /// To the server: what scrun says, a [`crate::message::ClientMessage`].
    SessionClientMessage {
        /// Which session of the sender.
        session: u64,
        /// The encoded message.
        #[serde(with = "serde_bytes")]
        body: Vec<u8>,
    },
    /// From the server: what is for scrun, a [`crate::message::ServerMessage`].
    SessionServerMessage {
        /// Which session of the receiver.
        session: u64,
        /// The encoded message.
        #[serde(with = "serde_bytes")]
        body: Vec<u8>,
    },
    /// Either way: the session is over; nothing more comes for it.
    SessionEnded {
        /// Which session of the host that is not the server.
        session: u64,
        /// For scrun, when the server ends it.
        reason: String,
    },
    /// Down the tree of a job.
    Order {
        /// The job.
        job: u32,
        /// Which of all jobs that ever had this number: [`crate::job_control::Placement::job_incarnation`].
        job_incarnation: u64,
        /// The encoded order.
        #[serde(with = "serde_bytes")]
        body: Vec<u8>,
    },
    /// Up the tree of a job.
    Report {
        /// The job.
        job: u32,
        /// As in [`PeerMessage::Order`].
        job_incarnation: u64,
        /// The encoded report.
        #[serde(with = "serde_bytes")]
        body: Vec<u8>,
    },
}

/// Who is at the end of a link.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hello {
    /// The host's number; None while it does not know.
    pub host: Option<HostId>,
    /// Its name in the cluster's list.
    pub name: String,
    /// Its daemon's incarnation.
    pub incarnation: Incarnation,
}

/// A daemon as others reach it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DaemonInfo {
    /// The host's number.
    pub host: HostId,
    /// Its daemon's incarnation.
    pub incarnation: Incarnation,
    /// Where it accepts links.
    pub address: SocketAddr,
    /// The server that it has belonged to since it took its incarnation: what it runs is of that
    /// server.
    pub server_incarnation: Option<Incarnation>,
    /// Counts its parents since it took its incarnation, from 1: tells late news from new ones.
    pub attach_seq: u32,
    /// Bytes of memory of the host; 0 where that is not known.
    pub memory: u64,
}

/// A sign of the server's life, from a parent to one of its children.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Heartbeat {
    /// The server's incarnation.
    pub server_incarnation: Incarnation,
    /// The child as the parent knows it, which may be a predecessor: what the child has said may
    /// be lost with a link while there was another one, and nobody hears of that.
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
    /// As in [`DaemonInfo`]: of its parents so far.
    pub attach_seq: u32,
    /// A parent that it was told and could not reach.
    pub unreachable_parent: Option<HostId>,
}

/// A place in the tree.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ParentAssignment {
    /// The receiver's number.
    pub host: HostId,
    /// The server's incarnation.
    pub server_incarnation: Incarnation,
    /// The parent's number; [`SERVER`] for the server itself.
    pub parent: HostId,
    /// Where the parent accepts links; None for the server, which the receiver knows.
    pub parent_address: Option<SocketAddr>,
}

/// A host that has found a parent.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ChildJoined {
    /// Who.
    pub daemon: DaemonInfo,
    /// Whose child it is.
    pub parent: HostId,
}

/// A child that was lost.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ChildLost {
    /// Who.
    pub host: HostId,
    /// Its incarnation when it was lost.
    pub incarnation: Incarnation,
    /// As in [`DaemonInfo`].
    pub attach_seq: u32,
    /// Why: what the link said.
    pub reason: String,
}

/// A user, as the scored of the login host vouches for it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct User {
    /// What SO_PEERCRED said.
    pub uid: u32,
    /// Its group.
    pub gid: u32,
    /// The name that the login host has for it.
    pub name: OsBytes,
}
