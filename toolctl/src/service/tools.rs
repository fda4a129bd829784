//! Handling of messages of tools, actions of the authority, and events of the tracer.

use std::os::fd::OwnedFd;

use nix::poll::PollFlags;
use score_proto::toolctl::ToolctlReport;
use score_toolctl::shared_memory::SharedMemory;
use score_toolctl::tracer::{self, SignalSet, Tid};
use score_tools::authority::{Action, AuthorityCommand, ConnectionId, Event, Reach, SeizeFailure};
use score_tools::wire::{
    CommandCode, CommandSet, Fault, Header, Notice, Refusal, ReturnCode, ServiceMessage,
    SharedLength, SignalReason, ToolMessage,
};

use super::clients::{Received, SentDescriptors};
use super::commands::Outcome;
use super::work::{Waiting, Work};
use super::{Service, convert};

impl Service {
    /// Accepts new connections.
    pub(super) fn accept(&mut self) {
        // An error of accept(2) concerns only one connection, or occurs again.
        while let Ok(Some((connection, uid))) = self.clients.accept() {
            // All processes of the host share this socket.
            self.feed(Event::Connected { connection, uid, reach: Reach::Host });
        }
    }

    /// Handles the readiness of a connection.
    pub(super) fn serve_client(&mut self, id: ConnectionId, flags: PollFlags) {
        if flags.contains(PollFlags::POLLOUT) {
            self.clients.flush(id);
        }
        let is_ended = flags.intersects(PollFlags::POLLHUP | PollFlags::POLLERR);
        match self.clients.receive(id, is_ended) {
            Received::Record(record, descriptors) => self.on_record(id, record, descriptors),
            Received::Nothing => {}
            Received::End => self.disconnect(id),
        }
    }

    /// Closes the connection of a tool, and drops its pending work.
    pub(super) fn disconnect(&mut self, connection: ConnectionId) {
        self.clients.close(connection);
        self.drop_relay(connection);
        for pid in self.works.drop_connection(connection) {
            self.tracer.unpin(pid);
        }
        self.feed(Event::Closed { connection });
    }

    /// Whether a message must wait until earlier messages of its connection are answered.
    fn has_to_wait(&self, connection: ConnectionId, message: &ToolMessage, rank: u32) -> bool {
        let is_attaching = self.seizing.iter().any(|(other, _)| *other == connection);
        match message {
            ToolMessage::Query(_) | ToolMessage::Update(_) => is_attaching,
            ToolMessage::Control(_) => is_attaching || self.works.has_any(connection, Some(rank)),
            ToolMessage::Attach(_) | ToolMessage::Detach(_) => {
                is_attaching || self.works.has_any(connection, None)
            }
            // The memory is for the messages that follow.
            ToolMessage::NotifyAck | ToolMessage::ShareMemory => false,
        }
    }

    pub(super) fn on_record(
        &mut self,
        connection: ConnectionId,
        record: Vec<u8>,
        descriptors: SentDescriptors,
    ) {
        let (header, message) = match ToolMessage::decode(&record) {
            Ok(read) => read,
            Err(refusal) => return self.clients.send(connection, refusal.answer()),
        };
        let mut memfd = match (message == ToolMessage::ShareMemory, descriptors) {
            (true, SentDescriptors::One(fd)) => Some(fd),
            (false, SentDescriptors::None) => None,
            _ => {
                let refusal = Refusal { header: Some(header), fault: Fault::Descriptors };
                return self.clients.send(connection, refusal.answer());
            }
        };
        if self.has_to_wait(connection, &message, header.rank) {
            return self.clients.defer(connection, record);
        }
        let set = match message {
            ToolMessage::Query(_) => CommandSet::Query,
            _ => CommandSet::Update,
        };
        let actions =
            self.authority.handle(Event::Message { connection, header, message: &message });
        drop(message);
        let mut record = Some(record);
        for action in actions {
            match action {
                Action::Execute { connection, rank } => {
                    // The authority does not permit messages for a process that has ended.
                    let pid = self.processes.get(&rank).map_or(0, |process| process.pid);
                    let record = record.take().unwrap_or_default();
                    self.clients.begin(connection);
                    let memory = self.clients.memory(connection);
                    self.works.push(Work::new(connection, pid, header, set, record, memory));
                }
                Action::ShareMemory { connection } => {
                    if let Some(memfd) = memfd.take() {
                        self.share_memory(connection, &header, memfd);
                    }
                }
                action => self.carry_out(vec![action]),
            }
        }
    }

    /// Maps the memory of a tool, and answers its message.
    fn share_memory(&mut self, connection: ConnectionId, request: &Header, memfd: OwnedFd) {
        let Header { job, rank, tool, sequence, .. } = *request;
        let mut header = Header::new(job, rank, tool, sequence);
        let length = match SharedMemory::of_tool(memfd) {
            Ok(memory) => {
                let len = memory.len() as u64;
                self.clients.set_memory(connection, memory);
                len
            }
            Err(errno) => {
                header.return_code = ReturnCode::RequestFailed.number();
                header.error_code = (errno as i32).cast_unsigned();
                0
            }
        };
        let message = ServiceMessage::ShareMemoryAck(SharedLength { length });
        self.clients.send(connection, message.encode(&header));
    }

