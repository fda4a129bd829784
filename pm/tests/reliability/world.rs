//! A network that exists only in memory: hosts, each with a machine, a slab, receive buffers and
//! an application; links with a rate, a queue and a delay; and everything that goes wrong. Time
//! is a number, chance a seed, so a run can be repeated exactly.

use std::cmp::Ordering;
use std::collections::BinaryHeap;

use score_pm::reliability::{Config, Machine, Pending};

use super::node::{Node, Slot};

pub const SECRET: u64 = 0x5ec2_e75e_c2e7_5ec2;
pub const INCARNATION: u32 = 7;
pub const MS: u64 = 1_000_000;
pub const SECOND: u64 = 1000 * MS;

/// xorshift: all that chance needs to be here.
pub struct Chance(u64);

impl Chance {
    pub fn new(seed: u64) -> Chance {
        Chance(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }
    pub fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }
    pub fn below(&mut self, end: u64) -> u64 {
        (self.next() >> 11) % end.max(1)
    }
    pub fn hits(&mut self, permille: u64) -> bool {
        self.below(1000) < permille
    }
}

/// What the network does to packets. Shares are in thousandths.
#[derive(Clone, Debug)]
pub struct Network {
    pub nodes: u32,
    pub links: u8,
    /// Nanoseconds that a byte takes on a link; thousandths.
    pub byte_picos: u64,
    /// One way, in nanoseconds, and what is added at random.
    pub delay: u64,
    pub jitter: u64,
    /// Bytes that wait before a link or a switch's port.
    pub queue: u64,
    pub loss: u64,
    pub duplicates: u64,
    /// Packets that nobody sent, replays, and packets of an earlier incarnation.
    pub forged: u64,
    /// Links that carry nothing: number, from, to.
    pub outages: Vec<(u8, u64, u64)>,
    /// Packets, in a million, with which a link to a host stands still, for so long at most: what
    /// comes meanwhile arrives late, in order, while other links go on.
    pub holds: (u64, u64),
}

impl Network {
    pub fn clean(nodes: u32, links: u8) -> Network {
        Network {
            nodes,
            links,
            byte_picos: 800, // 10 Gbit/s
            delay: 10_000,
            jitter: 0,
            queue: 512 << 10,
            loss: 0,
            duplicates: 0,
            forged: 0,
            outages: Vec::new(),
            holds: (0, 0),
        }
    }
}

enum Happening {
    Switch(Flight),
    Arrive(Flight),
    Wake(u32),
}

/// The earliest is the greatest, for the heap; ties in the order in which they were made.
struct Appointment {
    at: u64,
    tie: u64,
    what: Happening,
}

impl Ord for Appointment {
    fn cmp(&self, other: &Appointment) -> Ordering {
        (other.at, other.tie).cmp(&(self.at, self.tie))
    }
}

impl PartialOrd for Appointment {
    fn partial_cmp(&self, other: &Appointment) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Appointment {
    fn eq(&self, other: &Appointment) -> bool {
        self.tie == other.tie
    }
}

impl Eq for Appointment {}

/// A packet on its way.
pub struct Flight {
    pub to: u32,
    pub link: u8,
    pub bytes: Vec<u8>,
}

pub struct World {
    pub now: u64,
    pub network: Network,
    pub chance: Chance,
    pub nodes: Vec<Node>,
    agenda: BinaryHeap<Appointment>,
    tie: u64,
    /// When each host's and each port's link is free, by node and link; until when it is held.
    egress: Vec<u64>,
    ports: Vec<u64>,
    held: Vec<u64>,
    /// Packets seen, for replays.
    seen: Vec<Flight>,
    pub forgeries: u64,
    /// Chance of an application's short nap, in thousandths of deliveries.
    pub naps: u64,
    /// Steps, in a million, after which a host does nothing for 50 to 300 ms: it has lost the
    /// processor, and its sockets fill.
    pub pauses: u64,
}

impl World {
    pub fn new(network: Network, seed: u64, adjust: impl Fn(&mut Config)) -> World {
        let nodes = (0..network.nodes).map(|own| {
            let mut config = Config::new(own, network.nodes, SECRET, INCARNATION);
            config.links = network.links;
            adjust(&mut config);
            Node::new(config)
        });
        let places = network.nodes as usize * usize::from(network.links);
        World {
            now: 1,
            nodes: nodes.collect(),
            chance: Chance::new(seed),
            agenda: BinaryHeap::new(),
            tie: 0,
            egress: vec![0; places],
            ports: vec![0; places],
            held: vec![0; places],
            seen: Vec::new(),
            forgeries: 0,
            naps: 0,
            pauses: 0,
            network,
        }
    }

