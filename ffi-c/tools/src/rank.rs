//! Records the state that a tool has set in a rank, so that the library can undo it before the tool
//! leaves.

use score_tools::wire::{Command, CommandAnswer, CommandRequest, CommandResult};

/// The state of a rank to which the tool is attached.
#[derive(Debug, Default)]
pub struct Rank {
    /// Whether the tool has Control authority.
    pub has_authority: bool,
    /// The state that this tool has set in the process.
    pub traces: Vec<Trace>,
    /// The process id of the rank on the host.
    pub pid: Option<i32>,
}

/// A change that a tool has made in a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Trace {
    /// A breakpoint at this address.
    Breakpoint(u64),
    /// A watchpoint of a thread at this address.
    Watchpoint(u32, u64),
    /// The watchpoints at this address that new threads have inherited.
    InheritedWatchpoints(u64),
    /// Allocated memory: address and length in bytes.
    Memory(u64, u64),
    /// A handler of SIGTRAP at this address.
    TrapHandler(u64),
    /// The hold of this thread.
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
                self.add(Trace::InheritedWatchpoints(it.address));
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
                // The remaining state belongs to the next tool with Control authority.
                self.traces.clear();
                self.has_authority = false;
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

#[cfg(test)]
mod tests {
    use score_tools::wire::{
        AllocatedMemory, AllocationSize, FreedMemory, NewWatchpoint, NoData, OldWatchpoint,
        ReleaseNotify, ReleaseOption, WatchType,
    };

    use super::*;

    fn note(rank: &mut Rank, thread: u32, request: CommandRequest, answer: CommandAnswer) {
        let kind = Some(request.kind());
        let result = CommandResult { kind, thread, return_code: 0, answer: Some(answer) };
        rank.note(&Command { thread: 0, request }, &result);
    }

    #[test]
    fn each_setting_is_recorded_with_the_thread_of_its_answer_until_it_is_removed() {
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
            [
                Trace::Held(7),
                Trace::InheritedWatchpoints(64),
                Trace::Watchpoint(8, 64),
                Trace::Memory(4096, 100)
            ]
        );
        let old = OldWatchpoint { address: 64 };
        note(&mut rank, 8, CommandRequest::ResetWatchpoint(old), nothing());
        let free = FreedMemory { address: 4096, size: 4096 };
        note(&mut rank, 7, CommandRequest::FreeMemory(free), nothing());
        // A thread that thread 8 has created may have the watchpoint.
        assert_eq!(rank.traces, [Trace::Held(7), Trace::InheritedWatchpoints(64)]);
        let notify = ReleaseNotify::No;
        let release = CommandRequest::ReleaseControl(ReleaseOption { notify });
        note(&mut rank, 7, release, nothing());
        assert!(rank.traces.is_empty());
    }
}
