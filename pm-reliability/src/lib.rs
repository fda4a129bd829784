//! The reliability machine of PM/Ethernet: it turns packets that may be lost, duplicated, late and
//! out of order into messages that arrive once and in order. It does no I/O: it takes times and
//! packets, and returns packets and deliveries. It handles only numbers (nodes, links, send slots,
//! receive buffers), never a byte of payload. `docs/dev/ethernet.md` states its rules.
//!
//! | file | content |
//! |---|---|
//! | `lib.rs` | the interface of the machine for the device |
//! | `config.rs` | its configuration |
//! | `types.rs` | types that device and machine exchange |
//! | `packet_header.rs` | the format of packets |
//! | `rma_frame.rs` | frames of remote memory access, in packets |
//! | `peer.rs` | one peer: the choice of the next packet |
//! | `send.rs` | messages to a peer: which may be sent, time-outs |
//! | `acknowledge.rs` | which messages have arrived, which are lost |
//! | `loss_detection.rs` | when a packet counts as lost because later ones have arrived |
//! | `receive.rs` | messages from a peer: order, window, acknowledgement |
//! | `congestion.rs` | how many packets may be in flight |
//! | `rtt.rs` | round trips and time-outs |
//! | `trunking.rs` | the choice of the link, and which link is down |
//! | `timer.rs` | one heap of timers |
//! | `peer_index.rs` | node to peer |
//! | `peer_queue.rs` | a queue of peers, each at most once |
//! | `counters.rs` | counters, and their dump |
//! | `sender_tests.rs` | tests of `send.rs` and `acknowledge.rs` |
//!
//! How a device drives it: read the packets of the wires, and give each packet to
//! [`ReliabilityMachine::receive`]. Then call [`ReliabilityMachine::expire`]. If it returns true,
//! read once more before [`ReliabilityMachine::on_timeout`]: if the process lost the processor just
//! before it read the clock, the expected acknowledgement may wait in its socket. Then send the
//! packets of [`ReliabilityMachine::poll_transmit`] until it returns `None`.
//! [`ReliabilityMachine::next_delivery`] returns messages for the application, and
//! [`ReliabilityMachine::next_free_slot`] returns send slots that are free again. All times are
//! nanoseconds of the job's running time.
#![forbid(unsafe_code)]

mod acknowledge;
mod config;
mod congestion;
mod counters;
mod loss_detection;
pub mod packet_header;
mod peer;
mod peer_index;
mod peer_queue;
mod receive;
pub mod rma_frame;
mod rtt;
mod send;
#[cfg(test)]
mod sender_tests;
mod timer;
mod trunking;
mod types;

pub use config::{Config, INITIAL_WINDOW, MAX_WINDOW};
pub use counters::ReliabilityCounters;
pub use packet_header::{Header, PACKET_HEADER_LEN, PacketKind};
pub use types::{
    BufferDisposition, Delivery, RecoveredMessage, ReliabilityEvent, SubmitError, Transmit,
};

use peer::ReliabilityPeer;
use peer_index::PeerIndex;
use peer_queue::PeerQueue;
use std::collections::VecDeque;
use timer::{Timer, Timers};

/// The time of a timer that is not set.
pub(crate) const NO_DEADLINE: u64 = u64::MAX;

/// The number of packets that are sent to one peer in a row, before packets to another peer.
const SEND_QUANTUM: u32 = 64;
/// The number of messages of one peer that are delivered in a row (the fairness bound of shmem).
const RECEIVE_QUANTUM: u32 = 16;
/// The number of events that wait to be fetched. Further events are dropped.
const MAX_EVENTS: usize = 64;

/// The state that all peers share.
struct CommonState {
    config: Config,
    counters: ReliabilityCounters,
    /// Slots that the device may use again.
    freed_slots: VecDeque<u32>,
    events: VecDeque<ReliabilityEvent>,
    /// Buffers in use, including those that are delivered and not yet released.
    held_buffers: u32,
    /// Messages submitted and neither acknowledged nor dropped.
    outstanding: u64,
    /// Whether the machine receives nothing, because it only delivers the messages of a dead
    /// process.
    draining: bool,
}

