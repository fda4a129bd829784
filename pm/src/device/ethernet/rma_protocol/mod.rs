//! Remote memory access between hosts, as a state machine. It determines the frames of a node's
//! operations, the responses that the node has to send, and their order. It does no I/O and never
//! accesses memory: it handles only address handles and lengths. It requires that frames between
//! two nodes arrive once and in order.
//!
//! The origin enforces the ordering rule (manual 3.6.3) with one queue for each peer. It sends a
//! write or a message when earlier reads are complete. It requests a read after it has sent all
//! fragments of earlier writes. The target therefore need not delay received frames, and its state
//! is bounded: for each peer it keeps the incoming write and at most [`MAX_PENDING_RESPONSES`]
//! responses.
//!
//! | file | content |
//! |---|---|
//! | `mod.rs` | all peers, and the order in which they are served |
//! | `origin.rs` | this node's operations on one peer, and messages that wait for them |
//! | `target.rs` | a peer's operations on this node |
//! | `tests.rs` | two nodes against a model; frames that no libpm sends |

#![forbid(unsafe_code)]

mod origin;
mod target;
#[cfg(test)]
mod tests;

use crate::device::net_common::endpoint_queues::SendRequest;
use crate::rma::{AddrHandle, Direction};
use origin::Origin;
use score_pm_reliability::rma_frame::{Frame, RMA_HEADER_LEN};
use std::collections::{BTreeMap, VecDeque};
use target::RmaTarget;

/// The most pending operations of one node on another node.
pub(super) const MAX_OPERATIONS: usize = 64;
/// The most pending responses to one node. A correct peer has at most this many operations pending.
const MAX_PENDING_RESPONSES: usize = MAX_OPERATIONS;

/// The number of an operation among the operations of its origin on one peer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct OperationNumber(pub(super) u32);

impl OperationNumber {
    fn next(self) -> OperationNumber {
        OperationNumber(self.0.wrapping_add(1))
    }
}

/// An operation of this node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct LocalOperation {
    pub(super) direction: Direction,
    pub(super) remote: AddrHandle,
    pub(super) local: AddrHandle,
    /// The address of `local`. A write continues to read from this address even if the region is
    /// unlocked meanwhile, for example because a program ends without waiting.
    pub(super) address: usize,
    pub(super) len: usize,
}

/// The location of bytes that are sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PayloadSource {
    /// The bytes are at this address, which was looked up when the operation began.
    Address(usize),
    /// The bytes are in a region of this process, if the region is locked.
    Region(AddrHandle),
}

/// An operation of this node that has completed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct CompletedOperation {
    pub(super) peer: u32,
    pub(super) operation: LocalOperation,
    pub(super) failed: bool,
}

/// The side of an operation that a frame belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum OperationRole {
    /// This node started the operation.
    Origin,
    /// The peer started the operation.
    Target,
}

/// The next transmission to a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NextTransmission {
    /// There is nothing to transmit until another event.
    Nothing,
    /// A message that has waited for operations.
    Message(SendRequest),
    /// A frame without user bytes.
    Frame(Frame),
    /// A stream of fragments, made from bytes of local memory.
    Fragments(FragmentStream),
}

/// The rest of a fragment stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct FragmentStream {
    pub(super) side: OperationRole,
    /// The location of the next byte.
    pub(super) source: PayloadSource,
    pub(super) remaining: usize,
    number: OperationNumber,
    /// For a write, the handle at the target. For a read, the offset in the response.
    position: u64,
    /// Whether the bytes of the stream directly follow those of the latest frame.
    is_continuation: bool,
}

impl FragmentStream {
    /// Returns the frame for `len` bytes that begin `offset` bytes after the next byte.
    pub(super) fn frame(&self, offset: usize, len: usize) -> Frame {
        let (number, position) = (self.number.0, self.position);
        let last = offset + len == self.remaining;
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

    /// Returns the length of the packet whose bytes begin `offset` bytes after the next byte, and
    /// whether it has no header. The first packet after another frame and the last packet of the
    /// stream have a header.
    pub(super) fn next_packet_len(&self, offset: usize, max_len: usize) -> (usize, bool) {
        let (remaining, max_with_header) = (self.remaining - offset, max_len - RMA_HEADER_LEN);
        if remaining <= max_with_header || offset == 0 && !self.is_continuation {
            (remaining.min(max_with_header), false)
        } else {
            (max_len.min(remaining - 1), true)
        }
    }
}

/// The location in local memory to which the bytes of a frame are copied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct CopyTarget {
    pub(super) side: OperationRole,
    pub(super) number: OperationNumber,
    pub(super) to: AddrHandle,
}

