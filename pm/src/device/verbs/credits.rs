//! Flow control: the numbers of messages that were consumed. Each process writes its numbers by
//! RDMA to words in the memory of its peers, so that every message that arrives finds a buffer.

#![forbid(unsafe_code)]

use super::adapter::{AccessRights, Adapter, DmaBuffer, MemoryRegion};
use super::bindings::Sge;
use super::outgoing_queue::is_before;
use super::receive_buffers;
use crate::sync::{AtomicU64, Ordering};
use std::sync::Arc;

/// See the module.
pub(super) struct Credits {
    nodes: usize,
    /// The number of messages to one peer that may be in flight or unread.
    window: u32,
    /// The first words, one for each peer, contain the number of this process's messages that the
    /// peer has consumed. The peer writes its word by RDMA. The next words, one for each peer,
    /// contain the number of the peer's messages that this process has consumed. RDMA writes send
    /// these words from here. The upper half of each word has the number of control messages.
    words: MemoryRegion<Arc<DmaBuffer>>,
}

/// The word for these numbers of messages and control messages.
pub(super) fn word_of([messages, control_messages]: [u32; 2]) -> u64 {
    u64::from(control_messages) << 32 | u64::from(messages)
}

impl Credits {
    pub(super) fn new(adapter: &Arc<Adapter>, nodes: usize) -> Result<Credits, String> {
        let words = MemoryRegion::allocate(adapter, nodes * 16, AccessRights::RemoteWrite)?;
        Ok(Credits { nodes, window: receive_buffers::window(nodes) as u32, words })
    }

    pub(super) fn window(&self) -> u32 {
        self.window
    }

    /// The words in which peers report their counts of consumed messages.
    pub(super) fn words(&self) -> Arc<DmaBuffer> {
        self.words.memory.clone()
    }

    /// The address of the words that peers write, and their key.
    pub(super) fn target(&self) -> (u64, u32) {
        (self.words.memory.addr(0, 8).addr() as u64, self.words.rkey)
    }

    fn reported_by(&self, peer: u32) -> &AtomicU64 {
        self.words.memory.word(peer as usize)
    }

    /// The number of this process's control messages that a peer has consumed.
    pub(super) fn control_consumed_by(&self, peer: u32) -> u32 {
        (self.reported_by(peer).load(Ordering::Acquire) >> 32) as u32
    }

    /// Handles the word of a peer in its hello, which may be older or newer than the word that the
    /// peer has written.
    pub(super) fn on_hello(&self, peer: u32, hello_word: u64) {
        let newer_word = |known_word| {
            Some(newer_counts(known_word, hello_word)).filter(|&word| word != known_word)
        };
        // The word is updated atomically, because the peer may write it at the same time.
        let word = self.reported_by(peer);
        let _ = word.fetch_update(Ordering::AcqRel, Ordering::Acquire, newer_word);
    }

    /// Whether a report of the `consumed` messages to a peer is due. The last report was about the
    /// first `advertised` messages.
    #[inline]
    pub(super) fn is_report_due(&self, consumed: u32, advertised: u32) -> bool {
        consumed.wrapping_sub(advertised) >= self.window / 2
    }

    /// Stores the numbers of the messages and control messages of a peer that this process has
    /// consumed. Returns the location of the word to send.
    pub(super) fn store_consumed(&self, peer: u32, consumed: [u32; 2]) -> Sge {
        let index = self.nodes + peer as usize;
        self.words.memory.word(index).store(word_of(consumed), Ordering::Release);
        self.location(index, 8)
    }

    /// A location of length 0. A write from this location completes after all earlier work.
    pub(super) fn no_bytes(&self) -> Sge {
        self.location(0, 0)
    }

    fn location(&self, index: usize, length: u32) -> Sge {
        let addr = self.words.memory.addr(index * 8, 8).addr() as u64;
        Sge { addr, length, lkey: self.words.lkey }
    }
}

/// For each half of a word, the newer of two counts.
fn newer_counts(known_word: u64, other_word: u64) -> u64 {
    let newer = |shift: u32| {
        let (known, other) = ((known_word >> shift) as u32, (other_word >> shift) as u32);
        u64::from(if is_before(known, other) { other } else { known }) << shift
    };
    newer(0) | newer(32)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newer_count_of_each_kind_is_kept_also_after_it_has_wrapped_around() {
        let newer = |known, other| newer_counts(word_of(known), word_of(other));
        assert_eq!(newer([5, 1], [7, 0]), word_of([7, 1]));
        assert_eq!(newer([7, 0], [5, 1]), word_of([7, 1]));
        assert_eq!(newer([u32::MAX, 3], [2, u32::MAX]), word_of([2, 3]));
    }
}
