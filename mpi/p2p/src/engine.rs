//! The calls of the program, and progress.

use slab::Slab;

use crate::completions::Completions;
use crate::counts::{Count, Counted, Counts};
use crate::credit::{self, Credit};
use crate::destination::{Destination, MultipleBuffer};
use crate::matching_queues::{CancelledReceive, MatchingQueues, Unexpected, UnexpectedBody};
use crate::memory::{Message, UserBuffer};
use crate::network::{Body, Network, SendError};
use crate::node_queues::NodeQueues;
use crate::operation::{
    Channel, Completion, Failure, Limits, Peek, PeekMode, ReceiveMode, ReceiveOperation, Request,
    Retention, Selector, SendCompletes, SendOperation, Violation,
};
use crate::regions::Regions;
use crate::state::{State, channel_of, origin_of};
use crate::transfers::copies::{Copies, CopyBudget};
use crate::transfers::{AccessQueue, OutgoingTransfer};
use crate::wire::{Announcement, Envelope, Header};

/// A longer message from a node to itself is not copied before it is received.
const MAX_SELF_COPY: usize = 64 * 1024;

/// A node of the protocol.
#[derive(Debug)]
pub struct Engine<N> {
    pub(crate) network: N,
    pub(crate) state: State,
}

impl<N: Network> Engine<N> {
    /// Creates the engine of node `self_node` of `nodes`. `regions` and `copies` may be shared with
    /// other engines of the process.
    pub fn new(
        network: N,
        self_node: u32,
        nodes: u32,
        limits: Limits,
        regions: Regions,
        copies: CopyBudget,
    ) -> Self {
        let state = State {
            self_node,
            nodes,
            limits,
            credit: Credit::new(nodes, limits.window),
            matching: MatchingQueues::new(),
            sends: Slab::new(),
            receives: Slab::new(),
            accesses: AccessQueue::new(),
            regions,
            copies: Copies::new(copies),
            counts: Counts::default(),
            streams: NodeQueues::new(),
            outbox: NodeQueues::new(),
            completions: Completions::default(),
            violation: None,
        };
        Self { network, state }
    }

    /// The network.
    #[cfg(any(test, feature = "testing"))]
    pub(crate) fn network(&mut self) -> &mut N {
        &mut self.network
    }

    /// Sends a short message that completes at once, which is the most frequent case. Returns None
    /// if nothing was sent; the program then calls [`Engine::send`].
    ///
    /// # Errors
    /// See [`Engine::send`].
    #[inline(always)]
    pub fn send_eager(
        &mut self,
        node: u32,
        envelope: Envelope,
        buffer: &UserBuffer,
        request: Request,
    ) -> Option<Result<(), SendError>> {
        let message_len = Header::eager_len(&envelope, false) + buffer.len();
        let cost = credit::cost(buffer.len());
        if !self.state.credit.covers_short(node, message_len, cost) {
            return None;
        }
        let header = Header::Eager(envelope, None).encode(self.state.self_node);
        let body = Body::Memory { buffer, offset: 0, len: buffer.len() };
        if let Err(error) = self.network.send(node, header, body) {
            return Some(Err(error));
        }
        self.state.credit.spend(node, cost);
        self.state.complete_send(request, envelope, None);
        Some(Ok(()))
    }

    /// Sends a message, or starts to send it.
    ///
    /// # Errors
    /// Returns `Full` if nothing was sent; the program tries again after [`Engine::progress`].
    #[inline(never)]
    pub fn send(&mut self, send: &SendOperation) -> Result<(), SendError> {
        let SendOperation { node, envelope, request, ref buffer, .. } = *send;
        if node == self.state.self_node {
            self.send_to_self(send);
            return Ok(());
        }
        let mtu = self.network.mtu(node);
        self.state.credit.set_mtu(node, mtu);
        if send.completes == SendCompletes::AtOnce
            && let Some(result) = self.send_eager(node, envelope, buffer, request)
        {
            return result;
        }
        let is_acknowledged = send.completes == SendCompletes::OnArrival;
        let fits = Header::eager_len(&envelope, is_acknowledged) + buffer.len() <= mtu;
        if send.completes == SendCompletes::OnMatch || !fits {
            return self.announce(send);
        }
        // If there is credit, the code above has sent a message whose send completes at once. The
        // message here is acknowledged.
        if self.state.credit.covers(node, credit::cost(buffer.len())) {
            return self.send_acknowledged(send);
        }
        if self.state.credit.is_worth_a_wait(node, self.state.limits.credit_tries) {
            return Err(SendError::Full);
        }
        self.announce(send)
    }

