//! The reliability machine of PM/Ethernet: packets that may be lost, doubled, late and out of
//! order become messages that arrive once and in order. Sans I/O: times and packets in, packets
//! and deliveries out. It knows numbers only: nodes, links, send slots, receive buffers; never a
//! byte of payload. `docs/ethernet.md` states its rules.
//!
//! | file | what is in it |
//! |---|---|
//! | `mod.rs` | the machine as its device sees it |
//! | `config.rs` | its numbers |
//! | `exchange.rs` | what device and machine hand to each other |
//! | `peer.rs` | one peer: which packet goes out next |
//! | `send.rs` | messages to a peer: which may go out, time-outs |
//! | `acknowledge.rs` | which of them have arrived, which are lost |
//! | `receive.rs` | messages from a peer: order, window, acknowledgement |
//! | `congestion.rs` | how many packets may be on the way |
//! | `rtt.rs` | round trips and time-outs |
//! | `links.rs` | trunking: which link, and which is dead |
//! | `timer.rs` | one heap of timers |
//! | `table.rs` | node to peer |
//! | `report.rs` | counters, and the dump for people |
//!
//! How a device drives it: read what the wire has and give each packet to [`Machine::receive`];
//! then [`Machine::expire`]. Where that says so, read once more before [`Machine::time_out`]: the
//! process may have lost the processor just before it read the clock, and the acknowledgement that
//! prevents the time-out wait in its socket. Then send what [`Machine::poll_transmit`] answers
//! until that is `None`. [`Machine::next_delivery`] answers messages for the application,
//! [`Machine::next_free_slot`] send slots that are free again. All times are nanoseconds of the
//! job's running time.
#![forbid(unsafe_code)]

mod acknowledge;
mod config;
mod congestion;
mod exchange;
mod links;
mod peer;
mod receive;
mod report;
mod rtt;
mod send;
mod table;
mod timer;

pub use config::{Config, FIRST_WINDOW, MAX_WINDOW};
pub use exchange::{Delivery, Event, Fate, Pending, Refused, Transmit};
pub use report::Counters;
pub use score_proto::wire::{HEADER, Header, Kind};

use peer::Peer;
use score_proto::wire;
use std::collections::VecDeque;
use table::Table;
use timer::{Timer, Timers};

/// "Not at all", as a time.
pub(crate) const NEVER: u64 = u64::MAX;

/// Packets of one peer that are answered in a row, before another peer has its turn.
const BURST: u32 = 64;
/// Messages of one peer that are delivered in a row (the fairness bound of shmem).
const TURN: u32 = 16;
/// Events that wait to be fetched; more are forgotten.
const MAX_EVENTS: usize = 64;

/// What all peers share.
struct Shared {
    config: Config,
    counters: Counters,
    /// Slots that the device may use again.
    freed: VecDeque<u32>,
    events: VecDeque<Event>,
    /// Buffers kept, delivered and not yet released included.
    held: u32,
    /// Messages submitted and neither acknowledged nor dropped.
    outstanding: u64,
    /// Nothing is received: this machine only brings the messages of a dead process home.
    draining: bool,
}

impl Shared {
    /// How many messages beyond the released ones a peer may send now. Half of what is free:
    /// the more is held, the less each may add, and no peer takes all.
    fn grant(&self) -> u32 {
        ((self.config.buffers - self.held.min(self.config.buffers)) / 2).min(self.config.window)
    }

    fn tell(&mut self, event: Event) {
        if self.events.len() < MAX_EVENTS {
            self.events.push_back(event);
        }
    }
}

/// See the module.
pub struct Machine {
    shared: Shared,
    table: Table,
    peers: Vec<Peer>,
    /// Of these, how many wait for an acknowledgement.
    owed: u32,
    timers: Timers,
    /// Peers that have not answered in time, unless it says so in the socket.
    overdue: Vec<u32>,
    /// Peers that may have something to transmit, each at most once.
    ready: VecDeque<u32>,
    burst: u32,
    /// Peers that have messages to deliver, each at most once.
    deliverable: VecDeque<u32>,
    turn: u32,
    /// Peers whose window is shut for want of buffers.
    starved: VecDeque<u32>,
}

