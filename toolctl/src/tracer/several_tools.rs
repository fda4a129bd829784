//! Functions for a service with several tools, which decides itself which tool is notified and when
//! threads continue.

#![forbid(unsafe_code)]

use std::ops::Range;

use super::breakpoints::INT3;
use super::error::TraceError;
use super::kernel::Kernel;
use super::process::{Preferences, Presence};
use super::{Pid, Tid, Tracer};
use crate::shared_memory::SharedMemory;

/// Threads that remain stopped and accessible for one purpose, until [`Tracer::unpin`].
#[derive(Debug)]
#[must_use]
pub struct Pin {
    pid: Pid,
    number: u64,
}

impl<K: Kernel> Tracer<K> {
    /// Whether the process is neither traced nor being detached.
    pub fn has_no_trace_of(&self, pid: Pid) -> bool {
        !self.processes.contains_key(&pid)
    }

    /// Whether the threads of a process are suspended for a notice or by a tool.
    pub fn is_suspended(&self, pid: Pid) -> bool {
        self.processes.get(&pid).is_some_and(|process| process.notices.is_suspended())
    }

    /// Whether a process has notices that were not issued.
    pub fn has_pending_notices(&self, pid: Pid) -> bool {
        self.processes.get(&pid).is_some_and(|process| process.notices.has_pending())
    }

    /// The preferences of the tool.
    pub fn preferences(&self, pid: Pid) -> Preferences {
        let process = self.processes.get(&pid);
        process.map(|process| process.resources.preferences()).unwrap_or_default()
    }

    /// Like [`Self::read_memory`], into a buffer whose length the caller has checked.
    ///
    /// # Errors
    /// Returns `NoProcess` or `Address`.
    pub fn read_memory_into(
        &self,
        pid: Pid,
        address: u64,
        buffer: &mut [u8],
    ) -> Result<(), TraceError> {
        let process = self.processes.get(&pid).ok_or(TraceError::NoProcess(pid))?;
        process.memory.read_into(&self.kernel, address, buffer)
    }

    /// Copies memory, with the original bytes of the program at breakpoints, to a range of shared
    /// memory. Returns the number of bytes, which is lower than the length of the range if the
    /// kernel cannot read the next page.
    ///
    /// # Errors
    /// Returns `NoProcess`; `Length` if the range is not within the shared memory; `Address` if no
    /// byte can be read.
    pub fn copy_memory(
        &self,
        pid: Pid,
        address: u64,
        memory: &SharedMemory,
        range: Range<usize>,
    ) -> Result<usize, TraceError> {
        let process = self.processes.get(&pid).ok_or(TraceError::NoProcess(pid))?;
        if range.is_empty() || range.end > memory.len() {
            return Err(TraceError::Length(range.len() as u64));
        }
        let start = range.start;
        let count = memory.copy_from_process(range, pid, address);
        for (offset, original) in process.memory.breakpoints().hidden(address, count) {
            memory.replace_byte(start + offset, INT3, original);
        }
        if count > 0 { Ok(count) } else { Err(TraceError::Address(address)) }
    }

    /// The breakpoints in a range: address, and byte of the program.
    pub fn breakpoints_in(&self, pid: Pid, address: u64, length: u32) -> Vec<(u64, u8)> {
        let Some(process) = self.processes.get(&pid) else { return Vec::new() };
        let end = address.saturating_add(length.into());
        let mut all = process.memory.breakpoints().all();
        all.retain(|(place, _)| (address..end).contains(place));
        all
    }

    /// Keeps a thread, or all threads, stopped and accessible until [`Self::unpin`]. Several
    /// requests then read the same state.
    ///
    /// # Errors
    /// Returns `NoProcess`.
    pub fn pin(&mut self, pid: Pid, tid: Option<Tid>) -> Result<Pin, TraceError> {
        let number = self.last_pin + 1;
        self.with(pid, |process, _| {
            match tid {
                Some(tid) => process.requests.pin(number, [tid]),
                None => process.requests.pin(number, process.threads.ids()),
            }
            Ok(())
        })?;
        self.last_pin = number;
        Ok(Pin { pid, number })
    }

    /// Ends a pin. The threads of other pins remain stopped.
    pub fn unpin(&mut self, Pin { pid, number }: Pin) {
        // A process that has ended has no pins.
        _ = self.with(pid, |process, _| {
            process.requests.unpin(number);
            Ok(())
        });
    }

    /// Stops all threads of a process, and new threads, without a notice.
    ///
    /// # Errors
    /// Returns `NoProcess`.
    pub fn suspend(&mut self, pid: Pid) -> Result<(), TraceError> {
        self.with(pid, |process, _| {
            process.notices.suspend();
            Ok(())
        })
    }

    /// Holds all threads of a process, including new ones, or releases them.
    ///
    /// # Errors
    /// Returns `NoProcess`.
    pub fn hold_process(&mut self, pid: Pid, is_held: bool) -> Result<(), TraceError> {
        self.with(pid, |process, _| {
            process.threads.hold_all(is_held);
            Ok(())
        })
    }

    /// Marks the current notice as answered, if there is one. Then continues the process, or issues
    /// the next notice.
    ///
    /// # Errors
    /// Returns `NoProcess`.
    pub fn resume(&mut self, pid: Pid) -> Result<(), TraceError> {
        self.with(pid, |process, context| {
            process.satisfy(context);
            process.notices.resume();
            Ok(())
        })
    }

    /// Answers the current notice without notifying a tool. Its thread continues with this signal
    /// (0: none). If `stays_suspended`, the thread remains stopped until the process is resumed.
    ///
    /// # Errors
    /// Returns `NoProcess`.
    pub fn pass(&mut self, pid: Pid, signal: i32, stays_suspended: bool) -> Result<(), TraceError> {
        self.with(pid, |process, context| {
            if let Some(tid) = process.notices.given()
                && let Some(thread) = process.threads.get_mut(tid)
            {
                thread.continuation = Some(signal);
            }
            process.satisfy(context);
            process.notices.resume();
            if stays_suspended {
                process.notices.suspend();
            }
            Ok(())
        })
    }

    /// Checks whether [`Tracer::step`] is possible.
    ///
    /// # Errors
    /// Returns `NoProcess`, `NoThread` or `WrongState`.
    pub fn check_step(&mut self, pid: Pid, tid: Tid) -> Result<(), TraceError> {
        self.with(pid, |process, context| process.check_step(context, tid))
    }

    /// Frees the memory and removes the trap handler of a tool that has ended while other tools
    /// remain attached.
    pub(super) fn release_memory(&mut self, pid: Pid) {
        let Some(process) = self.processes.get(&pid) else { return };
        if process.presence != Presence::Attached {
            return;
        }
        for request in process.resources.removal_requests() {
            // If the process cannot do this now, the memory remains until the process is detached.
            _ = self.request(pid, None, request);
        }
    }
}
