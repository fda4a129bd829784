//! Receiving: from the members in turn, [`TURN`] messages at most from one while another has some.

#![forbid(unsafe_code)]

use super::Composite;
use crate::device::Found;
use crate::error::{Error, Result};
use crate::sync::Local;

/// Messages in a row from one member.
const TURN: u64 = 64;

#[derive(Default)]
pub(super) struct Receiver {
    current: Local,
    left: Local,
    /// The member whose message is held.
    held: Local,
}

impl Composite {
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

    #[inline(never)]
    fn find_in_others(&self, current: u64) -> Option<Found> {
        let count = self.count.get();
        for step in 1..count {
            let place = (current + step) % count;
            if let Some(found) = self.find_in(place) {
                self.receive.current.set(place);
                self.receive.left.set(TURN);
                return Some(found);
            }
        }
        if self.receive.left.get() == 0 {
            self.receive.left.set(TURN);
            return self.find_in(current);
        }
        None
    }

    #[inline(always)]
    pub(super) fn take_from_member(&self, found: Found) -> Result<(*mut u8, usize)> {
        let place = u64::from(found.member);
        let message = self.member(place).ok_or(Error::NoBuffers)?.take(found.source)?;
        self.receive.left.set(self.receive.left.get().saturating_sub(1));
        self.receive.held.set(place);
        Ok(message)
    }

    #[inline(always)]
    pub(super) fn release_to_member(&self) {
        if let Some(member) = self.member(self.receive.held.get()) {
            member.release();
        }
    }
}
