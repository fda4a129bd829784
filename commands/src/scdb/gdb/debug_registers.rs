//! Watchpoints and breakpoints in debug registers. A debugger sets them for all threads of the
//! process, but each thread has its own registers. New threads therefore get them before the
//! process continues.

use std::collections::BTreeSet;

use gdbstub::target::ext::breakpoints::WatchKind;
use score_tools::wire::{
    Command, CommandAnswer, CommandCode, CommandRequest, DebugRegister, NewWatchpoint, NoData,
    OldWatchpoint, SetDebug, WatchType,
};

use super::rank::{Rank, RankError, RankResult};

/// Maximum length of the range that one register watches, in bytes.
const MAX_PIECE: u64 = 8;
/// Number of address registers of a thread.
const REGISTERS: usize = 4;

/// A range of memory that a debugger watches.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Watch {
    /// The address of the first byte.
    pub address: u64,
    /// The number of bytes.
    pub length: u64,
    /// The accesses to detect.
    pub kind: WatchKind,
}

impl Watch {
    /// Splits the range for registers, which watch aligned ranges of 1, 2, 4 or 8 bytes. Returns
    /// `None` if the range needs more registers than there are.
    fn pieces(&self) -> Option<Vec<NewWatchpoint>> {
        let kind = match self.kind {
            WatchKind::Write => WatchType::Write,
            WatchKind::Read => WatchType::Read,
            WatchKind::ReadWrite => WatchType::ReadWrite,
        };
        let end = self.address.checked_add(self.length)?;
        let (mut pieces, mut address) = (Vec::new(), self.address);
        while address < end {
            let fits = |length: &u64| address.is_multiple_of(*length) && *length <= end - address;
            let length = [MAX_PIECE, 4, 2, 1].into_iter().find(fits)?;
            pieces.push(NewWatchpoint { address, length: length as u32, kind });
            if pieces.len() > REGISTERS {
                return None;
            }
            address += length;
        }
        Some(pieces)
    }

    fn contains(&self, address: u64) -> bool {
        address.checked_sub(self.address).is_some_and(|offset| offset < self.length)
    }
}

/// The contents of the debug registers of all threads.
#[derive(Debug, Default)]
pub struct DebugRegisterUse {
    watches: Vec<Watch>,
    breakpoints: Vec<u64>,
    /// The threads whose registers contain all watchpoints and breakpoints.
    armed: BTreeSet<u32>,
}

/// Whether the command failed because the thread or its process has ended. Nothing has to be set
/// then.
fn has_ended(error: &RankError) -> bool {
    matches!(error, RankError::Command(CommandCode::ThreadInvalid | CommandCode::ProcessExiting))
}

/// Whether the command failed because no debug register can be used for the request. The debugger
/// may then use other means.
fn is_refusal(error: &RankError) -> bool {
    matches!(
        error,
        RankError::Command(
            CommandCode::HardwareUnavailable
                | CommandCode::WatchConflict
                | CommandCode::AddressError
                | CommandCode::ParameterError
        )
    )
}

fn set_watch(rank: &mut Rank, thread: u32, pieces: &[NewWatchpoint]) -> RankResult<()> {
    let command =
        |piece: &NewWatchpoint| Command { thread, request: CommandRequest::SetWatchpoint(*piece) };
    rank.updates(&pieces.iter().map(command).collect::<Vec<_>>())
}

fn reset_watch(rank: &mut Rank, thread: u32, pieces: &[NewWatchpoint]) {
    for piece in pieces {
        let old = OldWatchpoint { address: piece.address };
        // The thread may have ended, or may not have had the watchpoint.
        _ = rank.update(thread, CommandRequest::ResetWatchpoint(old));
    }
}

/// Reads DR0 to DR3 and DR7 of a thread.
fn registers_of(rank: &mut Rank, thread: u32) -> RankResult<([u64; REGISTERS], u64)> {
    let request = CommandRequest::GetDebugRegisters(NoData {});
    rank.command(thread, request, |answer| match answer {
        CommandAnswer::GetDebugRegisters(registers) => {
            let [first, second, third, fourth, _, _, _, control] = registers.values;
            Some(([first, second, third, fourth], control))
        }
        _ => None,
    })
}

const ADDRESS_REGISTERS: [DebugRegister; REGISTERS] =
    [DebugRegister::Dr0, DebugRegister::Dr1, DebugRegister::Dr2, DebugRegister::Dr3];

/// The bits of DR7 that enable a register and set its type and length.
fn control_bits(register: usize) -> u64 {
    0b11 << (register * 2) | 0b1111 << (16 + register * 4)
}

fn set(selection: DebugRegister, value: u64) -> CommandRequest<'static> {
    CommandRequest::SetDebugRegister(SetDebug { selection, value })
}

fn set_breakpoint(rank: &mut Rank, thread: u32, address: u64) -> RankResult<()> {
    let (_, control) = registers_of(rank, thread)?;
    let is_free = |register: &usize| control >> (register * 2) & 0b11 == 0;
    let register = (0..REGISTERS).find(is_free);
    let register = register.ok_or(RankError::Command(CommandCode::HardwareUnavailable))?;
    // A breakpoint has the type 0 and the length 0.
    let control = control & !control_bits(register) | 1 << (register * 2);
    rank.updates(&[
        Command { thread, request: set(ADDRESS_REGISTERS[register], address) },
        Command { thread, request: set(DebugRegister::Dr7, control) },
    ])
}