    /// Sends an eager message whose send completes when the message has arrived.
    #[cold]
    fn send_acknowledged(&mut self, send: &SendOperation) -> Result<(), SendError> {
        let SendOperation { node, envelope, ref buffer, .. } = *send;
        let entry = self.state.sends.vacant_entry();
        let header = Header::Eager(envelope, Some(entry.key() as u32));
        let header = header.encode(self.state.self_node);
        let body = Body::Memory { buffer, offset: 0, len: buffer.len() };
        self.network.send(node, header, body)?;
        entry.insert(OutgoingTransfer::acknowledged(send));
        self.state.credit.spend(node, credit::cost(buffer.len()));
        Ok(())
    }

    fn send_to_self(&mut self, send: &SendOperation) {
        let state = &mut self.state;
        let SendOperation { node, envelope, request, ref buffer, .. } = *send;
        let (origin, len) = (origin_of(node, &envelope), buffer.len());
        let channel = channel_of(&envelope);
        if let Some(destination) = state.matching.take_posted(channel, origin, len as u64) {
            destination.buffer.fill_from_buffer(buffer, len);
            state.complete_send(request, envelope, None);
            state.complete_receive(&destination, (origin, envelope), len as u64, None);
            return;
        }
        let is_volatile = send.retention == Retention::Volatile;
        let is_match_awaited = send.completes == SendCompletes::OnMatch;
        let is_copied = (len <= MAX_SELF_COPY || is_volatile) && !is_match_awaited;
        let body = if is_copied {
            state.complete_send(request, envelope, None);
            UnexpectedBody::Whole { bytes: buffer.to_vec().into(), cost: 0 }
        } else {
            let outgoing = OutgoingTransfer::announced(send, false, &state.copies);
            let send_id = state.sends.insert(outgoing) as u32;
            let wants_finished = is_match_awaited;
            let (len, handle) = (len as u64, 0);
            UnexpectedBody::Announced(Announcement { len, handle, send_id, wants_finished })
        };
        state.matching.of(channel).unexpected.add(origin, Unexpected { envelope, body });
    }

    /// Posts a receive for a single message, if no message is unexpected; this is the most frequent
    /// case. Returns false if nothing was done; the program then calls [`Engine::receive`].
    #[inline(always)]
    pub fn post(
        &mut self,
        channel: Channel,
        selector: Selector,
        buffer: UserBuffer,
        request: Request,
    ) -> bool {
        let queues = self.state.matching.of(channel);
        if !queues.unexpected.is_empty() {
            return false;
        }
        queues.posted.post(selector, Destination::of(buffer, request));
        true
    }

    /// Posts a receive, or receives a message that has arrived.
    pub fn receive(&mut self, channel: Channel, receive: ReceiveOperation) {
        if let ReceiveMode::Multiple { min_free } = receive.mode {
            return self.receive_many(channel, receive, min_free);
        }
        let ReceiveOperation { selector, buffer, request, .. } = receive;
        let queues = self.state.matching.of(channel);
        let found = queues.unexpected.find(&selector);
        match found.and_then(|slot| queues.unexpected.remove(slot)) {
            Some(message) => {
                self.state.deliver(message, Destination::of(buffer, request));
                self.send_pending();
            }
            None => _ = queues.posted.post(selector, Destination::of(buffer, request)),
        }
    }

    fn receive_many(&mut self, channel: Channel, receive: ReceiveOperation, min_free: usize) {
        let ReceiveOperation { selector, buffer, request, .. } = receive;
        let state = &mut self.state;
        let multiple = state.matching.add_multiple(MultipleBuffer::new(buffer, request, min_free));
        while let Some((message, destination)) =
            state.matching.take_unexpected(channel, &selector, multiple)
        {
            state.deliver(message, destination);
        }
        state.matching.post_multiple(channel, selector, multiple);
        state.release_multiple(multiple, channel);
        self.send_pending();
    }

