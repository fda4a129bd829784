//! Receiving: messages wait in the order in which they were delivered; when none waits, a poll
//! looks at what has come.

#![forbid(unsafe_code)]

use super::lanes::Arrived;
use super::pool::Line;
use super::{Endpoint, Network, Pass};
use crate::error::{Error, Result};
use crate::sync::{AtomicU64, Local, Ordering};
use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Nothing is held.
const NONE: u64 = u64::MAX;
/// What is held was restored, not received.
const RESTORED: u64 = u64::MAX - 1;

/// A message that was restored.
pub(super) struct Restored {
    pub(super) from: u32,
    pub(super) len: usize,
    pub(super) bytes: Box<[Line]>,
}

pub(super) struct Receiver {
    /// What was taken and not yet released, as a word of the queue.
    held: Local,
    /// Messages that were restored, the held one first, and how many of them wait.
    restored: Mutex<VecDeque<Restored>>,
    waiting: AtomicU64,
}

impl Default for Receiver {
    fn default() -> Receiver {
        Receiver { held: Local::new(NONE), restored: Mutex::default(), waiting: AtomicU64::new(0) }
    }
}

impl Receiver {
    fn restored(&self) -> MutexGuard<'_, VecDeque<Restored>> {
        self.restored.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Both locks. These come before whatever arrives.
    pub(super) fn restore(&self, messages: VecDeque<Restored>) {
        self.waiting.store(messages.len() as u64, Ordering::Release);
        *self.restored() = messages;
    }
}

impl<N: Network> Endpoint<N> {
    /// Who has sent the message that waits. Where none waits, looks at what has come first.
    #[inline(always)]
    pub(crate) fn find(&self) -> Option<u32> {
        if let Some(from) = self.peek() {
            return Some(from);
        }
        N::poll(self, Pass::Receive);
        self.peek()
    }

    /// As `find`, without a system call.
    #[inline(always)]
    pub(crate) fn peek(&self) -> Option<u32> {
        if self.receive.waiting.load(Ordering::Relaxed) != 0 {
            return self.receive.restored().front().map(|message| message.from);
        }
        Some(Arrived::from_word(self.lanes.delivered.peek()?).from)
    }

    #[inline(always)]
    pub(crate) fn take(&self) -> Result<(*mut u8, usize)> {
        let (from, payload, len) = self.take_uncounted()?;
        self.record().node.receive.0.count_taken(from.wrapping_add(1), len);
        Ok((payload, len))
    }

    /// As `take`: from whom, where it lies, and its length.
    #[inline(always)]
    pub(super) fn take_uncounted(&self) -> Result<(u32, *mut u8, usize)> {
        if self.receive.waiting.load(Ordering::Relaxed) != 0 {
            return self.take_restored();
        }
        let word = self.lanes.delivered.pop().ok_or(Error::NoBuffers)?;
        let arrived = Arrived::from_word(word);
        self.receive.held.set(word);
        Ok((arrived.from, self.lanes.place(arrived.entry), arrived.len as usize))
    }

    #[cold]
    fn take_restored(&self) -> Result<(u32, *mut u8, usize)> {
        let mut restored = self.receive.restored();
        let message = restored.front_mut().ok_or(Error::NoBuffers)?;
        self.receive.held.set(RESTORED);
        Ok((message.from, message.bytes.as_mut_ptr().cast(), message.len))
    }

    #[inline(always)]
    pub(crate) fn release(&self) {
        if self.receive.held.get() != NONE {
            self.record().node.receive.0.count_released();
            self.release_uncounted();
        }
    }

    /// Gives the held message's memory back.
    #[inline(always)]
    pub(super) fn release_uncounted(&self) {
        let held = self.receive.held.get();
        self.receive.held.set(NONE);
        if held == RESTORED {
            self.receive.restored().pop_front();
            self.receive.waiting.fetch_sub(1, Ordering::AcqRel);
            return;
        }
        // As many words as entries: there is room.
        self.lanes.released.push(held);
    }

    /// How many messages wait.
    pub(super) fn waiting(&self) -> usize {
        self.lanes.delivered.len() + self.receive.restored().len()
    }

    /// Both locks: drops what is held and what waits.
    pub(super) fn drop_received(&self) {
        self.release();
        // Bounded: more may come.
        for _ in 0..self.waiting() {
            if self.take().is_err() {
                return;
            }
            self.release();
        }
    }

    #[inline(always)]
    pub(crate) fn count_empty_poll(&self) {
        let epoch = &self.record().node.epoch.0;
        epoch.store(epoch.load(Ordering::Relaxed).wrapping_add(1), Ordering::Release);
    }
}
