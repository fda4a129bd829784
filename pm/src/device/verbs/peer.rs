//! What is kept for one peer.

#![forbid(unsafe_code)]

use super::calls::Line;
use super::connection::Connection;
use super::flow::Flow;
use super::pair::{Pair, Station};
use super::regions::There;
use std::collections::HashMap;

/// See the module.
#[derive(Default)]
pub(super) struct Peer {
    pub(super) connection: Connection,
    pub(super) pair: Option<Pair>,
    /// The queue pair's number, until all that it has received was taken.
    pub(super) number: Option<u32>,
    pub(super) flow: Flow,
    /// The peer's queue pair and what else its latest hello said.
    pub(super) station: Station,
    pub(super) known: [u32; 2],
    pub(super) credit: (u64, u32),
    pub(super) table: (u64, u32),
    /// What is known of its locked regions, and the work that asks for another, by number.
    pub(super) regions: HashMap<u32, There>,
    pub(super) asked: Option<(u32, u32)>,
    /// Which numbers of it come next: messages, control messages.
    pub(super) expected: [u32; 2],
    /// What was consumed of it, and how much of that it was told.
    pub(super) consumed: [u32; 2],
    pub(super) told: u32,
    /// Messages and control messages that were sent to it.
    pub(super) sent: [u32; 2],
    /// It is in the list of those that something is under way to.
    pub(super) is_busy: bool,
    /// Its connection, on iWARP.
    pub(super) line: Line,
}

impl Peer {
    /// `reads`: as many as the adapter has under way at a time.
    pub(super) fn new(iwarp: bool, reads: u8) -> Peer {
        if !iwarp {
            return Peer::default();
        }
        let flow = Flow::by_reads(reads.into());
        Peer { connection: Connection::slow(), flow, ..Peer::default() }
    }
}
