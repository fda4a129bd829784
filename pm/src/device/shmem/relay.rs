//! Remote memory where the kernel refuses to copy between processes (seccomp, Yama, user
//! namespaces) and a region is not of PM's allocator: two copies, with the target's help. The
//! origin asks through a ring of requests; the bytes go through buffers in its part of the arena;
//! the target copies them in its next call of PM, whichever that is, and answers.
//!
//! Order (manual 3.6.3): a ring keeps it, all operations to a node join the queue while there is
//! one, and messages to it find no room meanwhile. Copies to and from users' memory are reads and
//! writes of the arena's file: what is not mapped is an error.

// UNSAFETY: reads and writes a ring's payload, and lets the kernel write to locked memory.
#![expect(unsafe_code)]

use super::Endpoint;
use crate::door::EXITED;
use crate::error::{Error, Result};
use crate::remote::{AddrHandle, ArenaFile, Direction, find};
use crate::ring::{Consumer, Producer};
use crate::segment::Kind;
use crate::sync::{AtomicU32, Ordering};
use std::collections::{BTreeMap, VecDeque};
use std::sync::{Mutex, MutexGuard, PoisonError, TryLockError};

/// Bytes of a request at most.
const CHUNK: usize = 256 << 10;
/// Requests to one node that are not answered. The ring holds these and as many answers.
const WINDOW: usize = 4;
/// Buffers of a process.
const BUFFERS: usize = 16;
/// Operations to one node that are under way.
const OPERATIONS: usize = 16;
/// Words of a request or answer: what it is, its number, handle, length, buffer.
const WORDS: usize = 5;
const BYTES: usize = WORDS * 8;
/// The answer; requests are 1 + [`Direction`].
const ANSWER: u64 = 3;
/// Requests and answers that are taken from one node at a time.
const TURN: usize = 32;

pub(super) struct Relay {
    state: Mutex<State>,
    /// Somebody wanted the state while another thread had it, who has to look again.
    again: AtomicU32,
    /// Operations under way, by direction; by node they are in `Reach`.
    pending: [AtomicU32; 2],
}

impl Relay {
    pub(super) fn new() -> Relay {
        Relay { state: Mutex::default(), again: AtomicU32::new(0), pending: Default::default() }
    }
}

#[derive(Default)]
struct State {
    /// Buffers that are free: where they begin in the own part.
    free: Vec<u64>,
    made: bool,
    peers: BTreeMap<u32, Peer>,
}

#[derive(Default)]
struct Peer {
    operations: VecDeque<Queued>,
    /// In the order of their answers.
    asked: VecDeque<Chunk>,
    /// The number of the next request, and of the next answer.
    next: u64,
}

struct Queued {
    direction: Direction,
    here: usize,
    remote: AddrHandle,
    len: usize,
    asked: usize,
    answered: usize,
    failed: bool,
}

struct Chunk {
    number: u64,
    buffer: u64,
    here: usize,
    len: usize,
}

/// Carries a request or an answer.
type Words = [u64; WORDS];