impl CommonState {
    /// How many messages beyond the released ones a peer may send now: half of the free buffers.
    /// The more buffers are in use, the fewer each peer may add, so that no peer takes all.
    fn grant(&self) -> u32 {
        ((self.config.buffers - self.held_buffers.min(self.config.buffers)) / 2)
            .min(self.config.window)
    }

    fn push_event(&mut self, event: ReliabilityEvent) {
        if self.events.len() < MAX_EVENTS {
            self.events.push_back(event);
        }
    }
}

/// The reliability machine: see the module.
pub struct ReliabilityMachine {
    shared: CommonState,
    peer_index: PeerIndex,
    peers: Vec<ReliabilityPeer>,
    /// The number of peers that wait to send an acknowledgement.
    pending_acks: u32,
    timers: Timers,
    /// Peers that have not answered in time. Their answer may still wait in the socket.
    overdue: Vec<u32>,
    /// Peers that may have something to transmit.
    ready: PeerQueue,
    burst_len: u32,
    /// Peers that have messages to deliver.
    deliverable: PeerQueue,
    turn_len: u32,
    /// Peers whose window is nearly closed for lack of buffers.
    starved: PeerQueue,
}

impl ReliabilityMachine {
    /// Makes a machine without peers.
    pub fn new(config: Config) -> ReliabilityMachine {
        let config = config.bounded();
        ReliabilityMachine {
            peer_index: PeerIndex::new(config.nodes),
            shared: CommonState {
                config,
                counters: ReliabilityCounters::default(),
                freed_slots: VecDeque::new(),
                events: VecDeque::new(),
                held_buffers: 0,
                outstanding: 0,
                draining: false,
            },
            peers: Vec::new(),
            pending_acks: 0,
            timers: Timers::default(),
            overdue: Vec::new(),
            ready: PeerQueue::default(),
            burst_len: 0,
            deliverable: PeerQueue::default(),
            turn_len: 0,
            starved: PeerQueue::default(),
        }
    }

    /// The configuration, with its values limited to their ranges.
    pub fn config(&self) -> &Config {
        &self.shared.config
    }

    /// The index of the peer, which is added at its first use. Returns `None` if the node does not
    /// exist or is this node.
    #[inline]
    fn find_or_add_peer(&mut self, node: u32) -> Option<u32> {
        if let Some(index) = self.peer_index.get(node) {
            return Some(index);
        }
        self.add_peer(node)
    }

    #[cold]
    fn add_peer(&mut self, node: u32) -> Option<u32> {
        if node >= self.shared.config.nodes || node == self.shared.config.self_node {
            return None;
        }
        let index = self.peers.len() as u32;
        self.peers.push(ReliabilityPeer::new(node, &self.shared.config));
        self.peer_index.set(node, index);
        Some(index)
    }

    /// Whether `submit` would accept a message to `node` now.
    #[inline]
    pub fn can_send(&self, node: u32) -> bool {
        match self.peer_index.get(node) {
            Some(index) => self.peers[index as usize].send.has_capacity(&self.shared.config),
            None => node < self.shared.config.nodes && node != self.shared.config.self_node,
        }
    }

    /// The sequence number that the next message to `node` will have.
    pub fn next_sequence(&self, node: u32) -> u32 {
        let known =
            self.peer_index.get(node).map(|index| self.peers[index as usize].send.next_sequence());
        known.unwrap_or(self.shared.config.first_sequence)
    }

