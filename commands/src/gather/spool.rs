//! A queue for the bytes of a node until it is the node's turn. A part of the queue is in memory,
//! and the rest is in a nameless file with a size limit. The programs to the left of `gather` can
//! thus continue while earlier nodes are gathered. Without the queue, `scatter == cat == gather`
//! would hang, because scatter waits for the slowest node and that node waits for its turn.

use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::FileExt;

use crate::transport::{IoProgress, NodeError, try_read};

/// Maximum bytes that each end of the queue keeps in memory.
pub const CHUNK_LEN: usize = 64 * 1024;

/// Creates the file when it is needed.
pub type OpenSpoolFile = Box<dyn FnMut() -> io::Result<File>>;

/// The queue: first `head`, then the file, then `tail`.
pub struct Spool {
    head: Vec<u8>,
    head_offset: usize,
    tail: Vec<u8>,
    file: Option<File>,
    file_offset: u64,
    file_end: u64,
    max_file_len: u64,
    file_full: bool,
    open_file: OpenSpoolFile,
}

impl Spool {
    /// An empty queue that spills up to `max_file_len` bytes to the file that `open_file` creates.
    pub fn new(max_file_len: u64, open_file: OpenSpoolFile) -> Self {
        Self {
            head: Vec::new(),
            head_offset: 0,
            tail: Vec::new(),
            file: None,
            file_offset: 0,
            file_end: 0,
            max_file_len,
            file_full: false,
            open_file,
        }
    }

    /// Whether the file has reached its limit, or the disk is full. Further input has to wait.
    pub fn is_full(&self) -> bool {
        self.file_full
    }

    /// Number of bytes that were written to the file.
    pub fn spilled_len(&self) -> u64 {
        self.file_end
    }

    /// Whether [`Spool::fill`] would read.
    pub fn can_fill(&self, spill: bool) -> bool {
        self.tail.len() < CHUNK_LEN || (spill && !self.file_full)
    }

    /// Reads once from `input`. With `spill`, a full tail is first written to the file.
    ///
    /// # Errors
    /// An I/O error of the input or the file.
    pub fn fill(
        &mut self,
        input: &mut impl Read,
        input_name: &str,
        spill: bool,
    ) -> Result<IoProgress, NodeError> {
        if self.tail.len() >= CHUNK_LEN && spill && !self.file_full {
            self.spill()?;
        }
        let tail_len = self.tail.len();
        if tail_len >= CHUNK_LEN {
            return Ok(IoProgress::WouldBlock);
        }
        self.tail.resize(CHUNK_LEN, 0);
        let progress = try_read(input, &mut self.tail[tail_len..], input_name);
        let count = if let Ok(IoProgress::Transferred(count)) = progress { count } else { 0 };
        self.tail.truncate(tail_len + count);
        progress
    }

    fn spill(&mut self) -> Result<(), NodeError> {
        if self.file_end + self.tail.len() as u64 > self.max_file_len {
            self.file_full = true;
            return Ok(());
        }
        let failed = |error| NodeError::Io("writing a temporary file".into(), error);
        if self.file.is_none() {
            self.file = Some((self.open_file)().map_err(failed)?);
        }
        let Some(file) = &self.file else { return Ok(()) };
        match file.write_all_at(&self.tail, self.file_end) {
            Ok(()) => {
                self.file_end += self.tail.len() as u64;
                self.tail.clear();
                Ok(())
            }
            // A full disk is not an error: the writer on the left waits, as with a full pipe.
            Err(error) if is_disk_full(&error) => {
                self.file_full = true;
                Ok(())
            }
            Err(error) => Err(failed(error)),
        }
    }

    /// The next available bytes. Empty if the queue is empty.
    ///
    /// # Errors
    /// Returns an error if the file cannot be read.
    pub fn read_slice(&mut self) -> Result<&[u8], NodeError> {
        if self.head_offset == self.head.len() {
            self.head_offset = 0;
            self.head.clear();
            match &self.file {
                Some(file) if self.file_offset < self.file_end => {
                    let count = (self.file_end - self.file_offset).min(CHUNK_LEN as u64);
                    self.head.resize(count as usize, 0);
                    file.read_exact_at(&mut self.head, self.file_offset).map_err(|error| {
                        NodeError::Io("reading back a temporary file".into(), error)
                    })?;
                    self.file_offset += count;
                }
                _ => std::mem::swap(&mut self.head, &mut self.tail),
            }
        }
        Ok(&self.head[self.head_offset..])
    }

    /// Removes the first `count` bytes of [`Spool::read_slice`].
    pub fn advance(&mut self, count: usize) {
        self.head_offset = self.head.len().min(self.head_offset + count);
    }

    /// Whether the queue is empty.
    pub fn is_empty(&self) -> bool {
        self.head_offset == self.head.len()
            && self.file_offset == self.file_end
            && self.tail.is_empty()
    }
}

fn is_disk_full(error: &io::Error) -> bool {
    use io::ErrorKind::{FileTooLarge, QuotaExceeded, StorageFull};
    matches!(error.kind(), StorageFull | QuotaExceeded | FileTooLarge)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::simulation::nameless_file;

    #[test]
    fn bytes_are_returned_in_order_from_memory_and_file() {
        let all: Vec<u8> = (0..1_000_000u32).map(|i| (i % 251) as u8).collect();
        let mut input = &all[..];
        let mut spool = Spool::new(u64::MAX, Box::new(nameless_file));
        while spool.fill(&mut input, "test", true).unwrap() != IoProgress::Closed {}
        assert!(spool.spilled_len() > 800_000);
        let mut out = Vec::new();
        while !spool.is_empty() {
            let bytes = spool.read_slice().unwrap();
            let count = bytes.len().min(1000);
            out.extend_from_slice(&bytes[..count]);
            spool.advance(count);
        }
        assert!(out == all);
    }

    #[test]
    fn beyond_the_limit_the_input_waits() {
        let all = vec![7; 10 * CHUNK_LEN];
        let mut input = &all[..];
        let mut spool = Spool::new(2 * CHUNK_LEN as u64, Box::new(nameless_file));
        for _ in 0..20 {
            spool.fill(&mut input, "test", true).unwrap();
        }
        assert!(spool.is_full() && !spool.can_fill(true));
        assert_eq!(input.len(), 7 * CHUNK_LEN, "two chunks in the file, one in memory");
    }
}
