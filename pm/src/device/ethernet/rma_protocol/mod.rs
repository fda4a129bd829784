//! Remote memory between hosts, as a state machine: which frames the operations of a node become,
//! what it owes to others, and what must wait for what. Sans I/O: it knows handles and lengths,
//! never a byte. Below it frames of one pair arrive once and in order.
//!
//! The ordering rule (manual 3.6.3) is kept by the origin, in one queue for each peer: a write goes
//! out when earlier reads are done, and so does a message; a read is asked for behind all pieces of
//! earlier writes. So nobody has to hold back what has come, and nothing grows at the target: it
//! keeps of each peer the write that is coming in and at most [`MAX_PENDING_RESPONSES`] answers.
//!
//! | file | what is in it |
//! |---|---|
//! | `mod.rs` | all peers, and whose turn it is |
//! | `origin.rs` | own operations on one peer, and messages that wait for them |
//! | `target.rs` | a peer's operations here |
//! | `tests.rs` | two nodes against a model; frames that nobody sends |

#![forbid(unsafe_code)]

mod origin;
mod target;
#[cfg(test)]
mod tests;

use crate::device::net_common::endpoint_queues::SendRequest;
use crate::rma::{AddrHandle, Direction};
use origin::Origin;
use score_proto::rma_frame::{Frame, RMA_HEADER_LEN};
use std::collections::{BTreeMap, VecDeque};
use target::RmaTarget;

/// Operations of one node on another that are under way.
pub(super) const MAX_OPERATIONS: usize = 64;
/// Answers that are owed to one node: no libpm asks for more.
const MAX_PENDING_RESPONSES: usize = MAX_OPERATIONS;

/// An own operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct LocalOperation {
    pub(super) direction: Direction,
    pub(super) remote: AddrHandle,
    pub(super) local: AddrHandle,
    /// Where that is. A write goes on from there even when the region is unlocked meanwhile, as at
    /// the end of a program that does not wait.
    pub(super) address: usize,
    pub(super) len: usize,
}

/// Where bytes are that go out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PayloadSource {
    /// At this address: it was looked up when the operation began.
    Address(usize),
    /// In a region of this process, if it is locked.
    Region(AddrHandle),
}

/// An own operation that has come to its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct CompletedOperation {
    pub(super) peer: u32,
    pub(super) operation: LocalOperation,
    pub(super) failed: bool,
}

/// On which side of an operation something belongs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum OperationRole {
    /// The operation is an own one.
    Origin,
    /// It is the peer's.
    Target,
}

/// What goes to a peer next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NextTransmission {
    /// Nothing, before something else happens.
    Nothing,
    /// A message that has waited.
    Message(SendRequest),
    /// A frame without bytes of the user's.
    Frame(Frame),
    /// A chain of frames: so many bytes of the own memory from here on.
    Fragments(FragmentStream),
}

/// The rest of a chain of frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct FragmentStream {
    pub(super) side: OperationRole,
    /// Where its next byte is.
    pub(super) source: PayloadSource,
    pub(super) remaining: usize,
    number: u32,
    /// Handle there, or offset.
    position: u64,
    /// Its bytes follow those of the latest frame.
    is_continuation: bool,
}

impl FragmentStream {
    /// The frame whose bytes begin `offset` further, and are `len`.
    pub(super) fn frame(&self, offset: usize, len: usize) -> Frame {
        let (number, position, last) = (self.number, self.position, offset + len == self.remaining);
        match self.side {
            OperationRole::Origin => {
                let handle = (AddrHandle::from_bits(position) + offset as u64).bits();
                Frame::WriteData { number, last, handle }
            }
            OperationRole::Target => Frame::ReadResponse {
                number,
                last,
                failed: false,
                offset: position + offset as u64,
            },
        }
    }

    /// How many bytes the packet has whose bytes begin `offset` further, and whether they go without a
    /// head: neither the first of what follows another frame nor the last ones do.
    pub(super) fn next_packet_len(&self, offset: usize, max_len: usize) -> (usize, bool) {
        let (remaining, max_with_header) = (self.remaining - offset, max_len - RMA_HEADER_LEN);
        if remaining <= max_with_header || offset == 0 && !self.is_continuation {
            (remaining.min(max_with_header), false)
        } else {
            (max_len.min(remaining - 1), true)
        }
    }
}

/// Where bytes of a frame go, in the own memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct CopyTarget {
    pub(super) side: OperationRole,
    pub(super) number: u32,
    pub(super) to: AddrHandle,
}

impl FragmentStream {
    /// The operation's number.
    pub(super) fn number(&self) -> u32 {
        self.number
    }
}

