//! Emulated remote memory access. It is used if the kernel refuses to copy between processes
//! (seccomp, Yama, user namespaces) and a region is not from PM's allocator. It needs two copies
//! and the help of the target. The origin sends requests through a ring; the bytes go through
//! buffers in the origin's part of the arena. The target copies them and responds when it next
//! makes progress in PM.
//!
//! Order (manual 3.6.3): a ring keeps the order of requests. While operations to a node are queued,
//! all further ones join the queue, and no room is reserved for messages to the node. Copies to and
//! from users' memory are reads and writes of the arena's file, so that unmapped memory is an
//! error.

// UNSAFETY: reads and writes a ring's payload, and lets the kernel write to locked memory.
#![expect(unsafe_code)]

use super::ShmemEndpoint;
use crate::device::RmaInterface;
use crate::error::{Error, PmResult};
use crate::receiver_state::EXITED;
use crate::ring::{Consumer, Producer};
use crate::rma::{AddrHandle, ArenaFile, Direction, RmaOperation, find};
use crate::segment::RingKind;
use crate::sync::{AtomicU32, Ordering};
use std::collections::{BTreeMap, VecDeque};
use std::sync::{Mutex, MutexGuard, PoisonError, TryLockError};

/// The largest length of a request, in bytes.
const MAX_REQUEST_LEN: usize = 256 << 10;
/// The largest number of requests to one node without a response. The ring holds these and as many
/// responses.
const WINDOW: usize = 4;
/// The number of bounce buffers of a process.
const BOUNCE_BUFFERS: usize = 16;
/// The largest number of operations in flight to one node.
const MAX_OPERATIONS: usize = 16;
/// Words of a request or response: kind, number, handle, length, buffer.
const MESSAGE_WORDS: usize = 5;
const MESSAGE_LEN: usize = MESSAGE_WORDS * 8;
/// The kind of a response; the kind of a request is 1 + [`Direction`].
const RESPONSE: u64 = 3;
/// The largest number of requests and responses that one pass takes from one node.
const REQUESTS_PER_PASS: usize = 32;

pub(super) struct RmaEmulation {
    state: Mutex<State>,
    /// 1: a thread has found the state locked, so that the lock's holder has to run another pass.
    must_repeat: AtomicU32,
    /// The number of operations in flight, by direction. `PeerMemory` counts them by node.
    pending_counts: [AtomicU32; 2],
}

impl RmaEmulation {
    pub(super) fn new() -> RmaEmulation {
        RmaEmulation {
            state: Mutex::default(),
            must_repeat: AtomicU32::new(0),
            pending_counts: Default::default(),
        }
    }
}

#[derive(Default)]
struct State {
    /// Free buffers: their offsets in this node's part of the arena.
    free_buffers: Vec<u64>,
    has_buffers: bool,
    peers: BTreeMap<u32, EmulationPeer>,
}

#[derive(Default)]
struct EmulationPeer {
    operations: VecDeque<PendingOperation>,
    /// Requests without a response, in the order in which responses come.
    outstanding_requests: VecDeque<InflightRequest>,
    /// The number of the next request.
    next_request: u64,
}

struct PendingOperation {
    direction: Direction,
    /// Its number among the operations on its node.
    number: u64,
    local_addr: usize,
    remote: AddrHandle,
    len: usize,
    requested_len: usize,
    answered_len: usize,
    has_failed: bool,
}

struct InflightRequest {
    number: u64,
    buffer: u64,
    local_addr: usize,
    len: usize,
}

/// The words of a request or a response.
type EncodedMessage = [u64; MESSAGE_WORDS];

