//! A simulated network with all kinds of faults. Each host has a machine, a slab, receive buffers
//! and an application. Links have a rate, a queue and a delay. Times are simulated and random
//! numbers depend only on a seed, so a run can be repeated exactly.

use std::cmp::Ordering;
use std::collections::BinaryHeap;

use score_pm_reliability::{Config, RecoveredMessage, ReliabilityMachine};

use super::network::{InFlightPacket, MS, Network};
use super::node::{Node, Slot};
use super::sim_rng::SimRng;

pub const SECRET: u64 = 0x5ec2_e75e_c2e7_5ec2;
pub const INCARNATION: u32 = 7;

enum SimEvent {
    Switch(InFlightPacket),
    Arrive(InFlightPacket),
    Wake(u32),
}

/// The order of the heap: the earliest event is the greatest. Events at the same time keep the
/// order in which they were made.
struct ScheduledEvent {
    time: u64,
    order: u64,
    event: SimEvent,
}

impl Ord for ScheduledEvent {
    fn cmp(&self, other: &ScheduledEvent) -> Ordering {
        (other.time, other.order).cmp(&(self.time, self.order))
    }
}

impl PartialOrd for ScheduledEvent {
    fn partial_cmp(&self, other: &ScheduledEvent) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for ScheduledEvent {
    fn eq(&self, other: &ScheduledEvent) -> bool {
        self.order == other.order
    }
}

impl Eq for ScheduledEvent {}

pub struct Simulation {
    pub now: u64,
    pub network: Network,
    pub rng: SimRng,
    pub nodes: Vec<Node>,
    event_queue: BinaryHeap<ScheduledEvent>,
    next_order: u64,
    /// The time at which the link of each host and port is free, and the end of its stall, by node
    /// and link.
    egress: Vec<u64>,
    ports: Vec<u64>,
    stalled_until: Vec<u64>,
    /// Earlier packets, for replays.
    recorded: Vec<InFlightPacket>,
    pub forgeries: u64,
    /// The probability that an application stalls for a short time, in thousandths of deliveries.
    pub stall_permille: u64,
    /// How many steps in a million suspend the host for 50 to 300 ms, because it loses its
    /// processor. Its sockets fill meanwhile.
    pub freeze_ppm: u64,
}

impl Simulation {
    pub fn new(network: Network, seed: u64, adjust: impl Fn(&mut Config)) -> Simulation {
        let nodes = (0..network.nodes).map(|node| {
            let mut config = Config::new(node, network.nodes, SECRET, INCARNATION);
            config.links = network.links;
            adjust(&mut config);
            Node::new(config)
        });
        let port_count = network.nodes as usize * usize::from(network.links);
        Simulation {
            now: 1,
            nodes: nodes.collect(),
            rng: SimRng::new(seed),
            event_queue: BinaryHeap::new(),
            next_order: 0,
            egress: vec![0; port_count],
            ports: vec![0; port_count],
            stalled_until: vec![0; port_count],
            recorded: Vec::new(),
            forgeries: 0,
            stall_permille: 0,
            freeze_ppm: 0,
            network,
        }
    }

    fn schedule(&mut self, time: u64, event: SimEvent) {
        self.next_order += 1;
        self.event_queue.push(ScheduledEvent { time, order: self.next_order, event });
    }

    /// Makes node `from` send `count` messages to node `to`.
    pub fn plan(&mut self, from: u32, to: u32, count: u64) {
        *self.nodes[from as usize].to_submit.entry(to).or_default() += count;
    }

    /// Runs the simulation until `done` returns true or the time is over. Returns whether `done`
    /// has returned true.
    pub fn run(&mut self, until: u64, mut done: impl FnMut(&Simulation) -> bool) -> bool {
        for node in 0..self.nodes.len() as u32 {
            self.step(node);
        }
        let mut steps = 0u64;
        loop {
            steps += 1;
            if steps.is_multiple_of(64) && done(self) {
                return true;
            }
            let Some(next) = self.event_queue.pop() else { return done(self) };
            if next.time > until {
                self.event_queue.push(next);
                self.now = until;
                return done(self);
            }
            self.now = self.now.max(next.time);
            match next.event {
                SimEvent::Switch(flight) => self.switch(flight),
                SimEvent::Arrive(flight) => self.arrive(flight),
                SimEvent::Wake(node) => {
                    self.nodes[node as usize].wake_at = u64::MAX;
                    self.step(node);
                }
            }
        }
    }

