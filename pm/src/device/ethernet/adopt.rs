//! The owner's work for processes that have exited. The owner delivers the messages that such a
//! process has sent. It runs the same engine on duplicates of the process's sockets, and continues
//! from the contents of the slab. It receives acknowledgements only, and acknowledges no messages
//! to the process.

#![forbid(unsafe_code)]

use super::engine::EthernetEngine;
use crate::device::net_common::endpoint_queues::EndpointQueues;
use crate::device::net_common::indices::SlotIndex;
use crate::device::net_common::slab::PublishedMessage;
use crate::device::net_common::{self, Engine as _, ProgressMode};
use crate::sync::Ordering;
use score_pm_reliability::{PacketKind, RecoveredMessage};
use std::collections::BTreeMap;
use std::os::fd::BorrowedFd;
use std::time::Duration;

/// The orphan of an exited process.
pub(crate) struct EthernetOrphan {
    engine: EthernetEngine,
    queues: EndpointQueues,
    /// Whether some recovered packets write to memory of other processes.
    has_rma_writes: bool,
}

impl EthernetOrphan {
    /// Adopts the slots of the exited process.
    pub(super) fn adopt(mut engine: EthernetEngine, entries: usize) -> EthernetOrphan {
        let queues = EndpointQueues::new(engine.slab.geometry(), entries);
        let has_rma_writes = engine.resume();
        let orphan = EthernetOrphan { engine, queues, has_rma_writes };
        orphan.publish_rma_activity(has_rma_writes);
        orphan
    }

    /// Publishes whether operations are pending. They count as pending while memory of other
    /// processes may still change.
    fn publish_rma_activity(&self, active: bool) {
        self.engine
            .slab
            .record()
            .node
            .send
            .0
            .pending_rma
            .store(u64::from(active), Ordering::Release);
    }
}

impl net_common::Orphan for EthernetOrphan {
    fn serve(&mut self) -> Option<Duration> {
        self.engine.progress(&self.queues, ProgressMode::All);
        if self.has_rma_writes && self.is_drained() {
            self.has_rma_writes = false;
            self.publish_rma_activity(false);
        }
        self.engine.report_events();
        self.engine.ns_until_next_pass().map(Duration::from_nanos)
    }

    /// Whether every message of the process was acknowledged, or its receiver has exited.
    fn is_drained(&self) -> bool {
        self.engine.machine.is_all_acked()
    }

    fn fds(&self) -> Vec<BorrowedFd<'_>> {
        self.engine.transmitter.wires.iter().map(|wire| wire.fd()).collect()
    }
}

/// A message that has no sequence number yet.
struct UnsequencedMessage {
    send_order: u32,
    ordered_after_rma: bool,
    recovered: RecoveredMessage,
}

impl EthernetEngine {
    /// Adopts the slots of an exited process. The reliability machine counts slots that are
    /// invalid. Returns whether the slots contain frames of remote memory access.
    fn resume(&mut self) -> bool {
        let mut recovered = Vec::new();
        let mut unsequenced: BTreeMap<u32, Vec<UnsequencedMessage>> = BTreeMap::new();
        for slot in self.slab.geometry().slot_indices() {
            let Some(content) = self.slab.content(slot) else { continue };
            let PublishedMessage { to, order: send_order, sequence, published } = content;
            self.slot_destinations[slot.as_usize()] = to;
            let message = RecoveredMessage {
                peer: to,
                sequence: sequence.unwrap_or_default().0,
                slot: slot.0,
                len: u16::try_from(published.len).unwrap_or(0),
                kind: published.kind,
            };
            if sequence.is_some() || to >= self.slab.geometry().nodes {
                recovered.push(message);
            } else {
                let ordered_after_rma = published.ordered_after_rma;
                unsequenced.entry(to).or_default().push(UnsequencedMessage {
                    send_order,
                    ordered_after_rma,
                    recovered: message,
                });
            }
        }
        for (to, messages) in unsequenced {
            self.assign_sequences(to, messages, &mut recovered);
        }
        let is_rma = |kind| {
            matches!(kind, PacketKind::Remote | PacketKind::Continuation | PacketKind::PayloadLost)
        };
        let has_rma_writes = recovered.iter().any(|message| is_rma(message.kind));
        self.machine.resume(recovered);
        has_rma_writes
    }

    /// Assigns sequence numbers to the messages that have none. Drops the first message that is
    /// ordered after a remote operation, and all messages after it. Such an operation cannot
    /// complete without the process, and the message would imply that it is complete.
    fn assign_sequences(
        &mut self,
        to: u32,
        mut messages: Vec<UnsequencedMessage>,
        recovered: &mut Vec<RecoveredMessage>,
    ) {
        let Some(first) = messages.first().map(|message| message.send_order) else { return };
        messages.sort_by_key(|message| message.send_order.wrapping_sub(first) as i32);
        let mut next = self.slab.next_sequence(to).load(Ordering::Acquire) as u32;
        for known in recovered.iter().filter(|message| message.peer == to) {
            // The process may have died before it stored the number of its last message.
            let successor = known.sequence.wrapping_add(1);
            if (successor.wrapping_sub(next) as i32) > 0 {
                next = successor;
            }
        }
        let sendable_count =
            messages.iter().position(|message| message.ordered_after_rma).unwrap_or(messages.len());
        for message in messages.drain(..sendable_count) {
            recovered.push(RecoveredMessage { sequence: next, ..message.recovered });
            next = next.wrapping_add(1);
        }
        for message in &messages {
            self.slab.free(SlotIndex(message.recovered.slot));
        }
        self.slab.count_dropped(messages.len() as u64);
    }
}
