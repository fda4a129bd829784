//! The bytes of remote memory: from locked memory into frames that go out, and from frames that
//! have come into locked memory, many frames by one copy. What is sent when `transfers` knows.

// UNSAFETY: copies between locked memory and the own frames and buffers.
#![expect(unsafe_code)]

use super::away;
use super::engine::Engine;
use super::links::LOST;
use super::reliability::Kind;
use super::store::copy_letter;
use super::transfers::{Chain, Ended, From, Next, Operation, Side, Transfers};
use super::wire::Elsewhere;
use crate::debug;
use crate::device::network::lanes::{Arrived, Lanes};
use crate::device::network::layout::{Geometry, Published};
use crate::device::network::slots::Slots;
use crate::remote::{AddrHandle, Copier, Direction, PARTS, Part};
use crate::sync::{Ordering, prefetch_read};
use score_proto::remote::{Frame, HEAD, LONGEST};

/// What the engine keeps for remote memory.
pub(super) struct Remote {
    pub(super) transfers: Transfers,
    /// The slots behind those of messages.
    slots: Slots,
    pub(super) copier: Copier,
    run: Run,
    /// Operations that are just being taken.
    begun: Vec<(u32, Operation)>,
    /// Frames that have come since `settle`.
    come: bool,
    flying: u64,
    /// All frames there ever were.
    flown: u64,
}

/// Frames of one chain that have come, and whose bytes follow each other.
struct Run {
    peer: u32,
    side: Side,
    number: u32,
    to: AddrHandle,
    len: usize,
    count: usize,
    parts: [Part; PARTS],
    entries: [u32; PARTS],
}

impl Remote {
    pub(super) fn new(geometry: &Geometry) -> Remote {
        let run = Run {
            peer: 0,
            side: Side::Target,
            number: 0,
            to: AddrHandle::from_bits(0),
            len: 0,
            count: 0,
            parts: [Part::default(); PARTS],
            entries: [0; PARTS],
        };
        Remote {
            transfers: Transfers::default(),
            slots: Slots::new(geometry.slots, geometry.mtu),
            copier: Copier::new(),
            run,
            begun: Vec::new(),
            come: false,
            flying: 0,
            flown: 0,
        }
    }

    /// Whether there is nothing to send, as far as is known.
    #[inline]
    pub(super) fn is_quiet(&self) -> bool {
        self.transfers.is_quiet()
    }

    #[inline]
    pub(super) fn has_come(&self) -> bool {
        self.come
    }

    /// Frames that are on the way.
    pub(super) fn flying(&self) -> u64 {
        self.flying
    }

    /// How many frames there were.
    pub(super) fn flown(&self) -> u64 {
        self.flown
    }

    /// A slot is free again that was `owner`'s.
    pub(super) fn land(&mut self, owner: u32, slot: usize) {
        self.slots.give(slot as u64);
        self.flying = self.flying.saturating_sub(1);
        self.transfers.land(owner);
    }

    /// How many frames may go to `node` now: no peer has more slots than are left.
    fn room(&self, node: u32) -> usize {
        self.slots.len().saturating_sub(self.transfers.flying(node)).min(PARTS as u64) as usize
    }
}

/// Memory of the user's is not as it has to be.
pub(super) fn tell_failure(node: u32, why: &str) {
    debug::say(debug::ERROR, || format!("ethernet: memory that node {node} gets: {why}"));
}

impl Engine {
    pub(super) fn take_operations(&mut self, lanes: &Lanes) {
        let mut begun = std::mem::take(&mut self.remote.begun);
        self.desk.take(&mut begun);
        for (node, operation) in begun.drain(..) {
            if self.gone.contains(&node) {
                self.end(lanes, Ended { peer: node, operation, failed: true });
            } else {
                self.remote.transfers.begin(node, operation);
            }
        }
        self.remote.begun = begun;
    }

    /// Fills frames as long as there are slots, each peer a batch in its turn; answers whether
    /// there is something to transmit.
    pub(super) fn pump(&mut self, lanes: &Lanes) -> bool {
        self.give_back(lanes);
        let mut filled = false;
        for _ in 0..self.remote.transfers.ready() {
            let Some(node) = self.remote.transfers.turn() else { break };
            filled |= self.pump_one(lanes, node);
        }
        filled
    }

    fn pump_one(&mut self, lanes: &Lanes, node: u32) -> bool {
        let room = self.remote.room(node);
        if room == 0 {
            return false;
        }
        match self.remote.transfers.next(node) {
            Next::Nothing => return false,
            Next::Message(message) => self.submit(message),
            Next::Frame(frame) => {
                self.submit_frame(node, frame);
            }
            Next::Chain(chain) => self.fill(lanes, node, &chain, room),
        }
        true
    }

