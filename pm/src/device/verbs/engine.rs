//! Progress: what was sent is posted, what is done goes back, what has come is handed out. Whoever
//! holds the engine's lock does all of it; `arrivals` and `meeting` have the rest.

// UNSAFETY: writes heads before payloads in the slab, and has them sent from there.
#![expect(unsafe_code)]

use super::adapter::{Access, Adapter, Buffers, Registered, Sizes};
use super::arrivals::{Arrivals, HEAD, window};
use super::bindings::{Completion, Piece, REFUSALS};
use super::calls;
use super::choice::Chosen;
use super::connection::{Connection, Event};
use super::flow::{Item, Kind, Outgoing};
use super::manager::{self, Manager};
use super::pair::{What, Work};
use super::peer::Peer;
use super::regions::{ENTRY, Regions};
use crate::debug;
use crate::device::network::addresses::Addresses;
use crate::device::network::lanes::{Lanes, Letter, Submitted};
use crate::device::network::layout::OUTBOX;
use crate::device::network::slab::Slab;
use crate::device::network::{self, Identity, Pass};
use crate::error::{Error, Result};
use crate::sync::Ordering;
use std::collections::{HashMap, VecDeque};
use std::io::Write;
use std::net::UdpSocket;
use std::sync::Arc;

/// Completions that are taken at a time.
pub(super) const BATCH: usize = 8;
/// Work requests of a queue pair that are left for what is not a message.
const SPARE: usize = 8;

/// See the module.
pub(crate) struct Engine {
    /// Before what they use.
    pub(super) peers: Box<[Peer]>,
    /// Who is at the other end of each queue pair.
    pub(super) pairs: HashMap<u32, u32>,
    pub(super) arrivals: Arrivals,
    /// The slots of this process.
    frames: Registered<Arc<Slab>>,
    /// A word for each node, what it has consumed: written by RDMA. Then a word for each, what was
    /// consumed of it: written from here.
    pub(super) credits: Registered<Arc<Buffers>>,
    pub(super) regions: Arc<Regions>,
    /// For each node, where the entry of its table lands that was asked for; then a word that
    /// nobody reads.
    pub(super) landings: Registered<Arc<Buffers>>,
    /// Makes connections, on iWARP. After the peers, whose queue pairs it may hold.
    pub(super) manager: Option<Manager>,
    pub(super) adapter: Arc<Adapter>,
    pub(super) socket: UdpSocket,
    pub(super) addresses: Arc<Addresses>,
    pub(super) identity: Identity,
    pub(super) place: usize,
    pub(super) slab: Arc<Slab>,
    /// Peers with a timer.
    pub(super) meeting: Vec<u32>,
    /// Peers that something is under way to.
    busy: Vec<u32>,
    outstanding: u64,
    /// Remote operations under way, and whether some have failed, by direction.
    pub(super) moves: [u64; 2],
    pub(super) failed_moves: [bool; 2],
    /// Those that were refused, since the beginning.
    pub(super) given_up: u64,
    /// Peers to which operations are held back, and until when; see `flow/caution.rs`.
    pub(super) held: VecDeque<(u32, u64)>,
    /// Slots for control messages.
    pub(super) spare_slots: Vec<u32>,
    gone_seen: u64,
    /// The adapter has gone.
    pub(super) is_broken: bool,
    /// When it was last looked whether it is still there.
    pub(super) looked: u64,
    /// A port is down, and the user was told.
    pub(super) is_down: bool,
    /// The user was told that the adapter has nothing more to give.
    pub(super) is_full: bool,
    /// Control messages that wait to be read.
    pub(super) letters: VecDeque<Letter>,
    /// Something was handed out since somebody asked.
    pub(super) delivered: bool,
}

/// A complaint of the adapter's, with which a context ends before it has begun.
pub(super) fn refused(why: String) -> Error {
    debug::warn_user(&why);
    Error::NoMemory
}