    /// Passes an event to the authority, and carries out the returned actions.
    pub(super) fn feed(&mut self, event: Event) {
        let actions = self.authority.handle(event);
        self.carry_out(actions);
    }

    /// Carries out actions. Errors of the tracer are ignored, because they concern processes that
    /// are ending.
    pub(super) fn carry_out(&mut self, actions: Vec<Action>) {
        for action in actions {
            let pid_of = |rank: &u32| self.processes.get(rank).map_or(0, |process| process.pid);
            match action {
                Action::Send { connection, header, message }
                    if self.consoles.is_console(connection) =>
                {
                    self.consoles.receive(connection, header, message);
                }
                Action::Send { connection, header, mut message } => {
                    if let ServiceMessage::Notify(Notice::Signal(notice)) = &mut message {
                        let (pid, tid) = (pid_of(&header.rank), notice.thread.cast_signed());
                        let outside = self.ids.thread_outside(pid, tid).unwrap_or(0);
                        notice.thread = outside.cast_unsigned();
                    }
                    self.clients.send(connection, message.encode(&header));
                }
                // The authority returns these actions only for messages, which `on_record` handles.
                Action::Execute { .. } | Action::ShareMemory { .. } => {}
                Action::Seize { connection, ranks } => {
                    self.seizing.push_back((connection, ranks));
                }
                Action::Unseize { rank } => {
                    self.start_notices.remove(&rank);
                    _ = self.tracer.detach(pid_of(&rank));
                }
                Action::Undo { rank, tool: _ } => {
                    self.start_notices.remove(&rank);
                    if self.tracer.release_all(pid_of(&rank)).is_ok() {
                        self.report_breakpoint(ToolctlReport::NoBreakpoints { rank });
                    }
                }
                Action::Configure { rank, settings } => {
                    let signals = SignalSet::from_bits(settings.notify_set);
                    _ = self.tracer.set_notify(pid_of(&rank), signals);
                    self.arm_start_notice(rank, &settings);
                }
                Action::SignalLeader { rank, signal } => {
                    let pid = pid_of(&rank);
                    _ = self.tracer.send_signal(pid, pid, signal.cast_signed());
                }
                Action::Suspend { rank } => _ = self.tracer.suspend(pid_of(&rank)),
                // The tracer already has the signals, which Set Continuation Signal has set.
                Action::Resume { rank, signals: _ } => _ = self.tracer.resume(pid_of(&rank)),
                Action::Step { rank, thread, signal: _ } => {
                    _ = self.tracer.step(pid_of(&rank), thread.cast_signed());
                }
                Action::Pass { rank, notice } => {
                    let signal = match notice.reason {
                        SignalReason::Generic => notice.signal.cast_signed(),
                        _ => 0,
                    };
                    let stays = self.authority.is_suspended(rank);
                    _ = self.tracer.pass(pid_of(&rank), signal, stays);
                }
                Action::Close { connection } => self.clients.close(connection),
            }
        }
    }

    /// Carries out a command that decides when threads continue. `named` is the thread id that the
    /// tool has sent, and `tid` is the thread.
    pub(super) fn execute_authority(
        &mut self,
        work: &mut Work,
        named: u32,
        tid: Tid,
        command: AuthorityCommand,
    ) -> Outcome {
        let (pid, rank, connection) = (work.pid, work.rank(), work.connection);
        let thread = if named == 0 { 0 } else { tid.cast_unsigned() };
        let has_pending = self.tracer.has_pending_notices(pid);
        let (code, actions) = match command {
            AuthorityCommand::Release(_) if has_pending => (CommandCode::PendingNotify, Vec::new()),
            // The step answers the current notice. If another notice is pending, it is issued
            // instead of the step.
            AuthorityCommand::Step if has_pending => {
                let goes_on = AuthorityCommand::Continue;
                let (code, actions) = self.authority.command(connection, rank, 0, goes_on);
                match code {
                    CommandCode::Success => (CommandCode::PendingNotify, actions),
                    code => (code, actions),
                }
            }
            AuthorityCommand::Step => match self.tracer.check_step(pid, tid) {
                Ok(()) => self.authority.command(connection, rank, tid.cast_unsigned(), command),
                Err(error) => (convert::code_of(error), Vec::new()),
            },
            command => self.authority.command(connection, rank, thread, command),
        };
        work.actions.extend(actions);
        let set = match (code, command) {
            (CommandCode::Success, AuthorityCommand::SetContinuationSignal(signal)) => {
                self.tracer.set_continuation(pid, thread.cast_signed(), signal.cast_signed())
            }
            (CommandCode::Success, AuthorityCommand::Release(_)) => {
                self.disarm_start_notice(rank);
                self.tracer.set_notify(pid, SignalSet::default())
            }
            _ => Ok(()),
        };
        Outcome::Done(set.map_or_else(convert::code_of, |()| code), None)
    }

