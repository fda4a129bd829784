//! What goes out: messages and operations are posted in order, as far as the queue pair takes them
//! and its peer is met.

// UNSAFETY: writes heads before payloads in the slab, and has them sent from there.
#![expect(unsafe_code)]

use super::arrivals::HEAD;
use super::bindings::Piece;
use super::connection::Event;
use super::engine::Engine;
use super::flow::{Item, Kind, Outgoing};
use super::pair::{What, Work};
use crate::device::network::lanes::{Lanes, Submitted};
use crate::sync::Ordering;

impl Engine {
    pub(super) fn take_submitted(&mut self, lanes: &Lanes) {
        let count = lanes.submitted.len() as u64;
        // Before they leave the queue: who looks at both meanwhile finds them in one of them.
        lanes.outstanding.store(self.outstanding + count, Ordering::Release);
        for _ in 0..count {
            let Some(word) = lanes.submitted.pop() else { break };
            let Submitted { slot, to, len } = Submitted::from_word(word);
            self.submit(lanes, to, slot, len, Kind::Data);
        }
    }

    /// A message that was published, and is in no queue.
    #[inline(always)]
    pub(super) fn send_at_once(&mut self, lanes: &Lanes, message: Submitted) {
        if !lanes.submitted.is_empty() {
            self.take_submitted(lanes);
        }
        lanes.outstanding.store(self.outstanding + 1, Ordering::Release);
        let Submitted { slot, to, len } = message;
        self.submit(lanes, to, slot, len, Kind::Data);
    }

    #[inline(always)]
    pub(super) fn submit(&mut self, lanes: &Lanes, to: u32, slot: u32, len: u32, kind: Kind) {
        let peer = &mut self.peers[to as usize];
        let sequence = peer.sent[kind as usize];
        peer.sent[kind as usize] = sequence.wrapping_add(1);
        if peer.flow.moves() > 0 {
            // Who adopts the slots has no part in remote operations: what comes after one that
            // is not done must not arrive without it.
            self.slab.free(self.place, slot as usize);
        }
        let message = Outgoing { slot, len, kind, sequence };
        let at_once = peer.connection.is_ready() && peer.flow.is_free(self.room);
        if at_once && self.slab.gone_count().load(Ordering::Relaxed) == self.gone_seen {
            return self.send_first(lanes, to, message);
        }
        self.enqueue(to, message);
        if self.slab.is_gone(to as usize) {
            return self.drop_all(lanes, to);
        }
        self.transmit(lanes, to);
    }

    /// Nothing is before it: what is kept of it is written while it travels.
    #[inline(always)]
    fn send_first(&mut self, lanes: &Lanes, to: u32, message: Outgoing) {
        let frame = self.write_head(message);
        let posted = self.post_frame(to, frame, message.len);
        self.outstanding += 1;
        self.queue(to, Item::Message(message));
        if self.is_posted(lanes, to, posted) && self.peers[to as usize].flow.wants_read() {
            self.read_nothing(lanes, to);
        }
    }

    /// Puts a message at the end of what is sent to that peer.
    pub(super) fn enqueue(&mut self, to: u32, message: Outgoing) {
        self.write_head(message);
        self.outstanding += 1;
        self.queue(to, Item::Message(message));
    }

    /// Answers where the message begins, with its head.
    #[inline(always)]
    fn write_head(&self, message: Outgoing) -> *mut u8 {
        let at = self.frame(message.slot);
        let head = [message.sequence, message.len, self.identity.own, message.kind as u32];
        // SAFETY: each frame has more than so many bytes before its payload; the slot is ours.
        unsafe { at.cast::<[u32; 4]>().write_unaligned(head.map(u32::to_le)) };
        at
    }

    #[inline(always)]
    fn frame(&self, slot: u32) -> *mut u8 {
        self.slab.payload(self.place, slot as usize).wrapping_sub(HEAD)
    }

    #[inline(always)]
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
        loop {
            let peer = &mut self.peers[to as usize];
            let Some(next) = peer.flow.to_post() else { return };
            if !peer.connection.is_ready() {
                return self.happens(lanes, to, Event::Wanted);
            }
            if peer.flow.under_way() >= self.room || peer.flow.must_wait() {
                return;
            }
            let posted = match *next {
                Item::Message(message) => self.post_message(lanes, to, message),
                Item::Move(it) => self.post_move(lanes, to, it),
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
    fn post_message(&mut self, lanes: &Lanes, to: u32, message: Outgoing) -> bool {
        let posted = self.post_frame(to, self.frame(message.slot), message.len);
        self.is_posted(lanes, to, posted)
    }

    /// Answers the number of the work that carries the message, and whether it could be posted.
    #[inline(always)]
    fn post_frame(&mut self, to: u32, frame: *mut u8, len: u32) -> (u32, bool) {
        let peer = &mut self.peers[to as usize];
        let (number, signalled) = peer.flow.begin(false);
        self.works += 1;
        let length = HEAD as u32 + len;
        let piece = Piece { addr: frame.addr() as u64, length, lkey: self.frames.lkey };
        let id = u64::from(to) << 32 | u64::from(number);
        let work = Work { id, what: What::Send, piece, signalled };
        // SAFETY: a frame of the slab, which is not written before the work is done.
        (number, peer.pair.as_ref().is_some_and(|pair| unsafe { pair.send(work) }))
    }

    /// The work of this number carries the next message. False: it has failed, and is met anew.
    #[inline(always)]
    fn is_posted(&mut self, lanes: &Lanes, to: u32, (number, sent): (u32, bool)) -> bool {
        self.peers[to as usize].flow.is_posted(number);
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
        self.works += 1;
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
}