impl FragmentStream {
    pub(super) fn number(&self) -> OperationNumber {
        self.number
    }
}

#[derive(Default)]
struct RmaPeer {
    origin: Origin,
    target: RmaTarget,
    /// Whether the latest transmission belonged to an operation of the peer.
    target_was_last: bool,
    /// Whether `ready_peers` lists this peer, and whether `maybe_completed` does.
    is_listed: bool,
    may_have_completed: bool,
    /// The number of frames to this peer that are in flight.
    in_flight: u64,
    /// The frame to which the next packet without a header belongs, for sent and for received
    /// packets.
    sent_continuation: Option<Frame>,
    received_continuation: Option<Frame>,
}

/// See the module.
#[derive(Default)]
pub(super) struct RmaProtocol {
    peers: BTreeMap<u32, RmaPeer>,
    ready_peers: VecDeque<u32>,
    maybe_completed: Vec<u32>,
    /// The number of operations of this node that have not completed.
    operation_count: usize,
    /// The number of messages that wait for operations.
    deferred_count: usize,
    /// The number of received frames that no libpm sends.
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

    /// Queues an operation of this node.
    pub(super) fn begin(&mut self, node: u32, operation: LocalOperation) {
        self.operation_count += 1;
        self.peers.entry(node).or_default().origin.begin(operation);
        self.mark_ready(node);
    }

    /// Whether a message to `node` has to wait for operations. If so, the caller passes it to
    /// [`Self::defer`].
    #[inline]
    pub(super) fn must_wait(&self, node: u32) -> bool {
        // A message that waited for the last operation may still be queued.
        self.operation_count + self.deferred_count > 0
            && self.peers.get(&node).is_some_and(|peer| peer.origin.holds_messages())
    }

    /// Queues a message until the writes before it are sent and the reads before it are complete.
    pub(super) fn defer(&mut self, message: SendRequest) {
        self.deferred_count += 1;
        self.peers.entry(message.to).or_default().origin.defer(message);
        self.mark_ready(message.to);
    }

    /// Returns the number of messages that wait for operations.
    pub(super) fn deferred_count(&self) -> usize {
        self.deferred_count
    }

    /// Whether some bytes of writes are not in frames yet, or some messages wait for operations.
    /// Both need this process.
    pub(super) fn is_sending(&self) -> bool {
        self.deferred_count > 0 || self.peers.values().any(|peer| peer.origin.is_writing())
    }

    /// Whether no peer may have anything to send.
    #[inline]
    pub(super) fn is_idle(&self) -> bool {
        self.ready_peers.is_empty()
    }

    /// Returns the number of peers that may have something to send.
    pub(super) fn ready_count(&self) -> usize {
        self.ready_peers.len()
    }

    /// Returns the next peer that may have something to send, and moves it to the end of the list.
    pub(super) fn next_ready(&mut self) -> Option<u32> {
        let node = *self.ready_peers.front()?;
        self.ready_peers.rotate_left(1);
        Some(node)
    }

