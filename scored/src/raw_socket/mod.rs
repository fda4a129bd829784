//! Raw Ethernet for jobs of users. A shepherd has the rights of its user, who may not open raw
//! sockets; on networks that scorehosts.db trusts they are opened for it, one by one, by a process
//! of root's that the daemon starts beside it, the *opener*. The daemon tells that what the job may
//! have; it decodes nothing but [`OpenRequest`], and keeps nothing that it gives away.
//!
//! What a user may do with such a socket: docs/security.md.

mod client;
mod helper;

pub use client::RawSocketClient;
pub use helper::{HelperOptions, run, start};

use std::time::Duration;

use score_proto::job_control::{JobStart, Placement};
use score_proto::message::ProgramKind;
use serde::{Deserialize, Serialize};

use crate::shepherd;

/// The longest datagram: a plan of all network sets.
const MAX_DATAGRAM_LEN: usize = 16 << 10;
/// How long a shepherd waits for sockets: packet sockets and programs at an interface take the
/// kernel some milliseconds each, and up to a second where a queue is still somebody's.
const OPEN_TIMEOUT: Duration = Duration::from_secs(10);

/// What a job may have on this host.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RawSocketGrant {
    /// What packets of each network set carry, and the interfaces that they go by; none where that
    /// set has no raw wires.
    pub sets: Vec<(u64, Vec<String>)>,
    /// For how many processes each set is opened at most.
    pub max_processes: u32,
}

/// A shepherd wants the sockets of one process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct OpenRequest {
    /// Network set.
    pub set: u32,
    /// AF_XDP is to be tried.
    pub use_xdp: bool,
}

/// One of the descriptors' owners in an answer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct EndpointInfo {
    /// As [`Endpoint::describe`](score_pm::device::ethernet::wire::Endpoint::describe) says.
    description: Vec<u8>,
    descriptors: u8,
    /// Why it is not the wire that was asked for.
    note: Option<String>,
}

/// The sockets of one process, in the order of its set's links, or a line for the user.
type OpenReply = Result<Vec<EndpointInfo>, String>;

impl RawSocketGrant {
    /// What a job may have that begins here. None: nothing, or it is not a user's.
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
}
