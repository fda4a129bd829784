//! Bounded queues inside a process. The holder of one lock pushes items, and the holder of another
//! lock pops them. A queue stores each item as a word. The queues pass submitted messages to the
//! engine, and received messages to the receiver.

#![forbid(unsafe_code)]

use crate::sync::{AtomicU64, Ordering};
use std::marker::PhantomData;

/// An item of a queue, which is stored as a word.
pub(crate) trait QueueWord: Copy {
    fn word(self) -> u64;
    fn from_word(word: u64) -> Self;
}

/// An index on its own cache line. One side writes it, the other side reads it.
#[derive(Default)]
#[repr(align(128))]
struct QueueIndex(AtomicU64);

/// A queue of items of type `T`. At most one thread at a time may push, and at most one may pop.
/// Locks of the callers ensure this.
pub(crate) struct SpscQueue<T> {
    pushed: QueueIndex,
    popped: QueueIndex,
    words: Box<[AtomicU64]>,
    item_type: PhantomData<T>,
}

impl<T: QueueWord> SpscQueue<T> {
    /// Makes a queue of `len` items, which must be a power of two.
    pub(crate) fn new(len: usize) -> SpscQueue<T> {
        debug_assert!(len.is_power_of_two());
        let words = (0..len).map(|_| AtomicU64::new(0)).collect();
        SpscQueue {
            pushed: QueueIndex::default(),
            popped: QueueIndex::default(),
            words,
            item_type: PhantomData,
        }
    }

    fn word(&self, index: u64) -> &AtomicU64 {
        &self.words[index as usize & (self.words.len() - 1)]
    }

    /// Returns false if the queue is full.
    #[inline(always)]
    pub(crate) fn push(&self, item: T) -> bool {
        let index = self.pushed.0.load(Ordering::Relaxed);
        if index.wrapping_sub(self.popped.0.load(Ordering::Acquire)) >= self.words.len() as u64 {
            return false;
        }
        self.word(index).store(item.word(), Ordering::Relaxed);
        // SYNC: queue
        self.pushed.0.store(index.wrapping_add(1), Ordering::Release);
        true
    }

    /// Returns the next item, which stays in the queue. Any thread may call this function, but the
    /// result is reliable only for the thread that may pop.
    #[inline(always)]
    pub(crate) fn peek(&self) -> Option<T> {
        let index = self.popped.0.load(Ordering::Relaxed);
        // SYNC: queue
        if self.pushed.0.load(Ordering::Acquire) == index {
            return None;
        }
        Some(T::from_word(self.word(index).load(Ordering::Relaxed)))
    }

    #[inline(always)]
    pub(crate) fn pop(&self) -> Option<T> {
        let item = self.peek()?;
        let index = self.popped.0.load(Ordering::Relaxed);
        self.popped.0.store(index.wrapping_add(1), Ordering::Release);
        Some(item)
    }

    /// Returns the number of items, which may be out of date.
    pub(crate) fn len(&self) -> usize {
        let popped = self.popped.0.load(Ordering::Acquire);
        self.pushed.0.load(Ordering::Acquire).wrapping_sub(popped) as usize
    }

    /// Whether the queue is empty. If so, the caller reads the results of all writes that the
    /// popping thread made before it popped the last item.
    #[inline(always)]
    pub(crate) fn is_empty(&self) -> bool {
        let popped = self.popped.0.load(Ordering::Acquire);
        self.pushed.0.load(Ordering::Relaxed) == popped
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    impl QueueWord for u64 {
        fn word(self) -> u64 {
            self
        }
        fn from_word(word: u64) -> u64 {
            word
        }
    }

    #[test]
    fn the_queue_returns_items_in_order_and_refuses_items_beyond_its_capacity() {
        let queue = SpscQueue::<u64>::new(4);
        for lap in 0..3u64 {
            assert!(queue.is_empty() && queue.pop().is_none());
            assert!((0..4).all(|i| queue.push(lap * 10 + i)));
            assert!(!queue.push(99));
            assert_eq!((queue.len(), queue.peek()), (4, Some(lap * 10)));
            assert!((0..4).all(|i| queue.pop() == Some(lap * 10 + i)));
        }
    }
}
