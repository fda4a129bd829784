//! Receiving, from the members in turn (`turns.rs`).
//!
//! The source of the last message is *hot*. While its turn lasts, its messages are taken without a
//! call of the member. If the composite has one member, a poll ends without `find` if neither the
//! hot source nor the other polled sources have a message.

// UNSAFETY: keeps the address of the hot source.
#![expect(unsafe_code)]

use super::Composite;
use super::turns::MemberTurns;
use crate::device::shmem::{HELD_IN_SLOT, ShmemEndpoint, Source};
use crate::device::{ReadySource, ReceiveInterface, on};
use crate::error::{Error, PmResult};
use crate::ring::{InlineMessage, PeekResult, TakenMessage};
use crate::sync::{AtomicPtr, Ordering, SingleWriterU64};
use std::ptr::{self, null_mut};

#[derive(Default)]
pub(super) struct CompositeReceiver {
    turns: MemberTurns,
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

/// Each [`Source`] belongs to a member of the composite.
impl CompositeReceiver {
    /// Clears the hot source. Called under both locks.
    pub(super) fn forget_hot(&self) {
        self.hot.store(null_mut(), Ordering::Relaxed);
    }

    /// The hot source. Needs no lock.
    #[inline(always)]
    fn hot(&self) -> Option<&Source> {
        // SYNC: member
        let hot = self.hot.load(Ordering::Acquire);
        // SAFETY: null, or in an endpoint of a present or former member, which lives as long as the
        // composite that `self` belongs to.
        unsafe { hot.as_ref() }
    }

    #[inline(always)]
    fn set_hot(&self, source: Option<&Source>) {
        let hot = source.map_or(null_mut(), |source| ptr::from_ref(source).cast_mut());
        // SYNC: member
        self.hot.store(hot, Ordering::Release);
    }

    #[inline(always)]
    fn set_held_inline(&self, source: &Source) {
        self.held_inline.store(ptr::from_ref(source).cast_mut(), Ordering::Relaxed);
    }

    #[inline(always)]
    fn set_held_out_of_line(&self, source: &Source, data_end: u64) {
        self.held_inline.store(null_mut(), Ordering::Relaxed);
        self.held_out_of_line.store(ptr::from_ref(source).cast_mut(), Ordering::Relaxed);
        self.held_data_end.set(data_end);
    }

    /// Records that a member holds the message.
    #[inline(always)]
    fn set_held_member(&self, member_index: u64) {
        self.held_member.set(member_index);
        self.held_inline.store(null_mut(), Ordering::Relaxed);
        self.held_out_of_line.store(null_mut(), Ordering::Relaxed);
    }

    #[inline(always)]
    fn held_inline(&self) -> Option<&Source> {
        // SAFETY: as in `hot`.
        unsafe { self.held_inline.load(Ordering::Relaxed).as_ref() }
    }

    /// Like `held_inline`, for a longer message. Called under the receive lock, if no short message
    /// is held.
    #[inline(always)]
    fn held_out_of_line(&self) -> Option<&Source> {
        // SAFETY: as in `hot`.
        unsafe { self.held_out_of_line.load(Ordering::Relaxed).as_ref() }
    }
}

impl Composite {
    /// Polls only the hot source. Needs no lock.
    #[inline(always)]
    pub(crate) fn poll_hot(&self) -> HotPoll<'_> {
        let Some(source) = self.receive.hot() else { return HotPoll::Unknown };
        match source.peek_inline() {
            PeekResult::Inline(message) => HotPoll::Inline(source, message),
            PeekResult::Empty if self.routing.member_limit() == 1 => HotPoll::Empty(source),
            PeekResult::Empty | PeekResult::Other => HotPoll::Unknown,
        }
    }

    /// Whether the hot source is the only source. Called after `HotPoll::Empty`. Needs no lock.
    #[inline(always)]
    pub(crate) fn has_single_source(&self) -> bool {
        self.routing.first_shmem_member().is_some_and(ShmemEndpoint::has_single_source)
    }

    /// The hot source, if the other polled sources have no message. Called after `HotPoll::Empty`.
    /// Needs no lock.
    #[inline(always)]
    pub(crate) fn hot_if_others_silent(&self) -> Option<&Source> {
        self.routing.first_shmem_member().filter(|member| member.are_others_silent())?;
        self.receive.hot()
    }

    /// Like `poll_hot`, for a message of any length. Needs no lock.
    #[inline(always)]
    pub(crate) fn poll_hot_any(&self) -> Option<(&Source, TakenMessage)> {
        let source = self.receive.hot()?;
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
        self.receive.set_held_inline(source);
    }

    /// Like `take_inline`, for the message that `poll_hot_any` returned. Called under the receive
    /// lock.
    #[inline(always)]
    pub(crate) fn take_direct(&self, source: &Source, message: &TakenMessage) {
        source.take_next(message.len);
        source.grant_credit(message);
        let data_end = message.data_end().unwrap_or(HELD_IN_SLOT);
        self.receive.set_held_out_of_line(source, data_end);
    }

    /// The source whose message `take_inline` has taken and which is not yet released. Called under
    /// the receive lock.
    #[inline(always)]
    pub(crate) fn held_inline(&self) -> Option<&Source> {
        self.receive.held_inline()
    }

    #[inline(always)]
    pub(crate) fn find(&self) -> Option<ReadySource> {
        self.receive.turns.find(&self.routing)
    }

    #[inline(always)]
    pub(crate) fn take(&self, found: ReadySource) -> PmResult<(*mut u8, usize)> {
        let member_index = found.member();
        let member = self.routing.member(member_index).ok_or(Error::NoBuffers)?;
        let message = on!(member, e => e.take(found.source()))?;
        self.routing.clear_last_sources(member);
        self.receive.set_held_member(member_index);
        // The source of the message becomes hot, so that the rest of its turn is taken directly. It
        // stays cold if its turn is longer than the rest of its member's turn.
        let source = member.shmem().and_then(ShmemEndpoint::held_source);
        let fits = self.receive.turns.on_taken(source.map_or(0, Source::left_of_turn));
        let is_only_member = self.routing.member_limit() <= 1;
        self.receive.set_hot(source.filter(|_| fits || is_only_member));
        Ok(message)
    }

    /// The member whose message is held.
    pub(super) fn held_by(&self) -> u64 {
        let member_of = |source| {
            self.routing
                .members()
                .find(|(_, member)| member.shmem().is_some_and(|e| e.owns_source(source)))
        };
        let member_index = self.held_inline().and_then(member_of).map(|(index, _)| index);
        member_index.unwrap_or(self.receive.held_member.get())
    }

    #[inline(always)]
    pub(crate) fn release(&self) {
        if let Some(source) = self.held_inline() {
            return source.release_inline();
        }
        if let Some(source) = self.receive.held_out_of_line() {
            return source.release_out_of_line(self.receive.held_data_end.get());
        }
        if let Some(member) = self.routing.member(self.receive.held_member.get()) {
            on!(member, e => e.release());
        }
    }

    #[inline(always)]
    pub(crate) fn count_empty_poll(&self) {
        self.routing.members().for_each(|(_, member)| on!(member, e => e.count_empty_poll()));
    }

    pub(crate) fn take_rma_activity(&self) -> bool {
        self.routing.members().any(|(_, member)| on!(member, e => e.take_rma_activity()))
    }
}
