//! Progress: what waits on the wires goes through the machine to the receiver, what was sent goes
//! out. Whoever holds the progress lock does all of it.

// UNSAFETY: shows received packets to the machine where they lie, and the slab to the wires.
#![expect(unsafe_code)]

use super::away::Away;
use super::clock::Clock;
use super::desk::Desk;
use super::links::{BATCH, Links};
use super::pump::Remote;
use super::reliability::{Config, Event, Fate, HEADER, Kind, Machine};
use super::store::{Store, bytes};
use super::wire::{self, Received, UDP_PREFIX, Wire};
use crate::debug;
use crate::device::network::addresses::Addresses;
use crate::device::network::lanes::{Arrived, Lanes, Letter, Submitted};
use crate::device::network::layout::{BEFORE, OUTBOX, Published};
use crate::device::network::slab::{Content, Slab};
use crate::device::network::{self, Identity, Pass, pool};
use crate::error::{Error, Result};
use crate::segment::from_errno;
use crate::sync::Ordering;
use std::collections::{HashSet, VecDeque};
use std::io::Write;
use std::sync::Arc;

/// Batches that one pass reads from one wire at most, so that no flood holds it up.
const ROUNDS: usize = 4;
/// What was sent to a node that has gone may still be acknowledged for so long.
const GRACE: u64 = 50_000_000;
/// Nanoseconds until packets are tried again that the kernel had no room for.
const RETRY: u64 = 1_000_000;
/// Passes between two looks for what users should hear of.
const TELL: u64 = 1024;
/// Nanoseconds between two looks for links without a carrier: each may wait for a lock that all
/// changes of networks take.
const CARRIER: u64 = 250_000_000;
/// Polls that find nothing to do, of which one looks at the clock, and at what the owner asks for.
const QUIET: u32 = 8;
/// Buffers that the machine does not know of: for what is just being read.
const SPARE: usize = 64;

// What goes before a payload fits there, and no gap is left: see `Geometry`.
const _: () = assert!(BEFORE == HEADER + UDP_PREFIX);

/// See the module. The slab comes last: wires send from it.
pub(crate) struct Engine {
    pub(super) machine: Machine,
    pub(super) links: Links,
    store: Store,
    clock: Clock,
    came: [Received; BATCH],
    /// Who owns each slot's message, so that its credit goes back there.
    pub(super) owners: Box<[u32]>,
    /// Slots for control messages.
    pub(super) spare_slots: Vec<u32>,
    /// Control messages that wait to be read, with their entries.
    pub(super) letters: VecDeque<(Letter, u32)>,
    pub(super) desk: Arc<Desk>,
    pub(super) remote: Remote,
    /// Nodes that were marked as gone: all, how many marks were seen, and those in grace.
    pub(super) gone: HashSet<u32>,
    gone_seen: u64,
    going: VecDeque<(u64, u32)>,
    dropped_seen: u64,
    time_outs_seen: u64,
    look_at: u64,
    passes: u64,
    /// Polls since the latest look at everything.
    quiet: u32,
    /// The latest pass has left the rest to the next one.
    behind: bool,
    pub(super) place: usize,
    pub(super) slab: Arc<Slab>,
}

/// What a wire's complaint answers.
pub(super) fn refused(why: wire::WireError) -> Error {
    debug::say(debug::ERROR, || format!("ethernet: {why}"));
    why.errno.map_or(Error::Invalid, |errno| match from_errno(errno) {
        Error::Io => Error::NoDevice,
        error => error,
    })
}

/// The machine's numbers for these wires.
fn config(identity: Identity, restarts: u32, slab: &Slab, links: usize) -> Config {
    let geometry = slab.geometry();
    let nodes = geometry.nodes as u32;
    let mut config = Config::new(identity.own, nodes, identity.secret, restarts);
    config.links = links as u8;
    config.mtu = geometry.mtu as u16;
    config.buffers = (pool::buffers(geometry.mtu) - SPARE) as u32;
    // More than all slots and a whole window of holes: what is sent is never refused.
    config.queue = 8192;
    config
}