    /// Looks for a tagged message that has arrived and that no receive has taken. Returns None if
    /// there is none.
    pub fn peek(&mut self, selector: Selector, mode: PeekMode, context: usize) -> Option<Peek> {
        let unexpected = &mut self.state.matching.of(Channel::Tagged).unexpected;
        let slot = unexpected.find(&selector)?;
        let (origin, message) = unexpected.get(slot)?;
        let peek = Peek { len: message.len(), source: origin.source, envelope: message.envelope };
        match mode {
            PeekMode::Claim => {
                let message = unexpected.remove(slot)?;
                self.state.matching.claim(context, message);
            }
            PeekMode::Discard => {
                let message = unexpected.remove(slot)?;
                self.state.discard(message);
                self.send_pending();
            }
            PeekMode::Look => {}
        }
        Some(peek)
    }

    /// Receives the message that a peek with this context has claimed. Returns false if there is
    /// none.
    pub fn receive_claimed(&mut self, buffer: UserBuffer, request: Request) -> bool {
        let claimed = self.state.matching.take_claimed(request.context);
        let Some(message) = claimed else { return false };
        self.state.deliver(message, Destination::of(buffer, request));
        self.send_pending();
        true
    }

    /// Drops the message that a peek with this context has claimed. Returns false if there is none.
    pub fn discard_claimed(&mut self, context: usize) -> bool {
        let Some(message) = self.state.matching.take_claimed(context) else { return false };
        self.state.discard(message);
        self.send_pending();
        true
    }

    /// Cancels the first posted receive with this context. Returns false if there is none, because
    /// the receive has matched or does not exist.
    pub fn cancel(&mut self, channel: Channel, context: usize) -> bool {
        let state = &mut self.state;
        match state.matching.cancel(channel, context) {
            None => return false,
            Some(CancelledReceive::Multiple(released)) => {
                if let Some(completion) = released {
                    state.completions.push(completion);
                }
            }
            Some(CancelledReceive::Single(destination)) => {
                let tag = (channel == Channel::Tagged).then_some(0);
                let envelope = Envelope { tag, data: None };
                let origin = origin_of(state.self_node, &envelope);
                let failure = Some(Failure::Cancelled);
                state.complete_receive(&destination, (origin, envelope), 0, failure);
            }
        }
        true
    }

    /// Handles a message of the network. If the message breaks the protocol, the next
    /// [`Engine::progress`] returns the violation.
    #[inline(always)]
    pub fn on_message(&mut self, message: &Message<'_>) {
        self.state.on_message(message);
    }

    /// Starts pending sends, reads and writes, as far as the network has room.
    ///
    /// # Errors
    /// Returns the violation if a node has broken the protocol. The engine must not be used
    /// afterwards.
    #[inline(always)]
    pub fn progress(&mut self) -> Result<(), Violation> {
        if self.state.has_work() {
            self.send_pending();
            if let Some(violation) = self.state.violation {
                return Err(violation);
            }
        }
        Ok(())
    }

    /// Whether a completion is available.
    #[inline(always)]
    pub fn has_completed(&self) -> bool {
        !self.state.completions.is_empty()
    }

    /// Whether further receives of the same channel as the first completion are posted.
    #[inline(always)]
    pub fn awaits_more(&self) -> bool {
        self.state.awaits_more()
    }

    /// Whether there is nothing to send, to read or to report. The state then changes only when a
    /// message arrives or the program calls.
    pub fn is_quiet(&self) -> bool {
        !self.state.has_work() && self.state.completions.is_empty()
    }

    /// Whether there is work to do even if no message arrives.
    pub fn has_pending_work(&self) -> bool {
        self.state.has_work()
    }

    /// How many operations of a kind have ended.
    pub fn count(&self, counted: Counted) -> Count {
        self.state.counts.get(counted)
    }

    /// The first completion. It remains until [`Engine::remove_completion`] is called.
    #[inline(always)]
    pub fn next_completion(&self) -> Option<&Completion> {
        self.state.completions.first()
    }

    /// Removes the completion that [`Engine::next_completion`] returns.
    #[inline(always)]
    pub fn remove_completion(&mut self) {
        self.state.completions.remove_first();
    }
}