    /// Does all work that is possible without waiting.
    pub(super) fn settle(&mut self) {
        loop {
            let mut is_done = true;
            while let Some(event) = self.tracer.next_event() {
                is_done = false;
                self.on_tracer_event(event);
            }
            for rank in self.works.runnable() {
                is_done = false;
                self.run_work(rank);
            }
            is_done &= !self.seize();
            is_done &= !self.serve_consoles();
            for (connection, record) in self.clients.take_deferred() {
                let is_still_waiting = match ToolMessage::decode(&record) {
                    Ok((header, message)) => self.has_to_wait(connection, &message, header.rank),
                    Err(_) => false,
                };
                if is_still_waiting {
                    self.clients.defer(connection, record);
                } else {
                    is_done = false;
                    self.on_record(connection, record, SentDescriptors::None);
                }
            }
            for connection in self.clients.broken() {
                is_done = false;
                self.disconnect(connection);
            }
            if is_done {
                return self.answer_relays();
            }
        }
    }

    fn on_tracer_event(&mut self, event: tracer::Event) {
        match event {
            tracer::Event::Notice(notice) => {
                if let Some(rank) = self.ranks.get(&notice.pid).copied() {
                    if self.start_notices.get(&rank) == Some(&notice.instruction) {
                        self.disarm_start_notice(rank);
                    }
                    let notice = convert::notice(&notice);
                    self.feed(Event::Signal { rank, notice });
                }
            }
            tracer::Event::Answer { ticket, result } => {
                let tracer = &mut self.tracer;
                if let Some(report) = self.stacks.on_answer(ticket, &result, tracer) {
                    // If the shepherd has ended, the loop detects it.
                    _ = self.report(&[report]);
                } else if self.consoles.waits_for(ticket) {
                    self.on_console_answer(ticket, &result);
                } else if let Some(rank) = self.works.waiting_for(Waiting::Tracer(ticket)) {
                    self.on_answer(rank, result);
                }
            }
            // Attached tools remain attached after exec, because the process is the same.
            tracer::Event::Exec { pid } | tracer::Event::Detached { pid } => {
                if let Some(rank) = self.ranks.get(&pid).copied() {
                    self.start_notices.remove(&rank);
                    self.report_breakpoint(ToolctlReport::NoBreakpoints { rank });
                }
            }
            tracer::Event::ThreadEnded { pid, tid } => {
                if let Some(rank) = self.ranks.get(&pid) {
                    let (rank, thread) = (*rank, tid.cast_unsigned());
                    self.feed(Event::ThreadExited { rank, thread });
                }
            }
            tracer::Event::Exited { pid, status } => {
                if let Some(rank) = self.ranks.remove(&pid) {
                    self.processes.remove(&rank);
                    self.start_notices.remove(&rank);
                    self.feed(Event::Exited { rank, status });
                }
            }
        }
    }

    /// Traces the processes of Attach messages: all processes of a message, or none. Waits for
    /// processes from which the tracer is still detaching. Returns whether anything was done.
    fn seize(&mut self) -> bool {
        let mut is_anything_done = false;
        let mut waiting = std::collections::VecDeque::new();
        while let Some((connection, ranks)) = self.seizing.pop_front() {
            let pid_of = |rank: &u32| self.processes.get(rank).map(|process| process.pid);
            let is_leaving = ranks
                .iter()
                .filter_map(pid_of)
                .any(|pid| !self.tracer.has_no_trace_of(pid) && !self.tracer.is_attached(pid));
            let is_behind = waiting.iter().any(|(other, _)| *other == connection);
            if is_leaving || is_behind {
                waiting.push_back((connection, ranks));
                continue;
            }
            is_anything_done = true;
            let result = self.seize_all(&ranks);
            self.feed(Event::Seized { connection, ranks, result });
        }
        self.seizing = waiting;
        is_anything_done
    }

    fn seize_all(&mut self, ranks: &[u32]) -> Result<(), SeizeFailure> {
        let mut new = Vec::new();
        for rank in ranks {
            // The authority has already handled the end of a process that has ended meanwhile.
            let Some(pid) = self.processes.get(rank).map(|process| process.pid) else { continue };
            let was_there = self.tracer.is_attached(pid);
            if let Err(error) = self.tracer.attach(pid) {
                new.iter().for_each(|pid| _ = self.tracer.detach(*pid));
                let error_code = convert::errno_of(&error);
                let reason = self.ids.explain_attach(pid, error).to_string();
                return Err(SeizeFailure { rank: *rank, error_code, reason });
            }
            if !was_there {
                new.push(pid);
            }
        }
        Ok(())
    }
}
