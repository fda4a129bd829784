//! The messages and receives of a node that wait for each other: posted receives and unexpected
//! messages of each channel, buffers for several messages, and messages that a peek has claimed.

use std::collections::HashMap;

use slab::Slab;

use crate::destination::{Destination, MultipleBuffer};
use crate::matching::{Origin, PostedReceives, UnexpectedMessages};
use crate::operation::{Channel, Completion, Failure, Selector};
use crate::wire::{Announcement, Envelope};

/// An unexpected message.
#[derive(Debug)]
pub(crate) struct Unexpected {
    pub(crate) envelope: Envelope,
    pub(crate) body: UnexpectedBody,
}

#[derive(Debug)]
pub(crate) enum UnexpectedBody {
    /// The whole message. `cost` is the credit to return to its sender.
    Whole { bytes: Box<[u8]>, cost: u32 },
    /// The bytes are still at the sender.
    Announced(Announcement),
}

impl Unexpected {
    pub(crate) fn len(&self) -> u64 {
        match &self.body {
            UnexpectedBody::Whole { bytes, .. } => bytes.len() as u64,
            UnexpectedBody::Announced(announcement) => announcement.len,
        }
    }
}

/// The messages and receives of a channel.
#[derive(Debug)]
pub(crate) struct ChannelQueues {
    pub(crate) posted: PostedReceives<Destination>,
    pub(crate) unexpected: UnexpectedMessages<Unexpected>,
}

impl ChannelQueues {
    fn new() -> Self {
        Self { posted: PostedReceives::new(), unexpected: UnexpectedMessages::new() }
    }
}

/// A receive that was cancelled.
#[derive(Debug)]
pub(crate) enum CancelledReceive {
    /// A receive for one message.
    Single(Destination),
    /// A receive for several messages, and its last completion. None: messages that are in transfer
    /// still arrive, and the buffer is released after them.
    Multiple(Option<Completion>),
}

/// See the [module](self).
#[derive(Debug)]
pub(crate) struct MatchingQueues {
    tagged: ChannelQueues,
    untagged: ChannelQueues,
    /// A buffer remains here while it is posted or messages are in transfer into it.
    multiples: Slab<MultipleBuffer>,
    /// Messages that a peek has claimed, by the context of the peek.
    claimed: HashMap<usize, (Origin, Unexpected)>,
}

impl MatchingQueues {
    pub(crate) fn new() -> Self {
        Self {
            tagged: ChannelQueues::new(),
            untagged: ChannelQueues::new(),
            multiples: Slab::new(),
            claimed: HashMap::new(),
        }
    }

    /// The queues of a channel.
    #[inline(always)]
    pub(crate) fn of(&mut self, channel: Channel) -> &mut ChannelQueues {
        match channel {
            Channel::Tagged => &mut self.tagged,
            Channel::Untagged => &mut self.untagged,
        }
    }

    /// Whether a receive is posted on a channel.
    #[inline(always)]
    pub(crate) fn has_posted(&self, channel: Channel) -> bool {
        match channel {
            Channel::Tagged => !self.tagged.posted.is_empty(),
            Channel::Untagged => !self.untagged.posted.is_empty(),
        }
    }

    /// Takes the first posted receive for a message of `len` bytes from this origin.
    #[inline(always)]
    pub(crate) fn take_posted(
        &mut self,
        channel: Channel,
        origin: Origin,
        len: u64,
    ) -> Option<Destination> {
        let queues = self.of(channel);
        let slot = queues.posted.find(origin)?;
        match queues.posted.get(slot)?.multiple {
            None => queues.posted.remove(slot, Destination::take),
            Some(multiple) => self.take_of_multiple(channel, (slot, multiple), len),
        }
    }

    /// Like [`MatchingQueues::take_posted`], for a receive for several messages.
    #[inline(never)]
    fn take_of_multiple(
        &mut self,
        channel: Channel,
        (slot, multiple): (u32, u32),
        len: u64,
    ) -> Option<Destination> {
        let entry = self.multiples.get_mut(multiple as usize)?;
        let destination = entry.take(multiple, len);
        if entry.is_exhausted {
            self.of(channel).posted.remove(slot, |_| ());
        }
        Some(destination)
    }

