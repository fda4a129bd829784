//! Handling of messages of tools, actions of the authority, and events of the tracer.

use nix::poll::PollFlags;
use score_proto::toolctl::ToolctlReport;
use score_toolctl::tracer::{self, SignalSet, Tid};
use score_tools::authority::{Action, AuthorityCommand, ConnectionId, Event, Reach};
use score_tools::wire::{
    CommandCode, CommandSet, Fault, Notice, Refusal, ServiceMessage, SignalReason, ToolMessage,
};

use super::clients::{Received, SentDescriptors};
use super::work::{Outcome, Waiting, Work};
use super::{Service, attaches, convert};

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
        self.relays.remove(connection, &mut self.shepherd);
        for pin in self.works.drop_connection(connection) {
            self.tracer.unpin(pin);
        }
        self.feed(Event::Closed { connection });
    }

    /// Whether a message must wait until earlier messages of its connection are answered.
    fn has_to_wait(&self, connection: ConnectionId, message: &ToolMessage, rank: u32) -> bool {
        let is_attaching = self.attaches.has_any(connection);
        match message {
            ToolMessage::Query(_) | ToolMessage::Update(_) => is_attaching,
            ToolMessage::Control(_) => is_attaching || self.works.has_any(connection, Some(rank)),
            ToolMessage::Attach(_) | ToolMessage::Detach(_) => {
                is_attaching || self.works.has_any(connection, None)
            }
            // Messages in progress keep their own memory.
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
                    let pid = self.processes.pid(rank).unwrap_or(0);
                    let record = record.take().unwrap_or_default();
                    self.clients.begin(connection);
                    let memory = self.clients.memory(connection);
                    self.works.push(Work::new(connection, pid, header, set, record, memory));
                }
                Action::ShareMemory { connection } => {
                    if let Some(memfd) = memfd.take() {
                        self.clients.share_memory(connection, &header, memfd);
                    }
                }
                action => self.carry_out(vec![action]),
            }
        }
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
            let pid_of = |rank: u32| self.processes.pid(rank).unwrap_or(0);
            match action {
                Action::Send { connection, header, message }
                    if self.consoles.is_console(connection) =>
                {
                    self.consoles.receive(connection, header, message);
                }
                Action::Send { connection, header, mut message } => {
                    if let ServiceMessage::Notify(Notice::Signal(notice)) = &mut message {
                        let (pid, tid) = (pid_of(header.rank), notice.thread.cast_signed());
                        let outside = self.ids.thread_outside(pid, tid).unwrap_or(0);
                        notice.thread = outside.cast_unsigned();
                    }
                    self.clients.send(connection, message.encode(&header));
                }
                // The authority returns these actions only for messages, which `on_record` handles.
                Action::Execute { .. } | Action::ShareMemory { .. } => {}
                Action::Seize { connection, ranks } => {
                    self.attaches.push(connection, ranks);
                }
                Action::Unseize { rank } => {
                    self.start_notices.forget(rank);
                    _ = self.tracer.detach(pid_of(rank));
                }
                Action::Undo { rank, tool: _ } => {
                    self.start_notices.forget(rank);
                    if self.tracer.release_all(pid_of(rank)).is_ok() {
                        self.shepherd.report_breakpoint(ToolctlReport::NoBreakpoints { rank });
                    }
                }
                Action::Configure { rank, settings } => {
                    let signals = SignalSet::from_bits(settings.notify_set);
                    let policy = convert::watch_policy(settings.watch_policy);
                    _ = self.tracer.set_notify(pid_of(rank), signals);
                    _ = self.tracer.set_watch_policy(pid_of(rank), policy);
                    self.arm_start_notice(rank, &settings);
                }
                Action::SignalLeader { rank, signal } => {
                    let pid = pid_of(rank);
                    _ = self.tracer.send_signal(pid, pid, signal.cast_signed());
                }
                Action::Suspend { rank } => _ = self.tracer.suspend(pid_of(rank)),
                // The tracer already has the signals, which Set Continuation Signal has set.
                Action::Resume { rank, signals: _ } => _ = self.tracer.resume(pid_of(rank)),
                Action::Step { rank, thread, signal: _ } => {
                    _ = self.tracer.step(pid_of(rank), thread.cast_signed());
                }
                Action::Pass { rank, notice } => {
                    let signal = match notice.reason {
                        SignalReason::Generic => notice.signal.cast_signed(),
                        _ => 0,
                    };
                    let stays = self.authority.is_suspended(rank);
                    _ = self.tracer.pass(pid_of(rank), signal, stays);
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
                return self.relays.answer(&mut self.clients, &mut self.shepherd);
            }
        }
    }

    fn on_tracer_event(&mut self, event: tracer::Event) {
        match event {
            tracer::Event::Notice(notice) => {
                if let Some(rank) = self.processes.rank(notice.pid) {
                    if self.start_notices.is_at(rank, notice.instruction) {
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
                    _ = self.shepherd.report(&[report]);
                } else if self.consoles.waits_for(ticket) {
                    self.on_console_answer(ticket, &result);
                } else if let Some(rank) = self.works.waiting_for(Waiting::Tracer(ticket)) {
                    self.on_answer(rank, result);
                }
            }
            // Attached tools remain attached after exec, because the process is the same.
            tracer::Event::Exec { pid } | tracer::Event::Detached { pid } => {
                if let Some(rank) = self.processes.rank(pid) {
                    self.start_notices.forget(rank);
                    self.shepherd.report_breakpoint(ToolctlReport::NoBreakpoints { rank });
                }
            }
            tracer::Event::ThreadEnded { pid, tid } => {
                if let Some(rank) = self.processes.rank(pid) {
                    self.feed(Event::ThreadExited { rank, thread: tid.cast_unsigned() });
                }
            }
            tracer::Event::Exited { pid, status } => {
                if let Some(rank) = self.processes.remove_pid(pid) {
                    self.start_notices.forget(rank);
                    self.feed(Event::Exited { rank, status });
                }
            }
        }
    }

    /// Traces the processes of Attach messages: all processes of a message, or none. Waits for
    /// processes from which the tracer is still detaching. Returns whether anything was done.
    fn seize(&mut self) -> bool {
        let mut is_anything_done = false;
        let mut position = 0;
        loop {
            let (processes, tracer) = (&self.processes, &self.tracer);
            let is_leaving = |ranks: &[u32]| {
                let mut pids = ranks.iter().filter_map(|rank| processes.pid(*rank));
                pids.any(|pid| !tracer.has_no_trace_of(pid) && !tracer.is_attached(pid))
            };
            let ready = self.attaches.take_ready(&mut position, is_leaving);
            let Some((connection, ranks)) = ready else { return is_anything_done };
            is_anything_done = true;
            let (tracer, ids) = (&mut self.tracer, &mut self.ids);
            let result = attaches::seize_all(&ranks, &self.processes, tracer, ids);
            self.feed(Event::Seized { connection, ranks, result });
        }
    }
}
