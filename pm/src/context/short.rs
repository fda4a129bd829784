//! The short way: a message that fits in a slot, through a composite, between processes that know
//! each other. One look at everything that could be different, and the message itself. Whatever is
//! different is left to the long way in `message.rs`, untouched, so that these functions call no
//! other and keep nothing on the stack.

#![forbid(unsafe_code)]

use super::Inner;
use super::message::LITTLE_PATIENCE;
use crate::device::composite::{Composite, Glance};
use crate::device::shmem::Target;
use crate::device::{Body, Transport};
use crate::idle;
use crate::lock::is_single_threaded;

/// What a poll by the short way found.
pub enum Poll {
    /// A message: where it lies, and its length.
    Message(*mut u8, usize),
    /// None is there.
    Nothing,
    /// [`Inner::receive`] knows.
    Ask,
}

impl Inner {
    #[inline(always)]
    fn composite(&self) -> Option<&Composite> {
        match &self.body {
            Body::Composite(composite) => Some(composite),
            Body::Shmem(_) | Body::Ethernet(_) => None,
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
                if !is_single_threaded() || self.lock(true, |locks| &locks.receive).is_err() {
                    return Poll::Ask;
                }
                composite.take_short(source);
                self.patience.message_came();
                Poll::Message(short.payload, short.len)
            }
            Glance::Nothing(source) => {
                let empty = self.patience.empty_polls() + 1;
                let usual = empty <= LITTLE_PATIENCE && !composite.is_selecting();
                if !usual || !self.locks().receive.is_free() {
                    return Poll::Ask;
                }
                self.patience.set_empty_polls(empty);
                source.count_empty_poll();
                std::hint::spin_loop();
                Poll::Nothing
            }
            Glance::Unsure => Poll::Ask,
        }
    }

    /// As `receive_short` where there are other threads: between a glance and the lock one of them
    /// may have taken the message.
    pub(super) fn receive_among_threads(&self) -> Option<(*mut u8, usize)> {
        let composite = self.composite()?;
        let Glance::Short(source, short) = composite.glance() else { return None };
        let locks = self.lock(false, |locks| &locks.receive).ok()?;
        if !composite.is_next(source, &short) {
            locks.receive.release();
            return None;
        }
        composite.take_short(source);
        self.patience.message_came();
        Some((short.payload, short.len))
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
}
