//! Remote memory: RDMA writes and reads, in order with each other and before what is sent later.
//! The origin reads the entry of a region in its peer's table once, and keeps it.

// UNSAFETY: has pinned memory read and written by the adapter.
#![expect(unsafe_code)]

use super::bindings::Piece;
use super::engine::Engine;
use super::flow::{Item, Move, is_before};
use super::pair::{What, Work};
use super::regions::{ENTRY, There, entry_at};
use super::{Endpoint, Verbs};
use crate::config::{OPT_REMOTE_READ, OPT_REMOTE_WRITE, RMA_MTU};
use crate::debug;
use crate::device::network::lanes::Lanes;
use crate::device::network::{Engine as _, Network, Pass};
use crate::error::{Error, Result};
use crate::remote::{Direction, Operation};
use crate::sync::Ordering;

/// Remote memory goes both ways.
pub(crate) const OPTIONS: u64 = OPT_REMOTE_WRITE | OPT_REMOTE_READ;
/// Operations to one peer that are not done.
const MOST: usize = 128;
/// Bytes of one work request: adapters take at most some MiB or GiB.
const PIECE: usize = 1 << 20;
/// Answers of up to so many bytes siw copies behind their header.
const SHORT: usize = 32;
/// Its pages begin at multiples of this.
const PAGE: u64 = 4096;

/// How many of `len` bytes at the peer's address `at` one read may ask siw for: of a short answer
/// that goes on in the next page it sends wrong bytes (`siw_try_1seg` of Linux 6.1).
fn in_one_page(at: u64, len: usize) -> usize {
    let left = (PAGE - at % PAGE) as usize;
    if len > SHORT { len } else { len.min(left) }
}

impl Endpoint {
    /// Begins with an operation. Invalid: node, length or own handle; what is wrong with the other
    /// is told at completion. Io: the adapter has gone.
    pub(super) fn begin(&self, node: u32, operation: &Operation) -> Result<()> {
        self.check_peer(node)?;
        let Operation { direction, remote, local, len, .. } = *operation;
        if len == 0 || len > RMA_MTU || remote.number() == 0 {
            return Err(Error::Invalid);
        }
        let here = self.net.regions.find(local, len, direction == Direction::Read)?;
        if self.is_broken() {
            return Err(Error::Io);
        }
        let it = Move::new(direction, here, remote, len);
        let begun = self.served.enter().begin_move(&self.lanes, node, it);
        // For those who found the engine taken.
        self.serve(Pass::Send);
        begun
    }

    /// Busy: some are under way. Io: some have failed, which is told once; or the adapter has gone.
    pub(super) fn outcome(&self, direction: Direction) -> Result<()> {
        Verbs::poll_surely(self);
        let (left, failed) = self.served.enter().take_outcome(direction);
        if failed {
            return Err(Error::Io);
        }
        match left {
            0 => Ok(()),
            _ if self.is_broken() => Err(Error::Io),
            _ => Err(Error::Busy),
        }
    }
}

impl Engine {
    /// NoBuffers: many are under way to that peer.
    fn begin_move(&mut self, lanes: &Lanes, node: u32, it: Move) -> Result<()> {
        // What was sent before goes first.
        self.pass(lanes, Pass::Send);
        if self.slab.is_gone(node as usize) {
            self.fail_move(node, &it, "it has exited");
            return Ok(());
        }
        if self.peers[node as usize].flow.moves() >= MOST {
            return Err(Error::NoBuffers);
        }
        self.moves[it.direction as usize] += 1;
        self.count_moves();
        self.queue(node, Item::Move(it));
        self.transmit(lanes, node);
        Ok(())
    }

    /// How many are under way, and whether any has failed since this was asked last.
    fn take_outcome(&mut self, direction: Direction) -> (u64, bool) {
        let failed = std::mem::take(&mut self.failed_moves[direction as usize]);
        (self.moves[direction as usize], failed)
    }

    /// For the detector of deadlocks.
    fn count_moves(&self) {
        let remote = &self.slab.record(self.place).node.send.0.remote;
        remote.store(self.moves.iter().sum(), Ordering::Release);
    }

    /// Posts the operation that is next, or a piece of it. False: it has to wait.
    pub(super) fn post_move(&mut self, lanes: &Lanes, to: u32, it: Move) -> bool {
        let number = it.there.number();
        let Some(there) = self.peers[to as usize].regions.get(&number).copied() else {
            return self.ask_for(lanes, to, number);
        };
        // The whole, so that nothing is touched by one that does not fit.
        if there.reach(it.there.offset(), it.len).is_none() {
            self.refuse_move(to, "the handle does not reach");
            return true;
        }
        // On iWARP the connection would break, and nothing tell at which operation.
        let breaks = there.constant && it.direction == Direction::Write;
        if breaks && self.adapter.chosen.iwarp {
            self.refuse_move(to, "the memory may only be read");
            return true;
        }
        let offset = it.there.offset() + it.posted as u64;
        let len = (it.len - it.posted).min(PIECE);
        let (Some(addr), Some(here)) =
            (there.reach(offset, len), it.here.0.checked_add(it.posted as u64))
        else {
            return false;
        };
        let (what, len) = match it.direction {
            Direction::Write => (What::Write(addr, there.rkey), len),
            Direction::Read if self.adapter.chosen.iwarp => {
                (What::Read(addr, there.rkey), in_one_page(addr, len))
            }
            Direction::Read => (What::Read(addr, there.rkey), len),
        };
        let piece = Piece { addr: here, length: len as u32, lkey: it.here.1 };
        let Some(work) = self.post(lanes, to, what, piece) else { return false };
        self.peers[to as usize].flow.is_begun(work, len);
        true
    }

