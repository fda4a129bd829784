//! Receiving, from the members in turn. A turn is at most [`RECEIVE_QUANTUM`] messages if another
//! member also has messages.
//!
//! Polling a member that crosses a network is a system call, which takes as long as many messages
//! of another member. While such a member is not the current member, only every 8th empty poll
//! includes it. Each time it has no message this rate is halved, down to every 128th empty poll.
//! Every poll that ends another member's turn also includes it. Therefore a flood of messages from
//! one member delays another member by one turn at most.
//!
//! The source of the last message is *hot*. While its turn lasts, its messages are taken without a
//! call of the member. If neither the hot source nor the other polled sources have a message, the
//! poll is over.

// UNSAFETY: keeps the address of the hot source.
#![expect(unsafe_code)]

use super::Composite;
use crate::device::shmem::{HELD_IN_SLOT, ShmemEndpoint, Source};
use crate::device::{EndpointRef, ReadySource, ReceiveInterface, on};
use crate::error::{Error, PmResult};
use crate::ring::{InlineMessage, PeekResult, TakenMessage};
use crate::sync::{AtomicPtr, Ordering, SingleWriterU64};
use std::ptr::{self, null_mut};

/// Messages in a row from one member.
const RECEIVE_QUANTUM: u64 = 64;
/// The number of polls for each poll of a member that needs a system call: the first value and the
/// largest.
const NETWORK_POLL_INTERVALS: (u64, u64) = (8, 128);

#[derive(Default)]
pub(super) struct CompositeReceiver {
    current_member: SingleWriterU64,
    left_of_turn: SingleWriterU64,
    /// Empty polls of the current member since all members were polled, and the number after which
    /// all members are polled again. 0: the first value of [`NETWORK_POLL_INTERVALS`].
    empty_polls: SingleWriterU64,
    network_poll_interval: SingleWriterU64,
    /// The hot source; null before the first message, and when its member's turn is over.
    hot: AtomicPtr<Source>,
    /// The source whose short message is held, if it was taken directly; otherwise null.
    held_inline: AtomicPtr<Source>,
    /// Like `held_inline`, for a message that `poll_hot_any` returned. Null also if a member holds
    /// the message. `held_data_end` is its end in the ring's data area, or [`HELD_IN_SLOT`].
    held_out_of_line: AtomicPtr<Source>,
    held_data_end: SingleWriterU64,
    /// The member whose message is held.
    held_member: SingleWriterU64,
}