impl Engine {
    /// NoMemory: the adapter or the kernel refuses something, which a line names.
    pub(super) fn new(
        chosen: &Chosen,
        identity: Identity,
        socket: UdpSocket,
        addresses: Arc<Addresses>,
        slab: Arc<Slab>,
    ) -> Result<Engine> {
        let geometry = *slab.geometry();
        let place = geometry.place(identity.own as usize).ok_or(Error::Invalid)?;
        let arrivals = Arrivals::new(geometry.nodes, geometry.mtu);
        let sends = geometry.slots + geometry.nodes * SPARE;
        let adapter = Adapter::open(chosen, Sizes { receives: arrivals.entries(), sends });
        let adapter = adapter.map_err(refused)?;
        let first = slab.payload(place, 0);
        let last = slab.payload(place, geometry.slots - 1);
        let len = HEAD + (last.addr() - first.addr()) + geometry.mtu;
        let begin = first.wrapping_sub(HEAD);
        // SAFETY: frames of the slab, each with room before its payload.
        let frames = unsafe { Registered::new(&adapter, slab.clone(), begin, len, Access::Own) };
        let frames = frames.map_err(|why| refused(adapter.unpinnable(&why)))?;
        let credits = Registered::buffers(&adapter, geometry.nodes * 16, Access::Written);
        // What iWARP reads is written by the peer's adapter.
        let access = if chosen.iwarp { Access::Written } else { Access::Own };
        let landings = Registered::buffers(&adapter, (geometry.nodes + 1) * ENTRY, access);
        let regions = Arc::new(Regions::new(&adapter).map_err(refused)?);
        let manager = calls::manager(&adapter, &socket).map_err(refused)?;
        if manager.is_some() {
            slab.record(place).opened.0.store(manager::opened(), Ordering::Relaxed);
        }
        let slots = (geometry.slots - OUTBOX) as u32..geometry.slots as u32;
        Ok(Engine {
            peers: (0..geometry.nodes).map(|_| Peer::new(chosen.iwarp, adapter.reads)).collect(),
            pairs: HashMap::new(),
            arrivals,
            frames,
            credits: credits.map_err(refused)?,
            regions,
            landings: landings.map_err(refused)?,
            manager,
            adapter,
            socket,
            addresses,
            identity,
            place,
            slab,
            meeting: Vec::new(),
            busy: Vec::new(),
            outstanding: 0,
            moves: [0; 2],
            failed_moves: [false; 2],
            given_up: 0,
            held: VecDeque::new(),
            spare_slots: slots.collect(),
            gone_seen: 0,
            is_broken: false,
            looked: 0,
            is_down: false,
            is_full: false,
            letters: VecDeque::new(),
            delivered: false,
        })
    }

    /// The words in which peers say what they have consumed.
    pub(super) fn credits(&self) -> Arc<Buffers> {
        self.credits.keeps.clone()
    }

    pub(super) fn is_quiet(&self) -> bool {
        self.outstanding == 0
    }

    #[inline]
    fn take_submitted(&mut self, lanes: &Lanes) {
        let count = lanes.submitted.len() as u64;
        if count == 0 {
            return;
        }
        // Before they leave the queue: who looks at both meanwhile finds them in one of them.
        lanes.outstanding.store(self.outstanding + count, Ordering::Release);
        for _ in 0..count {
            let Some(word) = lanes.submitted.pop() else { break };
            let Submitted { slot, to, len } = Submitted::from_word(word);
            self.submit(lanes, to, slot, len, Kind::Data);
        }
    }

    #[inline]
    pub(super) fn submit(&mut self, lanes: &Lanes, to: u32, slot: u32, len: u32, kind: Kind) {
        let peer = &mut self.peers[to as usize];
        let sequence = peer.sent[kind as usize];
        peer.sent[kind as usize] = sequence.wrapping_add(1);
        if peer.flow.moves() > 0 {
            // Who adopts the slots has no part in remote operations: what comes after one that
            // is not done must not arrive without it.
            self.slab.free(self.place, slot as usize);
        }
        self.enqueue(to, Outgoing { slot, len, kind, sequence });
        if self.slab.is_gone(to as usize) {
            return self.drop_all(lanes, to);
        }
        self.transmit(lanes, to);
    }

    pub(super) fn enqueue(&mut self, to: u32, message: Outgoing) {
        let at = self.slab.payload(self.place, message.slot as usize).wrapping_sub(HEAD);
        let head = [message.sequence, message.len, self.identity.own, message.kind as u32];
        // SAFETY: each frame has more than so many bytes before its payload; the slot is ours.
        unsafe { at.cast::<[u32; 4]>().write_unaligned(head.map(u32::to_le)) };
        self.outstanding += 1;
        self.queue(to, Item::Message(message));
    }

    pub(super) fn queue(&mut self, to: u32, item: Item) {
        let peer = &mut self.peers[to as usize];
        peer.flow.push(item);
        if !std::mem::replace(&mut peer.is_busy, true) {
            self.busy.push(to);
        }
    }

    /// Posts what can be posted, or has the peer met.
    #[inline]
    pub(super) fn transmit(&mut self, lanes: &Lanes, to: u32) {
        let depth = super::pair::DEPTH.min(self.adapter.depth) - SPARE;
        loop {
            let peer = &mut self.peers[to as usize];
            if !peer.connection.is_ready() {
                return self.happens(lanes, to, Event::Wanted);
            }
            let room = peer.flow.under_way() < depth;
            let posted = match peer.flow.to_post().filter(|_| room && !peer.flow.must_wait()) {
                None => return,
                Some(Item::Message(message)) => self.post_message(lanes, to, message),
                Some(Item::Move(it)) => self.post_move(lanes, to, it),
            };
            if !posted {
                return;
            }
            if self.peers[to as usize].flow.wants_read() {
                self.read_nothing(lanes, to);
            }
        }
    }

