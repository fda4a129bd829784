//! The completions that the program has not read, in the order of completion.

use crate::operation::Completion;

/// See the [module](self). Entries are written and read in place and never moved one by one.
#[derive(Debug, Default)]
pub(crate) struct Completions {
    entries: Vec<Completion>,
    /// The number of entries at the front that the program has read.
    read_count: usize,
}

impl Completions {
    #[inline(always)]
    pub(crate) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    #[inline(always)]
    pub(crate) fn push(&mut self, completion: Completion) {
        if self.entries.len() == self.entries.capacity() {
            self.make_room();
        }
        self.entries.push(completion);
    }

    /// Drops the entries that were read, and doubles the room.
    #[cold]
    fn make_room(&mut self) {
        self.entries.drain(..self.read_count);
        self.read_count = 0;
        self.entries.reserve(self.entries.len().max(16));
    }

    #[inline(always)]
    pub(crate) fn first(&self) -> Option<&Completion> {
        self.entries.get(self.read_count)
    }

    #[inline(always)]
    pub(crate) fn remove_first(&mut self) {
        self.read_count += 1;
        if self.read_count >= self.entries.len() {
            self.clear();
        }
    }

    #[inline(always)]
    pub(crate) fn clear(&mut self) {
        self.entries.clear();
        self.read_count = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::operation::{Channel, CompletionKind};
    use crate::wire::Envelope;

    fn completion(context: usize) -> Completion {
        Completion {
            context,
            kind: CompletionKind::Sent,
            channel: Channel::Tagged,
            len: 0,
            start: std::ptr::null_mut(),
            source: 0,
            envelope: Envelope { tag: None, data: None },
            failure: None,
        }
    }

    #[test]
    fn entries_are_read_in_order_and_their_space_is_reused() {
        let mut completions = Completions::default();
        let (mut next_in, mut next_out) = (0, 0);
        for round in 0..1000 {
            for _ in 0..round % 7 {
                completions.push(completion(next_in));
                next_in += 1;
            }
            for _ in 0..round % 5 {
                let first = completions.first().map(|first| first.context);
                assert_eq!(first, (next_out < next_in).then_some(next_out));
                if first.is_some() {
                    completions.remove_first();
                    next_out += 1;
                }
            }
            assert_eq!(completions.is_empty(), next_out == next_in);
        }
        let unread = next_in - next_out;
        assert!(unread > 900 && completions.entries.capacity() < 3 * unread);
        completions.clear();
        assert!(completions.is_empty() && completions.first().is_none());
    }
}