    fn schedule(&mut self, at: u64, what: Happening) {
        self.tie += 1;
        self.agenda.push(Appointment { at, tie: self.tie, what });
    }

    /// Node `from` shall send `count` messages to node `to`.
    pub fn plan(&mut self, from: u32, to: u32, count: u64) {
        *self.nodes[from as usize].plan.entry(to).or_default() += count;
    }

    /// Lets the world go until `done` says so or the time has come. Answers whether it was done.
    pub fn run(&mut self, until: u64, mut done: impl FnMut(&World) -> bool) -> bool {
        for node in 0..self.nodes.len() as u32 {
            self.step(node);
        }
        let mut turns = 0u64;
        loop {
            turns += 1;
            if turns.is_multiple_of(64) && done(self) {
                return true;
            }
            let Some(next) = self.agenda.pop() else { return done(self) };
            if next.at > until {
                self.agenda.push(next);
                self.now = until;
                return done(self);
            }
            self.now = self.now.max(next.at);
            match next.what {
                Happening::Switch(flight) => self.switch(flight),
                Happening::Arrive(flight) => self.arrive(flight),
                Happening::Wake(node) => {
                    self.nodes[node as usize].wake_at = u64::MAX;
                    self.step(node);
                }
            }
        }
    }

    /// Everything planned has been delivered and acknowledged.
    pub fn all_done(&self) -> bool {
        self.nodes.iter().enumerate().all(|(own, node)| {
            let to_send = node.dead || node.plan.values().all(|left| *left == 0);
            let arrived = node.submitted.iter().all(|(to, count)| {
                let to = &self.nodes[*to as usize];
                to.dead || to.delivered.get(&(own as u32)).copied().unwrap_or(0) == *count
            });
            // Who stands still has not yet collected the slots that are free.
            let collected = node.dead || node.frozen_until <= self.now;
            to_send && arrived && collected && node.machine.is_done()
        })
    }

    /// After all is done, every slot and every buffer is free again.
    pub fn check_nothing_leaked(&self) {
        for (own, node) in self.nodes.iter().enumerate() {
            assert_eq!(node.slots_in_use(), 0, "slots of node {own}\n{}", self.dump());
            if !node.dead {
                assert_eq!(node.buffers_in_use(), 0, "buffers of node {own}\n{}", self.dump());
            }
        }
    }

    /// The process does its part, and the host sends what is to be sent.
    pub fn step(&mut self, own: u32) {
        let now = self.now;
        let node = &mut self.nodes[own as usize];
        if node.frozen_until > now {
            let at = node.frozen_until;
            return self.wake(own, at);
        }
        let more = node.read(now);
        if !node.dead {
            node.take(own, now, &mut self.chance, self.naps);
            node.submit(own);
        }
        if node.machine.expire(now) {
            node.machine.time_out(now);
        }
        let mut packets = Vec::new();
        while let Some(packet) = node.machine.poll_transmit(now) {
            packets.push(node.encode(&packet));
            assert!(packets.len() < 100_000, "the machine never has enough");
        }
        let more = node.collect(&mut self.chance) || more;
        for flight in packets {
            self.send(own, flight);
        }
        let node = &mut self.nodes[own as usize];
        let deadline = node.machine.deadline().unwrap_or(u64::MAX);
        let stall = if node.stalled_until > now { node.stalled_until } else { u64::MAX };
        let mut at = deadline.min(stall).max(now);
        if self.chance.below(1_000_000) < self.pauses {
            node.frozen_until = now + 50 * MS + self.chance.below(250 * MS);
            at = at.min(node.frozen_until);
        } else if more {
            at = now;
        }
        self.wake(own, at);
    }

    fn wake(&mut self, own: u32, at: u64) {
        let node = &mut self.nodes[own as usize];
        if at < node.wake_at {
            node.wake_at = at;
            self.schedule(at, Happening::Wake(own));
        }
    }

    fn place(&self, node: u32, link: u8) -> usize {
        node as usize * usize::from(self.network.links) + usize::from(link)
    }

    /// A packet leaves its host, if the queue before the link has room.
    fn send(&mut self, own: u32, flight: Flight) {
        let place = self.place(own, flight.link);
        if let Some(at) = queue(&mut self.egress[place], self.now, &flight, &self.network) {
            self.mischief(&flight);
            let delay = self.network.delay / 2;
            self.schedule(at + delay, Happening::Switch(flight));
        }
    }

