//! A simulated host: a machine, a slab, receive buffers, and an application that checks its
//! messages.

use std::collections::{BTreeMap, VecDeque};

use score_pm_reliability::{
    BufferDisposition, Config, Header, PACKET_HEADER_LEN, PacketKind, ReliabilityEvent,
    ReliabilityMachine, Transmit,
};

use super::network::{InFlightPacket, MS};
use super::sim_rng::SimRng;

/// The number of packets that fit into a socket. Further packets are lost.
const SOCKET_CAPACITY: usize = 2000;
/// The number of packets that are read from one link before the next link is read.
const RECEIVE_QUANTUM: usize = 256;

/// One message in a slab.
#[derive(Clone, Copy)]
pub struct Slot {
    pub peer: u32,
    pub sequence: u32,
    pub value: u64,
    pub len: u16,
    pub kind: PacketKind,
}

/// A host with one process.
pub struct Node {
    pub machine: ReliabilityMachine,
    pub slab: Vec<Option<Slot>>,
    pub free_slots: VecDeque<u32>,
    /// Slots that the machine has freed and the process has not yet marked as free.
    pub unmarked_slots: VecDeque<(u32, Slot)>,
    buffers: Vec<Vec<u8>>,
    free_buffers: Vec<u32>,
    /// Messages that are delivered and not yet released.
    unreleased: VecDeque<(u32, u32)>,
    /// The number of messages still to be submitted, and the number of messages submitted, by
    /// destination.
    pub to_submit: BTreeMap<u32, u64>,
    pub submitted: BTreeMap<u32, u64>,
    /// The next expected value, by source.
    pub delivered: BTreeMap<u32, u64>,
    pub finished_at: u64,
    /// The application receives no messages before this time.
    pub stalled_until: u64,
    /// The whole host is suspended until this time.
    pub frozen_until: u64,
    pub dead: bool,
    pub events: Vec<ReliabilityEvent>,
    pub wake_at: u64,
    pub len: u16,
    /// The packets of each link that have not been read.
    sockets: Vec<VecDeque<InFlightPacket>>,
}

/// The kind of the message with this number between two nodes.
fn kind(number: u64) -> PacketKind {
    match number % 7 {
        6 => PacketKind::Control,
        2 | 3 => PacketKind::Remote,
        _ => PacketKind::Data,
    }
}

impl Node {
    pub fn new(config: Config) -> Node {
        let (slots, buffers) = (config.max_queued.min(2048), config.buffers + 1);
        Node {
            machine: ReliabilityMachine::new(config),
            slab: vec![None; slots as usize],
            free_slots: (0..slots).rev().collect(),
            unmarked_slots: VecDeque::new(),
            buffers: vec![Vec::new(); buffers as usize],
            free_buffers: (0..buffers).rev().collect(),
            unreleased: VecDeque::new(),
            to_submit: BTreeMap::new(),
            submitted: BTreeMap::new(),
            delivered: BTreeMap::new(),
            finished_at: 0,
            stalled_until: 0,
            frozen_until: 0,
            dead: false,
            events: Vec::new(),
            wake_at: u64::MAX,
            len: 1400,
            sockets: (0..config.links).map(|_| VecDeque::new()).collect(),
        }
    }

    pub fn slots_in_use(&self) -> usize {
        self.slab.len() - self.free_slots.len()
    }

    /// The number of buffers that the machine keeps: they are neither free nor with the
    /// application.
    pub fn buffers_in_use(&self) -> usize {
        self.buffers.len() - self.free_buffers.len() - self.unreleased.len()
    }

    /// A packet arrives at the host, even if its process is stopped or dead.
    pub fn enqueue_packet(&mut self, flight: InFlightPacket) {
        let socket = &mut self.sockets[usize::from(flight.link)];
        if socket.len() < SOCKET_CAPACITY {
            socket.push_back(flight);
        }
    }

    /// Reads as much as one pass over the wires does, link by link. Returns whether more packets
    /// wait.
    pub fn read(&mut self, now: u64) -> bool {
        for link in 0..self.sockets.len() {
            for _ in 0..RECEIVE_QUANTUM {
                let Some(flight) = self.sockets[link].pop_front() else { break };
                self.receive_packet(&flight, now);
            }
        }
        self.sockets.iter().any(|socket| !socket.is_empty())
    }

