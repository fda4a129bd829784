//! The composite device. It has no network of its own; its routing table maps each node to a member
//! context (manual 1.2.5). Each message costs one indexed lookup.
//!
//! In addition to the files that every device has:
//!
//! | file | content |
//! |---|---|
//! | `routing_table.rs`, `member_slot.rs` | which member reaches which node |
//! | `turns.rs` | which member is polled, and how often |

pub(crate) mod config;
mod control;
mod member_slot;
mod open;
mod receive;
mod rma;
mod routing_table;
mod select;
mod send;
mod state;
mod turns;

use super::{Endpoint, EndpointRef, on};
use crate::config::ContextConfig;
use crate::error::PmResult;
pub(crate) use receive::HotPoll;
use routing_table::RoutingTable;

/// The composite part of a context.
pub(crate) struct Composite {
    number: usize,
    routing: RoutingTable,
    send: send::CompositeSender,
    receive: receive::CompositeReceiver,
    select: select::CompositeSelectState,
}

impl Composite {
    pub(crate) fn new(number: usize, nodes: usize) -> PmResult<Composite> {
        Ok(Composite {
            number,
            routing: RoutingTable::new(nodes),
            send: send::CompositeSender::new(nodes),
            receive: receive::CompositeReceiver::default(),
            select: select::CompositeSelectState::new()?,
        })
    }

    pub(crate) fn routing(&self) -> &RoutingTable {
        &self.routing
    }

    #[inline(always)]
    pub(crate) fn member(&self, index: u64) -> Option<EndpointRef<'_>> {
        self.routing.member(index)
    }

    pub(crate) fn config(&self) -> ContextConfig {
        ContextConfig {
            kind: "composite",
            number: self.number,
            nodes: self.routing.nodes(),
            mtu: self.routing.smallest_mtu().unwrap_or(0),
            size: self.routing.members().map(|(_, member)| on!(member, e => e.size())).sum(),
            option: self.routing.options(),
        }
    }

    /// This context's own node. Invalid: the number is not set.
    pub(crate) fn self_node(&self) -> PmResult<u32> {
        self.routing.self_node()
    }

    pub(crate) fn mtu(&self, node: u32) -> PmResult<usize> {
        self.routing.mtu(node)
    }
}
