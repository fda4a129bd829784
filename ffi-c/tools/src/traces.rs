//! Records what a tool has set in a process, so that the library can undo it before the tool
//! leaves.

use std::time::{Duration, Instant};

use score_tools::wire::{
    Command, CommandAnswer, CommandCode, CommandRequest, CommandResult, FreedMemory, MemoryRange,
    NoData, OldBreakpoint, OldWatchpoint, ReleaseNotify, ReleaseOption, SignalNumber,
    SpeculativeAccess, TrapHandler,
};

use crate::connection::{Connection, Rank};
use crate::failure::Failure;

/// Time limit for a notice that the service has announced.
const NOTICE_TIMEOUT: Duration = Duration::from_secs(1);
/// Time limit for successive notices of a process while a tool leaves.
const NOTICES_TIMEOUT: Duration = Duration::from_secs(60);

/// Something that a tool has set.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Trace {
    /// A breakpoint at this address.
    Breakpoint(u64),
    /// A watchpoint of a thread at this address.
    Watchpoint(u32, u64),
    /// Allocated memory: address and length in bytes.
    Memory(u64, u64),
    /// A handler of SIGTRAP at this address.
    TrapHandler(u64),
    /// This thread is held.
    Held(u32),
}

impl Rank {
    /// Records the effect of a command that has succeeded.
    pub fn note(&mut self, command: &Command<'_>, result: &CommandResult<'_>) {
        let thread = result.thread;
        match (&command.request, &result.answer) {
            (CommandRequest::SetBreakpoint(it), _) => self.add(Trace::Breakpoint(it.address)),
            (CommandRequest::ResetBreakpoint(it), _) => self.remove(Trace::Breakpoint(it.address)),
            (CommandRequest::SetWatchpoint(it), _) => {
                self.add(Trace::Watchpoint(thread, it.address));
            }
            (CommandRequest::ResetWatchpoint(it), _) => {
                self.remove(Trace::Watchpoint(thread, it.address));
            }
            (CommandRequest::AllocateMemory(size), Some(CommandAnswer::AllocateMemory(memory))) => {
                self.add(Trace::Memory(memory.address, size.size));
            }
            (CommandRequest::FreeMemory(it), _) => {
                let is_freed =
                    |trace: &Trace| matches!(trace, Trace::Memory(at, _) if *at == it.address);
                self.traces.retain(|trace| !is_freed(trace));
            }
            (CommandRequest::InstallTrapHandler(it), _) => {
                self.add(Trace::TrapHandler(it.address));
            }
            (CommandRequest::RemoveTrapHandler(it), _) => {
                self.remove(Trace::TrapHandler(it.address));
            }
            (CommandRequest::HoldThread(_), _) => self.add(Trace::Held(thread)),
            (CommandRequest::ReleaseThread(_), _) => self.remove(Trace::Held(thread)),
            (CommandRequest::ReleaseControl(_), _) => {
                // The rest belongs to the next tool with Control authority.
                self.traces.clear();
                self.control = None;
            }
            _ => {}
        }
    }

    fn add(&mut self, trace: Trace) {
        if !self.traces.contains(&trace) {
            self.traces.push(trace);
        }
    }

    fn remove(&mut self, trace: Trace) {
        self.traces.retain(|one| *one != trace);
    }
}

impl Connection {
    /// Undoes what the tool has set in a rank, and releases Control authority. In a process that
    /// has ended there is nothing to undo.
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
        if state.control.is_none() {
            return Ok(());
        }
        // In reverse order. If one cannot be undone, the others still are.
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
            let is_stop_coming = self.ranks.get(&rank).is_some_and(|it| it.is_stop_coming);
            if !is_stop_coming {
                match self.release(rank) {
                    Err(Failure::Command { code, .. })
                        if code == CommandCode::PendingNotify.number() => {}
                    result => return result,
                }
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

#[cfg(test)]
mod tests {
    use score_tools::wire::{AllocatedMemory, AllocationSize, NewWatchpoint, WatchType};

    use super::*;

    fn note(rank: &mut Rank, thread: u32, request: CommandRequest, answer: CommandAnswer) {
        let kind = Some(request.kind());
        let result = CommandResult { kind, thread, return_code: 0, answer: Some(answer) };
        rank.note(&Command { thread: 0, request }, &result);
    }

    #[test]
    fn what_is_set_is_noted_by_the_thread_of_the_answer_until_it_is_taken_back() {
        let mut rank = Rank::default();
        let nothing = || CommandAnswer::HoldThread(NoData {});
        for _ in 0..2 {
            note(&mut rank, 7, CommandRequest::HoldThread(NoData {}), nothing());
        }
        let watch = NewWatchpoint { address: 64, length: 8, kind: WatchType::Write };
        note(&mut rank, 8, CommandRequest::SetWatchpoint(watch), nothing());
        let size = AllocationSize { size: 100 };
        let memory = CommandAnswer::AllocateMemory(AllocatedMemory { address: 4096 });
        note(&mut rank, 7, CommandRequest::AllocateMemory(size), memory);
        assert_eq!(
            rank.traces,
            [Trace::Held(7), Trace::Watchpoint(8, 64), Trace::Memory(4096, 100)]
        );
        let old = OldWatchpoint { address: 64 };
        note(&mut rank, 7, CommandRequest::ResetWatchpoint(old), nothing());
        let free = FreedMemory { address: 4096, size: 4096 };
        note(&mut rank, 7, CommandRequest::FreeMemory(free), nothing());
        assert_eq!(rank.traces, [Trace::Held(7), Trace::Watchpoint(8, 64)]);
        let notify = ReleaseNotify::No;
        let release = CommandRequest::ReleaseControl(ReleaseOption { notify });
        note(&mut rank, 7, release, nothing());
        assert!(rank.traces.is_empty());
    }
}