    /// Accepts the message in `slot`, and returns its sequence number. The slot belongs to the
    /// machine until [`Self::next_free_slot`] returns it. If the peer has exited, the slot is free
    /// at once.
    ///
    /// # Errors
    /// See [`SubmitError`]. After an error the slot still belongs to the device.
    #[inline]
    pub fn submit(
        &mut self,
        node: u32,
        slot: u32,
        len: u16,
        kind: PacketKind,
    ) -> Result<u32, SubmitError> {
        if !kind.is_numbered() || len == 0 || len > self.shared.config.mtu {
            return Err(SubmitError::Invalid);
        }
        let index = self.find_or_add_peer(node).ok_or(SubmitError::Invalid)?;
        let peer = &mut self.peers[index as usize];
        if !peer.send.has_capacity(&self.shared.config) {
            return Err(SubmitError::Full);
        }
        let sequence = peer.send.submit(slot, len, kind, &mut self.shared);
        self.ready.add(index);
        Ok(sequence)
    }

    /// Whether `poll_transmit` would return nothing.
    #[inline]
    pub fn is_transmit_idle(&self) -> bool {
        self.ready.is_empty()
    }

    /// The next packet to send. Packets of one peer and link come in runs, so that the wire can
    /// send them together.
    #[inline]
    pub fn poll_transmit(&mut self, now: u64) -> Option<Transmit> {
        while let Some(index) = self.ready.front() {
            let peer = &mut self.peers[index as usize];
            let packet = peer.transmit(&mut self.shared, now);
            let has_more = packet.is_some() && peer.has_work();
            self.update_timers(index);
            self.burst_len += 1;
            if !has_more {
                self.burst_len = 0;
                self.ready.pop_front();
            } else if self.burst_len >= SEND_QUANTUM {
                self.burst_len = 0;
                self.ready.rotate();
            }
            if packet.is_some() {
                return packet;
            }
        }
        None
    }

    /// Handles a packet that was received over `link` into `buffer`.
    #[inline]
    pub fn receive(&mut self, packet: &[u8], link: u8, buffer: u32, now: u64) -> BufferDisposition {
        let Some(header) = self.check_header(packet, link) else { return BufferDisposition::Free };
        let Some(index) = self.find_or_add_peer(header.source) else {
            self.shared.counters.misdirected += 1;
            return BufferDisposition::Free;
        };
        self.shared.counters.received += 1;
        let peer = &mut self.peers[index as usize];
        if header.flags & packet_header::ACK != 0 {
            peer.send.on_ack(&header, &mut peer.links, &mut self.shared, now);
        }
        let disposition = peer.on_packet(&header, link, buffer, &mut self.shared, now);
        let has_more = peer.has_work();
        self.update_timers(index);
        if has_more {
            self.ready.add(index);
        }
        self.list_deliverable(index);
        disposition
    }

    /// Updates a peer's timers, and whether it waits to send an acknowledgement. It must be called
    /// after each change of the peer.
    #[inline]
    fn update_timers(&mut self, index: u32) {
        let peer = &mut self.peers[index as usize];
        peer.arm_timers(index, &mut self.timers);
        let ack_pending = peer.receive.ack_at != NO_DEADLINE;
        self.pending_acks =
            self.pending_acks + u32::from(ack_pending) - u32::from(peer.ack_pending);
        peer.ack_pending = ack_pending;
    }

    /// Whether an acknowledgement to a peer waits for a message that can carry it. If so, the
    /// device must call [`Self::expire`] soon.
    #[inline]
    pub fn has_pending_ack(&self) -> bool {
        self.pending_acks > 0
    }

    /// Returns the header if the packet is of this job and for this node. Otherwise counts the
    /// packet.
    #[inline]
    fn check_header(&mut self, packet: &[u8], link: u8) -> Option<Header> {
        let CommonState { config, counters, .. } = &mut self.shared;
        let counter = match packet_header::secret(packet) {
            None => &mut counters.malformed,
            Some(secret) if secret != config.secret => &mut counters.wrong_secret,
            Some(_) => match Header::parse(packet) {
                Err(packet_header::HeaderError::Length(..)) => &mut counters.wrong_length,
                Err(_) => &mut counters.malformed,
                Ok(header) if header.incarnation != config.incarnation => {
                    &mut counters.wrong_incarnation
                }
                Ok(header) if header.destination != config.self_node || link >= config.links => {
                    &mut counters.misdirected
                }
                Ok(header) if header.len > config.mtu => &mut counters.wrong_length,
                Ok(header) => return Some(header),
            },
        };
        *counter += 1;
        None
    }

