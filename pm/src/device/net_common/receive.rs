//! Receiving: messages wait in the order of their delivery. If none waits, a poll receives packets.

#![forbid(unsafe_code)]

use super::endpoint_queues::ReceivedMessage;
use super::receive_buffers::AlignedLine;
use super::{NetworkDevice, NetworkEndpoint, ProgressMode};
use crate::device::ReceiveInterface;
use crate::error::{Error, PmResult};
use crate::sync::{AtomicU64, Ordering, SingleWriterU64};
use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// No message is held.
const NOTHING_HELD: u64 = u64::MAX;
/// The held message was restored, not received.
const HELD_RESTORED: u64 = u64::MAX - 1;

/// A message that was restored.
pub(super) struct RestoredMessage {
    pub(super) from: u32,
    pub(super) len: usize,
    pub(super) bytes: Box<[AlignedLine]>,
}

pub(super) struct NetworkReceiver {
    /// The message that was taken and not yet released, as a word of the queue.
    held_message: SingleWriterU64,
    /// Messages that were restored, the held one first, and how many of them wait.
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

    /// Called with both locks. Restored messages precede received ones.
    pub(super) fn restore(&self, messages: VecDeque<RestoredMessage>) {
        self.restored_count.store(messages.len() as u64, Ordering::Release);
        *self.restored() = messages;
    }
}

impl<N: NetworkDevice> ReceiveInterface for NetworkEndpoint<N> {
    /// If no message waits, packets are received first.
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

    /// Messages are taken in the order of their delivery.
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
    /// The source of the next message that waits.
    #[inline(always)]
    pub(super) fn next_source(&self) -> Option<u32> {
        if self.receive.restored_count.load(Ordering::Relaxed) != 0 {
            return self.receive.restored().front().map(|message| message.from);
        }
        Some(ReceivedMessage::from_word(self.queues.delivered.peek()?).from)
    }

    #[inline(always)]
    fn take_next(&self) -> PmResult<(*mut u8, usize)> {
        let (from, payload, len) = self.take_uncounted()?;
        self.record().node.receive.0.record_received(from.wrapping_add(1), len);
        Ok((payload, len))
    }

    /// As `take_next`, but not counted: the source, the address and the length of the message.
    #[inline(always)]
    pub(super) fn take_uncounted(&self) -> PmResult<(u32, *mut u8, usize)> {
        if self.receive.restored_count.load(Ordering::Relaxed) != 0 {
            return self.take_restored();
        }
        let word = self.queues.delivered.pop().ok_or(Error::NoBuffers)?;
        let received = ReceivedMessage::from_word(word);
        self.receive.held_message.set(word);
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
        // The queue has as many words as there are entries, so there is room.
        self.queues.released.push(held_message);
    }

    /// The number of waiting messages.
    pub(super) fn waiting_count(&self) -> usize {
        self.queues.delivered.len() + self.receive.restored().len()
    }

    /// Called with both locks: drops the held message and the waiting ones.
    pub(super) fn drop_received(&self) {
        self.release();
        // Bounded, because more messages may arrive.
        for _ in 0..self.waiting_count() {
            if self.take_next().is_err() {
                return;
            }
            self.release();
        }
    }
}