    /// A free slot of remote memory; there is one.
    fn frame_slot(&self) -> Option<u32> {
        let slot = self.remote.slots.take()?;
        Some((self.slab.geometry().slots as u64 + slot) as u32)
    }

    fn submit_frame(&mut self, node: u32, frame: Frame) {
        let Some(slot) = self.frame_slot() else { return };
        let mut head = [0; LONGEST];
        let len = frame.encode(&mut head);
        self.slab.write(self.place, slot as usize, &head[..len]);
        self.launch(node, slot, Published::new(len, Kind::Remote), (len, Kind::Remote));
    }

    /// A packet of this length goes out; its slot has what is published.
    fn launch(&mut self, node: u32, slot: u32, published: Published, packet: (usize, Kind)) {
        self.remote.flying += 1;
        self.remote.flown += 1;
        self.remote.transfers.fly(node, 1);
        let taken = self.submit_own(node, slot, published, packet);
        debug_assert!(taken.is_ok(), "{taken:?}");
    }

    /// Makes at most `room` packets of the chain's next bytes.
    fn fill(&mut self, lanes: &Lanes, node: u32, chain: &Chain, room: usize) {
        let longest = self.longest_to(lanes, node);
        let found = match chain.from {
            From::Address(at) => Ok(at),
            From::Region(handle) => self.desk.find(handle, chain.left.min(room * longest)),
        };
        let mut failed = found.is_err().then(|| "it is not locked".to_owned());
        let (from, mut bytes) = (found.unwrap_or(0), 0);
        for _ in 0..room {
            if failed.is_some() || bytes == chain.left {
                break;
            }
            let Some(slot) = self.frame_slot() else { break };
            let (len, away) = chain.next(bytes, longest);
            let piece = Elsewhere { at: from.wrapping_add(bytes), len };
            if away {
                self.send_away(node, slot, (chain, bytes), piece);
            } else {
                failed = self.send_copy(node, slot, chain.frame(bytes, len), piece).err();
            }
            bytes += if failed.is_none() { len } else { 0 };
        }
        if bytes > 0 {
            self.remote.transfers.sent(node, chain, bytes);
        }
        if let Some(why) = failed {
            tell_failure(node, &why);
            self.remote.transfers.cut(node, chain);
        }
    }

    /// These bytes go out behind the frame's head, from its slot.
    fn send_copy(
        &mut self,
        node: u32,
        slot: u32,
        frame: Frame,
        bytes: Elsewhere,
    ) -> Result<(), String> {
        let at = self.slab.payload(self.place, slot as usize).addr() + HEAD;
        // SAFETY: a slot that was just taken, which nobody else has.
        let copied = unsafe { self.remote.copier.gather(bytes.at, &[Part { at, len: bytes.len }]) };
        copied.map_err(|error| {
            self.give_slot_back(slot);
            error.to_string()
        })?;
        let mut head = [0; LONGEST];
        frame.encode(&mut head);
        self.slab.write(self.place, slot as usize, &head[..HEAD]);
        let len = HEAD + bytes.len;
        self.launch(node, slot, Published::new(len, Kind::Remote), (len, Kind::Remote));
        Ok(())
    }

    /// These bytes, `at` further in the chain, go out from where they are.
    fn send_away(&mut self, peer: u32, slot: u32, (chain, at): (&Chain, usize), bytes: Elsewhere) {
        let region = match chain.from {
            From::Address(_) => None,
            From::Region(handle) => Some(handle + at as u64),
        };
        let (side, number) = (chain.side, chain.number());
        // They are copied when the batch goes out, and mostly are in no cache: fetching them
        // takes as long as the rest here. In segments they go out too soon for that (measured).
        if !self.links.segments {
            bytes.lines().for_each(prefetch_read);
        }
        self.links.away.go(slot, away::Frame { peer, bytes, region, side, number });
        self.launch(peer, slot, Published::new(LOST, Kind::Lost), (bytes.len, Kind::More));
    }

    fn give_slot_back(&self, slot: u32) {
        self.remote.slots.give(u64::from(slot) - self.slab.geometry().slots as u64);
    }

    /// The longest packet to a node, looked up where nothing was sent to it yet.
    fn longest_to(&mut self, lanes: &Lanes, node: u32) -> usize {
        let own = self.slab.geometry().mtu;
        let Some(peer) = lanes.peers.get(node) else { return own };
        if peer.mtu.get() == 0 {
            let mtu = self.links.mtu(node).map_or(own, |mtu| mtu.min(own));
            peer.mtu.set(mtu as u64);
        }
        peer.mtu.get() as usize
    }

