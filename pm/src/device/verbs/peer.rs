//! The state of one peer.

#![forbid(unsafe_code)]

use super::connection::Connection;
use super::outgoing_queue::OutgoingQueue;
use super::queue_pair::{QpAddress, QueuePair};
use super::regions::RemoteRegion;
use crate::rma::OperationLog;
use std::collections::HashMap;

#[derive(Default)]
pub(super) struct VerbsPeer {
    pub(super) connection: Connection,
    pub(super) pair: Option<QueuePair>,
    /// The queue pair's number, until everything that it has received was taken.
    pub(super) qp_number: Option<u32>,
    pub(super) send_queue: OutgoingQueue,
    /// The progress of the remote operations on the peer.
    pub(super) operations: OperationLog,
    /// The peer's queue pair. This and the three fields below are from its latest hello.
    pub(super) qp_address: QpAddress,
    pub(super) expected_by_peer: [u32; 2],
    pub(super) credit_target: (u64, u32),
    pub(super) region_table: (u64, u32),
    /// The known regions of the peer, by number, and the work request that reads another entry.
    pub(super) remote_regions: HashMap<u32, RemoteRegion>,
    pub(super) pending_entry_read: Option<(u32, u32)>,
    /// The numbers that are expected next from the peer: messages, control messages.
    pub(super) expected: [u32; 2],
    /// The number of the peer's messages and control messages that were consumed. `advertised`: the
    /// number of consumed messages that was reported to the peer.
    pub(super) consumed: [u32; 2],
    pub(super) advertised: u32,
    /// Whether the last report of these numbers found no room in the queue pair.
    pub(super) has_unsent_report: bool,
    /// Messages and control messages that were sent to the peer.
    pub(super) sent: [u32; 2],
    /// Whether the peer is in the list of peers with work in flight.
    pub(super) is_busy: bool,
}
