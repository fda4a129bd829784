//! What is kept for one peer.

#![forbid(unsafe_code)]

use super::cm_request::CmPeerState;
use super::connection::Connection;
use super::outgoing_queue::OutgoingQueue;
use super::queue_pair::{QpAddress, QueuePair};
use super::regions::RemoteRegion;
use std::collections::HashMap;

/// See the module.
#[derive(Default)]
pub(super) struct VerbsPeer {
    pub(super) connection: Connection,
    pub(super) pair: Option<QueuePair>,
    /// The queue pair's number, until all that it has received was taken.
    pub(super) qp_number: Option<u32>,
    pub(super) send_queue: OutgoingQueue,
    /// The peer's queue pair and what else its latest hello said.
    pub(super) qp_address: QpAddress,
    pub(super) expected_by_peer: [u32; 2],
    pub(super) credit_target: (u64, u32),
    pub(super) region_table: (u64, u32),
    /// What is known of its locked regions, and the work that asks for another, by number.
    pub(super) remote_regions: HashMap<u32, RemoteRegion>,
    pub(super) pending_entry_read: Option<(u32, u32)>,
    /// Which numbers of it come next: messages, control messages.
    pub(super) expected: [u32; 2],
    /// What was consumed of it, and how much of that it was told.
    pub(super) consumed: [u32; 2],
    pub(super) advertised: u32,
    /// Messages and control messages that were sent to it.
    pub(super) sent: [u32; 2],
    /// It is in the list of those that something is under way to.
    pub(super) is_busy: bool,
    /// Its connection, on iWARP.
    pub(super) cm_state: CmPeerState,
}

impl VerbsPeer {
    /// `max_reads`: as many as the adapter has under way at a time.
    pub(super) fn new(is_iwarp: bool, max_reads: u8) -> VerbsPeer {
        if !is_iwarp {
            return VerbsPeer::default();
        }
        let send_queue = OutgoingQueue::confirmed_by_reads(max_reads.into());
        VerbsPeer {
            connection: Connection::with_async_connect(),
            send_queue,
            ..VerbsPeer::default()
        }
    }
}