    /// A packet is in the switch, and goes out of the port of its destination, or is lost.
    fn switch(&mut self, flight: Flight) {
        let down = |(link, from, to): &(u8, u64, u64)| {
            *link == flight.link && (*from..*to).contains(&self.now)
        };
        if self.network.outages.iter().any(down) || self.chance.hits(self.network.loss) {
            return;
        }
        let place = self.place(flight.to, flight.link);
        let Some(at) = queue(&mut self.ports[place], self.now, &flight, &self.network) else {
            return;
        };
        let (often, longest) = self.network.holds;
        if self.chance.below(1_000_000) < often {
            self.held[place] = at + self.chance.below(longest);
        }
        let at = at.max(self.held[place]);
        let late = self.network.delay / 2 + self.chance.below(self.network.jitter + 1);
        if self.chance.hits(self.network.duplicates) {
            let again = Flight { bytes: flight.bytes.clone(), ..flight };
            let later = self.chance.below(5 * MS);
            self.schedule(at + late + later, Happening::Arrive(again));
        }
        self.schedule(at + late, Happening::Arrive(flight));
    }

    /// Packets that nobody has sent now.
    fn mischief(&mut self, model: &Flight) {
        if !self.chance.hits(self.network.forged) {
            return;
        }
        let mut bytes = model.bytes.clone();
        let (to, link) = (model.to, model.link);
        match self.chance.below(6) {
            // Somebody off the path guesses, another job's packet strays.
            0 => bytes[8] ^= 1 << self.chance.below(8),
            // This job, before it was restarted; the numbers fit.
            1 => bytes[16..20].copy_from_slice(&(INCARNATION - 1).to_le_bytes()),
            // Cut off.
            2 => bytes.truncate(self.chance.below(bytes.len() as u64) as usize),
            // For another node.
            3 => bytes[24] ^= 0x80,
            // Noise behind the secret of this job would be accepted: noise has no secret.
            4 => bytes.iter_mut().for_each(|byte| *byte = self.chance.next() as u8),
            // A true packet, long after.
            _ => {
                let copy = Flight { to, link, bytes: bytes.clone() };
                let at = self.chance.below(64) as usize;
                if self.seen.len() < 64 {
                    self.seen.push(copy);
                    return;
                }
                let old = std::mem::replace(&mut self.seen[at], copy);
                let at = self.now + self.chance.below(50 * MS);
                self.forgeries += 1;
                return self.schedule(at, Happening::Arrive(old));
            }
        }
        self.forgeries += 1;
        let at = self.now + self.chance.below(MS);
        self.schedule(at, Happening::Arrive(Flight { to, link, bytes }));
    }

    fn arrive(&mut self, flight: Flight) {
        let to = flight.to;
        self.nodes[to as usize].socket(flight);
        self.step(to);
    }

    /// The process of a node ends without a word; its shepherd takes its slab over.
    pub fn kill(&mut self, own: u32) {
        let node = &mut self.nodes[own as usize];
        let mut pending: Vec<Pending> = Vec::new();
        // What the process had not yet marked free looks as if it were still to be sent.
        for (number, slot) in std::mem::take(&mut node.late) {
            node.free_slots.retain(|free| *free != number);
            node.slab[number as usize] = Some(slot);
        }
        for (number, slot) in node.slab.iter().enumerate() {
            if let Some(Slot { peer, sequence, len, kind, .. }) = *slot {
                pending.push(Pending { peer, sequence, slot: number as u32, len, kind });
            }
        }
        let config = *node.machine.config();
        node.machine = Machine::new(config);
        node.machine.resume(pending);
        node.dead = true;
        self.step(own);
    }

    /// The membership tells all others that a node is gone.
    pub fn announce_death(&mut self, gone: u32) {
        for own in (0..self.nodes.len() as u32).filter(|own| *own != gone) {
            let node = &mut self.nodes[own as usize];
            node.machine.peer_gone(gone);
            node.plan.remove(&gone);
            self.step(own);
        }
    }

    /// What everybody has counted, for a failing run.
    pub fn dump(&self) -> String {
        let mut out = Vec::new();
        for node in self.nodes.iter().take(8) {
            node.machine.dump(&mut out).expect("a vector takes everything");
        }
        String::from_utf8_lossy(&out).into_owned()
    }
}

/// When a packet has passed a link that is busy until `free`. None: the queue is full.
fn queue(free: &mut u64, now: u64, flight: &Flight, network: &Network) -> Option<u64> {
    let start = (*free).max(now);
    if (start - now) * 1000 > network.queue * network.byte_picos {
        return None;
    }
    *free = start + (flight.bytes.len() as u64 + 42) * network.byte_picos / 1000;
    Some(*free)
}
