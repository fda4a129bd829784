//! Requests of tools that need a stopped thread, and their answers.

#![forbid(unsafe_code)]

use std::time::Duration;

use super::Tid;
use super::extended::ExtendedRegister;
use super::registers::{DebugRegisters, Gprs, Registers, SpecialRegister, SpecialRegisters};
use super::watchpoints::WatchRange;

/// The number of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Ticket(pub u64);

/// A request to a thread, or to all threads of a process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Request {
    /// Get the general purpose registers.
    GetGeneral,
    /// Set all general purpose registers.
    SetGeneral(Gprs),
    /// Set one general purpose register, given by its index in [`Gprs`].
    SetOneGeneral(usize, u64),
    /// Get the special registers.
    GetSpecial,
    /// Set the special registers. `fault_address` is ignored.
    SetSpecial(SpecialRegisters),
    /// Set one special register.
    SetOneSpecial(SpecialRegister, u64),
    /// Get the XSAVE area.
    GetExtended,
    /// Set the XSAVE area.
    SetExtended(Vec<u8>),
    /// Set one register of the XSAVE area. The bytes of the register after the value are unchanged.
    SetOneExtended(ExtendedRegister, Vec<u8>),
    /// Get the debug registers.
    GetDebug,
    /// Set the debug registers.
    SetDebug(DebugRegisters),
    /// Set one of DR0 to DR3, DR6 and DR7.
    SetOneDebug(usize, u64),
    /// Set a watchpoint.
    SetWatchpoint(WatchRange),
    /// Remove the watchpoint at this address.
    ResetWatchpoint(u64),
    /// Get the registers and this many bytes of the stack, of the thread or of all threads.
    Snapshot(usize),
    /// Allocate memory of this length in the process.
    Allocate(u64),
    /// Free memory with this address and length.
    Free(u64, u64),
    /// Install a handler for SIGTRAP.
    InstallTrapHandler(u64),
    /// Remove this handler, and restore the former action.
    RemoveTrapHandler(u64),
}

impl Request {
    /// Whether a thread of the process has to execute a system call for the request.
    pub(super) fn is_injection(&self) -> bool {
        matches!(
            self,
            Self::Allocate(_)
                | Self::Free(..)
                | Self::InstallTrapHandler(_)
                | Self::RemoveTrapHandler(_)
        )
    }
}

/// The answer to a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Answer {
    /// The request is done.
    Done,
    /// General purpose registers.
    General(Gprs),
    /// Special registers.
    Special(Box<SpecialRegisters>),
    /// The XSAVE area, and the mask of its state components.
    Extended(Vec<u8>, u64),
    /// Debug registers.
    Debug(DebugRegisters),
    /// An address.
    Address(u64),
    /// The threads, all captured at the same moment.
    Snapshot(Vec<ThreadSnapshot>),
}

/// The data of a thread that an unwinder needs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ThreadSnapshot {
    /// The thread.
    pub tid: Tid,
    /// Its registers. `None` if the thread waits in the kernel and cannot be accessed.
    pub registers: Option<Registers>,
    /// Its stack, from `rsp` upwards.
    pub stack: Vec<u8>,
}

/// A request that waits for its thread.
#[derive(Debug)]
pub struct PendingRequest {
    /// The number of the request.
    pub ticket: Ticket,
    /// The thread. `None` stands for all threads of the process.
    pub tid: Option<Tid>,
    /// The request.
    pub request: Request,
    /// The time at which the request was made.
    pub since: Duration,
}