    /// Whether all messages have been delivered and acknowledged.
    pub fn all_done(&self) -> bool {
        self.nodes.iter().enumerate().all(|(index, node)| {
            let to_send = node.dead || node.to_submit.values().all(|left| *left == 0);
            let arrived = node.submitted.iter().all(|(to, count)| {
                let to = &self.nodes[*to as usize];
                to.dead || to.delivered.get(&(index as u32)).copied().unwrap_or(0) == *count
            });
            // A suspended host has not yet collected its free slots.
            let collected = node.dead || node.frozen_until <= self.now;
            to_send && arrived && collected && node.machine.is_all_acked()
        })
    }

    /// Checks that every slot and every buffer is free after the end of the simulation.
    pub fn check_nothing_leaked(&self) {
        for (index, node) in self.nodes.iter().enumerate() {
            assert_eq!(node.slots_in_use(), 0, "slots of node {index}\n{}", self.dump());
            if !node.dead {
                assert_eq!(node.buffers_in_use(), 0, "buffers of node {index}\n{}", self.dump());
            }
        }
    }

    /// Runs a step of the process, and sends the packets of the host.
    pub fn step(&mut self, node_number: u32) {
        let now = self.now;
        let node = &mut self.nodes[node_number as usize];
        if node.frozen_until > now {
            let wake_at = node.frozen_until;
            return self.wake(node_number, wake_at);
        }
        let more_packets = node.read(now);
        if !node.dead {
            node.receive_messages(node_number, now, &mut self.rng, self.stall_permille);
            node.submit(node_number);
        }
        if node.machine.expire(now) {
            node.machine.on_timeout(now);
        }
        let mut packets = Vec::new();
        while let Some(packet) = node.machine.poll_transmit(now) {
            packets.push(node.encode(&packet));
            assert!(packets.len() < 100_000, "the machine sends without end");
        }
        let more_work = node.collect_free_slots(&mut self.rng) || more_packets;
        for flight in packets {
            self.send(node_number, flight);
        }
        let node = &mut self.nodes[node_number as usize];
        let deadline = node.machine.deadline().unwrap_or(u64::MAX);
        let stall = if node.stalled_until > now { node.stalled_until } else { u64::MAX };
        let mut wake_at = deadline.min(stall).max(now);
        if self.rng.below(1_000_000) < self.freeze_ppm {
            node.frozen_until = now + 50 * MS + self.rng.below(250 * MS);
            wake_at = wake_at.min(node.frozen_until);
        } else if more_work {
            wake_at = now;
        }
        self.wake(node_number, wake_at);
    }

    fn wake(&mut self, node_number: u32, wake_at: u64) {
        let node = &mut self.nodes[node_number as usize];
        if wake_at < node.wake_at {
            node.wake_at = wake_at;
            self.schedule(wake_at, SimEvent::Wake(node_number));
        }
    }

    fn port_index(&self, node: u32, link: u8) -> usize {
        node as usize * usize::from(self.network.links) + usize::from(link)
    }

    /// A packet leaves its host, if the queue of the link has room.
    fn send(&mut self, node_number: u32, flight: InFlightPacket) {
        let port = self.port_index(node_number, flight.link);
        if let Some(sent_at) = queue(&mut self.egress[port], self.now, &flight, &self.network) {
            self.inject_forgeries(&flight);
            let delay = self.network.delay / 2;
            self.schedule(sent_at + delay, SimEvent::Switch(flight));
        }
    }

    /// A packet passes the switch to the port of its destination, or is lost.
    fn switch(&mut self, flight: InFlightPacket) {
        let is_down = |(link, from, to): &(u8, u64, u64)| {
            *link == flight.link && (*from..*to).contains(&self.now)
        };
        if self.network.outages.iter().any(is_down) || self.rng.chance(self.network.loss) {
            return;
        }
        let port = self.port_index(flight.to, flight.link);
        let Some(departed_at) = queue(&mut self.ports[port], self.now, &flight, &self.network)
        else {
            return;
        };
        let (stall_ppm, max_stall) = self.network.link_stalls;
        if self.rng.below(1_000_000) < stall_ppm {
            self.stalled_until[port] = departed_at + self.rng.below(max_stall);
        }
        let departs_at = departed_at.max(self.stalled_until[port]);
        let latency = self.network.delay / 2 + self.rng.below(self.network.jitter + 1);
        if self.rng.chance(self.network.duplicates) {
            let duplicate = InFlightPacket { bytes: flight.bytes.clone(), ..flight };
            let extra_delay = self.rng.below(5 * MS);
            self.schedule(departs_at + latency + extra_delay, SimEvent::Arrive(duplicate));
        }
        self.schedule(departs_at + latency, SimEvent::Arrive(flight));
    }

