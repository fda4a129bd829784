//! Reads memory of other processes, and holds copies of stacks.

use std::io::IoSliceMut;

use nix::sys::uio::{RemoteIoVec, process_vm_readv};
use nix::unistd::Pid;

/// The memory of a stopped process.
pub trait Memory {
    /// Reads bytes from `address` on. Returns the number of bytes that could be read.
    fn read(&self, address: u64, buffer: &mut [u8]) -> usize;
}

/// The memory of a process that this process may trace.
#[derive(Debug, Clone, Copy)]
pub struct ProcessMemory {
    pid: Pid,
}

impl ProcessMemory {
    /// The memory of process `pid`.
    pub fn new(pid: i32) -> Self {
        Self { pid: Pid::from_raw(pid) }
    }
}

impl Memory for ProcessMemory {
    fn read(&self, address: u64, buffer: &mut [u8]) -> usize {
        let Ok(base) = usize::try_from(address) else { return 0 };
        let remote = [RemoteIoVec { base, len: buffer.len() }];
        process_vm_readv(self.pid, &mut [IoSliceMut::new(buffer)], &remote).unwrap_or(0)
    }
}

/// A copy of a piece of memory, made while the process was stopped.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct MemoryCopy {
    /// The address of the first byte.
    pub start: u64,
    /// The bytes.
    pub bytes: Vec<u8>,
}

impl MemoryCopy {
    /// Copies up to `len` bytes from `start` on, as far as they can be read.
    pub fn of(memory: &impl Memory, start: u64, len: usize) -> Self {
        let mut bytes = vec![0; len];
        let read = memory.read(start, &mut bytes).min(len);
        bytes.truncate(read);
        Self { start, bytes }
    }

    /// Whether `address` is in the copy.
    pub fn contains(&self, address: u64) -> bool {
        address.checked_sub(self.start).is_some_and(|offset| offset < self.bytes.len() as u64)
    }

    /// The word of eight bytes at `address`, if the copy contains all of it.
    pub fn word(&self, address: u64) -> Option<u64> {
        let offset = usize::try_from(address.checked_sub(self.start)?).ok()?;
        let bytes = self.bytes.get(offset..offset.checked_add(8)?)?;
        Some(u64::from_le_bytes(bytes.try_into().ok()?))
    }
}

/// The copy of the stack of one thread. It contains the used part of the stack. If a signal handler
/// runs on a separate stack, it also contains the used part of the interrupted stack.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct StackCopy {
    /// The pieces. The piece with the stack pointer comes first.
    pub pieces: Vec<MemoryCopy>,
    /// Whether the used part was longer than the maximum that is copied.
    pub is_truncated: bool,
}

impl StackCopy {
    /// The word of eight bytes at `address`, if it was copied.
    pub fn word(&self, address: u64) -> Option<u64> {
        self.pieces.iter().find_map(|piece| piece.word(address))
    }
}