impl Machine {
    /// A machine that has not met anybody.
    pub fn new(config: Config) -> Machine {
        let config = config.bounded();
        Machine {
            table: Table::new(config.nodes),
            shared: Shared {
                config,
                counters: Counters::default(),
                freed: VecDeque::new(),
                events: VecDeque::new(),
                held: 0,
                outstanding: 0,
                draining: false,
            },
            peers: Vec::new(),
            owed: 0,
            timers: Timers::default(),
            overdue: Vec::new(),
            ready: VecDeque::new(),
            burst: 0,
            deliverable: VecDeque::new(),
            turn: 0,
            starved: VecDeque::new(),
        }
    }

    /// Its numbers, as they were bounded.
    pub fn config(&self) -> &Config {
        &self.shared.config
    }

    /// The peer's place, made at its first use. None: no node that one could talk with.
    #[inline]
    fn peer(&mut self, node: u32) -> Option<u32> {
        if let Some(index) = self.table.get(node) {
            return Some(index);
        }
        self.add_peer(node)
    }

    #[cold]
    fn add_peer(&mut self, node: u32) -> Option<u32> {
        if node >= self.shared.config.nodes || node == self.shared.config.own {
            return None;
        }
        let index = self.peers.len() as u32;
        self.peers.push(Peer::new(node, &self.shared.config));
        self.table.set(node, index);
        Some(index)
    }

    #[inline]
    fn enlist(&mut self, index: u32) {
        let peer = &mut self.peers[index as usize];
        if !peer.ready {
            peer.ready = true;
            self.ready.push_back(index);
        }
    }

    /// Whether `submit` would take a message to `node` now.
    #[inline]
    pub fn can_send(&self, node: u32) -> bool {
        match self.table.get(node) {
            Some(index) => self.peers[index as usize].send.has_room(&self.shared.config),
            None => node < self.shared.config.nodes && node != self.shared.config.own,
        }
    }

    /// The number that the next message to `node` will have.
    pub fn next_sequence(&self, node: u32) -> u32 {
        let known = self.table.get(node).map(|index| self.peers[index as usize].send.end());
        known.unwrap_or(self.shared.config.first_sequence)
    }

    /// Takes the message in `slot` and answers its number. The slot is the machine's until
    /// [`Self::next_free_slot`] names it; at once, if the peer is gone.
    ///
    /// # Errors
    /// See [`Refused`]; the slot is then still the device's.
    #[inline]
    pub fn submit(&mut self, node: u32, slot: u32, len: u16, kind: Kind) -> Result<u32, Refused> {
        if !kind.is_numbered() || len == 0 || len > self.shared.config.mtu {
            return Err(Refused::Invalid);
        }
        let index = self.peer(node).ok_or(Refused::Invalid)?;
        let peer = &mut self.peers[index as usize];
        if !peer.send.has_room(&self.shared.config) {
            return Err(Refused::Full);
        }
        let sequence = peer.send.submit(slot, len, kind, &mut self.shared);
        self.enlist(index);
        Ok(sequence)
    }

    /// Whether `poll_transmit` would answer nothing.
    #[inline]
    pub fn is_silent(&self) -> bool {
        self.ready.is_empty()
    }

    /// The next packet to send. Packets of one peer and link come in runs, so that the wire can
    /// send them together.
    #[inline]
    pub fn poll_transmit(&mut self, now: u64) -> Option<Transmit> {
        while let Some(&index) = self.ready.front() {
            let peer = &mut self.peers[index as usize];
            let packet = peer.transmit(&mut self.shared, now);
            peer.ready = packet.is_some() && peer.has_work();
            let more = peer.ready;
            self.arm(index);
            self.burst += 1;
            if !more {
                self.burst = 0;
                self.ready.pop_front();
            } else if self.burst >= BURST {
                self.burst = 0;
                self.ready.rotate_left(1);
            }
            if packet.is_some() {
                return packet;
            }
        }
        None
    }

