//! The owner's work for processes that have exited. The adapter has destroyed their queue pairs,
//! but their unacknowledged messages are still in the slab. The owner connects to the peers of
//! these processes, as after the failure of a queue pair, and sends the messages.

#![forbid(unsafe_code)]

use super::engine::VerbsEngine;
use super::outgoing_queue::{MessageClass, QueuedMessage};
use super::receive_buffers;
use crate::device::net_common::endpoint_queues::EndpointQueues;
use crate::device::net_common::layout::SendSlotState;
use crate::device::net_common::{self, Engine as _, ProgressMode};
use score_pm_reliability::packet_header;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

/// Interval between two polls of the adapter.
const POLL_INTERVAL: Duration = Duration::from_millis(2);

/// The orphan of an exited process.
pub(crate) struct VerbsOrphan {
    engine: VerbsEngine,
    queues: EndpointQueues,
}

impl VerbsOrphan {
    /// Takes over the slots of the exited process.
    pub(super) fn adopt(mut engine: VerbsEngine) -> VerbsOrphan {
        let geometry = *engine.slab.geometry();
        let entries = receive_buffers::entry_count(geometry.nodes as usize);
        let queues = EndpointQueues::new(&geometry, entries);
        engine.take_over_slots(&queues);
        VerbsOrphan { engine, queues }
    }
}

impl net_common::Orphan for VerbsOrphan {
    fn serve(&mut self) -> Option<Duration> {
        self.engine.service(&self.queues);
        self.engine.progress(&self.queues, ProgressMode::All);
        (!self.is_drained()).then_some(POLL_INTERVAL)
    }

    /// Whether no message is left to deliver: all have arrived, or their receivers have exited, or
    /// the adapter was removed.
    fn is_drained(&self) -> bool {
        self.engine.is_idle() || self.engine.adapter_status.is_removed()
    }

    fn fds(&self) -> Vec<BorrowedFd<'_>> {
        vec![self.engine.hello_socket.socket().as_fd()]
    }
}

impl VerbsEngine {
    /// Takes over the messages that an exited process has left in its slots.
    fn take_over_slots(&mut self, queues: &EndpointQueues) {
        let geometry = *self.slab.geometry();
        let mut remaining: Vec<(u32, QueuedMessage)> = Vec::new();
        for slot in geometry.message_slots() {
            let Some(content) = self.slab.content(slot) else { continue };
            let SendSlotState { len, kind, .. } = content.published;
            let is_valid = content.to < geometry.nodes && content.to != self.self_node;
            if !is_valid || !(1..=geometry.mtu).contains(&len) {
                self.slab.free(slot);
                continue;
            }
            let control = kind == packet_header::PacketKind::Control;
            let kind = if control { MessageClass::Control } else { MessageClass::Data };
            let sequence = content.sequence.unwrap_or_default().0;
            remaining.push((content.to, QueuedMessage { slot, len: len as u32, kind, sequence }));
        }
        remaining.sort_by(|(to, a), (to_b, b)| {
            let distance = b.sequence.wrapping_sub(a.sequence) as i32;
            to.cmp(to_b).then((a.kind as u32).cmp(&(b.kind as u32))).then(0.cmp(&distance))
        });
        for (to, message) in remaining {
            self.peers[to].sent[message.kind as usize] = message.sequence.wrapping_add(1);
            self.enqueue(to, message);
            self.transmit(queues, to);
        }
    }
}
