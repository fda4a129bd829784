//! The memory and the trap handler that tools have made in a process by injected system calls. Also
//! the preferences, which decide whether hits go to the trap handler.

#![forbid(unsafe_code)]

use std::collections::BTreeMap;

use super::inject::{PAGE_LEN, Purpose, TrapHandler};
use crate::tracer::error::TraceError;
use crate::tracer::request::Request;

/// The preferences of a tool.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Preferences {
    /// Whether hits of fast breakpoints go to the trap handler.
    pub fast_breakpoints: bool,
    /// Whether hits of watchpoints go to the trap handler.
    pub fast_watchpoints: bool,
}

/// The memory and the trap handler of tools in a process.
#[derive(Debug, Default)]
pub struct ToolResources {
    /// Memory that tools have allocated: address and length.
    allocations: BTreeMap<u64, u64>,
    /// The trap handler that a tool has installed.
    trap_handler: Option<TrapHandler>,
    preferences: Preferences,
}

impl ToolResources {
    /// The preferences of the tool.
    pub fn preferences(&self) -> Preferences {
        self.preferences
    }

    /// Sets the preferences of the tool.
    pub fn set_preferences(&mut self, preferences: Preferences) {
        self.preferences = preferences;
    }

    /// Whether hits of fast breakpoints go to the trap handler.
    pub fn handles_breakpoints(&self) -> bool {
        self.trap_handler.is_some() && self.preferences.fast_breakpoints
    }

    /// Whether hits of watchpoints go to the trap handler.
    pub fn handles_watchpoints(&self) -> bool {
        self.trap_handler.is_some() && self.preferences.fast_watchpoints
    }

    /// Checks whether a request is possible for this memory and this trap handler.
    pub fn check(&self, request: &Request) -> Result<(), TraceError> {
        match request {
            Request::Allocate(0) => Err(TraceError::Length(0)),
            Request::Free(address, length) => {
                let is_allocated = self.allocations.get(address).is_some_and(|allocated| {
                    allocated.next_multiple_of(PAGE_LEN)
                        == length.checked_next_multiple_of(PAGE_LEN).unwrap_or(0)
                });
                if is_allocated { Ok(()) } else { Err(TraceError::Address(*address)) }
            }
            Request::InstallTrapHandler(_) if self.trap_handler.is_some() => {
                Err(TraceError::Parameter("a trap handler is installed; remove it first"))
            }
            Request::RemoveTrapHandler(handler)
                if self.trap_handler.is_none_or(|it| it.handler != *handler) =>
            {
                Err(TraceError::Parameter("this trap handler is not installed"))
            }
            _ => Ok(()),
        }
    }

    /// The purpose of the system call that carries out a request. `None` if the request needs no
    /// call.
    pub fn purpose_of(&self, request: &Request) -> Option<Purpose> {
        Some(match request {
            Request::Allocate(length) => Purpose::Allocate(*length),
            Request::Free(address, length) => Purpose::Free(*address, *length),
            Request::InstallTrapHandler(handler) => Purpose::HandlerPage(*handler),
            Request::RemoveTrapHandler(_) => Purpose::RestoreHandler(self.trap_handler?),
            _ => return None,
        })
    }

    /// Notes that memory has been allocated.
    pub fn add_memory(&mut self, address: u64, length: u64) {
        self.allocations.insert(address, length);
    }

    /// Notes that memory has been freed.
    pub fn remove_memory(&mut self, address: u64) {
        self.allocations.remove(&address);
    }

    /// Notes that a trap handler has been installed. `None` if it has been removed.
    pub fn set_trap_handler(&mut self, handler: Option<TrapHandler>) {
        self.trap_handler = handler;
    }

    /// The requests that remove the trap handler and the memory.
    pub fn removal_requests(&self) -> Vec<Request> {
        let handler = self.trap_handler.map(|it| Request::RemoveTrapHandler(it.handler));
        let memory =
            self.allocations.iter().map(|(address, length)| Request::Free(*address, *length));
        handler.into_iter().chain(memory).collect()
    }

    /// Takes the next item to remove from a process that is being detached. Drops memory that a
    /// thread executes, which remains in the process.
    pub fn take_next(&mut self, is_executed: impl Fn(u64, u64) -> bool) -> Option<Purpose> {
        if let Some(handler) = self.trap_handler.take() {
            return Some(Purpose::RestoreHandler(handler));
        }
        loop {
            let (address, length) = self.allocations.pop_first()?;
            if !is_executed(address, length) {
                return Some(Purpose::Free(address, length));
            }
        }
    }

    /// The state after an exec: neither memory nor a trap handler. The preferences remain.
    pub fn after_exec(&self) -> Self {
        Self { preferences: self.preferences, ..Self::default() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_allocated_memory_is_freed_and_memory_in_use_is_left_at_the_end() {
        let mut resources = ToolResources::default();
        resources.add_memory(0x1000, 5000);
        resources.add_memory(0x8000, 1);
        for (address, length, is_possible) in [
            (0x1000, 5000, true),
            // The kernel frees whole pages.
            (0x1000, 2 * PAGE_LEN, true),
            (0x1000, PAGE_LEN, false),
            (0x2000, PAGE_LEN, false),
            (0x8000, u64::MAX, false),
        ] {
            let check = resources.check(&Request::Free(address, length));
            assert_eq!(check.is_ok(), is_possible, "{address:#x} {length}");
        }
        let is_executed = |address, _| address == 0x1000;
        assert_eq!(resources.take_next(is_executed), Some(Purpose::Free(0x8000, 1)));
        assert_eq!(resources.take_next(is_executed), None);
    }
}