/// The result of polling the hot source.
pub(crate) enum HotPoll<'a> {
    /// This source has no message, and its member is the only member.
    Empty(&'a Source),
    /// A short message of this source, for `take_inline`.
    Inline(&'a Source, InlineMessage),
    /// The caller has to call `find`.
    Unknown,
}

impl CompositeReceiver {
    /// Clears the hot source. Called under both locks.
    pub(super) fn forget_hot(&self) {
        self.hot.store(null_mut(), Ordering::Relaxed);
    }
}

impl Composite {
    /// Polls only the hot source. Needs no lock.
    #[inline(always)]
    pub(crate) fn poll_hot(&self) -> HotPoll<'_> {
        // SYNC: member
        let hot = self.receive.hot.load(Ordering::Acquire);
        // SAFETY: null, or in an endpoint of a present or former member: it lives as long as
        // `self`.
        let Some(source) = (unsafe { hot.as_ref() }) else { return HotPoll::Unknown };
        match source.peek_inline() {
            PeekResult::Inline(message) => HotPoll::Inline(source, message),
            PeekResult::Empty if self.member_limit.get() == 1 => HotPoll::Empty(source),
            PeekResult::Empty | PeekResult::Other => HotPoll::Unknown,
        }
    }

    #[inline(always)]
    fn first_shmem_member(&self) -> Option<&ShmemEndpoint> {
        self.member(0).and_then(EndpointRef::shmem)
    }

    /// Whether the hot source is the only source. Called after `HotPoll::Empty`. Needs no lock.
    #[inline(always)]
    pub(crate) fn has_single_source(&self) -> bool {
        self.first_shmem_member().is_some_and(ShmemEndpoint::has_single_source)
    }

    /// The hot source, if the other polled sources have no message. Called after `HotPoll::Empty`.
    /// Needs no lock.
    #[inline(always)]
    pub(crate) fn hot_if_others_silent(&self) -> Option<&Source> {
        self.first_shmem_member().filter(|member| member.are_others_silent())?;
        // SYNC: member
        let hot = self.receive.hot.load(Ordering::Acquire);
        // SAFETY: as in `poll_hot`.
        unsafe { hot.as_ref() }
    }

    /// Like `poll_hot`, for a message of any length. Needs no lock.
    #[inline(always)]
    pub(crate) fn poll_hot_any(&self) -> Option<(&Source, TakenMessage)> {
        // SYNC: member
        let hot = self.receive.hot.load(Ordering::Acquire);
        // SAFETY: as in `poll_hot`.
        let source = unsafe { hot.as_ref() }?;
        Some((source, source.peek_any()?))
    }

    /// Whether the polled message is still to be taken. Called under the receive lock.
    #[inline(always)]
    pub(crate) fn is_next(&self, source: &Source, message: &TakenMessage) -> bool {
        ptr::eq(self.receive.hot.load(Ordering::Relaxed), source) && source.is_next(message)
    }

    /// Takes the message that `poll_hot` returned and no other thread has taken. Called under the
    /// receive lock.
    #[inline(always)]
    pub(crate) fn take_inline(&self, source: &Source, len: usize) {
        source.take_next(len);
        self.receive.held_inline.store(ptr::from_ref(source).cast_mut(), Ordering::Relaxed);
    }

    /// Like `take_inline`, for the message that `poll_hot_any` returned. Called under the receive
    /// lock.
    #[inline(always)]
    pub(crate) fn take_direct(&self, source: &Source, message: &TakenMessage) {
        source.take_next(message.len);
        source.grant_credit(message);
        self.receive.held_inline.store(null_mut(), Ordering::Relaxed);
        self.receive.held_out_of_line.store(ptr::from_ref(source).cast_mut(), Ordering::Relaxed);
        self.receive.held_data_end.set(message.data_end().unwrap_or(HELD_IN_SLOT));
    }

    /// The source whose message `take_inline` has taken and which is not yet released. Called under
    /// the receive lock.
    #[inline(always)]
    pub(crate) fn held_inline(&self) -> Option<&Source> {
        // SAFETY: as in `poll_hot`.
        unsafe { self.receive.held_inline.load(Ordering::Relaxed).as_ref() }
    }

    /// Like `held_inline`, for `take_direct`. Called under the receive lock, if no short message is
    /// held.
    #[inline(always)]
    fn held_out_of_line(&self) -> Option<&Source> {
        // SAFETY: as in `poll_hot`.
        unsafe { self.receive.held_out_of_line.load(Ordering::Relaxed).as_ref() }
    }

    #[inline(always)]
    pub(crate) fn find(&self) -> Option<ReadySource> {
        if self.member_limit.get() <= 1 {
            return self.find_in_member(0);
        }
        let current = self.receive.current_member.get();
        if self.receive.left_of_turn.get() != 0
            && let Some(found) = self.find_in_member(current)
        {
            return Some(found);
        }
        self.find_in_others(current)
    }

    #[inline(always)]
    fn find_in_member(&self, member_index: u64) -> Option<ReadySource> {
        let source = on!(self.member(member_index)?, e => e.find())?;
        Some(ReadySource::new(member_index, source))
    }

    /// Like `find_in_member`, but without a system call.
    fn peek_in_member(&self, member_index: u64) -> Option<ReadySource> {
        let source = on!(self.member(member_index)?, e => e.peek())?;
        Some(ReadySource::new(member_index, source))
    }

    #[inline(never)]
    fn find_in_others(&self, current: u64) -> Option<ReadySource> {
        let count = self.member_limit.get();
        let empty_polls = self.receive.empty_polls.get() + 1;
        let interval = self.receive.network_poll_interval.get().max(NETWORK_POLL_INTERVALS.0);
        let must_poll_network = empty_polls >= interval || self.receive.left_of_turn.get() == 0;
        self.receive.empty_polls.set(if must_poll_network { 0 } else { empty_polls });
        for step in 1..count {
            let member_index = (current + step) % count;
            let found = if must_poll_network {
                self.find_in_member(member_index)
            } else {
                self.peek_in_member(member_index)
            };
            if let Some(found) = found {
                self.receive.network_poll_interval.set(NETWORK_POLL_INTERVALS.0);
                self.receive.current_member.set(member_index);
                self.receive.left_of_turn.set(RECEIVE_QUANTUM);
                return Some(found);
            }
        }
        if self.receive.left_of_turn.get() == 0 {
            self.receive.left_of_turn.set(RECEIVE_QUANTUM);
            return self.find_in_member(current);
        }
        if must_poll_network {
            self.receive.network_poll_interval.set((interval * 2).min(NETWORK_POLL_INTERVALS.1));
        }
        None
    }

    #[inline(always)]
    pub(crate) fn take(&self, found: ReadySource) -> PmResult<(*mut u8, usize)> {
        let member_index = found.member();
        let member = self.member(member_index).ok_or(Error::NoBuffers)?;
        let message = on!(member, e => e.take(found.source()))?;
        if member.shmem().is_none() {
            // Like `clear_last_destinations`.
            self.shmem_members().for_each(ShmemEndpoint::clear_last_source);
        }
        self.receive.held_member.set(member_index);
        self.receive.held_inline.store(null_mut(), Ordering::Relaxed);
        self.receive.held_out_of_line.store(null_mut(), Ordering::Relaxed);
        self.set_hot(member.shmem().and_then(ShmemEndpoint::held_source));
        Ok(message)
    }

    /// Makes the source of the last message hot, so that the rest of its turn is taken directly. It
    /// stays cold if its turn is longer than the rest of its member's turn.
    #[inline(always)]
    fn set_hot(&self, source: Option<&Source>) {
        let receive = &self.receive;
        let left = receive.left_of_turn.get().saturating_sub(1);
        let left_of_source_turn = source.map_or(0, Source::left_of_turn);
        let hot =
            if self.member_limit.get() <= 1 || left_of_source_turn <= left { source } else { None };
        let hot = hot.map_or(null_mut(), |source| ptr::from_ref(source).cast_mut());
        receive.left_of_turn.set(left.saturating_sub(left_of_source_turn));
        // SYNC: member
        receive.hot.store(hot, Ordering::Release);
    }

    /// The member whose message is held.
    pub(super) fn held_by(&self) -> u64 {
        let member_of = |source| {
            self.members().find(|(_, member)| member.shmem().is_some_and(|e| e.owns_source(source)))
        };
        let member_index = self.held_inline().and_then(member_of).map(|(index, _)| index);
        member_index.unwrap_or(self.receive.held_member.get())
    }

    #[inline(always)]
    pub(crate) fn release(&self) {
        if let Some(source) = self.held_inline() {
            return source.release_inline();
        }
        if let Some(source) = self.held_out_of_line() {
            return source.release_out_of_line(self.receive.held_data_end.get());
        }
        if let Some(member) = self.member(self.receive.held_member.get()) {
            on!(member, e => e.release());
        }
    }

    #[inline(always)]
    pub(crate) fn count_empty_poll(&self) {
        self.members().for_each(|(_, member)| on!(member, e => e.count_empty_poll()));
    }

    pub(crate) fn take_rma_activity(&self) -> bool {
        self.members().any(|(_, member)| on!(member, e => e.take_rma_activity()))
    }
}