    /// Returns the next transmission to `node`, alternately from the operations on the node and
    /// from the responses to it. A message or a frame is removed from the queue. For fragments, the
    /// caller reports the bytes with [`Self::on_bytes_sent`].
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
            NextTransmission::Fragments(ref mut stream) => {
                stream.is_continuation = peer.sent_continuation.is_some()
                    && peer.sent_continuation == Some(stream.frame(0, 0));
            }
        }
        next
    }

    /// Notes that `bytes` more bytes of the stream are in frames.
    pub(super) fn on_bytes_sent(&mut self, node: u32, stream: &FragmentStream, bytes: usize) {
        let Some(peer) = self.peers.get_mut(&node) else { return };
        peer.sent_continuation = stream.frame(0, bytes).continuation(bytes);
        match stream.side {
            OperationRole::Origin => peer.origin.on_bytes_sent(bytes),
            OperationRole::Target => peer.target.on_bytes_sent(bytes),
        }
    }

    /// Ends a stream whose bytes are not accessible.
    pub(super) fn abort_stream(&mut self, node: u32, stream: &FragmentStream) {
        let Some(peer) = self.peers.get_mut(&node) else { return };
        match stream.side {
            OperationRole::Origin => peer.origin.abort_write(),
            OperationRole::Target => peer.target.fail_read(),
        }
    }

    /// Returns the number of frames to `node` that are in flight, that is, not acknowledged.
    pub(super) fn in_flight(&self, node: u32) -> u64 {
        self.peers.get(&node).map_or(0, |peer| peer.in_flight)
    }

    /// Counts frames as in flight.
    pub(super) fn on_frames_sent(&mut self, node: u32, frames: u64) {
        if let Some(peer) = self.peers.get_mut(&node) {
            peer.in_flight += frames;
        }
    }

    /// Handles received bytes of `node` that follow those of its latest frame. Returns the same as
    /// [`Self::on_frame`].
    pub(super) fn on_continuation(&mut self, node: u32, bytes: usize) -> Option<CopyTarget> {
        let frame = self.peers.get(&node)?.received_continuation?;
        self.on_frame(node, frame, bytes)
    }

    /// Notes that bytes of `node` were lost or are malformed. The location of the bytes after them
    /// is unknown. Always returns None.
    pub(super) fn on_bytes_lost<T>(&mut self, node: u32) -> Option<T> {
        self.peers.get_mut(&node)?.received_continuation = None;
        None
    }

    /// Notes that a frame to `node` is no longer in flight.
    pub(super) fn on_frame_done(&mut self, node: u32) {
        if let Some(peer) = self.peers.get_mut(&node) {
            peer.in_flight = peer.in_flight.saturating_sub(1);
        }
    }

    /// Handles a received frame of `node` with `bytes` bytes of payload. Returns the location to
    /// copy the payload to, or None to discard it.
    pub(super) fn on_frame(&mut self, node: u32, frame: Frame, bytes: usize) -> Option<CopyTarget> {
        let peer = self.peers.entry(node).or_default();
        peer.received_continuation = frame.continuation(bytes);
        let result = match frame {
            Frame::WriteData { number, last, handle } => {
                let (number, to) = (OperationNumber(number), AddrHandle::from_bits(handle));
                let copy = CopyTarget { side: OperationRole::Target, number, to };
                peer.target
                    .on_write_fragment(number, bytes, last)
                    .map(|is_wanted| is_wanted.then_some(copy))
            }
            Frame::ReadRequest { number, handle, len } => peer
                .target
                .on_read_request(OperationNumber(number), AddrHandle::from_bits(handle), len)
                .then_some(None),
            Frame::WriteAck { number, failed } => {
                peer.origin.on_written(OperationNumber(number), failed).then_some(None)
            }
            Frame::ReadResponse { number, last, failed, offset } => {
                let number = OperationNumber(number);
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

    /// Marks an operation as failed, because bytes of one of its frames cannot be written to their
    /// location.
    pub(super) fn fail_operation(
        &mut self,
        node: u32,
        side: OperationRole,
        number: OperationNumber,
    ) {
        let Some(peer) = self.peers.get_mut(&node) else { return };
        match side {
            OperationRole::Origin => peer.origin.fail_operation(number),
            OperationRole::Target => peer.target.fail_write(number),
        }
    }

    /// Returns the next completed operation of this node. Called when all received bytes are
    /// copied.
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

    /// Discards the requests of `node`, which has exited, and fails the operations on it. Returns
    /// these operations. Messages that waited for them remain available from [`Self::next`].
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

    /// Removes and returns all waiting messages, because this process exits and never sends them.
    pub(super) fn drop_deferred(&mut self) -> Vec<SendRequest> {
        self.deferred_count = 0;
        self.peers.values_mut().flat_map(|peer| peer.origin.drop_deferred()).collect()
    }

    /// Describes the state, for the dump of the context.
    pub(super) fn describe(&self) -> String {
        let pending_responses: usize =
            self.peers.values().map(|peer| peer.target.pending_count()).sum();
        format!(
            "remote memory: {} operations pending, {} messages deferred, {pending_responses} \
             responses pending, {} frames refused",
            self.operation_count, self.deferred_count, self.refused_count
        )
    }
}