    #[inline]
    fn list_deliverable(&mut self, index: u32) {
        let receive = &self.peers[index as usize].receive;
        if receive.has_delivery() {
            self.deliverable.add(index);
        }
        if receive.is_starved {
            self.starved.add(index);
        }
    }

    /// Whether [`Self::next_delivery`] would return a message.
    #[inline]
    pub fn has_delivery(&self) -> bool {
        !self.deliverable.is_empty()
    }

    /// The next message for the application. Messages of one peer come in the order of sending, and
    /// peers take turns.
    #[inline]
    pub fn next_delivery(&mut self) -> Option<Delivery> {
        let index = self.deliverable.front()?;
        let peer = &mut self.peers[index as usize];
        let delivery = peer.receive.deliver(peer.node);
        debug_assert!(delivery.is_some());
        self.turn_len += 1;
        if !peer.receive.has_delivery() {
            self.deliverable.pop_front();
            self.turn_len = 0;
        } else if self.turn_len >= RECEIVE_QUANTUM {
            self.deliverable.rotate();
            self.turn_len = 0;
        }
        delivery
    }

    /// The application has released one message of `node`. Its buffer is free, and the window may
    /// advance.
    #[inline]
    pub fn on_released(&mut self, node: u32) {
        let Some(index) = self.peer_index.get(node) else { return };
        let receive = &mut self.peers[index as usize].receive;
        if !receive.release(&mut self.shared) {
            return;
        }
        if receive.ack_due {
            self.ready.add(index);
        }
        // A peer may wait because there was no buffer for it. The freed buffer may open the window
        // of this peer.
        if !self.starved.is_empty() && self.shared.grant() > 0 {
            self.reopen_one_window();
        }
    }

    #[cold]
    fn reopen_one_window(&mut self) {
        let Some(index) = self.starved.pop_front() else { return };
        let receive = &mut self.peers[index as usize].receive;
        if receive.is_starved {
            receive.advance_limit(&self.shared);
            receive.ack_due = true;
            self.ready.add(index);
        }
    }

    /// The next slot whose message has been acknowledged or dropped.
    #[inline]
    pub fn next_free_slot(&mut self) -> Option<u32> {
        self.shared.freed_slots.pop_front()
    }

    /// The next event for the operator.
    pub fn next_event(&mut self) -> Option<ReliabilityEvent> {
        self.shared.events.pop_front()
    }

    /// `node` has exited. Messages to it are dropped, including future ones. Messages that it has
    /// sent still arrive, because its shepherd delivers them.
    pub fn on_peer_exited(&mut self, node: u32) {
        let Some(index) = self.find_or_add_peer(node) else { return };
        let peer = &mut self.peers[index as usize];
        peer.send.drop_all(&mut peer.links, &mut self.shared);
        peer.links.cancel_probes();
    }

    /// The number of messages that are neither acknowledged nor dropped.
    #[inline]
    pub fn outstanding(&self) -> u64 {
        self.shared.outstanding
    }

    /// The number of messages to one peer that are neither acknowledged nor dropped.
    pub fn outstanding_to(&self, node: u32) -> u32 {
        self.peer_index.get(node).map_or(0, |index| self.peers[index as usize].send.outstanding())
    }

    /// Whether all messages sent by this node are in their receivers' queues. A receiver that has
    /// exited does not count.
    #[inline]
    pub fn is_all_acked(&self) -> bool {
        self.shared.outstanding == 0
    }