/// The kind of a packet, as its header says.
#[inline]
fn kind_of(packet: &[u8]) -> Option<Kind> {
    packet.get(2).and_then(|byte| Kind::from_byte(*byte))
}

impl Engine {
    pub(super) fn new(
        identity: Identity,
        restarts: u32,
        links: Vec<wire::Endpoint>,
        addresses: Arc<Addresses>,
        slab: Arc<Slab>,
    ) -> Result<Engine> {
        let attach = |link| {
            let (start, size) = (slab.start(), slab.geometry().size);
            // SAFETY: the engine holds the slab, and drops it after the wires. Each frame has these
            // bytes before its payload, and its own end behind it.
            let memory = unsafe { wire::Slab::new(start, size).with_room(BEFORE) };
            Wire::attach(link, memory).map_err(refused)
        };
        let wires = links.into_iter().map(attach).collect::<Result<Vec<_>>>()?;
        let geometry = *slab.geometry();
        let place = geometry.place(identity.own as usize).unwrap_or(0);
        Ok(Engine {
            machine: Machine::new(config(identity, restarts, &slab, wires.len())),
            links: Links::new(
                wires,
                addresses,
                (identity.own, identity.channel as usize),
                Away::new(geometry.slots, geometry.slots),
            ),
            store: Store::new(geometry.mtu),
            clock: Clock::new(),
            came: [Received::default(); BATCH],
            owners: vec![0; geometry.all_slots()].into(),
            spare_slots: (geometry.slots - OUTBOX..geometry.slots).map(|s| s as u32).collect(),
            letters: VecDeque::new(),
            desk: Arc::default(),
            remote: Remote::new(&geometry),
            gone: HashSet::new(),
            gone_seen: 0,
            going: VecDeque::new(),
            dropped_seen: 0,
            time_outs_seen: 0,
            look_at: 0,
            passes: 0,
            quiet: 0,
            behind: false,
            place,
            slab,
        })
    }

    /// What a pass does besides. Answers whether something was delivered.
    fn rest(&mut self, lanes: &Lanes, now: u64) -> bool {
        self.take_released(lanes);
        if self.slab.gone_count().load(Ordering::Relaxed) != self.gone_seen {
            self.look_who_has_gone(now);
        }
        if !self.slab.record(self.place).outbox.is_empty() {
            self.send_letters();
        }
        let overdue = self.machine.expire(now);
        let delivered = overdue && self.look_again(lanes, now);
        if self.machine.counters().time_outs != self.time_outs_seen && now >= self.look_at {
            self.look_for_carriers(now);
        }
        if !self.going.is_empty() {
            self.let_go(lanes, now);
        }
        self.transmit_all(lanes, now);
        self.give_back(lanes);
        self.passes = self.passes.wrapping_add(1);
        if self.passes.is_multiple_of(TELL) {
            self.tell();
        }
        delivered
    }

    /// Before a time-out: who was held finds in the socket what it has waited for.
    #[cold]
    fn look_again(&mut self, lanes: &Lanes, now: u64) -> bool {
        self.receive(lanes);
        self.machine.time_out(now);
        self.deliver(lanes)
    }

    #[cold]
    fn look_for_carriers(&mut self, now: u64) {
        self.time_outs_seen = self.machine.counters().time_outs;
        self.look_at = now.saturating_add(CARRIER);
        self.links.tell_lost_carriers();
    }

    #[inline]
    fn take_submitted(&mut self, lanes: &Lanes) {
        let count = lanes.submitted.len() as u64;
        // After the look at messages: what they come behind is seen.
        if !self.desk.is_empty() {
            self.take_operations(lanes);
        }
        if count == 0 {
            return;
        }
        // Before they leave the queue: who looks at both meanwhile finds them in one of them.
        lanes.outstanding.store(self.outstanding() + count, Ordering::Release);
        for _ in 0..count {
            let Some(word) = lanes.submitted.pop() else { break };
            let message = Submitted::from_word(word);
            if self.remote.transfers.must_wait(message.to) {
                self.remote.transfers.park(message);
            } else {
                self.submit(message);
            }
        }
    }

