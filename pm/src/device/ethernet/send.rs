//! Decides when a submitted message is sent: at once, or with a batch if the sender is streaming.

#![forbid(unsafe_code)]

use super::{EthernetEndpoint, job_clock};
use crate::device::net_common::endpoint_queues::{PeerSendState, SendRequest};
use crate::device::net_common::layout::SendSlotState;
use crate::device::net_common::slab::PublishedMessage;
use crate::device::net_common::{Engine as _, ProgressMode};
use crate::sync::Ordering;
use score_pm_reliability::PacketKind;

/// The number of messages in a row, without a poll or a pause between them, that are sent one by
/// one. The sender is streaming after that, and its packets are sent in batches.
const IMMEDIATE_SENDS: u64 = 4;
/// The gap between two messages that counts as a pause, in nanoseconds.
const BURST_INTERVAL_NS: u64 = 10_000;
/// If this many messages are outstanding, the sender polls for free slots between messages. These
/// polls do not end a stream, and the pause that ends it is longer.
pub(super) const STREAM_THRESHOLD: u64 = 32;
const STREAM_INTERVAL_NS: u64 = 2_000_000;
/// The most messages of a batch.
const MAX_BATCH: usize = 32;

/// Returns the slot content of a message that has no sequence number yet.
#[inline(always)]
pub(super) fn content(node: u32, peer: &PeerSendState, len: usize) -> PublishedMessage {
    let ordered_after_rma = peer.pending_operations.load(Ordering::Acquire) != 0;
    let published = SendSlotState { len, kind: PacketKind::Data, ordered_after_rma };
    PublishedMessage { to: node, order: peer.sent_count.get() as u32, sequence: None, published }
}

impl EthernetEndpoint {
    /// Sends the message that was written to its slot, or queues it if the sender is streaming.
    #[inline(always)]
    pub(super) fn send_or_queue(&self, peer: &PeerSendState, message: SendRequest) {
        let ordered_after_rma = peer.pending_operations.load(Ordering::Acquire) != 0;
        if self.is_streaming() && !ordered_after_rma {
            self.hand_over(peer, message);
            if self.queues.submitted.len() < MAX_BATCH {
                return;
            }
            self.serve(ProgressMode::Send);
        } else {
            self.send_now(peer, message, ordered_after_rma);
        }
        if self.net.burst_len.get() >= IMMEDIATE_SENDS {
            // The time that sending took does not count as a pause of the application.
            self.net.last_send_at.set(job_clock::monotonic_ns());
        }
    }

    /// Sends a message without queueing it, unless another thread makes progress. In that case the
    /// message is queued. If remote operations precede the message, this function waits for the
    /// other thread. If such a message has no sequence number when the process exits, it is lost
    /// (`adopt.rs`).
    #[inline(always)]
    fn send_now(&self, peer: &PeerSendState, message: SendRequest, ordered_after_rma: bool) {
        let (mut unsent, mut wake) = (Some(message), false);
        let sent = self.progress_lock.try_run_exclusive(|engine| match unsent.take() {
            Some(message) => {
                if engine.transmitter.zero_copy.is_above_copy_back_threshold() {
                    wake = engine.progress(&self.queues, ProgressMode::All)
                        && self.queues.wakeup_flag.take_wakeup();
                }
                if engine.can_bypass_queue(&self.queues, message.to) {
                    peer.count_sent();
                    engine.submit_and_publish(message);
                } else {
                    self.hand_over(peer, message);
                }
                wake |= engine.progress(&self.queues, ProgressMode::Send)
                    && self.queues.wakeup_flag.take_wakeup();
            }
            None => {
                wake |= engine.progress(&self.queues, ProgressMode::Send)
                    && self.queues.wakeup_flag.take_wakeup()
            }
        });
        if wake {
            self.select.notify();
        }
        if !sent {
            self.hand_over(peer, message);
            if ordered_after_rma {
                self.serve_blocking(ProgressMode::Send)
            } else {
                self.serve(ProgressMode::Send)
            }
        }
    }

