//! Raw Ethernet sockets for jobs of users. A shepherd has the rights of its user, who may not open
//! raw sockets. On networks that scorehosts.db trusts, another process opens the sockets for the
//! shepherd one by one. This process is the *opener*, which the keeper starts next to the shepherd.
//!
//! The keeper sends the job's grant to the opener. The opener then changes to the user, but keeps
//! the capabilities that raw sockets need. It decodes only [`OpenRequest`], and keeps no socket
//! that it passes on.
//!
//! docs/admin/security.md describes what a user can do with such a socket.

mod client;
mod helper;

pub use client::RawSocketClient;
pub use helper::{HelperOptions, run, start};

use std::time::Duration;

use score_keeper::record::RawSet;
use score_proto::job_control::{JobStart, Placement};
use score_proto::message::ProgramKind;
use serde::{Deserialize, Serialize};

use crate::shepherd;

/// Size of the longest datagram in bytes: a grant for all network sets.
const MAX_DATAGRAM_LEN: usize = 16 << 10;
/// Largest number of descriptors in a reply: the sockets of all links of a network set, and the
/// memory of AF_XDP sockets.
const MAX_REPLY_FDS: usize = 64;
/// How long a shepherd waits for sockets. The kernel takes a few milliseconds for each packet
/// socket and for each program on an interface, and up to a second if a queue is still in use.
const OPEN_TIMEOUT: Duration = Duration::from_secs(10);

/// The raw sockets that a job may have on this host.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RawSocketGrant {
    /// The secret in the packets and the interfaces of each network set. A set without raw wires
    /// has no interfaces.
    pub sets: Vec<(u64, Vec<String>)>,
    /// Largest number of processes for which each set is opened.
    pub max_processes: u32,
}

/// A request of the shepherd for the sockets of one process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct OpenRequest {
    /// Index of the network set.
    pub set: u32,
    /// Whether to try AF_XDP.
    pub use_xdp: bool,
}

/// One endpoint of a reply, with the number of its descriptors.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct EndpointInfo {
    /// The result of
    /// [`WireEndpoint::describe`](score_pm::wire::WireEndpoint::describe).
    description: Vec<u8>,
    descriptors: u8,
    /// The reason if this is not the requested wire.
    note: Option<String>,
}

/// The sockets of one process, in the order of its set's links, or an error message of one line.
type OpenReply = Result<Vec<EndpointInfo>, String>;

impl RawSocketGrant {
    /// The grant for a job that starts on this host. None: the job has no raw sockets, or does not
    /// belong to a user.
    pub fn for_job(begin: &JobStart, placement: &Placement) -> Option<RawSocketGrant> {
        begin.owner.as_ref().filter(|_| placement.hosts.len() > 1)?;
        let spec = &begin.spec;
        let links = shepherd::raw_links(spec, placement);
        if links.iter().all(Vec::is_empty) {
            return None;
        }
        let secret = |number: u32| shepherd::secret_of(begin.secret, number);
        let sets = (0..).map(secret).zip(links).collect();
        let elements = spec.stages.iter().flat_map(|stage| &stage.elements);
        let score = elements.filter(|element| element.kind == ProgramKind::Score).count() as u32;
        let max_processes =
            score.saturating_mul(placement.self_placement().map_or(0, |here| here.nodes));
        Some(RawSocketGrant { sets, max_processes })
    }

    /// The grant as a record for the keeper, without [`RawSocketGrant::max_processes`].
    pub fn into_records(self) -> Vec<RawSet> {
        let bytes = |names: Vec<String>| names.into_iter().map(String::into_bytes).collect();
        let sets = self.sets.into_iter();
        sets.map(|(secret, names)| RawSet { secret, interfaces: bytes(names) }).collect()
    }

    /// The grant for a request to the keeper. A set with an interface that is not in `trusted` gets
    /// no raw sockets. None if no set gets raw sockets.
    pub fn from_records(
        max_processes: u32,
        sets: &[RawSet],
        trusted: &[String],
    ) -> Option<RawSocketGrant> {
        let name_of = |wanted: &Vec<u8>| {
            trusted.iter().find(|name| name.as_bytes() == wanted.as_slice()).cloned()
        };
        let links = |set: &RawSet| -> Vec<String> {
            let names: Option<_> = set.interfaces.iter().map(name_of).collect();
            names.unwrap_or_default()
        };
        let sets: Vec<_> = sets.iter().map(|set| (set.secret, links(set))).collect();
        let has_links = sets.iter().any(|(_, links)| !links.is_empty());
        has_links.then_some(RawSocketGrant { sets, max_processes })
    }
}
