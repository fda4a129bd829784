//! The memory of a process as tools see it: with the bytes of the program at breakpoints. This
//! module writes the int3 bytes of breakpoints, and keeps the list of breakpoints equal to them.

#![forbid(unsafe_code)]

use crate::tracer::breakpoints::{BreakpointKind, Breakpoints, INT3, MAX_BREAKPOINTS};
use crate::tracer::error::TraceError;
use crate::tracer::kernel::Kernel;
use crate::tracer::memory::{self, RangeKind};
use crate::tracer::{Pid, procfs};

/// The most bytes of one read or write.
pub const MAX_MEMORY_LEN: usize = 65_024;

/// Allocates a buffer for one read or write, after checking its length.
pub(in crate::tracer) fn checked_buffer(length: usize) -> Result<Vec<u8>, TraceError> {
    if length == 0 || length > MAX_MEMORY_LEN {
        return Err(TraceError::Length(length as u64));
    }
    Ok(vec![0; length])
}

/// The memory of a process, with its breakpoints.
#[derive(Debug)]
pub struct TracedMemory {
    pid: Pid,
    breakpoints: Breakpoints,
    /// Tasks that share the memory until their exec: children of vfork(2). While such a task
    /// exists, the memory contains no int3 of a breakpoint.
    guests: Vec<Pid>,
}

/// The breakpoint that a thread has executed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BreakpointHit {
    /// Its address.
    pub address: u64,
    /// Its kind. `None` if the breakpoint was removed after the thread had executed it.
    pub kind: Option<BreakpointKind>,
}

/// Replaces the byte `from` at a breakpoint by `to`: int3 or the byte of the program. Does nothing
/// if the memory does not exist any more, or if the program has changed the byte itself.
fn replace_byte<K: Kernel>(kernel: &mut K, pid: Pid, address: u64, [from, to]: [u8; 2]) {
    let mut byte = [0];
    if kernel.read_memory(pid, address, &mut byte) && byte[0] == from {
        kernel.write_memory(pid, address, &[to]);
    }
}

impl TracedMemory {
    /// The memory of a process without breakpoints.
    pub fn new(pid: Pid) -> Self {
        Self { pid, breakpoints: Breakpoints::default(), guests: Vec::new() }
    }

    /// Its breakpoints.
    pub fn breakpoints(&self) -> &Breakpoints {
        &self.breakpoints
    }

    /// Reads memory, with the original bytes of the program at breakpoints.
    pub fn read<K: Kernel>(
        &self,
        kernel: &K,
        address: u64,
        length: usize,
    ) -> Result<Vec<u8>, TraceError> {
        let mut bytes = checked_buffer(length)?;
        self.read_into(kernel, address, &mut bytes)?;
        Ok(bytes)
    }

    /// Like [`Self::read`], into a buffer whose length the caller has checked.
    pub fn read_into<K: Kernel>(
        &self,
        kernel: &K,
        address: u64,
        buffer: &mut [u8],
    ) -> Result<(), TraceError> {
        if !kernel.read_memory(self.pid, address, buffer) {
            return Err(TraceError::Address(address));
        }
        self.breakpoints.hide(address, buffer);
        Ok(())
    }

    /// Writes memory, and keeps the breakpoints in it. `kind` is the kind of the range according to
    /// the memory map.
    pub fn write<K: Kernel>(
        &mut self,
        kernel: &mut K,
        (address, bytes): (u64, &[u8]),
        kind: RangeKind,
        may_write_shared: bool,
    ) -> Result<(), TraceError> {
        let mut former = checked_buffer(bytes.len())?;
        match kind {
            RangeKind::Unmapped => return Err(TraceError::Address(address)),
            RangeKind::Shared if !may_write_shared => {
                return Err(TraceError::SharedMemory(address));
            }
            RangeKind::Shared | RangeKind::Private => {}
        }
        // The former bytes are written back if the write fails after a part of the range.
        if !kernel.read_memory(self.pid, address, &mut former) {
            return Err(TraceError::Address(address));
        }
        let (written, originals) = self.breakpoints.overlay(address, bytes);
        if !kernel.write_memory(self.pid, address, &written) {
            // A part may have been written.
            kernel.write_memory(self.pid, address, &former);
            return Err(TraceError::Address(address));
        }
        self.breakpoints.set_originals(&originals);
        Ok(())
    }

    /// The kind of a range according to the memory map.
    pub fn range_kind(&self, address: u64, length: usize) -> RangeKind {
        let map = procfs::memory_map(self.pid).unwrap_or_default();
        memory::range_kind(&map, address, length as u64)
    }

