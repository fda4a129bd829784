//! A queue of bytes that waits for its turn: a little in memory, the rest in a file without a
//! name, up to a limit. It lets the programs left of `gather` run on while earlier nodes are being
//! gathered: `scatter == cat == gather` would hang for ever otherwise, since scatter waits for the
//! slowest node and that node for its turn.

use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::FileExt;

use crate::post::{Failure, Try, try_read};

/// Bytes that each of the two ends keeps in memory.
pub const CHUNK: usize = 64 * 1024;

/// How to come by the file when it is needed.
pub type Maker = Box<dyn FnMut() -> io::Result<File>>;

/// The queue: head, then file, then tail.
pub struct Spool {
    head: Vec<u8>,
    head_taken: usize,
    tail: Vec<u8>,
    file: Option<File>,
    file_taken: u64,
    file_end: u64,
    limit: u64,
    full: bool,
    maker: Maker,
}

impl Spool {
    /// An empty queue that puts up to `limit` bytes into the file that `maker` gives.
    pub fn new(limit: u64, maker: Maker) -> Self {
        Self {
            head: Vec::new(),
            head_taken: 0,
            tail: Vec::new(),
            file: None,
            file_taken: 0,
            file_end: 0,
            limit,
            full: false,
            maker,
        }
    }

    /// Whether the file has taken all it may: what comes now has to wait.
    pub fn is_full(&self) -> bool {
        self.full
    }

    /// Bytes that went into the file.
    pub fn spilled(&self) -> u64 {
        self.file_end
    }

    /// Whether [`Spool::fill`] would read.
    pub fn wants(&self, spill: bool) -> bool {
        self.tail.len() < CHUNK || (spill && !self.full)
    }

    /// Reads once from `input`; with `spill` it makes room in memory by way of the file.
    ///
    /// # Errors
    /// The input or the file is broken.
    pub fn fill(&mut self, input: &mut impl Read, what: &str, spill: bool) -> Result<Try, Failure> {
        if self.tail.len() >= CHUNK && spill && !self.full {
            self.spill()?;
        }
        let old = self.tail.len();
        if old >= CHUNK {
            return Ok(Try::Blocked);
        }
        self.tail.resize(CHUNK, 0);
        let tried = try_read(input, &mut self.tail[old..], what);
        let count = if let Ok(Try::Moved(count)) = tried { count } else { 0 };
        self.tail.truncate(old + count);
        tried
    }

    fn spill(&mut self) -> Result<(), Failure> {
        if self.file_end + self.tail.len() as u64 > self.limit {
            self.full = true;
            return Ok(());
        }
        let failed = |error| Failure::Io("writing a temporary file".into(), error);
        if self.file.is_none() {
            self.file = Some((self.maker)().map_err(failed)?);
        }
        let Some(file) = &self.file else { return Ok(()) };
        match file.write_all_at(&self.tail, self.file_end) {
            Ok(()) => {
                self.file_end += self.tail.len() as u64;
                self.tail.clear();
                Ok(())
            }
            // No room on the disk is no failure: the writer on the left waits, as at a full pipe.
            Err(error) if no_room(&error) => {
                self.full = true;
                Ok(())
            }
            Err(error) => Err(failed(error)),
        }
    }

    /// The next bytes, as many as are at hand; empty when the queue is.
    ///
    /// # Errors
    /// The file cannot be read.
    pub fn front(&mut self) -> Result<&[u8], Failure> {
        if self.head_taken == self.head.len() {
            self.head_taken = 0;
            self.head.clear();
            match &self.file {
                Some(file) if self.file_taken < self.file_end => {
                    let count = (self.file_end - self.file_taken).min(CHUNK as u64);
                    self.head.resize(count as usize, 0);
                    file.read_exact_at(&mut self.head, self.file_taken).map_err(|error| {
                        Failure::Io("reading back a temporary file".into(), error)
                    })?;
                    self.file_taken += count;
                }
                _ => std::mem::swap(&mut self.head, &mut self.tail),
            }
        }
        Ok(&self.head[self.head_taken..])
    }

    /// The first `count` bytes of [`Spool::front`] have been used.
    pub fn advance(&mut self, count: usize) {
        self.head_taken = self.head.len().min(self.head_taken + count);
    }

    /// Whether nothing waits.
    pub fn is_empty(&self) -> bool {
        self.head_taken == self.head.len()
            && self.file_taken == self.file_end
            && self.tail.is_empty()
    }
}

fn no_room(error: &io::Error) -> bool {
    use io::ErrorKind::{FileTooLarge, QuotaExceeded, StorageFull};
    matches!(error.kind(), StorageFull | QuotaExceeded | FileTooLarge)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::simulation::nameless_file;

    #[test]
    fn bytes_come_back_in_order_through_memory_and_file() {
        let all: Vec<u8> = (0..1_000_000u32).map(|i| (i % 251) as u8).collect();
        let mut input = &all[..];
        let mut spool = Spool::new(u64::MAX, Box::new(nameless_file));
        while spool.fill(&mut input, "test", true).unwrap() != Try::Ended {}
        assert!(spool.spilled() > 800_000);
        let mut out = Vec::new();
        while !spool.is_empty() {
            let part = spool.front().unwrap();
            let count = part.len().min(1000);
            out.extend_from_slice(&part[..count]);
            spool.advance(count);
        }
        assert!(out == all);
    }

    #[test]
    fn beyond_the_limit_the_input_waits() {
        let all = vec![7; 10 * CHUNK];
        let mut input = &all[..];
        let mut spool = Spool::new(2 * CHUNK as u64, Box::new(nameless_file));
        for _ in 0..20 {
            spool.fill(&mut input, "test", true).unwrap();
        }
        assert!(spool.is_full() && !spool.wants(true));
        assert_eq!(input.len(), 7 * CHUNK, "two chunks in the file, one in memory");
    }
}