    /// When [`Self::expire`] is needed next. Call this before sleeping. While polling, call
    /// `expire` each time instead, because it costs only one comparison.
    pub fn deadline(&mut self) -> Option<u64> {
        let peers = &mut self.peers;
        self.timers.next(|index, timer, armed| peers[index as usize].true_deadline(timer, armed))
    }

    /// Handles the timers that are due. Returns whether peers have not answered in time. If so,
    /// read the packets that have arrived since the last read, and then call [`Self::on_timeout`].
    #[inline]
    pub fn expire(&mut self, now: u64) -> bool {
        while self.timers.is_due(now) {
            self.on_timer(now);
        }
        !self.overdue.is_empty()
    }

    /// Handles the time-outs of the peers that have still not answered.
    #[cold]
    pub fn on_timeout(&mut self, now: u64) {
        while let Some(index) = self.overdue.pop() {
            let peer = &mut self.peers[index as usize];
            if peer.deadline(Timer::Retransmit) <= now {
                peer.send.on_timeout(&mut peer.links, &mut self.shared, now);
                self.ready.add(index);
            }
            self.update_timers(index);
        }
    }

    #[cold]
    fn on_timer(&mut self, now: u64) {
        let Some((armed, index, timer)) = self.timers.pop() else { return };
        let peer = &mut self.peers[index as usize];
        if peer.armed[timer as usize] != armed {
            return;
        }
        peer.armed[timer as usize] = NO_DEADLINE;
        if peer.deadline(timer) <= now {
            match timer {
                Timer::Retransmit => return self.overdue.push(index),
                Timer::Acknowledge => peer.receive.on_ack_timeout(),
                Timer::Probe => {
                    let mut down_links = peer.links.on_probe_timeout(now);
                    while let Some(link) = trunking::take_lowest(&mut down_links) {
                        self.shared
                            .push_event(ReliabilityEvent::LinkDown { peer: peer.node, link });
                    }
                }
            }
            self.ready.add(index);
        }
        self.update_timers(index);
    }

    /// Adopts the messages of a dead process from its slab, in any order. From then on the machine
    /// receives only acknowledgements. Slots that cannot hold a message with a sequence number are
    /// counted, and are free at once.
    pub fn resume(&mut self, slots: impl IntoIterator<Item = RecoveredMessage>) {
        self.shared.draining = true;
        let mut recovered: Vec<(u32, RecoveredMessage)> = Vec::new();
        for message in slots {
            let valid = message.kind.is_numbered()
                && message.len != 0
                && message.len <= self.shared.config.mtu;
            match self.find_or_add_peer(message.peer).filter(|_| valid) {
                Some(index) => recovered.push((index, message)),
                None => self.shared.refuse_slot(message.slot),
            }
        }
        recovered.sort_by_key(|(index, _)| *index);
        for group in recovered.chunk_by_mut(|a, b| a.0 == b.0) {
            let index = group[0].0;
            let first = group[0].1.sequence;
            group.sort_by_key(|(_, message)| message.sequence.wrapping_sub(first) as i32);
            let messages = group.iter().map(|(_, message)| *message);
            self.peers[index as usize].send.resume(messages, &mut self.shared);
            self.ready.add(index);
        }
    }

    /// The counters.
    pub fn counters(&self) -> &ReliabilityCounters {
        &self.shared.counters
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_that_are_not_fetched_are_dropped_beyond_a_maximum() {
        let mut machine = ReliabilityMachine::new(Config::new(0, 2, 0, 0));
        let event = |peer: u32| ReliabilityEvent::LinkDown { peer, link: 0 };
        let max_events = MAX_EVENTS as u32;
        (0..=max_events).for_each(|peer| machine.shared.push_event(event(peer)));
        let events: Vec<ReliabilityEvent> = std::iter::from_fn(|| machine.next_event()).collect();
        assert_eq!(events, (0..max_events).map(event).collect::<Vec<_>>());
    }
}