    /// Messages sent and neither acknowledged nor dropped.
    fn outstanding(&self) -> u64 {
        let messages = self.machine.outstanding().saturating_sub(self.remote.flying());
        messages + self.remote.transfers.parked() as u64
    }

    /// Gives a message to the machine. The sender has checked all that the machine checks.
    #[inline]
    pub(super) fn submit(&mut self, Submitted { slot, to, len }: Submitted) {
        self.bring_home_before(to);
        self.owners[slot as usize] = to;
        let taken = self.machine.submit(to, slot, len as u16, Kind::Data);
        debug_assert!(taken.is_ok(), "{taken:?}");
        if let Ok(sequence) = taken {
            self.slab.set_sequence(self.place, slot as usize, sequence);
            self.count_number(to, sequence);
        }
    }

    /// Whether a message to `node` may go past the queue: nothing waits that comes before it.
    #[inline]
    pub(super) fn takes_at_once(&self, lanes: &Lanes, node: u32) -> bool {
        // In this order: what is sent after an operation has begun comes behind it.
        lanes.submitted.is_empty() && self.desk.is_empty() && !self.remote.transfers.must_wait(node)
    }

    /// Publishes a message that has its number at once.
    #[inline]
    pub(super) fn publish(&mut self, Submitted { slot, to, len }: Submitted) {
        self.bring_home_before(to);
        self.owners[slot as usize] = to;
        let taken = self.machine.submit(to, slot, len as u16, Kind::Data);
        debug_assert!(taken.is_ok(), "{taken:?}");
        let published = Published::new(len as usize, Kind::Data);
        let content = Content { to, order: 0, sequence: taken.ok(), published };
        self.slab.publish(self.place, slot as usize, content);
        if let Ok(sequence) = taken {
            self.count_number(to, sequence);
        }
    }

    /// For who adopts what is left here: the number is taken.
    #[inline]
    fn count_number(&self, to: u32, sequence: u32) {
        let number = self.slab.number(self.place, to as usize);
        number.store(u64::from(sequence.wrapping_add(1)), Ordering::Release);
    }

    /// Publishes a slot that no sender has, and gives it to the machine as a packet with `len`
    /// bytes.
    pub(super) fn submit_own(
        &mut self,
        to: u32,
        slot: u32,
        published: Published,
        (len, kind): (usize, Kind),
    ) -> Result<()> {
        let sequence = self.machine.next_sequence(to);
        let content = Content { to, order: 0, sequence: Some(sequence), published };
        self.slab.publish(self.place, slot as usize, content);
        self.owners[slot as usize] = to;
        if self.machine.submit(to, slot, len as u16, kind).is_err() {
            self.slab.free(self.place, slot as usize);
            return Err(Error::Invalid);
        }
        self.count_number(to, sequence);
        Ok(())
    }

    #[inline]
    fn take_released(&mut self, lanes: &Lanes) {
        while let Some(word) = lanes.released.pop() {
            let Arrived { entry, from, .. } = Arrived::from_word(word);
            self.release(entry, from);
        }
    }

    pub(super) fn release(&mut self, entry: u32, from: u32) {
        self.store.release(entry, &mut self.links.wires);
        self.machine.released(from);
    }

    /// Takes what has come; answers the time, if anything has.
    #[inline]
    fn receive(&mut self, lanes: &Lanes) -> Option<u64> {
        let mut now = None;
        for link in 0..self.links.wires.len() {
            for _ in 0..ROUNDS {
                let count = self.links.wires[link].receive(&mut self.came);
                if count > 0 {
                    let now = *now.get_or_insert_with(|| self.clock.now());
                    for i in 0..count {
                        self.look_at(lanes, link, self.came[i], now);
                    }
                }
                if count < BATCH {
                    break;
                }
            }
        }
        now
    }

