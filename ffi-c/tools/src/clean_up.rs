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
            Trace::InheritedWatchpoints(address) => {
                return self.reset_inherited_watchpoints(rank, address);
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

    /// Removes the watchpoints at an address from threads that have inherited them. Meanwhile such
    /// threads may create others, so the list of threads is read until none has the watchpoint.
    fn reset_inherited_watchpoints(&mut self, rank: u32, address: u64) -> Result<(), Failure> {
        /// The thread has no such watchpoint, has ended, or waits in the kernel and does not stop.
        const WITHOUT_EFFECT: [CommandCode; 3] =
            [CommandCode::AddressError, CommandCode::ThreadInvalid, CommandCode::Timeout];
        let mut is_any_reset = true;
        while std::mem::take(&mut is_any_reset) {
            for thread in self.threads(rank)? {
                let reset = CommandRequest::ResetWatchpoint(OldWatchpoint { address });
                match self.update(rank, thread, reset) {
                    Ok(()) => is_any_reset = true,
                    Err(Failure::Command { code, .. })
                        if WITHOUT_EFFECT.iter().any(|it| it.number() == code) => {}
                    Err(failure) => return Err(failure),
                }
            }
        }
        if let Some(state) = self.ranks.get_mut(&rank) {
            state.traces.retain(|one| *one != Trace::InheritedWatchpoints(address));
        }
        Ok(())
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

    /// Cleans up all ranks. Then detaches from them, or returns the first failure of a clean-up.
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
    use std::collections::BTreeSet;
    use std::os::fd::{AsRawFd, OwnedFd};

    use nix::sys::socket::{
        AddressFamily, Backlog, MsgFlags, SockFlag, SockType, UnixAddr, accept, bind, listen, recv,
        send, socket,
    };
    use score_tools::wire::{
        CommandSet, CommandWriter, MAX_MESSAGE_LEN, ThreadEntry, ThreadList, ThreadListHead,
        ToolMessage, encode_results,
    };

    use super::*;
    use crate::rank::Rank;

    /// Carries out the commands of a tool until it disconnects. Thread 1 has a watchpoint, and
    /// thread 2 has inherited it. Meanwhile thread 2 creates thread 3. Returns the threads that
    /// still have the watchpoint.
    fn serve(listener: &OwnedFd) -> BTreeSet<u32> {
        let socket = accept(listener.as_raw_fd()).unwrap();
        let mut record = vec![0; MAX_MESSAGE_LEN];
        let (mut threads, mut watching) = (vec![1, 2], BTreeSet::from([1, 2]));
        loop {
            let len = recv(socket, &mut record, MsgFlags::empty()).unwrap();
            if len == 0 {
                nix::unistd::close(socket).unwrap();
                return watching;
            }
            let (header, message) = ToolMessage::decode(&record[..len]).unwrap();
            let (set, list) = match message {
                ToolMessage::Query(list) => (CommandSet::Query, list),
                ToolMessage::Update(list) => (CommandSet::Update, list),
                other => panic!("{other:?}"),
            };
            let mut code = CommandCode::Success;
            let mut answer = CommandAnswer::HoldThread(NoData {});
            match list[0].request.as_ref().unwrap() {
                CommandRequest::GetThreadList(_) => {
                    let entry = |tid: &u32| ThreadEntry { tid: *tid, flags: 0 };
                    let list = threads.iter().map(entry).collect();
                    let list = ThreadList { head: ThreadListHead {}, list };
                    answer = CommandAnswer::GetThreadList(list);
                    if !threads.contains(&3) {
                        threads.push(3);
                        watching.insert(3);
                    }
                }
                CommandRequest::ResetWatchpoint(_) if watching.remove(&list[0].thread) => {}
                CommandRequest::ResetWatchpoint(_) => code = CommandCode::AddressError,
                CommandRequest::ReleaseControl(_) => {}
                other => panic!("{other:?}"),
            }
            let mut writer = CommandWriter::new();
            writer.push_result(list[0].number, list[0].thread, code, Some(&answer));
            send(socket, &encode_results(writer, &header, set), MsgFlags::empty()).unwrap();
        }
    }

    #[test]
    fn inherited_watchpoints_are_also_removed() {
        let path = std::env::temp_dir().join(format!("scoretools-up-{}", std::process::id()));
        let flags = SockFlag::SOCK_CLOEXEC;
        let listener = socket(AddressFamily::Unix, SockType::SeqPacket, flags, None).unwrap();
        bind(listener.as_raw_fd(), &UnixAddr::new(&path).unwrap()).unwrap();
        listen(&listener, Backlog::new(1).unwrap()).unwrap();
        std::thread::scope(|scope| {
            let service = scope.spawn(|| serve(&listener));
            let mut tool = Connection::connect(&path, 1, 1).unwrap();
            let traces = vec![Trace::InheritedWatchpoints(64), Trace::Watchpoint(1, 64)];
            tool.ranks.insert(0, Rank { has_authority: true, traces, pid: None });
            tool.clean_up(0).unwrap();
            assert!(tool.ranks[&0].traces.is_empty() && !tool.ranks[&0].has_authority);
            drop(tool);
            assert_eq!(service.join().unwrap(), BTreeSet::new());
        });
        std::fs::remove_file(path).unwrap();
    }
}
