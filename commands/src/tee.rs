//! A bounded queue of bytes with two readers: what came in goes both to this node's output and to
//! the next node, each at its own speed, and a slow one holds up the input.

/// One of the two readers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reader {
    /// This node's own output.
    Output,
    /// The next node.
    Next,
}

/// The queue. A reader that has gone holds nothing up.
#[derive(Debug)]
pub struct Tee {
    bytes: Box<[u8]>,
    written: u64,
    taken: [Option<u64>; 2],
}

impl Tee {
    /// A queue for `capacity` bytes, with these readers.
    pub fn new(capacity: usize, output: bool, next: bool) -> Self {
        let bytes = vec![0; capacity].into_boxed_slice();
        Self { bytes, written: 0, taken: [output.then_some(0), next.then_some(0)] }
    }

    /// How many bytes wait for this reader.
    pub fn waiting(&self, reader: Reader) -> usize {
        self.taken[reader as usize].map_or(0, |taken| (self.written - taken) as usize)
    }

    /// Whether the reader is still there.
    pub fn has(&self, reader: Reader) -> bool {
        self.taken[reader as usize].is_some()
    }

    /// How many bytes can be added.
    pub fn room(&self) -> usize {
        let longest = self.waiting(Reader::Output).max(self.waiting(Reader::Next));
        self.bytes.len() - longest
    }

    /// Free memory to read into; tell with [`Tee::filled`] how much of it was used.
    pub fn space(&mut self) -> &mut [u8] {
        let start = (self.written % self.bytes.len() as u64) as usize;
        let end = self.bytes.len().min(start + self.room());
        &mut self.bytes[start..end]
    }

    /// The first `count` bytes of [`Tee::space`] have been filled.
    pub fn filled(&mut self, count: usize) {
        self.written += count.min(self.room()) as u64;
    }

    /// Adds bytes; false, with nothing added, when there is no room for all of them.
    pub fn push(&mut self, mut bytes: &[u8]) -> bool {
        if bytes.len() > self.room() {
            return false;
        }
        while !bytes.is_empty() {
            let space = self.space();
            let count = space.len().min(bytes.len());
            space[..count].copy_from_slice(&bytes[..count]);
            self.filled(count);
            bytes = &bytes[count..];
        }
        true
    }

    /// The next bytes for this reader, as many as lie together.
    pub fn front(&self, reader: Reader) -> &[u8] {
        let Some(taken) = self.taken[reader as usize] else { return &[] };
        let start = (taken % self.bytes.len() as u64) as usize;
        let end = self.bytes.len().min(start + self.waiting(reader));
        &self.bytes[start..end]
    }

    /// The reader has used the first `count` bytes of [`Tee::front`].
    pub fn advance(&mut self, reader: Reader, count: usize) {
        let waiting = self.waiting(reader);
        if let Some(taken) = &mut self.taken[reader as usize] {
            *taken += count.min(waiting) as u64;
        }
    }

    /// The reader has gone.
    pub fn close(&mut self, reader: Reader) {
        self.taken[reader as usize] = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Feeds and drains a small queue as told; what each of the readers has seen.
    fn play(steps: &[(u8, usize)]) -> [Vec<u8>; 2] {
        let mut tee = Tee::new(13, true, true);
        let (mut next, mut seen) = (0u8, [Vec::new(), Vec::new()]);
        for &(what, count) in steps {
            if what == 2 {
                let bytes: Vec<u8> = (0..count).map(|i| next.wrapping_add(i as u8)).collect();
                let fits = count <= tee.room();
                assert_eq!(tee.push(&bytes), fits);
                next = next.wrapping_add(if fits { count as u8 } else { 0 });
                continue;
            }
            let which = usize::from(what);
            let reader = [Reader::Output, Reader::Next][which];
            let part = tee.front(reader);
            let count = count.min(part.len());
            seen[which].extend_from_slice(&part[..count]);
            tee.advance(reader, count);
        }
        seen
    }

    proptest! {
        #[test]
        fn both_readers_see_all_bytes_in_order(
            steps in prop::collection::vec((0u8..3, 1usize..9), 1..200)
        ) {
            for list in play(&steps) {
                prop_assert!(list.iter().enumerate().all(|(i, byte)| *byte == i as u8));
            }
        }
    }

    #[test]
    fn a_reader_that_has_gone_holds_nothing_up() {
        let mut tee = Tee::new(4, true, true);
        assert!(tee.push(b"abcd"));
        tee.advance(Reader::Next, 4);
        assert_eq!(tee.room(), 0);
        tee.close(Reader::Output);
        assert_eq!(tee.room(), 4);
        assert_eq!(tee.front(Reader::Output), b"");
    }
}