impl ShmemEndpoint {
    fn try_lock_emulation(&self) -> PmResult<MutexGuard<'_, State>> {
        match self.emulation.state.try_lock() {
            Ok(state) => Ok(state),
            Err(TryLockError::Poisoned(state)) => Ok(state.into_inner()),
            Err(TryLockError::WouldBlock) => Err(Error::NoBuffers),
        }
    }

    /// Waits until no thread of this process copies for other nodes.
    pub(super) fn wait_for_emulation(&self) {
        drop(self.emulation.state.lock().unwrap_or_else(PoisonError::into_inner));
    }

    /// The number of operations in flight to any node.
    pub(super) fn emulated_count(&self, direction: Direction) -> u32 {
        self.emulation.pending_counts[direction as usize].load(Ordering::Acquire)
    }

    /// The number of operations in flight to one node.
    fn emulated_count_to(&self, node: u32) -> &AtomicU32 {
        &self.peer_memory(node).emulated_operations
    }

    /// Whether operations to `node` are in flight, which no other may overtake.
    pub(super) fn is_emulating_to(&self, node: u32) -> bool {
        self.emulated_count_to(node).load(Ordering::Acquire) != 0
    }

    /// Starts an operation whose handles were resolved. NoBuffers: too many operations are in
    /// flight. NoSys: there is no arena.
    pub(super) fn queue_emulated(
        &self,
        node: u32,
        &RmaOperation { direction, remote, len, is_serialized, .. }: &RmaOperation,
        local_addr: usize,
    ) -> PmResult<()> {
        let mut state = self.try_lock_emulation()?;
        if !state.has_buffers {
            let arena = self.arena().ok_or(Error::NoSys)?;
            let first_buffer = arena.reserve(BOUNCE_BUFFERS * MAX_REQUEST_LEN)?;
            state.free_buffers =
                (0..BOUNCE_BUFFERS).map(|i| first_buffer + (i * MAX_REQUEST_LEN) as u64).collect();
            state.has_buffers = true;
        }
        let peer = state.peers.entry(node).or_default();
        if peer.operations.len() >= MAX_OPERATIONS {
            drop(state);
            self.progress_emulation();
            return Err(Error::NoBuffers);
        }
        let (requested_len, answered_len, has_failed) = (0, 0, false);
        let operation = PendingOperation {
            direction,
            number: self.peer_memory(node).next_number(),
            local_addr,
            remote,
            len,
            requested_len,
            answered_len,
            has_failed,
        };
        peer.operations.push_back(operation);
        self.emulation.pending_counts[direction as usize].fetch_add(1, Ordering::AcqRel);
        self.emulated_count_to(node).fetch_add(1, Ordering::AcqRel);
        self.peer_memory(node).count_started(is_serialized);
        self.record().send.0.pending_rma.fetch_add(1, Ordering::AcqRel);
        self.delay_messages(node);
        self.send_requests(&mut state, node);
        drop(state);
        if self.emulation.must_repeat.load(Ordering::SeqCst) != 0 {
            self.progress_emulation();
        }
        Ok(())
    }

    /// Whether there may be work to do. This is cheap, because it is called often.
    #[inline]
    pub(super) fn is_emulation_used(&self) -> bool {
        let request_generation = self.segment.generation(self.self_node as usize, RingKind::Rma);
        request_generation.load(Ordering::Relaxed) != 0
            || self.emulated_count(Direction::Write) != 0
            || self.emulated_count(Direction::Read) != 0
    }

    /// Handles requests and responses, and sends further requests. A thread that finds the state
    /// locked leaves its work to the lock's holder.
    #[cold]
    pub(super) fn progress_emulation(&self) {
        let must_repeat = &self.emulation.must_repeat;
        must_repeat.store(1, Ordering::SeqCst);
        while must_repeat.load(Ordering::SeqCst) != 0 {
            let Ok(mut state) = self.try_lock_emulation() else { return };
            must_repeat.store(0, Ordering::SeqCst);
            self.progress_emulation_once(&mut state);
        }
    }

    fn progress_emulation_once(&self, state: &mut State) {
        let self_node = self.self_node as usize;
        for source in self
            .segment
            .active_sources(self_node, RingKind::Rma)
            .filter(|&source| source != self_node)
        {
            if !self.is_broken(source)
                && let Err(why) = self.handle_requests(state, source as u32)
            {
                self.break_link(source as u32, why);
            }
        }
        let nodes: Vec<u32> = state.peers.keys().copied().collect();
        for node in nodes {
            let has_exited = self.segment.node(node as usize).receiver_state.0.bits() & EXITED != 0;
            if has_exited || self.is_broken(node as usize) {
                self.fail_all_to(state, node);
            } else {
                self.send_requests(state, node);
            }
        }
    }

    /// Handles the requests and responses of one node. Err: the data cannot come from libpm.
    fn handle_requests(
        &self,
        state: &mut State,
        source: u32,
    ) -> std::result::Result<(), &'static str> {
        let ring = Consumer::new(self.segment.ring(
            source as usize,
            self.self_node as usize,
            RingKind::Rma,
        ));
        for _ in 0..REQUESTS_PER_PASS {
            let message = ring.take().map_err(|_| "its request ring is corrupt")?;
            let Some(message) = message else { break };
            if message.len != MESSAGE_LEN {
                return Err("it sent a malformed request");
            }
            let mut words: EncodedMessage = [0; MESSAGE_WORDS];
            // SAFETY: the slot has these bytes, checked when the message was taken.
            unsafe {
                std::ptr::copy_nonoverlapping(
                    message.payload,
                    words.as_mut_ptr().cast(),
                    MESSAGE_LEN,
                );
            }
            if words[0] == RESPONSE {
                ring.release(message.next_index, None);
                self.on_response(state, source, words)?;
                continue;
            }
            let response_ring =
                self.segment.ring(self.self_node as usize, source as usize, RingKind::Rma);
            if Producer::new(response_ring).reserve(MESSAGE_LEN).is_err() {
                break;
            }
            ring.release(message.next_index, None);
            let has_failed = self.serve_request(source, words).is_none();
            let _ = self.send_encoded(source, [RESPONSE, words[1], u64::from(has_failed), 0, 0]);
        }
        Ok(())
    }

    /// Executes a request. None: the request is invalid.
    fn serve_request(&self, source: u32, words: EncodedMessage) -> Option<()> {
        let [kind, _, handle, len, buffer] = words;
        let len = usize::try_from(len).ok().filter(|len| (1..=MAX_REQUEST_LEN).contains(len))?;
        let region = find(self.local_regions()?, AddrHandle::from_bits(handle), len).ok()?;
        let arena = self.segment.arena().filter(|_| ArenaFile::holds(buffer, len))?;
        let (source, local_addr) = (source as usize, region.addr as usize);
        match kind {
            // SAFETY: the user has locked these bytes for remote writes.
            1 => unsafe { arena.read(source, buffer, local_addr, len) }.ok(),
            2 => arena.write(source, buffer, local_addr, len).ok(),
            _ => None,
        }
    }

    fn on_response(
        &self,
        state: &mut State,
        source: u32,
        words: EncodedMessage,
    ) -> std::result::Result<(), &'static str> {
        let unexpected = "it sent an unexpected response";
        let peer = state.peers.get_mut(&source).ok_or(unexpected)?;
        let request = peer
            .outstanding_requests
            .pop_front()
            .filter(|chunk| chunk.number == words[1])
            .ok_or(unexpected)?;
        let operation = peer.operations.front_mut().ok_or(unexpected)?;
        operation.has_failed |= words[2] != 0;
        if operation.direction == Direction::Read && !operation.has_failed {
            let arena = self.segment.arena().ok_or(unexpected)?;
            // SAFETY: the user has asked for these bytes to be written.
            let result = unsafe {
                arena.read(self.self_node as usize, request.buffer, request.local_addr, request.len)
            };
            operation.has_failed |= result.is_err();
        }
        operation.answered_len += request.len;
        state.free_buffers.push(request.buffer);
        self.finish_answered(peer, source);
        Ok(())
    }

    /// Finishes the operations all of whose requests have responses.
    fn finish_answered(&self, peer: &mut EmulationPeer, node: u32) {
        while peer.operations.front().is_some_and(|q| q.answered_len == q.len) {
            let Some(operation) = peer.operations.pop_front() else { break };
            if operation.has_failed {
                self.record_failure((node, operation.number), operation.direction, || {
                    format!("memory of node {node} or of this node is not accessible")
                });
            } else {
                // Not serialized, because any thread may run this.
                self.count_rma_bytes(operation.direction, operation.len, false);
            }
            self.emulation.pending_counts[operation.direction as usize]
                .fetch_sub(1, Ordering::AcqRel);
            self.emulated_count_to(node).fetch_sub(1, Ordering::AcqRel);
            self.record().send.0.pending_rma.fetch_sub(1, Ordering::AcqRel);
        }
    }

    /// Fails all operations to a node that has exited.
    fn fail_all_to(&self, state: &mut State, node: u32) {
        let Some(mut peer) = state.peers.remove(&node) else { return };
        state.free_buffers.extend(peer.outstanding_requests.drain(..).map(|chunk| chunk.buffer));
        for operation in &mut peer.operations {
            (operation.has_failed, operation.answered_len) = (true, operation.len);
        }
        self.finish_answered(&mut peer, node);
    }

    /// Sends requests as long as there is room.
    fn send_requests(&self, state: &mut State, node: u32) {
        let State { free_buffers, peers, .. } = state;
        let Some(peer) = peers.get_mut(&node) else { return };
        while peer.outstanding_requests.len() < WINDOW {
            let Some(operation) = peer.operations.iter_mut().find(|q| q.requested_len < q.len)
            else {
                break;
            };
            let Some(buffer) = free_buffers.pop() else { break };
            let len = MAX_REQUEST_LEN.min(operation.len - operation.requested_len);
            let local_addr = operation.local_addr + operation.requested_len;
            if operation.direction == Direction::Write && !self.fill_buffer(buffer, local_addr, len)
            {
                // The responses to the earlier requests will still arrive. The rest is no longer
                // requested.
                (operation.has_failed, operation.len) = (true, operation.requested_len);
                free_buffers.push(buffer);
                self.finish_answered(peer, node);
                continue;
            }
            let remote = operation.remote + operation.requested_len as u64;
            let kind = 1 + operation.direction as u64;
            if self
                .send_encoded(node, [kind, peer.next_request, remote.bits(), len as u64, buffer])
                .is_err()
            {
                free_buffers.push(buffer);
                break;
            }
            operation.requested_len += len;
            peer.outstanding_requests.push_back(InflightRequest {
                number: peer.next_request,
                buffer,
                local_addr,
                len,
            });
            peer.next_request += 1;
        }
    }

    fn fill_buffer(&self, buffer: u64, local_addr: usize, len: usize) -> bool {
        let arena = self.segment.arena();
        arena.is_some_and(|arena| {
            arena.write(self.self_node as usize, buffer, local_addr, len).is_ok()
        })
    }

    /// Writes to a node's ring, and makes the next poll of that node read it.
    fn send_encoded(&self, node: u32, words: EncodedMessage) -> PmResult<()> {
        let (self_node, to) = (self.self_node as usize, node as usize);
        self.segment.activate(self_node, to, RingKind::Rma);
        let ring = Producer::new(self.segment.ring(self_node, to, RingKind::Rma));
        let reserved = ring.reserve(MESSAGE_LEN)?;
        // SAFETY: `reserved` has these bytes in the ring, which no process reads before `publish`.
        unsafe {
            std::ptr::copy_nonoverlapping(words.as_ptr().cast(), reserved.payload, MESSAGE_LEN)
        };
        ring.publish(reserved.position, MESSAGE_LEN, 0);
        // Signalled like a new source, because polls check this word anyway.
        self.segment.generation(to, RingKind::Message).fetch_add(1, Ordering::Release);
        self.wake_node(to);
        Ok(())
    }

    /// The number of reads in flight.
    pub(super) fn emulated_read_count(&self) -> usize {
        self.emulated_count(Direction::Read) as usize
    }
}
