//! Receiving: from the members in turn, [`TURN`] messages at most from one while another has some.
//!
//! A look at a member that crosses a network is a system call, as long as many messages of another
//! take. While it is not the member that gave the last message, only every 8th poll that finds
//! nothing makes it, then with each look in vain half as many, down to every 128th; and every poll
//! that ends another member's turn: a flood on either side delays the other by a turn at most.
//!
//! The source that gave the last message is *hot*: as long as its turn lasts, its messages are
//! taken past the member. When it has nothing and those that were looked at have neither, a poll
//! is over.

// UNSAFETY: keeps the address of the hot source.
#![expect(unsafe_code)]

use super::{Composite, Member};
use crate::device::Found;
use crate::device::shmem::{NO_DATA, Source};
use crate::error::{Error, Result};
use crate::ring::{Next, Received, Short};
use crate::sync::{AtomicPtr, Local, Ordering};
use std::ptr::{self, null_mut};

/// Messages in a row from one member.
const TURN: u64 = 64;
/// Polls for each look at a member where that is a system call: at first, and at most.
const SELDOM: (u64, u64) = (8, 128);

#[derive(Default)]
pub(super) struct Receiver {
    current: Local,
    left: Local,
    /// Polls that found nothing in the current member since all were looked at, and after how
    /// many that is done; 0: as at first.
    looks: Local,
    patience: Local,
    /// The hot source; null before the first message, and when its member's turn is over.
    hot: AtomicPtr<Source>,
    /// The source whose short message is held, when it was taken directly; else null.
    held_short: AtomicPtr<Source>,
    /// The same for a message that `glance_longer` saw, and where that ends in the ring's data
    /// area, or [`NO_DATA`]; null also when a member knows what is held.
    held_long: AtomicPtr<Source>,
    held_end: Local,
    /// The member whose message is held.
    held: Local,
}