    /// Whether another message is likely to follow at once. The last messages of a stream are sent
    /// with the next poll of the application or of the progress thread.
    #[inline(always)]
    fn is_streaming(&self) -> bool {
        let burst = self.net.burst_len.get() + 1;
        self.net.burst_len.set(burst);
        if burst < IMMEDIATE_SENDS {
            return false;
        }
        let now = job_clock::monotonic_ns();
        let previous = self.net.last_send_at.get();
        self.net.last_send_at.set(now);
        let is_stream = self.queues.outstanding.load(Ordering::Relaxed) >= STREAM_THRESHOLD;
        let max_gap = if is_stream { STREAM_INTERVAL_NS } else { BURST_INTERVAL_NS };
        if burst > IMMEDIATE_SENDS && now.wrapping_sub(previous) > max_gap {
            self.net.burst_len.set(1);
            return false;
        }
        burst > IMMEDIATE_SENDS
    }
}

#[cfg(test)]
mod tests {
    use super::super::EthernetContext;
    use super::super::open::EthernetChannels;
    use crate::device::ethernet::job_clock;
    use crate::device::net_common::{Engine as _, ProgressMode};
    use crate::device::{EthernetOptions, NetworkOptions};
    use crate::device::{RmaInterface, SendInterface};
    use crate::rma::{AddrHandle, Direction, Region, RegionId, RmaOperation};
    use std::sync::{Arc, Barrier};
    use std::time::Duration;

    /// A sender that was stopped finds the acknowledgement in its socket, even if it does not poll.
    #[test]
    fn an_acknowledgement_that_waits_in_the_socket_prevents_the_time_out() {
        let options =
            EthernetOptions::udp(NetworkOptions::on_one_host(2), vec!["127.0.0.1".to_owned()]);
        let channels = Arc::new(EthernetChannels::new(&options).unwrap());
        let contexts: [EthernetContext; 2] =
            [0, 1].map(|node| EthernetContext::opened(node, &channels));
        contexts.iter().zip(0..).for_each(|(context, node)| context.bind(0, node).unwrap());
        let [endpoint, peer] = [0, 1].map(|node: usize| contexts[node].endpoint().unwrap());
        endpoint.reserve(1, 8).unwrap();
        let mut engine = endpoint.progress_lock.lock();
        endpoint.publish();
        engine.progress(&endpoint.queues, ProgressMode::Send);
        // This is longer than the first time-out.
        let deadline = job_clock::monotonic_ns() + 20_000_000;
        while job_clock::monotonic_ns() < deadline {
            peer.serve(ProgressMode::All);
        }
        engine.progress(&endpoint.queues, ProgressMode::Send);
        assert_eq!(engine.machine.counters().time_outs, 0);
        assert!(engine.machine.is_all_acked());
    }

    /// No process has opened node 1, so a write to it is never acknowledged. A message after the
    /// write has its sequence number when the send returns, even if another thread was making
    /// progress.
    #[test]
    fn a_message_after_a_write_has_its_sequence_when_it_is_sent() {
        let options =
            EthernetOptions::udp(NetworkOptions::on_one_host(2), vec!["127.0.0.1".to_owned()]);
        let channels = Arc::new(EthernetChannels::new(&options).unwrap());
        let contexts: [EthernetContext; 2] =
            [0, 1].map(|node| EthernetContext::opened(node, &channels));
        contexts.iter().zip(0..).for_each(|(context, node)| context.bind(0, node).unwrap());
        let endpoint = contexts[0].endpoint().unwrap();
        let bytes = [7u8; 1000];
        let number = RegionId::allocate().unwrap();
        let local = AddrHandle::new(number);
        endpoint
            .publish_region(&Region { id: number, addr: bytes.as_ptr().addr(), len: 1000 })
            .unwrap();
        let direction = Direction::Write;
        let write =
            RmaOperation { is_serialized: false, direction, remote: local, local, len: 1000 };
        endpoint.start_rma(1, &write).unwrap();
        let locked = Barrier::new(2);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let _guard = endpoint.progress_lock.lock();
                locked.wait();
                std::thread::sleep(Duration::from_millis(50));
            });
            locked.wait();
            endpoint.reserve(1, 8).unwrap();
            endpoint.publish();
            let slots = endpoint.slab.geometry().message_slots();
            let sent: Vec<_> = slots
                .filter_map(|slot| endpoint.slab.content(endpoint.local_index, slot))
                .collect();
            assert_eq!(sent.len(), 1);
            assert!(sent[0].published.ordered_after_rma && sent[0].sequence.is_some(), "{sent:?}");
        });
    }
}