    /// Adds a buffer for several messages, and returns its number. The buffer counts one message as
    /// in transfer until the caller calls [`MatchingQueues::release_multiple`].
    pub(crate) fn add_multiple(&mut self, buffer: MultipleBuffer) -> u32 {
        self.multiples.insert(buffer) as u32
    }

    /// Takes the first unexpected message that matches, with its place in a buffer for several
    /// messages. None: there is no such message, or the buffer is exhausted.
    pub(crate) fn take_unexpected(
        &mut self,
        channel: Channel,
        selector: &Selector,
        multiple: u32,
    ) -> Option<((Origin, Unexpected), Destination)> {
        if self.multiples.get(multiple as usize)?.is_exhausted {
            return None;
        }
        let unexpected = &mut self.of(channel).unexpected;
        let slot = unexpected.find(selector)?;
        let message = unexpected.remove(slot)?;
        let entry = self.multiples.get_mut(multiple as usize)?;
        let destination = entry.take(multiple, message.1.len());
        Some((message, destination))
    }

    /// Posts the receive of a buffer for several messages, unless the buffer is exhausted.
    pub(crate) fn post_multiple(&mut self, channel: Channel, selector: Selector, multiple: u32) {
        if self.multiples.get(multiple as usize).is_some_and(|entry| !entry.is_exhausted) {
            self.of(channel).posted.post(selector, Destination::of_multiple(multiple));
        }
    }

    /// Notes that a message into a buffer for several messages was received. Returns the buffer's
    /// last completion, if no further message can arrive.
    pub(crate) fn release_multiple(
        &mut self,
        multiple: u32,
        channel: Channel,
    ) -> Option<Completion> {
        let entry = self.multiples.get_mut(multiple as usize)?;
        entry.pending -= 1;
        if !entry.is_exhausted || entry.pending > 0 {
            return None;
        }
        let entry = self.multiples.remove(multiple as usize);
        Some(entry.released(channel, None))
    }

    /// Removes the first posted receive with this context.
    pub(crate) fn cancel(&mut self, channel: Channel, context: usize) -> Option<CancelledReceive> {
        let Self { tagged, untagged, multiples, .. } = self;
        let posted = match channel {
            Channel::Tagged => &mut tagged.posted,
            Channel::Untagged => &mut untagged.posted,
        };
        let slot = posted.find_by_context(context, |posted| match posted.multiple {
            None => posted.request.context,
            Some(number) => multiples[number as usize].request.context,
        })?;
        let destination = posted.remove(slot, Destination::take)?;
        let Some(index) = destination.multiple.map(|number| number as usize) else {
            return Some(CancelledReceive::Single(destination));
        };
        if multiples[index].pending > 0 {
            multiples[index].is_exhausted = true;
            return Some(CancelledReceive::Multiple(None));
        }
        let released = multiples.remove(index).released(channel, Some(Failure::Cancelled));
        Some(CancelledReceive::Multiple(Some(released)))
    }

    /// Keeps a message for the receive with this context.
    pub(crate) fn claim(&mut self, context: usize, message: (Origin, Unexpected)) {
        self.claimed.insert(context, message);
    }

    /// Takes the message that a peek with this context has claimed.
    pub(crate) fn take_claimed(&mut self, context: usize) -> Option<(Origin, Unexpected)> {
        self.claimed.remove(&context)
    }

    /// Drops all receives. Returns the claimed messages, which no receive can take any more.
    pub(crate) fn forget_receives(&mut self) -> HashMap<usize, (Origin, Unexpected)> {
        self.tagged.posted = PostedReceives::new();
        self.untagged.posted = PostedReceives::new();
        self.multiples.clear();
        std::mem::take(&mut self.claimed)
    }
}

#[cfg(test)]
impl MatchingQueues {
    /// The number of buffers for several messages.
    pub(crate) fn multiple_count(&self) -> usize {
        self.multiples.len()
    }
}
