//! The short way: a message that fits in a slot, or a word of remote memory, through a composite,
//! between processes that know each other. One look at everything that could be different, and the
//! message or word itself. Whatever is different is left to the long way in `message.rs` and
//! `remote.rs`, untouched, so that these functions call no other and keep nothing on the stack. A
//! longer message joins this way where it was reserved or taken directly: `send_short` and
//! `release_short` serve both.

#![forbid(unsafe_code)]

use super::Inner;
use crate::device::composite::{Composite, Glance};
use crate::device::shmem::{Source, Target};
use crate::device::{Body, Transport};
use crate::idle;
use crate::remote::{AddrHandle, Direction, WORD};
use crate::threads::is_alone;

/// What a poll by the short way found.
pub enum Poll {
    /// A message: where it lies, and its length.
    Message(*mut u8, usize),
    /// None is there.
    Nothing,
    /// The hot source has none; [`Inner::is_silent_aside`] looks at others.
    Aside,
    /// [`Inner::receive`] knows.
    Ask,
}

impl Inner {
    #[inline(always)]
    fn composite(&self) -> Option<&Composite> {
        match &self.body {
            Body::Composite(composite) => Some(composite),
            Body::Shmem(_) | Body::Ethernet(_) | Body::Verbs(_) => None,
        }
    }

    /// As `get_send_buffer`; None, and nothing has happened: that knows.
    #[inline(always)]
    pub fn get_short(&self, node: u32, len: usize) -> Option<*mut u8> {
        let composite = self.composite()?;
        let locks = self.lock_send().ok()?;
        match composite.reserve_short(node, len) {
            Some(buffer) => {
                self.patience.room_found();
                Some(buffer)
            }
            None => {
                locks.send.release();
                None
            }
        }
    }

    /// As `send`; false, and nothing has happened: that knows.
    #[inline(always)]
    pub fn send_short(&self) -> bool {
        let locks = self.locks();
        if let Some(composite) = self.composite()
            && locks.send.is_held_by(self.id)
            && !idle::is_idle()
            && let Some(target) = composite.pending_short()
        {
            if composite.publish_short(target) {
                return self.knock(composite, target);
            }
            locks.send.release();
            return true;
        }
        false
    }

    /// Ends `send_short` when its receiver sleeps or has gone.
    #[cold]
    #[inline(never)]
    fn knock(&self, composite: &Composite, target: &Target) -> bool {
        composite.knock(target);
        self.locks().send.release();
        true
    }

    /// As `receive`; no lock is held unless it answers a message.
    #[inline(always)]
    pub fn receive_short(&self) -> Poll {
        let Some(composite) = self.composite() else { return Poll::Ask };
        match composite.glance() {
            Glance::Short(source, short) => {
                if !is_alone() || self.lock(true, |locks| &locks.receive).is_err() {
                    return Poll::Ask;
                }
                composite.take_short(source, short.len);
                self.patience.message_came();
                Poll::Message(short.payload, short.len)
            }
            Glance::Nothing(source) if composite.is_alone() => {
                if self.ends_poll(composite, source) { Poll::Nothing } else { Poll::Ask }
            }
            Glance::Nothing(_) => Poll::Aside,
            Glance::Unsure => Poll::Ask,
        }
    }

    /// After [`Poll::Aside`]: true, and the poll has found nothing; false: `receive` knows.
    #[inline(always)]
    pub fn is_silent_aside(&self) -> bool {
        if let Some(composite) = self.composite()
            && let Some(hot) = composite.silent_but_hot()
        {
            return self.ends_poll(composite, hot);
        }
        false
    }

    /// Ends a poll that found nothing; false: something else is to be done about it.
    #[inline(always)]
    fn ends_poll(&self, composite: &Composite, source: &Source) -> bool {
        let empty = self.patience.empty_polls() + 1;
        let usual = empty <= self.patience.turn() && !composite.is_selecting();
        if !usual || !self.locks().receive.is_free() {
            return false;
        }
        source.count_empty_poll();
        self.fetch_ahead();
        if self.patience.is_crowded() {
            // Empty polls measure a turn (`lose_patience`). Two that run side by side hardly have
            // any: they would have ten times the messages of others in each of theirs, and with a
            // pause in every poll a hundred times.
            self.patience.set_empty_polls(empty + self.patience.weigh_message());
        } else {
            self.patience.set_empty_polls(empty);
            std::hint::spin_loop();
        }
        true
    }

    /// A poll found nothing. In a process of one thread nobody begins to send meanwhile.
    #[inline(always)]
    pub(super) fn fetch_ahead(&self) {
        if let Some(composite) = self.composite()
            && composite.is_behind()
            && is_alone()
            && self.locks().send.is_free()
        {
            composite.fetch_ahead();
        }
    }

    /// As `receive_short` for a long message, and where there are other threads: between a glance
    /// and the lock one of them may have taken the message.
    #[inline(always)]
    pub(super) fn receive_direct(&self) -> Option<(*mut u8, usize)> {
        let composite = self.composite()?;
        let (source, message) = composite.glance_longer()?;
        let locks = self.lock_receive().ok()?;
        if !composite.is_next(source, &message) {
            locks.receive.release();
            return None;
        }
        composite.take_direct(source, &message);
        self.patience.message_came();
        Some((message.payload, message.len))
    }

    /// As `release_receive_buffer`; false, and nothing has happened: that knows.
    #[inline(always)]
    pub fn release_short(&self) -> bool {
        let locks = self.locks();
        if let Some(composite) = self.composite()
            && locks.receive.is_held_by(self.id)
            && let Some(source) = composite.held_short()
        {
            source.release_short();
            locks.receive.release();
            return true;
        }
        false
    }

    /// As `write`, for 8 bytes; false, and nothing has happened: that knows.
    #[inline(always)]
    pub fn write_short(&self, node: u32, handles: [AddrHandle; 2], len: usize) -> bool {
        self.move_word(Direction::Write, node, handles, len)
    }

    /// As `read`; the same.
    #[inline(always)]
    pub fn read_short(&self, node: u32, handles: [AddrHandle; 2], len: usize) -> bool {
        self.move_word(Direction::Read, node, handles, len)
    }

    #[inline(always)]
    fn move_word(
        &self,
        direction: Direction,
        node: u32,
        handles: [AddrHandle; 2],
        len: usize,
    ) -> bool {
        let Some(composite) = self.composite() else { return false };
        len == WORD
            && is_alone()
            && !idle::is_idle()
            && composite.move_word(direction, node, handles)
    }
}
