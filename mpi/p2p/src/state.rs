//! The protocol's state of a node, without the network.

use slab::Slab;

use crate::completions::Completions;
use crate::counts::{Counted, Counts};
use crate::credit::Credit;
use crate::destination::Destination;
use crate::matching::Origin;
use crate::matching_queues::{MatchingQueues, Unexpected, UnexpectedBody};
use crate::memory::Payload;
use crate::node_queues::NodeQueues;
use crate::operation::{Channel, Completion, CompletionKind, Failure, Limits, Request, Violation};
use crate::regions::Regions;
use crate::transfers::copies::Copies;
use crate::transfers::{AccessQueue, IncomingTransfer, OutgoingTransfer};
use crate::wire::{Envelope, Header};

/// The protocol's state of this node, without the network.
#[derive(Debug)]
pub(crate) struct State {
    pub(crate) self_node: u32,
    pub(crate) nodes: u32,
    pub(crate) limits: Limits,
    pub(crate) credit: Credit,
    pub(crate) matching: MatchingQueues,
    pub(crate) sends: Slab<OutgoingTransfer>,
    pub(crate) receives: Slab<IncomingTransfer>,
    pub(crate) accesses: AccessQueue,
    pub(crate) regions: Regions,
    pub(crate) copies: Copies,
    pub(crate) counts: Counts,
    /// Sends whose receivers have requested fragments.
    pub(crate) streams: NodeQueues<u32>,
    /// Headers to be sent.
    pub(crate) outbox: NodeQueues<Header>,
    pub(crate) completions: Completions,
    pub(crate) violation: Option<Violation>,
}

impl State {
    /// Whether a receive is posted on the channel of the first completion.
    #[inline(always)]
    pub(crate) fn awaits_more(&self) -> bool {
        let first = self.completions.first();
        self.matching.has_posted(first.map_or(Channel::Untagged, |completion| completion.channel))
    }

    /// Completes a receive. If the message of `len` bytes is longer than the buffer, the completion
    /// reports the truncation.
    #[inline(always)]
    pub(crate) fn complete_receive(
        &mut self,
        destination: &Destination,
        (origin, envelope): (Origin, Envelope),
        len: u64,
        failure: Option<Failure>,
    ) {
        let Destination { buffer, request, multiple } = destination;
        let excess = len.saturating_sub(buffer.len() as u64);
        let truncated = (excess > 0).then_some(Failure::Truncated { excess });
        let failure = failure.or(truncated);
        self.counts.add(Counted::Receives, failure.is_some());
        let channel = channel_of(&envelope);
        let completion = Completion {
            context: request.context,
            kind: CompletionKind::Received,
            channel,
            len: (len - excess) as usize,
            start: buffer.start(),
            source: origin.source,
            envelope,
            failure,
        };
        if request.is_reported || failure.is_some() {
            self.completions.push(completion);
        }
        if let Some(multiple) = *multiple {
            self.release_multiple(multiple, channel);
        }
    }

    /// Notes that a message into a buffer for several messages was received.
    pub(crate) fn release_multiple(&mut self, multiple: u32, channel: Channel) {
        if let Some(completion) = self.matching.release_multiple(multiple, channel) {
            self.completions.push(completion);
        }
    }

    #[inline(always)]
    pub(crate) fn complete_send(
        &mut self,
        request: Request,
        envelope: Envelope,
        failure: Option<Failure>,
    ) {
        self.counts.add(Counted::Sends, failure.is_some());
        if request.is_reported || failure.is_some() {
            self.completions.push(Completion {
                context: request.context,
                kind: CompletionKind::Sent,
                channel: channel_of(&envelope),
                len: 0,
                start: std::ptr::null_mut(),
                source: self.self_node,
                envelope,
                failure,
            });
        }
    }

    /// Returns credit to the sender of a message that needs no room here any more.
    #[inline(always)]
    pub(crate) fn release_credit(&mut self, source: u32, cost: u32) {
        if source != self.self_node
            && let Some(bytes) = self.credit.release(source, cost)
        {
            self.outbox.push(source, Header::Credit { bytes });
        }
    }

    /// Delivers an unexpected message to the receive that matches it.
    pub(crate) fn deliver(
        &mut self,
        (origin, message): (Origin, Unexpected),
        destination: Destination,
    ) {
        let of_message = (origin, message.envelope);
        match message.body {
            UnexpectedBody::Whole { bytes, cost } => {
                destination.buffer.fill_from(0, Payload::of_bytes(&bytes));
                self.complete_receive(&destination, of_message, bytes.len() as u64, None);
                self.release_credit(origin.source, cost);
            }
            UnexpectedBody::Announced(announcement) => {
                self.start_transfer(destination, of_message, announcement);
            }
        }
    }

    /// Drops all receives and completions.
    pub(crate) fn forget_receives(&mut self) {
        let claimed = self.matching.forget_receives();
        claimed.into_values().for_each(|message| self.discard(message));
        self.completions.clear();
    }

    /// Drops an unexpected message.
    pub(crate) fn discard(&mut self, (origin, message): (Origin, Unexpected)) {
        match message.body {
            UnexpectedBody::Whole { cost, .. } => self.release_credit(origin.source, cost),
            UnexpectedBody::Announced(announcement) => {
                self.finish_send_of(origin.source, announcement.send_id);
            }
        }
    }
}

#[inline(always)]
pub(crate) fn channel_of(envelope: &Envelope) -> Channel {
    if envelope.tag.is_some() { Channel::Tagged } else { Channel::Untagged }
}

/// The origin of a message, for matching.
#[inline(always)]
pub(crate) fn origin_of(source: u32, envelope: &Envelope) -> Origin {
    Origin { source, tag: envelope.tag.unwrap_or(0) }
}