    /// Whether a poll that has found nothing is over: nothing waits to be done, and timers have
    /// time for some polls.
    #[inline]
    fn is_quiet(&mut self, lanes: &Lanes) -> bool {
        self.quiet += 1;
        let idle = !self.behind
            && self.machine.is_silent()
            && !self.machine.owes()
            && lanes.released.is_empty()
            && lanes.submitted.is_empty()
            && self.desk.is_empty()
            && self.remote.is_quiet()
            && !self.links.is_blocked();
        idle && self.quiet < QUIET
    }

    #[inline]
    fn look_at(&mut self, lanes: &Lanes, link: usize, packet: Received, now: u64) {
        let wire = &mut self.links.wires[link];
        let Some(entry) = self.store.next() else {
            // Cannot be: the machine knows of fewer buffers than there are.
            return wire.release(packet.buffer);
        };
        let at = wire.pointer(packet);
        // SAFETY: just received from this wire; released below, or kept by the store.
        let bytes = unsafe { bytes(at, packet.len) };
        let fate = self.machine.receive(bytes, link as u8, entry, now);
        match fate {
            Fate::Free => wire.release(packet.buffer),
            Fate::Kept => {
                let is_message = kind_of(bytes) == Some(Kind::Data);
                let place = self.store.keep(link, wire, packet, at);
                lanes.set_place(entry, place);
                if is_message {
                    let arrived = &self.slab.record(self.place).arrived.0;
                    let count = arrived.load(Ordering::Relaxed).wrapping_add(1);
                    arrived.store(count, Ordering::Release);
                }
            }
        }
    }

    /// Hands all that is in order to the receiver: data and letters; does what frames of remote
    /// memory want.
    #[inline]
    fn deliver(&mut self, lanes: &Lanes) -> bool {
        let mut delivered = false;
        while let Some(message) = self.machine.next_delivery() {
            let (entry, from, len) = (message.buffer, message.peer, u32::from(message.len));
            let arrived = Arrived { entry, from, len };
            match message.kind {
                Kind::Data => {
                    // Who takes the message finds what was written before it.
                    if self.remote.has_come() {
                        self.flush();
                    }
                    // As many words as entries: there is room.
                    delivered |= lanes.delivered.push(arrived.word());
                }
                Kind::Remote | Kind::More | Kind::Lost => {
                    self.frame_came(lanes, arrived, message.kind);
                }
                _ => self.keep_letter(lanes, arrived),
            }
        }
        if self.remote.has_come() {
            self.settle(lanes);
        }
        delivered
    }

    #[inline]
    fn transmit(&mut self, now: u64) {
        let Engine { machine, links, slab, place, .. } = self;
        if links.is_blocked() || !machine.is_silent() {
            links.send_all(slab, *place, machine, now);
        }
        if !self.links.late.is_empty() {
            self.send_late();
        }
    }

    /// Also what becomes of remote operations, as far as there are slots.
    #[inline]
    fn transmit_all(&mut self, lanes: &Lanes, now: u64) {
        while !self.remote.is_quiet() && self.pump(lanes) {
            self.transmit(now);
        }
        self.transmit(now);
    }

    /// Slots that are acknowledged or dropped go back to the sender.
    #[inline]
    pub(super) fn give_back(&mut self, lanes: &Lanes) {
        let messages = self.slab.geometry().slots;
        while let Some(slot) = self.machine.next_free_slot() {
            self.slab.free(self.place, slot as usize);
            let owner = self.owners[slot as usize];
            if slot as usize >= messages {
                self.links.away.come(slot);
                self.remote.land(owner, slot as usize - messages);
                continue;
            }
            if slot as usize >= messages - OUTBOX {
                self.spare_slots.push(slot);
                continue;
            }
            if let Some(peer) = lanes.peers.get(owner) {
                peer.freed.set(peer.freed.get().wrapping_add(1));
            }
            lanes.freed.push(u64::from(slot));
        }
        let dropped = self.machine.counters().dropped;
        if dropped != self.dropped_seen {
            self.count_dropped(dropped.wrapping_sub(self.dropped_seen));
            self.dropped_seen = dropped;
        }
        lanes.outstanding.store(self.outstanding(), Ordering::Release);
    }