    /// Looks at a packet that came over `link` into `buffer`.
    #[inline]
    pub fn receive(&mut self, packet: &[u8], link: u8, buffer: u32, now: u64) -> Fate {
        let Some(header) = self.admit(packet, link) else { return Fate::Free };
        let Some(index) = self.peer(header.source) else {
            self.shared.counters.misdirected += 1;
            return Fate::Free;
        };
        self.shared.counters.received += 1;
        let peer = &mut self.peers[index as usize];
        if header.flags & wire::ACK != 0 {
            peer.send.acknowledge(&header, &mut peer.links, &mut self.shared, now);
        }
        let fate = peer.take(&header, link, buffer, &mut self.shared, now);
        let more = peer.has_work();
        self.arm(index);
        if more {
            self.enlist(index);
        }
        self.list_deliverable(index);
        fate
    }

    /// After each change of a peer: its timers, and whether it waits for an acknowledgement.
    #[inline]
    fn arm(&mut self, index: u32) {
        let peer = &mut self.peers[index as usize];
        peer.arm(index, &mut self.timers);
        let owed = peer.receive.ack_at != NEVER;
        self.owed = self.owed + u32::from(owed) - u32::from(peer.owed);
        peer.owed = owed;
    }

    /// Whether a peer is owed an acknowledgement that waits for a message to ride on: then
    /// [`Self::expire`] is needed before long.
    #[inline]
    pub fn owes(&self) -> bool {
        self.owed > 0
    }

    /// The header of a packet that is this job's and meant for this node; others are counted.
    #[inline]
    fn admit(&mut self, packet: &[u8], link: u8) -> Option<Header> {
        let Shared { config, counters, .. } = &mut self.shared;
        let drop = match wire::secret(packet) {
            None => &mut counters.malformed,
            Some(secret) if secret != config.secret => &mut counters.wrong_secret,
            Some(_) => match Header::parse(packet) {
                Err(wire::Malformed::Length(..)) => &mut counters.wrong_length,
                Err(_) => &mut counters.malformed,
                Ok(header) if header.incarnation != config.incarnation => {
                    &mut counters.wrong_incarnation
                }
                Ok(header) if header.destination != config.own || link >= config.links => {
                    &mut counters.misdirected
                }
                Ok(header) if header.len > config.mtu => &mut counters.wrong_length,
                Ok(header) => return Some(header),
            },
        };
        *drop += 1;
        None
    }

    #[inline]
    fn list_deliverable(&mut self, index: u32) {
        let receive = &mut self.peers[index as usize].receive;
        if receive.has_delivery() && !receive.listed {
            receive.listed = true;
            self.deliverable.push_back(index);
        }
        if receive.starved && !receive.waiting {
            receive.waiting = true;
            self.starved.push_back(index);
        }
    }

    /// Whether [`Self::next_delivery`] would answer something.
    #[inline]
    pub fn has_delivery(&self) -> bool {
        !self.deliverable.is_empty()
    }

    /// The next message for the application: of each peer in the order of sending, of all peers
    /// in turn.
    #[inline]
    pub fn next_delivery(&mut self) -> Option<Delivery> {
        let index = *self.deliverable.front()?;
        let peer = &mut self.peers[index as usize];
        let delivery = peer.receive.deliver(peer.node);
        debug_assert!(delivery.is_some());
        self.turn += 1;
        if !peer.receive.has_delivery() {
            peer.receive.listed = false;
            self.deliverable.pop_front();
            self.turn = 0;
        } else if self.turn >= TURN {
            self.deliverable.rotate_left(1);
            self.turn = 0;
        }
        delivery
    }

    /// The application has done with one message of `node`: its buffer is free, and the window
    /// may move on.
    #[inline]
    pub fn released(&mut self, node: u32) {
        let Some(index) = self.table.get(node) else { return };
        let receive = &mut self.peers[index as usize].receive;
        if !receive.release(&mut self.shared) {
            return;
        }
        if receive.due {
            self.enlist(index);
        }
        // Buffers that come free also open the windows of those who found none.
        if !self.starved.is_empty() && self.shared.grant() > 0 {
            self.feed_starved();
        }
    }

    #[cold]
    fn feed_starved(&mut self) {
        let Some(index) = self.starved.pop_front() else { return };
        let receive = &mut self.peers[index as usize].receive;
        receive.waiting = false;
        if receive.starved {
            receive.widen(&self.shared);
            receive.due = true;
            self.enlist(index);
        }
    }

    /// A slot whose message has been acknowledged or dropped.
    #[inline]
    pub fn next_free_slot(&mut self) -> Option<u32> {
        self.shared.freed.pop_front()
    }