fn reset_breakpoint(rank: &mut Rank, thread: u32, address: u64) -> RankResult<()> {
    let (addresses, control) = registers_of(rank, thread)?;
    let is_breakpoint = |register: &usize| {
        addresses[*register] == address
            && control >> (register * 2) & 0b11 != 0
            && control >> (16 + register * 4) & 0b1111 == 0
    };
    let Some(register) = (0..REGISTERS).find(is_breakpoint) else { return Ok(()) };
    rank.updates(&[
        Command { thread, request: set(DebugRegister::Dr7, control & !control_bits(register)) },
        Command { thread, request: set(ADDRESS_REGISTERS[register], 0) },
    ])
}

impl DebugRegisterUse {
    /// Sets the watchpoints and breakpoints of the other threads in new threads. Must be called
    /// before the process continues.
    pub fn arm_new_threads(&mut self, rank: &mut Rank) -> RankResult<()> {
        if self.watches.is_empty() && self.breakpoints.is_empty() {
            self.armed.clear();
            return Ok(());
        }
        let threads = rank.threads()?;
        self.armed.retain(|thread| threads.contains(thread));
        for thread in threads {
            if self.armed.contains(&thread) {
                continue;
            }
            match self.arm(rank, thread) {
                Err(error) if !has_ended(&error) => return Err(error),
                _ => self.armed.insert(thread),
            };
        }
        Ok(())
    }

    fn arm(&self, rank: &mut Rank, thread: u32) -> RankResult<()> {
        for watch in &self.watches {
            set_watch(rank, thread, &watch.pieces().unwrap_or_default())?;
        }
        self.breakpoints.iter().try_for_each(|address| set_breakpoint(rank, thread, *address))
    }

    /// All threads. First sets the existing watchpoints and breakpoints in new threads.
    fn threads(&mut self, rank: &mut Rank) -> RankResult<BTreeSet<u32>> {
        if self.watches.is_empty() && self.breakpoints.is_empty() {
            self.armed = rank.threads()?.into_iter().collect();
        } else {
            self.arm_new_threads(rank)?;
        }
        Ok(self.armed.clone())
    }

    /// Calls `carry_out` for all threads. Returns false if no debug register can be used for this.
    fn for_all(
        &mut self,
        rank: &mut Rank,
        mut carry_out: impl FnMut(&mut Rank, u32) -> RankResult<()>,
    ) -> RankResult<bool> {
        for thread in self.threads(rank)? {
            match carry_out(rank, thread) {
                Err(error) if is_refusal(&error) => return Ok(false),
                Err(error) if !has_ended(&error) => return Err(error),
                _ => {}
            }
        }
        Ok(true)
    }

    /// Sets a watchpoint. Returns false if there are not enough registers.
    pub fn add_watch(&mut self, rank: &mut Rank, watch: Watch) -> RankResult<bool> {
        let Some(pieces) = watch.pieces() else { return Ok(false) };
        let is_set = self.for_all(rank, |rank, thread| set_watch(rank, thread, &pieces))?;
        self.watches.push(watch);
        if !is_set {
            self.remove_watch(rank, watch)?;
        }
        Ok(is_set)
    }

    /// Removes a watchpoint. Returns false if there is none.
    pub fn remove_watch(&mut self, rank: &mut Rank, watch: Watch) -> RankResult<bool> {
        let Some(index) = self.watches.iter().position(|other| *other == watch) else {
            return Ok(false);
        };
        self.watches.remove(index);
        let pieces = watch.pieces().unwrap_or_default();
        for thread in &self.armed {
            reset_watch(rank, *thread, &pieces);
        }
        Ok(true)
    }

    /// Sets a breakpoint. Returns false if no register is free.
    pub fn add_breakpoint(&mut self, rank: &mut Rank, address: u64) -> RankResult<bool> {
        let is_set = self.for_all(rank, |rank, thread| set_breakpoint(rank, thread, address))?;
        self.breakpoints.push(address);
        if !is_set {
            self.remove_breakpoint(rank, address)?;
        }
        Ok(is_set)
    }

    /// Removes a breakpoint. Returns false if there is none.
    pub fn remove_breakpoint(&mut self, rank: &mut Rank, address: u64) -> RankResult<bool> {
        let Some(index) = self.breakpoints.iter().position(|other| *other == address) else {
            return Ok(false);
        };
        self.breakpoints.remove(index);
        for thread in &self.armed {
            match reset_breakpoint(rank, *thread, address) {
                Err(error) if !has_ended(&error) => return Err(error),
                _ => {}
            }
        }
        Ok(true)
    }

    /// Whether there is a breakpoint at this address.
    pub fn has_breakpoint(&self, address: u64) -> bool {
        self.breakpoints.contains(&address)
    }

    /// The kind of the watchpoint that contains an address.
    pub fn kind_at(&self, address: u64) -> Option<WatchKind> {
        self.watches.iter().find(|watch| watch.contains(address)).map(|watch| watch.kind)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_watchpoint_on_a_range_consists_of_aligned_pieces() {
        let pieces = |address, length| {
            let watch = Watch { address, length, kind: WatchKind::Write };
            let pieces = watch.pieces()?;
            Some(pieces.iter().map(|it| (it.address, it.length)).collect::<Vec<_>>())
        };
        assert_eq!(pieces(0x1000, 8), Some(vec![(0x1000, 8)]));
        assert_eq!(pieces(0x1004, 8), Some(vec![(0x1004, 4), (0x1008, 4)]));
        assert_eq!(pieces(0x1001, 7), Some(vec![(0x1001, 1), (0x1002, 2), (0x1004, 4)]));
        assert_eq!(pieces(0x1000, 32).map(|pieces| pieces.len()), Some(4));
        assert_eq!((pieces(0x1000, 40), pieces(u64::MAX, 8)), (None, None));
    }
}
