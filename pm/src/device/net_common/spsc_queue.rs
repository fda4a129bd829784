//! Bounded queues of words inside a process. The holder of one lock pushes words, and the holder of
//! another lock pops them. The queues pass submitted messages to the engine, and received messages
//! to the receiver.

#![forbid(unsafe_code)]

use crate::sync::{AtomicU64, Ordering};

/// An index on its own cache line. One side writes it, the other side reads it.
#[derive(Default)]
#[repr(align(128))]
struct QueueIndex(AtomicU64);

/// A queue. At most one thread at a time may push, and at most one may pop. Locks of the callers
/// ensure this.
pub(crate) struct SpscQueue {
    pushed: QueueIndex,
    popped: QueueIndex,
    words: Box<[AtomicU64]>,
}

impl SpscQueue {
    /// Makes a queue of `len` words, which must be a power of two.
    pub(crate) fn new(len: usize) -> SpscQueue {
        debug_assert!(len.is_power_of_two());
        let words = (0..len).map(|_| AtomicU64::new(0)).collect();
        SpscQueue { pushed: QueueIndex::default(), popped: QueueIndex::default(), words }
    }

    fn word(&self, index: u64) -> &AtomicU64 {
        &self.words[index as usize & (self.words.len() - 1)]
    }

    /// Returns false if the queue is full.
    #[inline(always)]
    pub(crate) fn push(&self, word: u64) -> bool {
        let index = self.pushed.0.load(Ordering::Relaxed);
        if index.wrapping_sub(self.popped.0.load(Ordering::Acquire)) >= self.words.len() as u64 {
            return false;
        }
        self.word(index).store(word, Ordering::Relaxed);
        // SYNC: queue
        self.pushed.0.store(index.wrapping_add(1), Ordering::Release);
        true
    }

    /// Returns the next word, which stays in the queue. Any thread may call this function, but the
    /// result is reliable only for the thread that may pop.
    #[inline(always)]
    pub(crate) fn peek(&self) -> Option<u64> {
        let index = self.popped.0.load(Ordering::Relaxed);
        // SYNC: queue
        if self.pushed.0.load(Ordering::Acquire) == index {
            return None;
        }
        Some(self.word(index).load(Ordering::Relaxed))
    }

    #[inline(always)]
    pub(crate) fn pop(&self) -> Option<u64> {
        let word = self.peek()?;
        let index = self.popped.0.load(Ordering::Relaxed);
        self.popped.0.store(index.wrapping_add(1), Ordering::Release);
        Some(word)
    }

    /// Returns the number of words, which may be out of date.
    pub(crate) fn len(&self) -> usize {
        let popped = self.popped.0.load(Ordering::Acquire);
        self.pushed.0.load(Ordering::Acquire).wrapping_sub(popped) as usize
    }

    /// Whether the queue is empty. If so, the caller reads the results of all writes that the
    /// popping thread made before it popped the last word.
    #[inline(always)]
    pub(crate) fn is_empty(&self) -> bool {
        let popped = self.popped.0.load(Ordering::Acquire);
        self.pushed.0.load(Ordering::Relaxed) == popped
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn the_queue_returns_words_in_order_and_refuses_words_beyond_its_capacity() {
        let queue = SpscQueue::new(4);
        for lap in 0..3u64 {
            assert!(queue.is_empty() && queue.pop().is_none());
            assert!((0..4).all(|i| queue.push(lap * 10 + i)));
            assert!(!queue.push(99));
            assert_eq!((queue.len(), queue.peek()), (4, Some(lap * 10)));
            assert!((0..4).all(|i| queue.pop() == Some(lap * 10 + i)));
        }
    }
}