    /// Something that an operator should hear of.
    pub fn next_event(&mut self) -> Option<Event> {
        self.shared.events.pop_front()
    }

    /// The membership says that `node` has ended: what has been sent to it is dropped, and what
    /// will be. What it sent still arrives, because its shepherd brings that home.
    pub fn peer_gone(&mut self, node: u32) {
        let Some(index) = self.peer(node) else { return };
        let peer = &mut self.peers[index as usize];
        peer.send.drop_all(&mut peer.links, &mut self.shared);
        peer.links.forget_probes();
    }

    /// Messages that are neither acknowledged nor dropped.
    #[inline]
    pub fn outstanding(&self) -> u64 {
        self.shared.outstanding
    }

    /// The same for one peer.
    pub fn outstanding_to(&self, node: u32) -> u32 {
        self.table.get(node).map_or(0, |index| self.peers[index as usize].send.outstanding())
    }

    /// Whether each message sent from here is in its receiver's queue, or its receiver is gone.
    #[inline]
    pub fn is_done(&self) -> bool {
        self.shared.outstanding == 0
    }

    /// When [`Self::expire`] is next needed. Ask before sleeping; while polling, call `expire`
    /// each time instead, which costs one comparison.
    pub fn deadline(&mut self) -> Option<u64> {
        let peers = &mut self.peers;
        self.timers.next(|index, timer, armed| peers[index as usize].true_deadline(timer, armed))
    }

    /// Does what is due. Answers whether peers have not answered in time: what has come since the
    /// wires were read last is looked at before [`Self::time_out`], which is to be called then.
    #[inline]
    pub fn expire(&mut self, now: u64) -> bool {
        while self.timers.is_due(now) {
            self.fire(now);
        }
        !self.overdue.is_empty()
    }

    /// Does what follows for those who have still not answered.
    #[cold]
    pub fn time_out(&mut self, now: u64) {
        while let Some(index) = self.overdue.pop() {
            let peer = &mut self.peers[index as usize];
            if peer.deadline(Timer::Retransmit) <= now {
                peer.send.time_out(&mut peer.links, &mut self.shared, now);
                self.enlist(index);
            }
            self.arm(index);
        }
    }

    #[cold]
    fn fire(&mut self, now: u64) {
        let Some((armed, index, timer)) = self.timers.pop() else { return };
        let peer = &mut self.peers[index as usize];
        if peer.armed[timer as usize] != armed {
            return;
        }
        peer.armed[timer as usize] = NEVER;
        if peer.deadline(timer) <= now {
            match timer {
                Timer::Retransmit => return self.overdue.push(index),
                Timer::Acknowledge => peer.receive.time_out(),
                Timer::Probe => {
                    let mut dead = peer.links.time_out(now);
                    while let Some(link) = links::take_lowest(&mut dead) {
                        self.shared.tell(Event::LinkDown { peer: peer.node, link });
                    }
                }
            }
            self.enlist(index);
        }
        self.arm(index);
    }

    /// Takes over the messages of a process that has died, as its slab has them, in any order.
    /// From then on nothing is received here but acknowledgements. Slots that cannot be what a
    /// machine has numbered are counted, and free at once.
    pub fn resume(&mut self, slots: impl IntoIterator<Item = Pending>) {
        self.shared.draining = true;
        let mut all: Vec<(u32, Pending)> = Vec::new();
        for pending in slots {
            let valid = pending.kind.is_numbered()
                && pending.len != 0
                && pending.len <= self.shared.config.mtu;
            match self.peer(pending.peer).filter(|_| valid) {
                Some(index) => all.push((index, pending)),
                None => self.shared.refuse_slot(pending.slot),
            }
        }
        all.sort_by_key(|(index, _)| *index);
        for run in all.chunk_by_mut(|a, b| a.0 == b.0) {
            let index = run[0].0;
            let first = run[0].1.sequence;
            run.sort_by_key(|(_, pending)| pending.sequence.wrapping_sub(first) as i32);
            let pending = run.iter().map(|(_, pending)| *pending);
            self.peers[index as usize].send.resume(pending, &mut self.shared);
            self.enlist(index);
        }
    }

    /// What has been counted.
    pub fn counters(&self) -> &Counters {
        &self.shared.counters
    }
}