    /// Injects packets that no host sends at this time.
    fn inject_forgeries(&mut self, original: &InFlightPacket) {
        if !self.rng.chance(self.network.forged) {
            return;
        }
        let mut bytes = original.bytes.clone();
        let (to, link) = (original.to, original.link);
        match self.rng.below(6) {
            // An attacker guesses the secret, or a packet of another job arrives.
            0 => bytes[8] ^= 1 << self.rng.below(8),
            // An earlier incarnation of this job, with matching sequence numbers.
            1 => bytes[16..20].copy_from_slice(&(INCARNATION - 1).to_le_bytes()),
            // The packet is truncated.
            2 => bytes.truncate(self.rng.below(bytes.len() as u64) as usize),
            // The packet is for another node.
            3 => bytes[24] ^= 0x80,
            // Random bytes.
            4 => bytes.iter_mut().for_each(|byte| *byte = self.rng.next() as u8),
            // A copy of a valid packet, much later.
            _ => {
                let copy = InFlightPacket { to, link, bytes: bytes.clone() };
                let slot = self.rng.below(64) as usize;
                if self.recorded.len() < 64 {
                    self.recorded.push(copy);
                    return;
                }
                let old = std::mem::replace(&mut self.recorded[slot], copy);
                let replayed_at = self.now + self.rng.below(50 * MS);
                self.forgeries += 1;
                return self.schedule(replayed_at, SimEvent::Arrive(old));
            }
        }
        self.forgeries += 1;
        let forged_at = self.now + self.rng.below(MS);
        self.schedule(forged_at, SimEvent::Arrive(InFlightPacket { to, link, bytes }));
    }

    fn arrive(&mut self, flight: InFlightPacket) {
        let to = flight.to;
        self.nodes[to as usize].enqueue_packet(flight);
        self.step(to);
    }

    /// The process of a node is killed; its shepherd adopts its slab.
    pub fn kill(&mut self, node_number: u32) {
        let node = &mut self.nodes[node_number as usize];
        let mut pending: Vec<RecoveredMessage> = Vec::new();
        // The process had not yet marked these slots as free, so their messages look unsent.
        for (slot_number, slot) in std::mem::take(&mut node.unmarked_slots) {
            node.free_slots.retain(|free| *free != slot_number);
            node.slab[slot_number as usize] = Some(slot);
        }
        for (slot_number, slot) in node.slab.iter().enumerate() {
            if let Some(Slot { peer, sequence, len, kind, .. }) = *slot {
                pending.push(RecoveredMessage {
                    peer,
                    sequence,
                    slot: slot_number as u32,
                    len,
                    kind,
                });
            }
        }
        let config = *node.machine.config();
        node.machine = ReliabilityMachine::new(config);
        node.machine.resume(pending);
        node.dead = true;
        self.step(node_number);
    }

    /// The membership reports the exit of the node to all other nodes.
    pub fn announce_death(&mut self, exited: u32) {
        for node_number in (0..self.nodes.len() as u32).filter(|node| *node != exited) {
            let node = &mut self.nodes[node_number as usize];
            node.machine.on_peer_exited(exited);
            node.to_submit.remove(&exited);
            self.step(node_number);
        }
    }

    /// The states of the first eight nodes, for the report of a failed run.
    pub fn dump(&self) -> String {
        let mut out = Vec::new();
        for node in self.nodes.iter().take(8) {
            node.machine.dump(&mut out).expect("a vector takes everything");
        }
        String::from_utf8_lossy(&out).into_owned()
    }
}

/// The time at which a packet has passed a link that is busy until `busy_until`. Returns `None` if
/// the queue is full.
fn queue(
    busy_until: &mut u64,
    now: u64,
    flight: &InFlightPacket,
    network: &Network,
) -> Option<u64> {
    let start = (*busy_until).max(now);
    if (start - now) * 1000 > network.queue * network.byte_picos {
        return None;
    }
    *busy_until = start + (flight.bytes.len() as u64 + 42) * network.byte_picos / 1000;
    Some(*busy_until)
}
