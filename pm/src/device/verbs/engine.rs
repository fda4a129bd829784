//! Progress: what was sent is posted, what is done goes back, what has come is handed out. Whoever
//! holds the engine's lock does all of it; `departures`, `arrivals` and `meeting` have the rest.

// UNSAFETY: has the slots of the slab registered.
#![expect(unsafe_code)]

use super::adapter::{Access, Adapter, Batch, Buffers, Registered, Sizes};
use super::arrivals::{Arrivals, HEAD, window};
use super::bindings::{Completion, REFUSALS};
use super::calls;
use super::choice::Chosen;
use super::connection::{Connection, Event};
use super::flow::{Item, Kind, Outgoing};
use super::manager::{self, Manager};
use super::peer::Peer;
use super::regions::{ENTRY, Regions};
use crate::debug;
use crate::device::network::addresses::Addresses;
use crate::device::network::lanes::{Lanes, Letter};
use crate::device::network::layout::OUTBOX;
use crate::device::network::slab::Slab;
use crate::device::network::{self, Identity, Pass};
use crate::error::{Error, Result};
use crate::sync::Ordering;
use std::collections::VecDeque;
use std::io::Write;
use std::net::UdpSocket;
use std::sync::Arc;

/// Work requests of a queue pair that are left for what is not a message.
const SPARE: usize = 8;

/// See the module.
pub(crate) struct Engine {
    /// Before what they use.
    pub(super) peers: Box<[Peer]>,
    pub(super) arrivals: Arrivals,
    /// How many messages may be on their way to one peer or unread there.
    pub(super) window: u32,
    /// Works of one peer that may be under way.
    pub(super) room: usize,
    /// The slots of this process.
    pub(super) frames: Registered<Arc<Slab>>,
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
    pub(super) busy: Vec<u32>,
    pub(super) outstanding: u64,
    /// Work requests under way, to all peers.
    pub(super) works: usize,
    /// The last pass has left all but a message to the next.
    is_put_off: bool,
    /// Remote operations under way, and whether some have failed, by direction.
    pub(super) moves: [u64; 2],
    pub(super) failed_moves: [bool; 2],
    /// Those that were refused, since the beginning.
    pub(super) given_up: u64,
    /// Peers to which operations are held back, and until when; see `flow/caution.rs`.
    pub(super) held: VecDeque<(u32, u64)>,
    /// Slots for control messages.
    pub(super) spare_slots: Vec<u32>,
    pub(super) gone_seen: u64,
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
            arrivals,
            window: window(geometry.nodes) as u32,
            room: super::pair::DEPTH.min(adapter.depth) - SPARE,
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
            works: 0,
            is_put_off: false,
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

    /// Takes back what is done.
    #[inline]
    fn complete(&mut self, lanes: &Lanes) {
        loop {
            let mut batch = Batch::new();
            let Some(found) = self.adapter.poll_sends(&mut batch) else {
                return self.breaks();
            };
            for done in found {
                let (to, number) = ((done.wr_id >> 32) as u32, done.wr_id as u32);
                if !self.is_pair_of(done.qp_num, to) {
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
                self.works -= self.peers[to as usize].flow.done(number);
                self.is_answered(to, number);
                while let Some(item) = self.peers[to as usize].flow.pop_done() {
                    self.is_over(lanes, to, item, true);
                }
                self.transmit_more(lanes, to);
            }
            if found.len() < Batch::SIZE {
                return;
            }
        }
    }

    /// Whether this is the number of the queue pair to that peer.
    #[inline]
    pub(super) fn is_pair_of(&self, pair: u32, node: u32) -> bool {
        self.peers.get(node as usize).is_some_and(|peer| peer.number == Some(pair))
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

    #[inline(always)]
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
    pub(super) fn drop_all(&mut self, lanes: &Lanes, node: u32) {
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
        for node in 0..self.peers.len() as u32 {
            let peer = &mut self.peers[node as usize];
            peer.connection = Connection::gone();
            peer.number = None;
            if let Some(pair) = peer.pair.take() {
                self.hang_up(node, pair);
            }
        }
    }
}

impl Engine {
    /// Whether a pass that has received nothing would do nothing.
    #[inline(always)]
    fn has_done_all(&self, lanes: &Lanes) -> bool {
        let is_calm = !self.is_put_off
            && self.works == 0
            && self.slab.gone_count().load(Ordering::Relaxed) == self.gone_seen;
        let is_empty = lanes.submitted.is_empty() && lanes.released.is_empty();
        is_calm && is_empty && self.slab.record(self.place).outbox.is_empty()
    }

    /// The rest of a pass.
    #[inline(never)]
    fn go_on(&mut self, lanes: &Lanes, what: Pass) -> bool {
        self.is_put_off = false;
        if !lanes.submitted.is_empty() {
            self.take_submitted(lanes);
        }
        // What has failed with its queue pair is found now and then.
        if self.works > 0 || what == Pass::All {
            self.complete(lanes);
        }
        self.take_released(lanes);
        if self.slab.gone_count().load(Ordering::Relaxed) != self.gone_seen {
            self.look_who_has_gone(lanes);
        }
        if !self.slab.record(self.place).outbox.is_empty() {
            self.send_letters(lanes);
        }
        if what == Pass::All {
            self.ask(lanes);
            let works = self.peers.iter().map(|peer| peer.flow.under_way());
            debug_assert_eq!(self.works, works.sum::<usize>());
        }
        lanes.outstanding.store(self.outstanding, Ordering::Release);
        std::mem::take(&mut self.delivered)
    }
}

impl network::Engine for Engine {
    #[inline(always)]
    fn pass(&mut self, lanes: &Lanes, what: Pass) -> bool {
        let mut batch = Batch::new();
        let found: &[Completion] = match what {
            Pass::Send => &[],
            _ => match self.adapter.poll_receives(&mut batch) {
                Some(found) => found,
                None => {
                    self.breaks();
                    &[]
                }
            },
        };
        // As most polls.
        if what == Pass::Receive && found.is_empty() && self.has_done_all(lanes) {
            return false;
        }
        self.take(lanes, found);
        // Who waits for a message has it at once, and the next pass does the rest.
        if what == Pass::Receive && self.delivered && !self.is_put_off {
            self.is_put_off = true;
            return std::mem::take(&mut self.delivered);
        }
        self.go_on(lanes, what)
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