    /// A frame has come. Its bytes wait for those that follow them.
    pub(super) fn frame_came(&mut self, lanes: &Lanes, arrived: Arrived, kind: Kind) {
        self.remote.come = true;
        let Arrived { entry, from, len } = arrived;
        let (at, len) = (lanes.place(entry), len as usize);
        let mut frame = None;
        if kind == Kind::Remote {
            let mut head = [0; LONGEST];
            let known = len.min(LONGEST);
            copy_letter(at, &mut head[..known]);
            frame = Frame::parse(&head[..known], len);
        }
        let transfers = &mut self.remote.transfers;
        let copy = match (kind, frame) {
            (Kind::More, _) => transfers.more(from, len).map(|copy| (copy, 0)),
            (_, Some((frame, bytes))) => {
                transfers.came(from, frame, bytes).map(|copy| (copy, HEAD))
            }
            (_, None) => transfers.lost(from),
        };
        let Some((copy, head)) = copy else { return self.release(entry, from) };
        let bytes = len - head;
        let run = &self.remote.run;
        let follows = run.count < PARTS
            && (run.peer, run.side, run.number) == (from, copy.side, copy.number)
            && run.to + run.len as u64 == copy.to;
        if !follows {
            self.flush();
            let run = &mut self.remote.run;
            (run.peer, run.side, run.number, run.to) = (from, copy.side, copy.number, copy.to);
        }
        let run = &mut self.remote.run;
        run.parts[run.count] = Part { at: at.addr() + head, len: bytes };
        run.entries[run.count] = entry;
        run.count += 1;
        run.len += bytes;
    }

    /// Copies the bytes of the run to where they belong.
    pub(super) fn flush(&mut self) {
        let Remote { run, copier, transfers, .. } = &mut self.remote;
        let Run { peer, side, number, to, len, count, .. } = *run;
        if count == 0 {
            return;
        }
        (run.count, run.len) = (0, 0);
        let place = self.desk.find(to, len).map_err(|_| "it is not locked".to_owned());
        let copied = place.and_then(|place| {
            // SAFETY: buffers of packets that were kept, and not released before this; who locked
            // the memory lets it be written.
            let copied = unsafe { copier.scatter(&run.parts[..count], place) };
            copied.map_err(|error| error.to_string())
        });
        if let Err(why) = copied {
            debug::say(debug::ERROR, || format!("ethernet: memory that node {peer} writes: {why}"));
            transfers.spoil(peer, side, number);
        }
        let entries = run.entries;
        entries[..count].iter().for_each(|entry| self.release(*entry, peer));
    }

    /// All that has come is taken: what has ended is told.
    pub(super) fn settle(&mut self, lanes: &Lanes) {
        self.flush();
        self.remote.come = false;
        lanes.set_moved();
        while let Some(ended) = self.remote.transfers.ended() {
            self.end(lanes, ended);
        }
    }

    fn end(&mut self, lanes: &Lanes, Ended { peer, operation, failed }: Ended) {
        let Operation { direction, len, .. } = operation;
        let counters = &self.slab.record(self.place).node.send.0;
        if failed {
            debug::say(debug::ERROR, || {
                let what = match direction {
                    Direction::Write => "write to",
                    Direction::Read => "read from",
                };
                format!("ethernet: a remote {what} node {peer} has failed")
            });
        } else {
            counters.moved[direction as usize].fetch_add(len as u64, Ordering::Relaxed);
        }
        if let Some(known) = lanes.peers.get(peer) {
            known.operations.fetch_sub(1, Ordering::AcqRel);
        }
        self.desk.end(direction, failed);
        counters.remote.fetch_sub(1, Ordering::AcqRel);
    }

    /// `node` has gone. Messages that waited for operations are dropped like others.
    pub(super) fn fail_operations(&mut self, lanes: &Lanes, node: u32) {
        for ended in self.remote.transfers.gone(node) {
            self.end(lanes, ended);
        }
        while let Next::Message(message) = self.remote.transfers.next(node) {
            self.submit(message);
        }
    }

    /// The process ends. Operations whose bytes are not all in frames are given up, and so are
    /// messages behind them, which would say that they were done.
    pub(super) fn give_up_operations(&mut self, lanes: &Lanes) {
        self.bring_all_home(None);
        self.slab.record(self.place).node.send.0.remote.store(0, Ordering::Release);
        let messages = self.remote.transfers.give_up_messages();
        for message in &messages {
            self.slab.free(self.place, message.slot as usize);
        }
        self.count_dropped(messages.len() as u64);
        self.give_back(lanes);
    }
}