#[derive(Default)]
struct RmaPeer {
    origin: Origin,
    target: RmaTarget,
    /// Whose turn it was.
    target_was_last: bool,
    /// In the list of peers that may have something to send; of those whose operations may have
    /// ended.
    is_listed: bool,
    may_have_completed: bool,
    /// Frames that are on the way.
    in_flight: u64,
    /// What the bytes behind the latest frame belong to: of what goes there, and of what comes.
    sent_continuation: Option<Frame>,
    received_continuation: Option<Frame>,
}

/// See the module.
#[derive(Default)]
pub(super) struct RmaProtocol {
    peers: BTreeMap<u32, RmaPeer>,
    ready_peers: VecDeque<u32>,
    maybe_completed: Vec<u32>,
    /// Own operations that have not ended.
    operation_count: usize,
    /// Messages that wait.
    deferred_count: usize,
    /// Frames that no libpm sends.
    refused_count: u64,
}

impl RmaProtocol {
    fn mark_ready(&mut self, node: u32) {
        if let Some(peer) = self.peers.get_mut(&node)
            && !std::mem::replace(&mut peer.is_listed, true)
        {
            self.ready_peers.push_back(node);
        }
    }

    /// An own operation begins.
    pub(super) fn begin(&mut self, node: u32, operation: LocalOperation) {
        self.operation_count += 1;
        self.peers.entry(node).or_default().origin.begin(operation);
        self.mark_ready(node);
    }

    /// Whether a message to `node` has to wait for operations: then [`Self::defer`] takes it.
    #[inline]
    pub(super) fn must_wait(&self, node: u32) -> bool {
        // A message that waited for the last operation may wait for its turn still.
        self.operation_count + self.deferred_count > 0
            && self.peers.get(&node).is_some_and(|peer| peer.origin.holds_messages())
    }

    /// A message waits until what came before it has been sent, and read.
    pub(super) fn defer(&mut self, message: SendRequest) {
        self.deferred_count += 1;
        self.peers.entry(message.to).or_default().origin.defer(message);
        self.mark_ready(message.to);
    }

    /// Messages that wait.
    pub(super) fn deferred_count(&self) -> usize {
        self.deferred_count
    }

    /// Whether bytes of writes, or messages behind operations, are not in frames: they need this
    /// process.
    pub(super) fn is_sending(&self) -> bool {
        self.deferred_count > 0 || self.peers.values().any(|peer| peer.origin.is_writing())
    }

    /// Whether nobody has anything to send, as far as is known.
    #[inline]
    pub(super) fn is_idle(&self) -> bool {
        self.ready_peers.is_empty()
    }

    /// How many peers may have something to send.
    pub(super) fn ready_count(&self) -> usize {
        self.ready_peers.len()
    }

    /// The next of them, which is last from now on.
    pub(super) fn next_ready(&mut self) -> Option<u32> {
        let node = *self.ready_peers.front()?;
        self.ready_peers.rotate_left(1);
        Some(node)
    }

    /// What goes to `node` next, own operations and answers in turn. A message or a frame is then
    /// gone from here; of a chain see [`Self::sent`].
    pub(super) fn next(&mut self, node: u32) -> NextTransmission {
        let Some(peer) = self.peers.get_mut(&node) else { return NextTransmission::Nothing };
        peer.target_was_last = !peer.target_was_last;
        let mut next = NextTransmission::Nothing;
        for answer in [peer.target_was_last, !peer.target_was_last] {
            next = if answer { peer.target.next() } else { peer.origin.next() };
            if next != NextTransmission::Nothing {
                break;
            }
        }
        match next {
            NextTransmission::Nothing => {
                peer.is_listed = false;
                self.ready_peers.retain(|other| *other != node);
            }
            NextTransmission::Message(_) => self.deferred_count -= 1,
            NextTransmission::Frame(_) => peer.sent_continuation = None,
            NextTransmission::Fragments(ref mut chain) => {
                chain.is_continuation = peer.sent_continuation.is_some()
                    && peer.sent_continuation == Some(chain.frame(0, 0));
            }
        }
        next
    }

    /// So many bytes of this chain are in frames.
    pub(super) fn on_bytes_sent(&mut self, node: u32, chain: &FragmentStream, bytes: usize) {
        let Some(peer) = self.peers.get_mut(&node) else { return };
        peer.sent_continuation = chain.frame(0, bytes).continuation(bytes);
        match chain.side {
            OperationRole::Origin => peer.origin.on_bytes_sent(bytes),
            OperationRole::Target => peer.target.on_bytes_sent(bytes),
        }
    }

    /// The bytes of this chain cannot be had: it ends.
    pub(super) fn abort_stream(&mut self, node: u32, chain: &FragmentStream) {
        let Some(peer) = self.peers.get_mut(&node) else { return };
        match chain.side {
            OperationRole::Origin => peer.origin.abort_write(),
            OperationRole::Target => peer.target.fail_read(),
        }
    }

