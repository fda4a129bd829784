//! A bounded queue of bytes with two readers: this node's output and the next node. Each reader
//! reads all bytes at its own speed, and a slow reader delays the input.

/// One of the two readers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reader {
    /// This node's own output.
    Output,
    /// The next node.
    Next,
}

/// The queue. A closed reader does not delay the input.
#[derive(Debug)]
pub struct Tee {
    bytes: Box<[u8]>,
    write_offset: u64,
    read_offsets: [Option<u64>; 2],
}

impl Tee {
    /// A queue for `capacity` bytes, with these readers.
    pub fn new(capacity: usize, has_output: bool, has_next: bool) -> Self {
        let bytes = vec![0; capacity].into_boxed_slice();
        Self {
            bytes,
            write_offset: 0,
            read_offsets: [has_output.then_some(0), has_next.then_some(0)],
        }
    }

    /// Number of bytes that wait for this reader.
    pub fn pending_len(&self, reader: Reader) -> usize {
        self.read_offsets[reader as usize]
            .map_or(0, |read_offset| (self.write_offset - read_offset) as usize)
    }

    /// Whether the reader is open.
    pub fn is_open(&self, reader: Reader) -> bool {
        self.read_offsets[reader as usize].is_some()
    }

    /// Number of bytes that can be added.
    pub fn free_len(&self) -> usize {
        let max_pending = self.pending_len(Reader::Output).max(self.pending_len(Reader::Next));
        self.bytes.len() - max_pending
    }

    /// Free memory to read into. The caller then calls [`Tee::commit`] with the number of bytes.
    pub fn write_slice(&mut self) -> &mut [u8] {
        let start = (self.write_offset % self.bytes.len() as u64) as usize;
        let end = self.bytes.len().min(start + self.free_len());
        &mut self.bytes[start..end]
    }

    /// Adds the first `count` bytes of [`Tee::write_slice`], which the caller has filled.
    pub fn commit(&mut self, count: usize) {
        self.write_offset += count.min(self.free_len()) as u64;
    }

    /// Adds all bytes, or none if the free space is too small. Returns whether they were added.
    pub fn push(&mut self, mut bytes: &[u8]) -> bool {
        if bytes.len() > self.free_len() {
            return false;
        }
        while !bytes.is_empty() {
            let slice = self.write_slice();
            let count = slice.len().min(bytes.len());
            slice[..count].copy_from_slice(&bytes[..count]);
            self.commit(count);
            bytes = &bytes[count..];
        }
        true
    }

    /// The next bytes for this reader, up to the end of the buffer.
    pub fn read_slice(&self, reader: Reader) -> &[u8] {
        let Some(read_offset) = self.read_offsets[reader as usize] else { return &[] };
        let start = (read_offset % self.bytes.len() as u64) as usize;
        let end = self.bytes.len().min(start + self.pending_len(reader));
        &self.bytes[start..end]
    }

    /// Removes the first `count` bytes of [`Tee::read_slice`] for this reader.
    pub fn advance(&mut self, reader: Reader, count: usize) {
        let pending = self.pending_len(reader);
        if let Some(read_offset) = &mut self.read_offsets[reader as usize] {
            *read_offset += count.min(pending) as u64;
        }
    }

    /// Closes a reader.
    pub fn close(&mut self, reader: Reader) {
        self.read_offsets[reader as usize] = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Applies the steps to a small queue. Returns the bytes that each reader has read.
    fn apply_steps(steps: &[(u8, usize)]) -> [Vec<u8>; 2] {
        let mut tee = Tee::new(13, true, true);
        let (mut next, mut outputs) = (0u8, [Vec::new(), Vec::new()]);
        for &(action, count) in steps {
            if action == 2 {
                let bytes: Vec<u8> = (0..count).map(|i| next.wrapping_add(i as u8)).collect();
                let fits = count <= tee.free_len();
                assert_eq!(tee.push(&bytes), fits);
                next = next.wrapping_add(if fits { count as u8 } else { 0 });
                continue;
            }
            let index = usize::from(action);
            let reader = [Reader::Output, Reader::Next][index];
            let pending = tee.read_slice(reader);
            let count = count.min(pending.len());
            outputs[index].extend_from_slice(&pending[..count]);
            tee.advance(reader, count);
        }
        outputs
    }

    proptest! {
        #[test]
        fn both_readers_see_all_bytes_in_order(
            steps in prop::collection::vec((0u8..3, 1usize..9), 1..200)
        ) {
            for list in apply_steps(&steps) {
                prop_assert!(list.iter().enumerate().all(|(i, byte)| *byte == i as u8));
            }
        }
    }

    #[test]
    fn a_closed_reader_does_not_block_the_queue() {
        let mut tee = Tee::new(4, true, true);
        assert!(tee.push(b"abcd"));
        tee.advance(Reader::Next, 4);
        assert_eq!(tee.free_len(), 0);
        tee.close(Reader::Output);
        assert_eq!(tee.free_len(), 4);
        assert_eq!(tee.read_slice(Reader::Output), b"");
    }
}