    fn receive_packet(&mut self, flight: &InFlightPacket, now: u64) {
        let buffer = self.free_buffers.pop().expect("the machine keeps fewer than there are");
        self.buffers[buffer as usize].clone_from(&flight.bytes);
        let disposition = self.machine.receive(&flight.bytes, flight.link, buffer, now);
        if disposition == BufferDisposition::Free {
            self.free_buffers.push(buffer);
        }
        while let Some(event) = self.machine.next_event() {
            self.events.push(event);
        }
    }

    /// The application receives messages and checks that each arrives once, in order and complete.
    pub fn receive_messages(&mut self, node: u32, now: u64, rng: &mut SimRng, stall_permille: u64) {
        if self.stalled_until > now {
            return;
        }
        self.release();
        while let Some(delivery) = self.machine.next_delivery() {
            let payload = &self.buffers[delivery.buffer as usize][PACKET_HEADER_LEN..];
            let value = u64::from_le_bytes(*payload.first_chunk().expect("8 bytes at least"));
            let expected = self.delivered.entry(delivery.peer).or_default();
            let expected_value = u64::from(delivery.peer) << 48 | u64::from(node) << 32 | *expected;
            assert_eq!(value, expected_value, "node {node} received from {}", delivery.peer);
            assert!(usize::from(delivery.len) <= payload.len());
            assert_eq!(delivery.kind, kind(*expected), "kind of message {expected}");
            *expected += 1;
            self.finished_at = now;
            self.unreleased.push_back((delivery.peer, delivery.buffer));
            if rng.chance(stall_permille) {
                self.stalled_until = now + rng.below(20 * MS);
                return;
            }
            self.release();
        }
    }

    pub fn release(&mut self) {
        for (peer, buffer) in std::mem::take(&mut self.unreleased) {
            self.machine.on_released(peer);
            self.free_buffers.push(buffer);
        }
    }

    /// The application submits as many messages as the machine accepts.
    pub fn submit(&mut self, node: u32) {
        for (peer, remaining) in &mut self.to_submit {
            while *remaining > 0 && self.machine.can_send(*peer) {
                let Some(slot_number) = self.free_slots.pop_back() else { return };
                let count = self.submitted.entry(*peer).or_default();
                let value = u64::from(node) << 48 | u64::from(*peer) << 32 | *count;
                let kind = kind(*count);
                let sequence = self.machine.next_sequence(*peer);
                let submitted = self.machine.submit(*peer, slot_number, self.len, kind);
                assert_eq!(submitted, Ok(sequence));
                self.unmarked_slots.retain(|(slot, _)| *slot != slot_number);
                let slot = Slot { peer: *peer, sequence, value, len: self.len, kind };
                self.slab[slot_number as usize] = Some(slot);
                *count += 1;
                *remaining -= 1;
            }
        }
    }

    /// Collects slots that are free again. Some of them are marked as free a little later, as if
    /// the process were interrupted here. Returns whether a slot is free and messages are left.
    pub fn collect_free_slots(&mut self, rng: &mut SimRng) -> bool {
        let free_before = self.free_slots.len();
        while let Some(slot_number) = self.machine.next_free_slot() {
            let slot = self.slab[slot_number as usize].take();
            self.free_slots.push_front(slot_number);
            self.unmarked_slots.extend(slot.map(|slot| (slot_number, slot)));
        }
        while self.unmarked_slots.len() > 8 || (!self.unmarked_slots.is_empty() && rng.chance(300))
        {
            self.unmarked_slots.pop_front();
        }
        self.free_slots.len() > free_before && self.to_submit.values().any(|left| *left > 0)
    }

    pub fn encode(&self, packet: &Transmit) -> InFlightPacket {
        let mut header = [0; PACKET_HEADER_LEN];
        packet.header.encode(&mut header);
        let mut bytes = header.to_vec();
        if let Some((slot, len)) = packet.payload {
            let slot = self.slab[slot as usize].expect("a slot is kept until it is free");
            bytes.extend(slot.value.to_le_bytes());
            bytes.resize(PACKET_HEADER_LEN + usize::from(len), 0);
            assert_eq!(Header::parse(&bytes).map(|header| header.sequence), Ok(slot.sequence));
        }
        InFlightPacket { to: packet.peer, link: packet.link, bytes }
    }
}