    /// Posts work; answers its number. None: it has failed, and is met anew.
    fn post(&mut self, lanes: &Lanes, to: u32, what: What, piece: Piece) -> Option<u32> {
        let peer = &mut self.peers[to as usize];
        let is_read = matches!(what, What::Read(..));
        let (number, signalled) =
            if is_read { peer.flow.begin_read() } else { peer.flow.begin(false) };
        self.works += 1;
        let id = u64::from(to) << 32 | u64::from(number);
        let work = Work { id, what, piece, signalled };
        // SAFETY: registered memory, pinned as long as its registration lasts; a short piece is
        // read now, and the caller has locked it.
        if !unsafe { peer.pair.as_ref()?.send(work) } {
            self.failed(lanes, to, "cannot be posted to");
            return None;
        }
        Some(number)
    }

    /// Reads a word of the peer, of no interest: when it is here, all that was posted before has
    /// come there (RFC 5040, section 5.5: a read is answered after what was sent before).
    pub(super) fn read_nothing(&mut self, lanes: &Lanes, to: u32) {
        let depth = super::pair::DEPTH.min(self.adapter.depth) - 2;
        let peer = &self.peers[to as usize];
        let room = peer.flow.under_way() < depth && peer.flow.may_read();
        if !peer.connection.is_ready() || !room {
            return;
        }
        let (table, key) = peer.table;
        let at = self.landings.keeps.at(self.peers.len() * ENTRY, 8).addr() as u64;
        let piece = Piece { addr: at, length: 8, lkey: self.landings.lkey };
        let (number, signalled) = self.peers[to as usize].flow.begin_read();
        self.works += 1;
        let id = u64::from(to) << 32 | u64::from(number);
        let work = Work { id, what: What::Read(table, key), piece, signalled };
        let pair = self.peers[to as usize].pair.as_ref();
        // SAFETY: registered memory, which nobody reads.
        if !pair.is_some_and(|pair| unsafe { pair.send(work) }) {
            self.failed(lanes, to, "cannot be posted to");
        }
    }

    /// Reads the entry of a region in the peer's table: one at a time.
    fn ask_for(&mut self, lanes: &Lanes, to: u32, number: u32) -> bool {
        let peer = &self.peers[to as usize];
        if peer.asked.is_some() || !peer.flow.may_read() {
            return false;
        }
        let (table, key) = self.peers[to as usize].table;
        let at = self.landings.keeps.at(to as usize * ENTRY, ENTRY).addr() as u64;
        let piece = Piece { addr: at, length: ENTRY as u32, lkey: self.landings.lkey };
        let what = What::Read(entry_at(table, number), key);
        if let Some(work) = self.post(lanes, to, what, piece) {
            self.peers[to as usize].asked = Some((work, number));
        }
        false
    }

    /// All work up to this number is done: perhaps what was asked for is here.
    #[inline]
    pub(super) fn is_answered(&mut self, to: u32, done: u32) {
        let Some((work, number)) = self.peers[to as usize].asked else { return };
        if is_before(done, work) {
            return;
        }
        let word = |at: usize| {
            let word = self.landings.keeps.word(to as usize * ENTRY / 8 + at);
            word.load(Ordering::Acquire)
        };
        let found = There::parse([word(0), word(1), word(2), word(3)], number);
        let peer = &mut self.peers[to as usize];
        peer.asked = None;
        match found {
            Some(there) => drop(peer.regions.insert(number, there)),
            None => self.refuse_move(to, "no such region is locked"),
        }
    }

    /// The operation that is next cannot be.
    fn refuse_move(&mut self, to: u32, why: &str) {
        if let Some(it) = self.peers[to as usize].flow.refuse() {
            self.give_up(to, &it, why);
        }
    }

    /// It will never be done.
    pub(super) fn give_up(&mut self, to: u32, it: &Move, why: &str) {
        self.given_up += 1;
        self.moves[it.direction as usize] -= 1;
        self.count_moves();
        self.fail_move(to, it, why);
    }

    /// The adapter, or the peer's, refuses work: only the operation that it was for has failed.
    pub(super) fn is_refused(&mut self, to: u32, number: u32) {
        let peer = &mut self.peers[to as usize];
        if peer.asked.is_some_and(|(work, _)| work == number) {
            return self.refuse_move(to, "its table cannot be read");
        }
        if let Some(it) = peer.flow.take_failed(number) {
            peer.regions.remove(&it.there.number());
            self.give_up(to, &it, "the memory cannot be reached");
        }
    }

    fn fail_move(&mut self, node: u32, it: &Move, why: &str) {
        self.failed_moves[it.direction as usize] = true;
        debug::say(debug::ERROR, || {
            let what = if it.direction == Direction::Write { "write" } else { "read" };
            format!("verbs: a remote {what} on node {node} has failed: {why}")
        });
    }

    /// An operation is done, or will never be.
    pub(super) fn end_move(&mut self, node: u32, it: &Move, is_done: bool) {
        self.moves[it.direction as usize] -= 1;
        self.count_moves();
        if !is_done {
            return self.fail_move(node, it, "it has exited");
        }
        let moved = &self.slab.record(self.place).node.send.0.moved[it.direction as usize];
        moved.fetch_add(it.len as u64, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_short_read_ends_with_its_page_and_no_other_is_cut() {
        for (at, len, whole) in [
            (4095, 2, 1),
            (4096, 32, 32),
            (8192 - 32, 32, 32),
            (8192 - 31, 32, 31),
            (8192 - 1, 33, 33),
            (0, PIECE, PIECE),
            (u64::MAX, 1, 1),
        ] {
            assert_eq!(in_one_page(at, len), whole, "{len} at {at}");
        }
    }
}