    /// False: it has failed, and is met anew.
    #[inline]
    fn post_message(&mut self, lanes: &Lanes, to: u32, message: Outgoing) -> bool {
        let peer = &mut self.peers[to as usize];
        let Some(pair) = &peer.pair else { return false };
        let (number, signalled) = peer.flow.begin(false);
        peer.flow.is_posted(number);
        let at = self.slab.payload(self.place, message.slot as usize).wrapping_sub(HEAD);
        let length = HEAD as u32 + message.len;
        let piece = Piece { addr: at.addr() as u64, length, lkey: self.frames.lkey };
        let id = u64::from(to) << 32 | u64::from(number);
        let work = Work { id, what: What::Send, piece, signalled };
        // SAFETY: a frame of the slab, which is not written before the work is done.
        let sent = unsafe { pair.send(work) };
        if !sent {
            self.failed(lanes, to, "cannot be posted to");
        }
        sent
    }

    /// Writes `len` bytes of the own words, from number `from` on, to the peer's word of this node.
    /// Answers false where there is no room for it, or nobody to hear it.
    pub(super) fn write_word(&mut self, lanes: &Lanes, to: u32, from: usize, len: u32) -> bool {
        let own = u64::from(self.identity.own);
        let peer = &mut self.peers[to as usize];
        let room = super::pair::DEPTH.min(self.adapter.depth) - 2;
        let Some(pair) = &peer.pair else { return false };
        if !peer.connection.is_ready() || peer.flow.under_way() >= room {
            return false;
        }
        let (number, signalled) = peer.flow.begin(len == 0);
        let addr = self.credits.keeps.at(from * 8, 8).addr() as u64;
        let piece = Piece { addr, length: len, lkey: self.credits.lkey };
        let what = What::Write(peer.credit.0.wrapping_add(own * 8), peer.credit.1);
        let id = u64::from(to) << 32 | u64::from(number);
        // SAFETY: a registered word, which only grows.
        let sent = unsafe { pair.send(Work { id, what, piece, signalled }) };
        if !sent {
            self.failed(lanes, to, "cannot be posted to");
        }
        sent
    }

    /// Takes back what is done.
    #[inline]
    fn complete(&mut self, lanes: &Lanes) {
        loop {
            let mut found = [Completion::default(); BATCH];
            let Some(count) = self.adapter.poll_sends(&mut found) else {
                return self.breaks();
            };
            for done in &found[..count] {
                let (to, number) = ((done.wr_id >> 32) as u32, done.wr_id as u32);
                if self.pairs.get(&done.qp_num) != Some(&to) {
                    continue;
                }
                if done.status != 0 {
                    let (status, more) = (done.status, done.vendor_err);
                    if REFUSALS.contains(&status) {
                        self.is_refused(to, number);
                    }
                    self.failed(lanes, to, &format!("answers error {status} ({more:#x})"));
                    continue;
                }
                self.peers[to as usize].flow.done(number);
                self.is_answered(to, number);
                while let Some(item) = self.peers[to as usize].flow.pop_done() {
                    self.is_over(lanes, to, item, true);
                }
                self.transmit_more(lanes, to);
            }
            if count < BATCH {
                return;
            }
        }
    }

    /// There is room again.
    #[inline]
    fn transmit_more(&mut self, lanes: &Lanes, to: u32) {
        if self.peers[to as usize].flow.wants_read() {
            self.read_nothing(lanes, to);
        }
        if self.peers[to as usize].flow.to_post().is_some() {
            self.transmit(lanes, to);
        }
    }

    /// What is done, or goes nowhere.
    pub(super) fn is_over(&mut self, lanes: &Lanes, to: u32, item: Item, is_done: bool) {
        match item {
            Item::Message(message) => self.free(lanes, to, message),
            Item::Move(it) => self.end_move(to, &it, is_done),
        }
    }

    fn free(&mut self, lanes: &Lanes, to: u32, message: Outgoing) {
        self.outstanding -= 1;
        self.slab.free(self.place, message.slot as usize);
        if message.kind == Kind::Control {
            return self.spare_slots.push(message.slot);
        }
        if let Some(peer) = lanes.peers.get(to) {
            peer.freed.set(peer.freed.get().wrapping_add(1));
        }
        lanes.freed.push(u64::from(message.slot));
    }

