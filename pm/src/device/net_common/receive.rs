//! Receives messages, in the order in which the engine delivers them. If no message waits, a poll
//! receives packets.

#![forbid(unsafe_code)]

use super::endpoint_queues::ReceivedMessage;
use super::receive_buffers::AlignedLine;
use super::spsc_queue::QueueWord;
use super::{NetworkDevice, NetworkEndpoint, ProgressMode};
use crate::device::ReceiveInterface;
use crate::error::{Error, PmResult};
use crate::sync::{AtomicU64, Ordering, SingleWriterU64};
use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The value of `held_message` if no message is held.
const NOTHING_HELD: u64 = u64::MAX;
/// The value of `held_message` if the held message is a [`RestoredMessage`].
const HELD_RESTORED: u64 = u64::MAX - 1;

/// A message that is in memory of the receiver instead of a receive buffer, because it was restored
/// or saved.
pub(super) struct RestoredMessage {
    pub(super) from: u32,
    pub(super) len: usize,
    pub(super) bytes: Box<[AlignedLine]>,
}

pub(super) struct NetworkReceiver {
    /// The message that was taken and is not yet released, as a word of the queue.
    held_message: SingleWriterU64,
    /// The restored messages, with the held one first, and their number.
    restored: Mutex<VecDeque<RestoredMessage>>,
    restored_count: AtomicU64,
}

impl Default for NetworkReceiver {
    fn default() -> NetworkReceiver {
        NetworkReceiver {
            held_message: SingleWriterU64::new(NOTHING_HELD),
            restored: Mutex::default(),
            restored_count: AtomicU64::new(0),
        }
    }
}

impl NetworkReceiver {
    fn restored(&self) -> MutexGuard<'_, VecDeque<RestoredMessage>> {
        self.restored.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes `messages` the restored messages, which precede received ones. Called with both locks
    /// held.
    pub(super) fn restore(&self, messages: VecDeque<RestoredMessage>) {
        self.restored_count.store(messages.len() as u64, Ordering::Release);
        *self.restored() = messages;
    }
}

impl<N: NetworkDevice> ReceiveInterface for NetworkEndpoint<N> {
    /// Returns the source of the next message. If no message waits, receives packets first.
    #[inline(always)]
    fn find(&self) -> Option<u32> {
        if let Some(from) = self.next_source() {
            return Some(from);
        }
        N::poll(self, ProgressMode::Receive);
        self.next_source()
    }

    #[inline(always)]
    fn peek(&self) -> Option<u32> {
        if N::IS_POLL_SYSTEM_CALL { self.next_source() } else { self.find() }
    }

    /// Takes the next message in the order of delivery, from any source.
    #[inline(always)]
    fn take(&self, _source: u32) -> PmResult<(*mut u8, usize)> {
        self.take_next()
    }

    #[inline(always)]
    fn release(&self) {
        if self.receive.held_message.get() != NOTHING_HELD {
            self.record().node.receive.0.count_released();
            self.release_uncounted();
        }
    }

    #[inline(always)]
    fn count_empty_poll(&self) {
        let epoch = &self.record().node.poll_epoch.0;
        epoch.store(epoch.load(Ordering::Relaxed).wrapping_add(1), Ordering::Release);
    }

    fn take_rma_activity(&self) -> bool {
        self.queues.take_rma_received()
    }
}

impl<N: NetworkDevice> NetworkEndpoint<N> {
    /// Returns the source of the next message that waits.
    #[inline(always)]
    pub(super) fn next_source(&self) -> Option<u32> {
        if self.receive.restored_count.load(Ordering::Relaxed) != 0 {
            return self.receive.restored().front().map(|message| message.from);
        }
        Some(self.queues.delivered.peek()?.from)
    }

    #[inline(always)]
    fn take_next(&self) -> PmResult<(*mut u8, usize)> {
        let (from, payload, len) = self.take_uncounted()?;
        self.record().node.receive.0.record_received(from.wrapping_add(1), len);
        Ok((payload, len))
    }

    /// Takes the next message without counting it. Returns its source, address and length.
    #[inline(always)]
    pub(super) fn take_uncounted(&self) -> PmResult<(u32, *mut u8, usize)> {
        if self.receive.restored_count.load(Ordering::Relaxed) != 0 {
            return self.take_restored();
        }
        let received = self.queues.delivered.pop().ok_or(Error::NoBuffers)?;
        self.receive.held_message.set(received.word());
        Ok((received.from, self.queues.message_ptr(received.entry), received.len as usize))
    }

    #[cold]
    fn take_restored(&self) -> PmResult<(u32, *mut u8, usize)> {
        let mut restored = self.receive.restored();
        let message = restored.front_mut().ok_or(Error::NoBuffers)?;
        self.receive.held_message.set(HELD_RESTORED);
        Ok((message.from, message.bytes.as_mut_ptr().cast(), message.len))
    }

    /// Releases the memory of the held message.
    #[inline(always)]
    pub(super) fn release_uncounted(&self) {
        let held_message = self.receive.held_message.get();
        self.receive.held_message.set(NOTHING_HELD);
        if held_message == HELD_RESTORED {
            self.receive.restored().pop_front();
            self.receive.restored_count.fetch_sub(1, Ordering::AcqRel);
            return;
        }
        // The queue has room for all entries, so it is never full.
        self.queues.released.push(ReceivedMessage::from_word(held_message));
    }

    /// Returns the number of waiting messages.
    pub(super) fn waiting_count(&self) -> usize {
        self.queues.delivered.len() + self.receive.restored().len()
    }

    /// Drops the held message and all waiting messages. Called with both locks held.
    pub(super) fn drop_received(&self) {
        self.release();
        // The loop is bounded, because more messages may arrive.
        for _ in 0..self.waiting_count() {
            if self.take_next().is_err() {
                return;
            }
            self.release();
        }
    }
}