impl Endpoint {
    fn relay_state(&self) -> Result<MutexGuard<'_, State>> {
        match self.relay.state.try_lock() {
            Ok(state) => Ok(state),
            Err(TryLockError::Poisoned(state)) => Ok(state.into_inner()),
            Err(TryLockError::WouldBlock) => Err(Error::NoBuffers),
        }
    }

    /// Until no thread of this process copies for others.
    pub(super) fn wait_for_relay(&self) {
        drop(self.relay.state.lock().unwrap_or_else(PoisonError::into_inner));
    }

    /// Operations under way to any node.
    pub(super) fn relayed(&self, direction: Direction) -> u32 {
        self.relay.pending[direction as usize].load(Ordering::Acquire)
    }

    /// The same to one.
    fn relayed_to(&self, node: u32) -> &AtomicU32 {
        &self.send.target(node as usize).reach.relayed
    }

    /// Whether operations to `node` are under way, which all others must not overtake.
    pub(super) fn is_relaying_to(&self, node: u32) -> bool {
        self.relayed_to(node).load(Ordering::Acquire) != 0
    }

    /// Begins with an operation whose handles were looked up. NoBuffers: too many are under way.
    /// NoSys: there is no arena.
    pub(super) fn relay_operation(
        &self,
        node: u32,
        direction: Direction,
        here: usize,
        remote: AddrHandle,
        len: usize,
    ) -> Result<()> {
        let mut state = self.relay_state()?;
        if !state.made {
            let arena = self.arena().ok_or(Error::NoSys)?;
            let first = arena.reserve(BUFFERS * CHUNK)?;
            state.free = (0..BUFFERS).map(|i| first + (i * CHUNK) as u64).collect();
            state.made = true;
        }
        let peer = state.peers.entry(node).or_default();
        if peer.operations.len() >= OPERATIONS {
            drop(state);
            self.relay_progress();
            return Err(Error::NoBuffers);
        }
        let (asked, answered, failed) = (0, 0, false);
        let queued = Queued { direction, here, remote, len, asked, answered, failed };
        peer.operations.push_back(queued);
        self.relay.pending[direction as usize].fetch_add(1, Ordering::AcqRel);
        self.relayed_to(node).fetch_add(1, Ordering::AcqRel);
        self.record().send.0.remote.fetch_add(1, Ordering::AcqRel);
        self.hold_messages(node);
        self.ask(&mut state, node);
        drop(state);
        if self.relay.again.load(Ordering::SeqCst) != 0 {
            self.relay_progress();
        }
        Ok(())
    }

    /// Whether there may be anything to do: cheap, for calls that are made often.
    #[inline]
    pub(super) fn relay_is_used(&self) -> bool {
        let asked = self.segment.generation(self.own as usize, Kind::Remote);
        asked.load(Ordering::Relaxed) != 0
            || self.relayed(Direction::Write) != 0
            || self.relayed(Direction::Read) != 0
    }

    /// Serves others' requests, takes answers, asks on. A thread that finds another at it leaves
    /// its work to that one.
    #[cold]
    pub(super) fn relay_progress(&self) {
        let again = &self.relay.again;
        again.store(1, Ordering::SeqCst);
        while again.load(Ordering::SeqCst) != 0 {
            let Ok(mut state) = self.relay_state() else { return };
            again.store(0, Ordering::SeqCst);
            self.relay_pass(&mut state);
        }
    }

    fn relay_pass(&self, state: &mut State) {
        let own = self.own as usize;
        for source in self.segment.active(own, Kind::Remote).filter(|&source| source != own) {
            if !self.is_broken(source)
                && let Err(why) = self.take_requests(state, source as u32)
            {
                self.break_link(source as u32, why);
            }
        }
        let nodes: Vec<u32> = state.peers.keys().copied().collect();
        for node in nodes {
            let gone = self.segment.node(node as usize).door.0.bits() & EXITED != 0;
            if gone || self.is_broken(node as usize) {
                self.give_up_on(state, node);
            } else {
                self.ask(state, node);
            }
        }
    }

    /// Takes what one node has written. Err: no libpm has written that.
    fn take_requests(
        &self,
        state: &mut State,
        source: u32,
    ) -> std::result::Result<(), &'static str> {
        let ring =
            Consumer::new(self.segment.ring(source as usize, self.own as usize, Kind::Remote));
        for _ in 0..TURN {
            let message =
                ring.take().map_err(|_| "its ring of requests holds what no node writes")?;
            let Some(message) = message else { break };
            if message.len != BYTES {
                return Err("it asked in a way that no node asks");
            }
            let mut words: Words = [0; WORDS];
            // SAFETY: the slot has these bytes, checked when the message was taken.
            unsafe {
                std::ptr::copy_nonoverlapping(message.payload, words.as_mut_ptr().cast(), BYTES);
            }
            if words[0] == ANSWER {
                ring.release(message.next, None);
                self.answered(state, source, words)?;
                continue;
            }
            let back = self.segment.ring(self.own as usize, source as usize, Kind::Remote);
            if Producer::new(back).reserve(BYTES).is_err() {
                break;
            }
            ring.release(message.next, None);
            let failed = self.serve_request(source, words).is_none();
            let _ = self.tell(source, [ANSWER, words[1], u64::from(failed), 0, 0]);
        }
        Ok(())
    }

    /// None: it cannot be.
    fn serve_request(&self, source: u32, words: Words) -> Option<()> {
        let [what, _, handle, len, buffer] = words;
        let len = usize::try_from(len).ok().filter(|len| (1..=CHUNK).contains(len))?;
        let place = find(self.own_regions()?, AddrHandle::from_bits(handle), len).ok()?;
        let arena = self.segment.arena().filter(|_| ArenaFile::holds(buffer, len))?;
        let (source, here) = (source as usize, place.addr as usize);
        match what {
            // SAFETY: the user has locked these bytes for others to write.
            1 => unsafe { arena.take(source, buffer, here, len) }.ok(),
            2 => arena.put(source, buffer, here, len).ok(),
            _ => None,
        }
    }

    fn answered(
        &self,
        state: &mut State,
        source: u32,
        words: Words,
    ) -> std::result::Result<(), &'static str> {
        let wrong = "it answered what nobody has asked";
        let peer = state.peers.get_mut(&source).ok_or(wrong)?;
        let chunk = peer.asked.pop_front().filter(|chunk| chunk.number == words[1]).ok_or(wrong)?;
        let queued = peer.operations.front_mut().ok_or(wrong)?;
        queued.failed |= words[2] != 0;
        if queued.direction == Direction::Read && !queued.failed {
            let arena = self.segment.arena().ok_or(wrong)?;
            // SAFETY: the user has asked for these bytes to be written.
            let done =
                unsafe { arena.take(self.own as usize, chunk.buffer, chunk.here, chunk.len) };
            queued.failed |= done.is_err();
        }
        queued.answered += chunk.len;
        state.free.push(chunk.buffer);
        self.finish(peer, source);
        Ok(())
    }

    /// Ends the operations of which all has been answered.
    fn finish(&self, peer: &mut Peer, node: u32) {
        while peer.operations.front().is_some_and(|q| q.answered == q.len) {
            let Some(queued) = peer.operations.pop_front() else { break };
            if queued.failed {
                self.fail(queued.direction, || format!("memory of node {node} or here is gone"));
            } else {
                self.count_moved(queued.direction, queued.len);
            }
            self.relay.pending[queued.direction as usize].fetch_sub(1, Ordering::AcqRel);
            self.relayed_to(node).fetch_sub(1, Ordering::AcqRel);
            self.record().send.0.remote.fetch_sub(1, Ordering::AcqRel);
        }
    }

    /// The node has gone: nothing is answered any more.
    fn give_up_on(&self, state: &mut State, node: u32) {
        let Some(mut peer) = state.peers.remove(&node) else { return };
        state.free.extend(peer.asked.drain(..).map(|chunk| chunk.buffer));
        for queued in &mut peer.operations {
            (queued.failed, queued.answered) = (true, queued.len);
        }
        self.finish(&mut peer, node);
    }

    /// Asks for as much as there is room for.
    fn ask(&self, state: &mut State, node: u32) {
        let State { free, peers, .. } = state;
        let Some(peer) = peers.get_mut(&node) else { return };
        while peer.asked.len() < WINDOW {
            let Some(queued) = peer.operations.iter_mut().find(|q| q.asked < q.len) else { break };
            let Some(buffer) = free.pop() else { break };
            let len = CHUNK.min(queued.len - queued.asked);
            let here = queued.here + queued.asked;
            if queued.direction == Direction::Write && !self.fill(buffer, here, len) {
                // What was asked before is answered; the rest is not asked any more.
                (queued.failed, queued.len) = (true, queued.asked);
                free.push(buffer);
                self.finish(peer, node);
                continue;
            }
            let remote = queued.remote + queued.asked as u64;
            let what = 1 + queued.direction as u64;
            if self.tell(node, [what, peer.next, remote.bits(), len as u64, buffer]).is_err() {
                free.push(buffer);
                break;
            }
            queued.asked += len;
            peer.asked.push_back(Chunk { number: peer.next, buffer, here, len });
            peer.next += 1;
        }
    }

    fn fill(&self, buffer: u64, here: usize, len: usize) -> bool {
        let arena = self.segment.arena();
        arena.is_some_and(|arena| arena.put(self.own as usize, buffer, here, len).is_ok())
    }

    /// Writes to a node's ring, and sees to it that the next poll there looks.
    fn tell(&self, node: u32, words: Words) -> Result<()> {
        let (own, to) = (self.own as usize, node as usize);
        self.segment.activate(own, to, Kind::Remote);
        let ring = Producer::new(self.segment.ring(own, to, Kind::Remote));
        let room = ring.reserve(BYTES)?;
        // SAFETY: `room` has these bytes in the ring, which nobody reads before publish.
        unsafe { std::ptr::copy_nonoverlapping(words.as_ptr().cast(), room.payload, BYTES) };
        ring.publish(room.position, BYTES, 0);
        // As if a new source had come: polls look at this word anyway.
        self.segment.generation(to, Kind::Message).fetch_add(1, Ordering::Release);
        self.wake_node(to);
        Ok(())
    }

    /// How many reads are under way.
    pub(super) fn relayed_reads(&self) -> usize {
        self.relayed(Direction::Read) as usize
    }
}
