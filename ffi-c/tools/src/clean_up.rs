//! Undoes the changes that a tool has made in its ranks, before the tool leaves.

use std::time::{Duration, Instant};

use score_tools::wire::{
    CommandAnswer, CommandCode, CommandRequest, FreedMemory, MemoryRange, NoData, OldBreakpoint,
    OldWatchpoint, ReleaseNotify, ReleaseOption, SignalNumber, SpeculativeAccess, TrapHandler,
};

use crate::connection::Connection;
use crate::failure::Failure;
use crate::rank::Trace;

/// Time limit for a notice that the service has announced.
const NOTICE_TIMEOUT: Duration = Duration::from_secs(1);
/// Time limit for successive notices of a process while a tool leaves.
const NOTICES_TIMEOUT: Duration = Duration::from_secs(60);

impl Connection {
    /// Undoes the changes that the tool has made in a rank, and releases Control authority. In a
    /// process that has ended there is nothing to undo.
    pub fn clean_up(&mut self, rank: u32) -> Result<(), Failure> {
        match self.try_clean_up(rank) {
            Err(failure) if failure.is_end_of_process() => {
                self.ranks.remove(&rank);
                Ok(())
            }
            result => result,
        }
    }

    fn try_clean_up(&mut self, rank: u32) -> Result<(), Failure> {
        let Some(state) = self.ranks.get(&rank) else { return Ok(()) };
        if !state.has_authority {
            return Ok(());
        }
        // The changes are undone in reverse order. If one cannot be undone, the others are undone
        // nevertheless.
        let mut problem = None;
        for trace in state.traces.clone().into_iter().rev() {
            match self.take_back(rank, trace) {
                Err(failure) if failure.is_end_of_process() => return Err(failure),
                Err(failure) => problem = problem.or(Some(failure)),
                Ok(()) => {}
            }
        }
        match problem {
            Some(failure) => Err(failure),
            None => self.release_after_notices(rank),
        }
    }

    fn take_back(&mut self, rank: u32, trace: Trace) -> Result<(), Failure> {
        let (thread, request) = match trace {
            Trace::Breakpoint(address) => {
                let instruction = self.instruction_at(rank, address)?;
                let old = OldBreakpoint { address, instruction };
                (0, CommandRequest::ResetBreakpoint(old))
            }
            Trace::Watchpoint(thread, address) => {
                (thread, CommandRequest::ResetWatchpoint(OldWatchpoint { address }))
            }
            Trace::Memory(address, size) => {
                (0, CommandRequest::FreeMemory(FreedMemory { address, size }))
            }
            Trace::TrapHandler(address) => {
                (0, CommandRequest::RemoveTrapHandler(TrapHandler { address }))
            }
            Trace::Held(thread) => (thread, CommandRequest::ReleaseThread(NoData {})),
        };
        match self.update(rank, thread, request) {
            // If a thread has ended, its watchpoints and its hold no longer exist.
            Err(Failure::Command { code, .. })
                if code == CommandCode::ThreadInvalid.number() && thread != 0 =>
            {
                if let Some(state) = self.ranks.get_mut(&rank) {
                    state.traces.retain(|one| *one != trace);
                }
                Ok(())
            }
            result => result,
        }
    }

    /// Reads the four bytes of the program at an address.
    fn instruction_at(&mut self, rank: u32, address: u64) -> Result<u32, Failure> {
        let access = SpeculativeAccess::Permitted;
        let range = MemoryRange { address, length: 4, access };
        self.query(rank, 0, CommandRequest::GetMemory(range), |answer| match answer {
            CommandAnswer::GetMemory(memory) => {
                Some(u32::from_ne_bytes((*memory.bytes).try_into().ok()?))
            }
            _ => None,
        })
    }

    /// Releases Control authority. Threads that have stopped at notices which the tool has not read
    /// continue with their signals.
    fn release_after_notices(&mut self, rank: u32) -> Result<(), Failure> {
        let mut timeout = Duration::ZERO;
        let deadline = Instant::now() + NOTICES_TIMEOUT;
        while Instant::now() < deadline {
            if let Some((thread, signal)) = self.drop_signal_notices(rank, timeout)?
                && signal != 0
            {
                let signal = SignalNumber { signal };
                self.update(rank, thread, CommandRequest::SetContinuationSignal(signal))?;
            }
            match self.release(rank) {
                Err(Failure::Command { code, .. })
                    if code == CommandCode::PendingNotify.number() => {}
                result => return result,
            }
            match self.proceed(rank) {
                // The thread has not stopped yet for the announced notice.
                Err(Failure::Command { code, .. })
                    if code == CommandCode::ThreadInvalid.number() => {}
                result => result?,
            }
            timeout = NOTICE_TIMEOUT;
        }
        let (command, code) =
            (score_tools::wire::CommandKind::ReleaseControl, CommandCode::PendingNotify.number());
        Err(Failure::Command { rank, command, code })
    }

    /// Releases Control authority.
    pub fn release(&mut self, rank: u32) -> Result<(), Failure> {
        let notify = ReleaseNotify::No;
        self.update(rank, 0, CommandRequest::ReleaseControl(ReleaseOption { notify }))
    }

    /// Cleans up all ranks, and detaches from them. Returns the first failure.
    pub fn leave(&mut self) -> Result<(), Failure> {
        let mut problem = None;
        for rank in self.ranks.keys().copied().collect::<Vec<_>>() {
            if let Err(failure) = self.clean_up(rank) {
                problem = problem.or(Some(failure));
            }
        }
        match problem {
            Some(failure) => Err(failure),
            None if self.ranks.is_empty() => Ok(()),
            None => self.detach(None),
        }
    }
}