    /// Frames to `node` that are on the way: not acknowledged.
    pub(super) fn in_flight(&self, node: u32) -> u64 {
        self.peers.get(&node).map_or(0, |peer| peer.in_flight)
    }

    /// So many more are.
    pub(super) fn on_frames_sent(&mut self, node: u32, frames: u64) {
        if let Some(peer) = self.peers.get_mut(&node) {
            peer.in_flight += frames;
        }
    }

    /// So many bytes of `node` have come that follow those of its latest frame; as below.
    pub(super) fn on_continuation(&mut self, node: u32, bytes: usize) -> Option<CopyTarget> {
        let frame = self.peers.get(&node)?.received_continuation?;
        self.on_frame(node, frame, bytes)
    }

    /// Bytes of `node` were lost, or say nothing: where those behind them go is not known.
    pub(super) fn on_bytes_lost<T>(&mut self, node: u32) -> Option<T> {
        self.peers.get_mut(&node)?.received_continuation = None;
        None
    }

    /// One is not any more.
    pub(super) fn on_frame_done(&mut self, node: u32) {
        if let Some(peer) = self.peers.get_mut(&node) {
            peer.in_flight = peer.in_flight.saturating_sub(1);
        }
    }

    /// A frame of `node` has come, with so many bytes. Answers where these go; None: nowhere.
    pub(super) fn on_frame(&mut self, node: u32, frame: Frame, bytes: usize) -> Option<CopyTarget> {
        let peer = self.peers.entry(node).or_default();
        peer.received_continuation = frame.continuation(bytes);
        let result = match frame {
            Frame::WriteData { number, last, handle } => {
                let to = AddrHandle::from_bits(handle);
                let copy = CopyTarget { side: OperationRole::Target, number, to };
                peer.target
                    .on_write_fragment(number, bytes, last)
                    .map(|is_wanted| is_wanted.then_some(copy))
            }
            Frame::ReadRequest { number, handle, len } => peer
                .target
                .on_read_request(number, AddrHandle::from_bits(handle), len)
                .then_some(None),
            Frame::WriteAck { number, failed } => {
                peer.origin.on_written(number, failed).then_some(None)
            }
            Frame::ReadResponse { number, last, failed, offset } => {
                let to = peer.origin.on_data(number, last, failed, offset, bytes);
                to.map(|to| to.map(|to| CopyTarget { side: OperationRole::Origin, number, to }))
            }
        };
        if result.is_none() {
            self.refused_count += 1;
        }
        if !std::mem::replace(&mut peer.may_have_completed, true) {
            self.maybe_completed.push(node);
        }
        self.mark_ready(node);
        result.flatten()
    }

    /// The bytes of that frame cannot be written where they belong.
    pub(super) fn fail_operation(&mut self, node: u32, side: OperationRole, number: u32) {
        let Some(peer) = self.peers.get_mut(&node) else { return };
        match side {
            OperationRole::Origin => peer.origin.fail_operation(number),
            OperationRole::Target => peer.target.fail_write(number),
        }
    }

    /// An own operation that has ended, when all bytes that came are where they belong.
    pub(super) fn next_completed(&mut self) -> Option<CompletedOperation> {
        while let Some(&node) = self.maybe_completed.last() {
            let peer = self.peers.get_mut(&node)?;
            if let Some((operation, failed)) = peer.origin.next_completed() {
                self.operation_count -= 1;
                self.mark_ready(node);
                return Some(CompletedOperation { peer: node, operation, failed });
            }
            peer.may_have_completed = false;
            self.maybe_completed.pop();
        }
        None
    }

    /// `node` has gone: what it asked for is not needed any more, and own operations on it fail.
    /// Answers these. Messages come out by [`Self::next`] as before.
    pub(super) fn on_peer_exited(&mut self, node: u32) -> Vec<CompletedOperation> {
        let Some(peer) = self.peers.get_mut(&node) else { return Vec::new() };
        peer.target = RmaTarget::default();
        let failed: Vec<_> = peer.origin.abort_operations();
        self.operation_count -= failed.len();
        self.mark_ready(node);
        let failed_operation =
            |operation| CompletedOperation { peer: node, operation, failed: true };
        failed.into_iter().map(failed_operation).collect()
    }

    /// Who has gone too far to help: every message that waits, never to be sent.
    pub(super) fn drop_deferred(&mut self) -> Vec<SendRequest> {
        self.deferred_count = 0;
        self.peers.values_mut().flat_map(|peer| peer.origin.drop_deferred()).collect()
    }

    /// For people.
    pub(super) fn describe(&self) -> String {
        let pending_responses: usize =
            self.peers.values().map(|peer| peer.target.pending_count()).sum();
        format!(
            "remote memory: {} operations under way, {} messages behind them, {pending_responses} answers \
             owed, {} frames refused",
            self.operation_count, self.deferred_count, self.refused_count
        )
    }
}