    /// Sets a breakpoint.
    pub fn set_breakpoint<K: Kernel>(
        &mut self,
        kernel: &mut K,
        address: u64,
        kind: BreakpointKind,
    ) -> Result<(), TraceError> {
        match self.breakpoints.kind(address) {
            Some(former) if former == kind => return Ok(()),
            Some(_) => {
                let reason = "a breakpoint of the other kind is there; remove it first";
                return Err(TraceError::Breakpoint(address, reason));
            }
            None if self.breakpoints.count() >= MAX_BREAKPOINTS => {
                let reason = "the process has too many breakpoints; remove some";
                return Err(TraceError::Breakpoint(address, reason));
            }
            None => {}
        }
        let mut byte = [0];
        if !kernel.read_memory(self.pid, address, &mut byte) {
            return Err(TraceError::Address(address));
        }
        self.breakpoints.add(address, byte[0], kind);
        if self.breakpoints.is_inserted(address) && !kernel.write_memory(self.pid, address, &[INT3])
        {
            self.breakpoints.remove(address);
            let reason = "the memory cannot be written";
            return Err(TraceError::Breakpoint(address, reason));
        }
        Ok(())
    }

    /// Checks that a breakpoint can be removed. `original` is the byte of the program at the
    /// address.
    pub fn check_reset(&self, address: u64, original: u8) -> Result<(), TraceError> {
        match self.breakpoints.original(address) {
            None => Err(TraceError::Breakpoint(address, "there is none")),
            Some(byte) if byte != original => {
                let reason = "the given byte differs from the byte of the program";
                Err(TraceError::Breakpoint(address, reason))
            }
            Some(_) => Ok(()),
        }
    }

    /// Adds a breakpoint whose int3 a killed tracer may have left in the memory.
    pub fn add_leftover(&mut self, address: u64, original: u8) {
        self.breakpoints.add(address, original, BreakpointKind::Normal);
    }

    /// Removes a breakpoint that exists.
    pub fn remove_breakpoint<K: Kernel>(&mut self, kernel: &mut K, address: u64, original: u8) {
        if self.breakpoints.is_inserted(address) {
            // If the program has changed or unmapped the byte, the tracer does not write it.
            replace_byte(kernel, self.pid, address, [INT3, original]);
        }
        self.breakpoints.remove(address);
    }

    /// Removes the int3 of the breakpoint at this address, if there is one, until
    /// [`Self::insert_lifted`].
    pub fn lift<K: Kernel>(&mut self, kernel: &mut K, address: u64) {
        if self.breakpoints.is_inserted(address)
            && let Some(original) = self.breakpoints.original(address)
        {
            replace_byte(kernel, self.pid, address, [INT3, original]);
            self.breakpoints.set_lifted(Some(address));
        }
    }

    /// Inserts the int3 that [`Self::lift`] has removed.
    pub fn insert_lifted<K: Kernel>(&mut self, kernel: &mut K) {
        let Some(address) = self.breakpoints.lifted() else { return };
        self.breakpoints.set_lifted(None);
        if self.breakpoints.is_inserted(address)
            && let Some(original) = self.breakpoints.original(address)
        {
            replace_byte(kernel, self.pid, address, [original, INT3]);
        }
    }

    /// Adds a task that shares the memory. An int3 of a breakpoint would kill the task.
    pub fn add_guest<K: Kernel>(&mut self, kernel: &mut K, guest: Pid) {
        self.guests.push(guest);
        self.lift_all(kernel, true);
    }

    /// Removes a task that does not share the memory any more.
    pub fn remove_guest<K: Kernel>(&mut self, kernel: &mut K, guest: Pid) {
        self.guests.retain(|other| *other != guest);
        if self.guests.is_empty() {
            self.lift_all(kernel, false);
        }
    }

    /// The tasks that share the memory.
    pub fn guests(&self) -> &[Pid] {
        &self.guests
    }

    /// Removes the bytes of all breakpoints from memory, or inserts them again.
    fn lift_all<K: Kernel>(&mut self, kernel: &mut K, is_lifted: bool) {
        if self.breakpoints.are_all_lifted() == is_lifted {
            return;
        }
        let places = self.breakpoints.all();
        self.breakpoints.set_all_lifted(false);
        for (address, original) in places {
            if self.breakpoints.is_inserted(address) {
                let change = if is_lifted { [INT3, original] } else { [original, INT3] };
                replace_byte(kernel, self.pid, address, change);
            }
        }
        self.breakpoints.set_all_lifted(is_lifted);
    }

    /// Removes the bytes of all breakpoints from the copy of this memory that a child of fork(2)
    /// has.
    pub fn restore_copy<K: Kernel>(&self, kernel: &mut K, child: Pid) {
        for (address, original) in self.breakpoints.all() {
            replace_byte(kernel, child, address, [INT3, original]);
        }
    }

    /// The breakpoint that a thread with a SIGTRAP has executed. `next` is the address of the
    /// thread's next instruction. `None` if the int3 is the program's own.
    pub fn hit_before<K: Kernel>(&self, kernel: &K, next: u64) -> Option<BreakpointHit> {
        let address = next.wrapping_sub(1);
        let kind = self.breakpoints.kind(address);
        let mut byte = [0];
        let has_int3 = kernel.read_memory(self.pid, address, &mut byte) && byte[0] == INT3;
        let is_ours = match kind {
            // If the breakpoint's int3 is removed from memory, an int3 at its address is the
            // program's own.
            Some(_) => self.breakpoints.is_inserted(address) || !has_int3,
            None => self.breakpoints.was_removed(address) && !has_int3,
        };
        is_ours.then_some(BreakpointHit { address, kind })
    }
}