    /// What is sent to a node that has gone counts as received, by its sender.
    #[cold]
    pub(super) fn count_dropped(&self, count: u64) {
        let dropped = &self.slab.record(self.place).node.send.0.dropped;
        dropped.fetch_add(count, Ordering::Release);
    }

    /// Marks nodes that the owner says have gone. What is on the way to them may still be
    /// acknowledged, and then was received.
    #[cold]
    fn look_who_has_gone(&mut self, now: u64) {
        self.gone_seen = self.slab.gone_count().load(Ordering::Acquire);
        for node in 0..self.slab.geometry().nodes {
            let node_number = node as u32;
            if self.slab.is_gone(node) && self.gone.insert(node_number) {
                self.going.push_back((now.saturating_add(GRACE), node_number));
            }
        }
    }

    #[cold]
    fn let_go(&mut self, lanes: &Lanes, now: u64) {
        while let Some(&(until, node)) = self.going.front() {
            if now < until && self.machine.outstanding_to(node) > 0 {
                return;
            }
            self.going.pop_front();
            self.machine.peer_gone(node);
            self.fail_operations(lanes, node);
        }
    }

    /// What users should hear of.
    pub(super) fn tell(&mut self) {
        self.links.tell_faults();
        while let Some(event) = self.machine.next_event() {
            debug::say(debug::WARNING, || match event {
                Event::LinkDown { peer, link } => {
                    format!("ethernet: link {link} carries nothing to node {peer}; others do")
                }
                Event::LinkUp { peer, link } => {
                    format!("ethernet: link {link} carries to node {peer} again")
                }
            });
        }
    }

    /// Nanoseconds of running time.
    pub(super) fn now(&mut self) -> u64 {
        self.clock.now()
    }

    /// Nanoseconds until a pass is needed though nothing comes. None: not before something comes.
    pub(super) fn wait(&mut self) -> Option<u64> {
        let now = self.clock.now();
        let going = self.going.front().map(|&(until, _)| until);
        let deadline = self.machine.deadline().into_iter().chain(going).min();
        let wait = deadline.map(|at| at.saturating_sub(now));
        // Packets that the kernel had no room for.
        if self.links.is_blocked() { Some(wait.unwrap_or(RETRY).min(RETRY)) } else { wait }
    }
}

impl network::Engine for Engine {
    /// A look at each wire costs a system call.
    #[inline]
    fn pass(&mut self, lanes: &Lanes, what: Pass) -> bool {
        let mut delivered = false;
        let now = if what == Pass::Send {
            let now = self.clock.now();
            self.take_submitted(lanes);
            self.transmit_all(lanes, now);
            now
        } else {
            let came = self.receive(lanes);
            if came.is_none() && what == Pass::Receive && self.is_quiet(lanes) {
                return false;
            }
            delivered = self.deliver(lanes);
            // Who asks for a message answers it, perhaps: the rest has time until that is sent.
            let idle = self.machine.is_silent() && self.remote.is_quiet();
            if delivered && what == Pass::Receive && !self.behind && idle {
                self.behind = true;
                return true;
            }
            self.take_submitted(lanes);
            came.unwrap_or_else(|| self.clock.now())
        };
        (self.behind, self.quiet) = (false, 0);
        self.rest(lanes, now) || delivered
    }

    fn letters(&self) -> usize {
        self.letters.len()
    }

    fn send_letter(&mut self, _: &Lanes, to: u32, message: &[u8]) -> Result<()> {
        self.send_letter(to, message)
    }

    fn read_letter<T>(&mut self, _: &Lanes, read: impl FnOnce(&Letter) -> Result<T>) -> Result<T> {
        self.read_letter(read)
    }

    fn dump(&mut self, out: &mut dyn Write) -> std::io::Result<()> {
        for wire in &mut self.links.wires {
            let stats = wire.stats();
            let (kind, name) = (wire.kind(), wire.endpoint().link_name());
            writeln!(out, "  {kind} wire on {name}: {stats:?}")?;
        }
        writeln!(out, "  {}", self.remote.transfers.describe())?;
        self.machine.dump(out)
    }
}