    /// Has the last work of each peer told of that it would not tell of by itself.
    #[cold]
    fn ask(&mut self, lanes: &Lanes) {
        let mut busy = std::mem::take(&mut self.busy);
        busy.retain(|&to| {
            if self.peers[to as usize].flow.is_silent() {
                match self.manager {
                    Some(_) => self.read_nothing(lanes, to),
                    None => drop(self.write_word(lanes, to, 0, 0)),
                }
            }
            let peer = &mut self.peers[to as usize];
            peer.is_busy = peer.flow.len() > 0;
            peer.is_busy
        });
        // A failure may have added to it.
        busy.append(&mut self.busy);
        self.busy = busy;
    }

    /// The owner has marked nodes as gone: what is under way to them arrives nowhere.
    #[cold]
    fn look_who_has_gone(&mut self, lanes: &Lanes) {
        self.gone_seen = self.slab.gone_count().load(Ordering::Acquire);
        for node in 0..self.peers.len() as u32 {
            if node != self.identity.own && self.slab.is_gone(node as usize) {
                self.happens(lanes, node, Event::Gone);
                self.drop_all(lanes, node);
            }
        }
    }

    /// What a peer that has gone has not taken counts as received, by its sender. Where it was of
    /// this host, it has left how much it has.
    #[cold]
    fn drop_all(&mut self, lanes: &Lanes, node: u32) {
        let mut dropped = 0u32;
        while let Some(item) = self.peers[node as usize].flow.pop_any() {
            let is_data = matches!(item, Item::Message(Outgoing { kind: Kind::Data, .. }));
            dropped += u32::from(is_data);
            self.is_over(lanes, node, item, false);
        }
        let own = self.identity.own as usize;
        let sent = self.peers[node as usize].sent[0];
        if let Some(place) = self.slab.geometry().place(node as usize) {
            let accepted = self.slab.accepted(place, own);
            // Once: from now on all of it counts as accepted.
            let before = accepted.swap(u64::from(sent), Ordering::AcqRel) as u32;
            dropped = sent.wrapping_sub(before);
        }
        let count = &self.slab.record(self.place).node.send.0.dropped;
        count.fetch_add(dropped.into(), Ordering::Release);
    }

    /// Gives all queue pairs up: nobody takes what comes any more.
    pub(super) fn close(&mut self) {
        self.pairs.clear();
        for node in 0..self.peers.len() as u32 {
            let peer = &mut self.peers[node as usize];
            peer.connection = Connection::gone();
            if let Some(pair) = peer.pair.take() {
                self.hang_up(node, pair);
            }
        }
    }

    /// How many messages may be on their way to one peer or unread there.
    pub(super) fn window(&self) -> u32 {
        window(self.peers.len()) as u32
    }
}

impl network::Engine for Engine {
    #[inline]
    fn pass(&mut self, lanes: &Lanes, what: Pass) -> bool {
        if what != Pass::Send {
            self.receive(lanes);
        }
        self.take_submitted(lanes);
        self.complete(lanes);
        self.take_released(lanes);
        if self.slab.gone_count().load(Ordering::Relaxed) != self.gone_seen {
            self.look_who_has_gone(lanes);
        }
        if !self.slab.record(self.place).outbox.is_empty() {
            self.send_letters(lanes);
        }
        if what == Pass::All {
            self.ask(lanes);
        }
        lanes.outstanding.store(self.outstanding, Ordering::Release);
        std::mem::take(&mut self.delivered)
    }

    fn letters(&self) -> usize {
        self.letters.len()
    }

    fn send_letter(&mut self, lanes: &Lanes, to: u32, message: &[u8]) -> Result<()> {
        self.send_letter(lanes, to, message)
    }

    fn read_letter<T>(
        &mut self,
        lanes: &Lanes,
        read: impl FnOnce(&Letter) -> Result<T>,
    ) -> Result<T> {
        let letter = self.letters.front().ok_or(Error::NoBuffers)?;
        let from = letter.from;
        let done = read(letter)?;
        self.letters.pop_front();
        let consumed = &mut self.peers[from as usize].consumed[1];
        *consumed = consumed.wrapping_add(1);
        self.tell(lanes, from);
        Ok(done)
    }

    fn dump(&mut self, out: &mut dyn Write) -> std::io::Result<()> {
        let name = &self.adapter.chosen.adapter;
        let state = if self.is_broken { ", which has gone" } else { "" };
        let refused = self.given_up;
        let refused = if refused > 0 { format!(", {refused} refused") } else { String::new() };
        writeln!(out, "  adapter {name}{state}: {} under way{refused}", self.outstanding)?;
        for (node, peer) in self.peers.iter().enumerate().filter(|(_, peer)| peer.pair.is_some()) {
            let [data, _] = peer.consumed;
            let (sent, under_way) = (peer.sent[0], peer.flow.len());
            let state = &peer.connection;
            writeln!(
                out,
                "  node {node}: sent {sent}, {under_way} under way, consumed {data}; {state:?}"
            )?;
        }
        Ok(())
    }
}
