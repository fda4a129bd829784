//! Where a received message goes: the memory and the request of a posted receive.

use crate::memory::UserBuffer;
use crate::operation::{Channel, Completion, CompletionKind, Failure, Request};
use crate::wire::Envelope;

/// The destination of a matched message. A posted receive is stored in this form. A receive for
/// several messages keeps its memory and its request in its [`MultipleBuffer`].
#[derive(Debug)]
pub(crate) struct Destination {
    pub(crate) buffer: UserBuffer,
    pub(crate) request: Request,
    /// The number of the [`MultipleBuffer`] that this is a part of.
    pub(crate) multiple: Option<u32>,
}

impl Destination {
    /// A destination for one message.
    #[inline(always)]
    pub(crate) fn of(buffer: UserBuffer, request: Request) -> Self {
        Self { buffer, request, multiple: None }
    }

    /// A destination without memory, for a message that the program has abandoned.
    pub(crate) fn nowhere() -> Self {
        Self::of(UserBuffer::empty(), Request { context: 0, is_reported: false })
    }

    /// A posted receive for several messages.
    pub(crate) fn of_multiple(number: u32) -> Self {
        Self { multiple: Some(number), ..Self::nowhere() }
    }

    /// Moves the fields out one by one. A move of the whole would load with other widths than the
    /// stores used, so that store forwarding fails and the load waits for the cache.
    #[inline(always)]
    pub(crate) fn take(&mut self) -> Self {
        Self { buffer: self.buffer.take(), request: self.request, multiple: self.multiple }
    }
}

/// A buffer for several messages.
#[derive(Debug)]
pub(crate) struct MultipleBuffer {
    pub(crate) buffer: UserBuffer,
    pub(crate) request: Request,
    pub(crate) min_free: usize,
    pub(crate) used: usize,
    /// The number of messages that are in transfer into it.
    pub(crate) pending: usize,
    pub(crate) is_exhausted: bool,
}

impl MultipleBuffer {
    /// A buffer that counts one message as in transfer, which keeps the buffer until the receive is
    /// posted.
    pub(crate) fn new(buffer: UserBuffer, request: Request, min_free: usize) -> Self {
        let is_exhausted = buffer.is_empty();
        Self { buffer, request, min_free, used: 0, pending: 1, is_exhausted }
    }

    /// Takes room for a message of `len` bytes.
    pub(crate) fn take(&mut self, number: u32, len: u64) -> Destination {
        let free = self.buffer.len() - self.used;
        let taken = usize::try_from(len).unwrap_or(usize::MAX).min(free);
        let buffer = self.buffer.part(self.used, taken);
        self.used += taken;
        self.pending += 1;
        self.is_exhausted = free - taken < self.min_free.max(1);
        Destination { buffer, request: self.request, multiple: Some(number) }
    }

    pub(crate) fn released(&self, channel: Channel, failure: Option<Failure>) -> Completion {
        Completion {
            context: self.request.context,
            kind: CompletionKind::Released,
            channel,
            len: 0,
            start: self.buffer.start(),
            source: 0,
            envelope: Envelope { tag: None, data: None },
            failure,
        }
    }
}