/// What a first look tells.
pub(crate) enum Glance<'a> {
    /// There is nothing from this source, and the only member is its.
    Nothing(&'a Source),
    /// A short message of this source, for `take_short`.
    Short(&'a Source, Short),
    /// Ask `find`.
    Unsure,
}

impl Receiver {
    /// Both locks.
    pub(super) fn forget_hot(&self) {
        self.hot.store(null_mut(), Ordering::Relaxed);
    }
}

impl Composite {
    /// No lock. A first look, at the hot source alone.
    #[inline(always)]
    pub(crate) fn glance(&self) -> Glance<'_> {
        // SYNC: member
        let hot = self.receive.hot.load(Ordering::Acquire);
        // SAFETY: null, or in an endpoint that is or was a member's: it lives as long as `self`.
        let Some(source) = (unsafe { hot.as_ref() }) else { return Glance::Unsure };
        match source.peek() {
            Next::Short(short) => Glance::Short(source, short),
            Next::Nothing if self.count.get() == 1 => Glance::Nothing(source),
            Next::Nothing | Next::Other => Glance::Unsure,
        }
    }

    /// No lock, after `Glance::Nothing`. Whether there is no other source.
    #[inline(always)]
    pub(crate) fn is_alone(&self) -> bool {
        self.member(0).is_some_and(Member::is_alone)
    }

    /// No lock, after `Glance::Nothing`. The hot source, if those that are looked at are silent.
    #[inline(always)]
    pub(crate) fn silent_but_hot(&self) -> Option<&Source> {
        self.member(0).filter(|member| member.is_silent_aside())?;
        // SYNC: member
        let hot = self.receive.hot.load(Ordering::Acquire);
        // SAFETY: as in `glance`.
        unsafe { hot.as_ref() }
    }

    /// No lock. As `glance`, for a message of any length.
    #[inline(always)]
    pub(crate) fn glance_longer(&self) -> Option<(&Source, Received)> {
        // SYNC: member
        let hot = self.receive.hot.load(Ordering::Acquire);
        // SAFETY: as in `glance`.
        let source = unsafe { hot.as_ref() }?;
        Some((source, source.peek_longer()?))
    }

    /// Receive lock. Whether what was seen is still to be taken.
    #[inline(always)]
    pub(crate) fn is_next(&self, source: &Source, message: &Received) -> bool {
        ptr::eq(self.receive.hot.load(Ordering::Relaxed), source) && source.is_next(message)
    }

    /// Receive lock. Takes what `glance` saw and nobody else has taken.
    #[inline(always)]
    pub(crate) fn take_short(&self, source: &Source, len: usize) {
        source.take_next(len);
        self.receive.held_short.store(ptr::from_ref(source).cast_mut(), Ordering::Relaxed);
    }

    /// Receive lock. The same for what `glance_longer` saw.
    #[inline(always)]
    pub(crate) fn take_direct(&self, source: &Source, message: &Received) {
        source.take_next(message.len);
        source.credit(message);
        self.receive.held_short.store(null_mut(), Ordering::Relaxed);
        self.receive.held_long.store(ptr::from_ref(source).cast_mut(), Ordering::Relaxed);
        self.receive.held_end.set(message.data_end().unwrap_or(NO_DATA));
    }

    /// Receive lock. The source whose message `take_short` took, and nobody released since.
    #[inline(always)]
    pub(crate) fn held_short(&self) -> Option<&Source> {
        // SAFETY: as in `glance`.
        unsafe { self.receive.held_short.load(Ordering::Relaxed).as_ref() }
    }

    /// Receive lock, where no short message is held. The same of `take_direct`.
    #[inline(always)]
    fn held_long(&self) -> Option<&Source> {
        // SAFETY: as in `glance`.
        unsafe { self.receive.held_long.load(Ordering::Relaxed).as_ref() }
    }

    #[inline(always)]
    pub(super) fn find_in_members(&self) -> Option<Found> {
        if self.count.get() <= 1 {
            return self.find_in(0);
        }
        let current = self.receive.current.get();
        if self.receive.left.get() != 0
            && let Some(found) = self.find_in(current)
        {
            return Some(found);
        }
        self.find_in_others(current)
    }

    #[inline(always)]
    fn find_in(&self, place: u64) -> Option<Found> {
        let source = self.member(place)?.find()?;
        Some(Found { member: place as u32, source })
    }

    /// As `find_in`, but without a system call.
    fn peek_in(&self, place: u64) -> Option<Found> {
        let source = self.member(place)?.peek()?;
        Some(Found { member: place as u32, source })
    }

    #[inline(never)]
    fn find_in_others(&self, current: u64) -> Option<Found> {
        let count = self.count.get();
        let looks = self.receive.looks.get() + 1;
        let patience = self.receive.patience.get().max(SELDOM.0);
        let all = looks >= patience || self.receive.left.get() == 0;
        self.receive.looks.set(if all { 0 } else { looks });
        for step in 1..count {
            let place = (current + step) % count;
            let found = if all { self.find_in(place) } else { self.peek_in(place) };
            if let Some(found) = found {
                self.receive.patience.set(SELDOM.0);
                self.receive.current.set(place);
                self.receive.left.set(TURN);
                return Some(found);
            }
        }
        if self.receive.left.get() == 0 {
            self.receive.left.set(TURN);
            return self.find_in(current);
        }
        if all {
            self.receive.patience.set((patience * 2).min(SELDOM.1));
        }
        None
    }

    #[inline(always)]
    pub(super) fn take_from_member(&self, found: Found) -> Result<(*mut u8, usize)> {
        let place = u64::from(found.member);
        let member = self.member(place).ok_or(Error::NoBuffers)?;
        let message = member.take(found.source)?;
        if !member.is_shmem() {
            // As `is_last_to`.
            self.members().for_each(|(_, other)| other.forget_last_from());
        }
        self.receive.held.set(place);
        self.receive.held_short.store(null_mut(), Ordering::Relaxed);
        self.receive.held_long.store(null_mut(), Ordering::Relaxed);
        self.heat(member.held());
        Ok(message)
    }

    /// The source of the message just taken may give the rest of its turn directly, unless that
    /// is more than is left of its member's turn.
    #[inline(always)]
    fn heat(&self, source: Option<&Source>) {
        let receive = &self.receive;
        let left = receive.left.get().saturating_sub(1);
        let turn = source.map_or(0, Source::left);
        let hot = if self.count.get() <= 1 || turn <= left { source } else { None };
        let hot = hot.map_or(null_mut(), |source| ptr::from_ref(source).cast_mut());
        receive.left.set(left.saturating_sub(turn));
        // SYNC: member
        receive.hot.store(hot, Ordering::Release);
    }

    /// The member whose message is held.
    pub(super) fn held_by(&self) -> u64 {
        let of = |source| self.members().find(|(_, member)| member.feeds(source));
        let place = self.held_short().and_then(of).map(|(place, _)| place);
        place.unwrap_or(self.receive.held.get())
    }

    #[inline(always)]
    pub(super) fn release_held(&self) {
        if let Some(source) = self.held_short() {
            return source.release_short();
        }
        if let Some(source) = self.held_long() {
            return source.release_long(self.receive.held_end.get());
        }
        if let Some(member) = self.member(self.receive.held.get()) {
            member.release();
        }
    }
}
