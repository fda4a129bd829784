//! Memory of other processes, and the copies of stacks that are made of it.

use std::io::IoSliceMut;

use nix::sys::uio::{RemoteIoVec, process_vm_readv};
use nix::unistd::Pid;

/// Memory that can be read while a process stands still.
pub trait Memory {
    /// Reads bytes from `address` on; returns how many could be read, from the first on.
    fn read(&self, address: u64, buffer: &mut [u8]) -> usize;
}

/// The memory of a process that this one may trace.
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

/// A piece of memory as it was while the process stood still.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct MemoryCopy {
    /// Where it begins.
    pub start: u64,
    /// What was there.
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

    /// The word of eight bytes at `address`, if all of it was copied.
    pub fn word(&self, address: u64) -> Option<u64> {
        let offset = usize::try_from(address.checked_sub(self.start)?).ok()?;
        let bytes = self.bytes.get(offset..offset.checked_add(8)?)?;
        Some(u64::from_le_bytes(bytes.try_into().ok()?))
    }
}

/// What was copied of the stack of one thread: the used part, and after a signal that was taken on
/// a stack of its own also the used part of the stack that it interrupted.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct StackCopy {
    /// The pieces, the one with the stack pointer first.
    pub pieces: Vec<MemoryCopy>,
    /// Whether the used part was longer than what is copied of a thread.
    pub is_truncated: bool,
}

impl StackCopy {
    /// The word of eight bytes at `address`, if it was copied.
    pub fn word(&self, address: u64) -> Option<u64> {
        self.pieces.iter().find_map(|piece| piece.word(address))
    }
}
