//! The fast path. It carries messages that fit into a slot, and words of remote memory, through a
//! composite, between processes that have exchanged messages before. Each function checks its
//! conditions once and moves the message or word. If a condition fails, the function changes
//! nothing and leaves the call to the slow path (`send_receive.rs`, `rma.rs`). Therefore these
//! functions need no stack frame. A longer message takes the slow path in all of its four calls:
//! `send_fast` and `release_fast` find only short messages (`pending_inline`, `held_inline`). The
//! slow path then calls `receive_direct`, which takes a message of any length without a call of the
//! member.

#![forbid(unsafe_code)]

use super::{LiveContext, is_serialized};
use crate::device::composite::{Composite, HotPoll};
use crate::device::shmem::{Source, Target};
use crate::idle;
use crate::rma::{AddrHandle, Direction, WORD};

/// The result of a poll on the fast path.
pub enum FastReceive {
    /// A message: its address and its length.
    Message(*mut u8, usize),
    /// There is no message.
    Empty,
    /// The hot source has no message; [`LiveContext::finish_poll_if_others_empty`] checks the other
    /// sources.
    CheckOthers,
    /// The caller has to call [`LiveContext::receive`].
    SlowPath,
}

impl LiveContext {
    #[inline(always)]
    fn composite(&self) -> Option<&Composite> {
        self.device_context.composite()
    }

    /// Like `get_send_buffer`. None: nothing has happened, and the caller has to call
    /// `get_send_buffer`.
    #[inline(always)]
    pub fn get_send_buffer_fast(&self, node: u32, len: usize) -> Option<*mut u8> {
        let composite = self.composite()?;
        let locks = self.lock_send().ok()?;
        match composite.reserve_inline(node, len) {
            Some(buffer) => {
                self.poll_backoff.on_reserved();
                Some(buffer)
            }
            None => {
                locks.send.release();
                None
            }
        }
    }

    /// Like `send`. False: nothing has happened, and the caller has to call `send`.
    #[inline(always)]
    pub fn send_fast(&self) -> bool {
        let locks = self.locks();
        if let Some(composite) = self.composite()
            && locks.send.is_held_by(self.id)
            && !idle::is_idle()
            && let Some(target) = composite.pending_inline()
        {
            if composite.publish_inline(target) {
                return self.finish_send_notifying(composite, target);
            }
            locks.send.release();
            return true;
        }
        false
    }

    /// Ends `send_fast` if the receiver sleeps or has exited.
    #[cold]
    #[inline(never)]
    fn finish_send_notifying(&self, composite: &Composite, target: &Target) -> bool {
        composite.check_receiver(target);
        self.locks().send.release();
        true
    }

    /// Like `receive`. The receive lock is held afterwards only if a message is returned.
    #[inline(always)]
    pub fn receive_fast(&self) -> FastReceive {
        let Some(composite) = self.composite() else { return FastReceive::SlowPath };
        match composite.poll_hot() {
            HotPoll::Inline(source, short) => {
                let lock = &self.locks().receive;
                if !is_serialized(lock) || lock.try_acquire_serialized(self.id).is_err() {
                    return FastReceive::SlowPath;
                }
                composite.take_inline(source, short.len);
                self.poll_backoff.on_message();
                FastReceive::Message(short.payload, short.len)
            }
            HotPoll::Empty(source) if composite.has_single_source() => {
                if self.finish_empty_poll(composite, source) {
                    FastReceive::Empty
                } else {
                    FastReceive::SlowPath
                }
            }
            HotPoll::Empty(_) => FastReceive::CheckOthers,
            HotPoll::Unknown => FastReceive::SlowPath,
        }
    }

    /// Continues after [`FastReceive::CheckOthers`]. True: the poll has found no message. False:
    /// the caller has to call `receive`.
    #[inline(always)]
    pub fn finish_poll_if_others_empty(&self) -> bool {
        if let Some(composite) = self.composite()
            && let Some(hot) = composite.hot_if_others_silent()
        {
            return self.finish_empty_poll(composite, hot);
        }
        false
    }

    /// Ends a poll that found no message. False: `receive` has to end it.
    #[inline(always)]
    fn finish_empty_poll(&self, composite: &Composite, source: &Source) -> bool {
        let empty_polls = self.poll_backoff.empty_polls() + 1;
        let may_spin = empty_polls <= self.poll_backoff.poll_limit() && !composite.is_selecting();
        if !may_spin || !self.locks().receive.is_free() {
            return false;
        }
        source.count_empty_poll();
        self.fetch_ahead();
        if self.poll_backoff.is_cpu_contended() {
            // Empty polls measure how long a process keeps its processor (`back_off`). Two
            // processes that run at the same time and answer each other have few empty polls, and
            // would keep their processors much longer than others. Therefore messages are counted
            // as well, and polls do not pause.
            self.poll_backoff.set_empty_polls(empty_polls + self.poll_backoff.charge_message());
        } else {
            self.poll_backoff.set_empty_polls(empty_polls);
            self.poll_backoff.pause();
        }
        true
    }

    /// Prefetches after a poll that found no message, if no other thread starts to send meanwhile.
    #[inline(always)]
    pub(super) fn fetch_ahead(&self) {
        if let Some(composite) = self.composite()
            && composite.can_prefetch()
            && self.is_serialized()
            && self.locks().send.is_free()
        {
            composite.prefetch_lines();
        }
    }

    /// Like `receive_fast`, but also for long messages and for programs with several threads:
    /// another thread may take the message after the poll and before this thread has the lock.
    #[inline(always)]
    pub(super) fn receive_direct(&self) -> Option<(*mut u8, usize)> {
        let composite = self.composite()?;
        let (source, message) = composite.poll_hot_any()?;
        let locks = self.lock_receive().ok()?;
        if !composite.is_next(source, &message) {
            locks.receive.release();
            return None;
        }
        composite.take_direct(source, &message);
        self.poll_backoff.on_message();
        Some((message.payload, message.len))
    }

    /// Like `release_receive_buffer`. False: nothing has happened, and the caller has to call
    /// `release_receive_buffer`.
    #[inline(always)]
    pub fn release_fast(&self) -> bool {
        let locks = self.locks();
        if let Some(composite) = self.composite()
            && locks.receive.is_held_by(self.id)
            && let Some(source) = composite.held_inline()
        {
            source.release_inline();
            locks.receive.release();
            return true;
        }
        false
    }

    /// Like `write`, for 8 bytes. False: nothing has happened, and the caller has to call `write`.
    #[inline(always)]
    pub fn write_fast(&self, node: u32, handles: [AddrHandle; 2], len: usize) -> bool {
        self.rma_word(Direction::Write, node, handles, len)
    }

    /// Like `read`, for 8 bytes. False: nothing has happened, and the caller has to call `read`.
    #[inline(always)]
    pub fn read_fast(&self, node: u32, handles: [AddrHandle; 2], len: usize) -> bool {
        self.rma_word(Direction::Read, node, handles, len)
    }

    #[inline(always)]
    fn rma_word(
        &self,
        direction: Direction,
        node: u32,
        handles: [AddrHandle; 2],
        len: usize,
    ) -> bool {
        let Some(composite) = self.composite() else { return false };
        len == WORD
            && self.is_serialized()
            && !idle::is_idle()
            && composite.copy_one_word(direction, node, handles)
    }
}
