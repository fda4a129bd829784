//! The tools of one process: the tool with authority, the tools that wait for it, and the threads
//! that are stopped at a notice.

use std::collections::{BTreeMap, VecDeque};

use super::{Action, ConnectionId, ToolIdentity, answer};
use crate::wire::{
    CommandCode, Control, ControlAck, ControlNotice, ControlReason, Header, Notice, ReleaseNotify,
    ReturnCode, ServiceMessage, SignalNotice, SignalReason,
};

/// The most tools that can be attached to a process.
pub const MAX_TOOLS: usize = 4;
/// SIGKILL, of which no tool is notified.
const SIGKILL: u32 = 9;

/// A command that decides when threads continue, or which tool has authority.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AuthorityCommand {
    /// Set Continuation Signal: this signal, or 0.
    SetContinuationSignal(u32),
    /// Continue Process.
    Continue,
    /// Step Thread.
    Step,
    /// Suspend Process.
    Suspend,
    /// Release Control.
    Release(ReleaseNotify),
}

/// An attachment of a tool, which may still wait until the process is traced.
#[derive(Debug, Clone, Copy)]
pub(super) struct Attachment {
    pub identity: ToolIdentity,
    /// Whether the process is traced and the tool has got its answer.
    pub is_complete: bool,
}

/// Why a tool waits for authority.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum WaitReason {
    /// Its request was refused, and the tool with authority has been notified.
    Refused,
    /// Its request was refused while an earlier tool had authority.
    RefusedBefore,
    /// The tool has released authority and has requested a notice of its next release.
    Released,
}

/// A thread that has caused a notice and has not continued.
#[derive(Debug, Clone, Copy)]
struct NoticedThread {
    /// The signal that it would get without a tool. 0 for a trap.
    own_signal: u32,
    /// The signal that it gets when it continues.
    continuation: u32,
}

/// The suspension of the threads.
#[derive(Debug, Default)]
struct Suspension {
    is_suspended: bool,
    /// The threads whose notice has been sent.
    noticed: BTreeMap<u32, NoticedThread>,
    /// The thread whose notice waits for a command.
    current: Option<u32>,
    /// The notices that have not been sent.
    queue: VecDeque<SignalNotice>,
}

/// A process.
#[derive(Debug, Default)]
pub(super) struct Process {
    pub has_exited: bool,
    /// Whether the service traces the process.
    pub is_seized: bool,
    pub attachments: BTreeMap<ConnectionId, Attachment>,
    controller: Option<(ConnectionId, Control)>,
    waiting: BTreeMap<ConnectionId, WaitReason>,
    /// The tool that was notified of "available" since authority became free.
    offered: Option<ConnectionId>,
    suspension: Suspension,
    last_notice: Option<u32>,
}

fn own_signal(notice: &SignalNotice) -> u32 {
    match notice.reason {
        SignalReason::Generic => notice.signal,
        _ => 0,
    }
}

impl Process {
    /// A process that has exited. No tool is attached to it.
    pub fn exited() -> Self {
        Self { has_exited: true, ..Self::default() }
    }

    pub fn is_attached(&self, connection: ConnectionId) -> bool {
        self.attachments.get(&connection).is_some_and(|attachment| attachment.is_complete)
    }

    pub fn is_controller(&self, connection: ConnectionId) -> bool {
        self.controller.is_some_and(|(controller, _)| controller == connection)
    }

    pub fn is_suspended(&self) -> bool {
        self.suspension.is_suspended
    }

    pub fn last_notice_thread(&self) -> Option<u32> {
        self.last_notice
    }

    pub fn controller_identity(&self) -> Option<ToolIdentity> {
        let (connection, _) = self.controller?;
        Some(self.attachments[&connection].identity)
    }

    /// The attached tools, in descending order of priority.
    pub fn tools_by_priority(&self) -> Vec<(ConnectionId, ToolIdentity)> {
        let complete = self.attachments.iter().filter(|(_, attachment)| attachment.is_complete);
        let mut tools: Vec<_> =
            complete.map(|(connection, attachment)| (*connection, attachment.identity)).collect();
        tools.sort_by_key(|(_, identity)| std::cmp::Reverse(identity.priority));
        tools
    }

    /// Checks whether the tool can be attached. Incomplete attachments also count.
    pub fn check_attach(
        &self,
        connection: ConnectionId,
        identity: &ToolIdentity,
    ) -> Result<(), ReturnCode> {
        let others = || self.attachments.values().map(|attachment| attachment.identity);
        if self.attachments.contains_key(&connection)
            || others().any(|other| other.tool == identity.tool)
        {
            Err(ReturnCode::ToolIdConflict)
        } else if self.attachments.len() >= MAX_TOOLS {
            Err(ReturnCode::ToolMaxAttachedExceeded)
        } else if others().any(|other| other.priority == identity.priority) {
            Err(ReturnCode::ToolPriorityConflict)
        } else {
            Ok(())
        }
    }

    /// The tool with authority, in the form of an answer.
    pub fn control_ack(&self) -> ControlAck {
        match self.controller_identity() {
            Some(tool) => ControlAck::new(tool.tool, tool.tag, tool.priority),
            None => ControlAck::nobody(),
        }
    }

    /// Handles the request of an attached tool for authority.
    pub fn on_control(
        &mut self,
        connection: ConnectionId,
        header: &Header,
        settings: &Control,
        actions: &mut Vec<Action>,
    ) {
        let rank = header.rank;
        match self.controller {
            Some((controller, _)) if controller != connection => {
                let message = ServiceMessage::ControlAck(self.control_ack());
                let code = ReturnCode::ToolControlConflict;
                actions.push(answer(connection, header, code, 0, message));
                let before = self.waiting.insert(connection, WaitReason::Refused);
                if before != Some(WaitReason::Refused) {
                    let asker = self.attachments[&connection].identity;
                    let reason = ControlReason::Conflict;
                    actions.push(self.control_notice(controller, asker, reason, header.job, rank));
                }
            }
            Some(_) | None => {
                self.give_control(connection, settings);
                let message = ServiceMessage::ControlAck(self.control_ack());
                actions.push(answer(connection, header, ReturnCode::Success, 0, message));
                actions.push(Action::Configure { rank, settings: *settings });
                if settings.signal != 0 {
                    self.suspend(rank, actions);
                    actions.push(Action::SignalLeader { rank, signal: settings.signal });
                }
            }
        }
    }

    fn give_control(&mut self, connection: ConnectionId, settings: &Control) {
        if !self.is_controller(connection) {
            // The new tool with authority has not been notified of any waiting tool.
            for reason in self.waiting.values_mut().filter(|one| **one == WaitReason::Refused) {
                *reason = WaitReason::RefusedBefore;
            }
        }
        self.controller = Some((connection, *settings));
        self.waiting.remove(&connection);
        self.offered = None;
    }

    fn control_notice(
        &self,
        to: ConnectionId,
        about: ToolIdentity,
        reason: ControlReason,
        job: u64,
        rank: u32,
    ) -> Action {
        let ToolIdentity { tool, tag, priority } = about;
        let notice = Notice::Control(ControlNotice { tool, tag, priority, reason });
        let header = Header::new(job, rank, self.attachments[&to].identity.tool, 0);
        Action::Send { connection: to, header, message: ServiceMessage::Notify(notice) }
    }

    /// Notifies only the waiting tool of highest priority that authority is free.
    fn offer(&mut self, by: ToolIdentity, job: u64, rank: u32, actions: &mut Vec<Action>) {
        let favoured =
            self.waiting.keys().max_by_key(|one| self.attachments[one].identity.priority).copied();
        self.offered = favoured;
        if let Some(connection) = favoured {
            self.waiting.remove(&connection);
            let reason = ControlReason::Available;
            actions.push(self.control_notice(connection, by, reason, job, rank));
        }
    }

    /// Removes a tool without authority.
    pub fn remove_tool(
        &mut self,
        connection: ConnectionId,
        job: u64,
        rank: u32,
        actions: &mut Vec<Action>,
    ) {
        let Some(left) = self.attachments.remove(&connection) else { return };
        self.waiting.remove(&connection);
        if self.offered == Some(connection) {
            self.offer(left.identity, job, rank, actions);
        }
        if self.attachments.is_empty() && self.is_seized {
            self.is_seized = false;
            self.last_notice = None;
            actions.push(Action::Unseize { rank });
        }
    }

    /// Handles the end of a tool's connection.
    pub fn on_tool_died(
        &mut self,
        connection: ConnectionId,
        job: u64,
        rank: u32,
        actions: &mut Vec<Action>,
    ) {
        if self.is_controller(connection) {
            let by = self.attachments[&connection].identity;
            self.controller = None;
            actions.push(Action::Undo { rank, tool: by.tool });
            self.resume_with_own_signals(rank, actions);
            self.offer(by, job, rank, actions);
        }
        self.remove_tool(connection, job, rank, actions);
    }

    fn suspend(&mut self, rank: u32, actions: &mut Vec<Action>) {
        if !self.suspension.is_suspended {
            self.suspension.is_suspended = true;
            actions.push(Action::Suspend { rank });
        }
    }

    /// Handles a stop of a thread at a signal.
    pub fn on_signal(
        &mut self,
        notice: SignalNotice,
        job: u64,
        rank: u32,
        actions: &mut Vec<Action>,
    ) {
        let is_asked_for = self.controller.is_some_and(|(_, settings)| {
            let bit = notice.signal.checked_sub(1).and_then(|bit| 1u64.checked_shl(bit));
            notice.signal != SIGKILL && bit.is_some_and(|bit| settings.notify_set & bit != 0)
        });
        if !is_asked_for {
            actions.push(Action::Pass { rank, notice });
            return;
        }
        self.suspend(rank, actions);
        // A thread can be stopped at only one signal, so its earlier notice is obsolete.
        self.suspension.queue.retain(|queued| queued.thread != notice.thread);
        self.suspension.queue.push_back(notice);
        if self.suspension.current.is_none() {
            self.send_next_notice(job, rank, actions);
        }
    }

    /// Sends the next notice of a signal. Returns whether there was one.
    fn send_next_notice(&mut self, job: u64, rank: u32, actions: &mut Vec<Action>) -> bool {
        let Some(notice) = self.suspension.queue.pop_front() else { return false };
        let (connection, _) = self.controller.expect("only its notices are queued");
        self.suspension.current = Some(notice.thread);
        self.last_notice = Some(notice.thread);
        let noticed = NoticedThread { own_signal: own_signal(&notice), continuation: 0 };
        self.suspension.noticed.insert(notice.thread, noticed);
        let header = Header::new(job, rank, self.attachments[&connection].identity.tool, 0);
        let message = ServiceMessage::Notify(Notice::Signal(notice));
        actions.push(Action::Send { connection, header, message });
        true
    }

    fn resume(&mut self, rank: u32, actions: &mut Vec<Action>) {
        if !self.suspension.is_suspended {
            return;
        }
        let suspension = std::mem::take(&mut self.suspension);
        let continued = suspension.noticed.iter().map(|(thread, one)| (*thread, one.continuation));
        let signals = continued.filter(|(_, signal)| *signal != 0).collect();
        actions.push(Action::Resume { rank, signals });
    }

    /// Resumes the process as if the tool had never been attached. Threads whose notice the tool
    /// has not handled get the signal that they would have got without the tool.
    fn resume_with_own_signals(&mut self, rank: u32, actions: &mut Vec<Action>) {
        let suspension = &mut self.suspension;
        if let Some(current) = suspension.current
            && let Some(noticed) = suspension.noticed.get_mut(&current)
        {
            noticed.continuation = noticed.own_signal;
        }
        for notice in std::mem::take(&mut suspension.queue) {
            let signal = own_signal(&notice);
            let noticed = NoticedThread { own_signal: signal, continuation: signal };
            suspension.noticed.insert(notice.thread, noticed);
        }
        self.resume(rank, actions);
    }

    /// Removes the notices of a thread that has ended. If one of them was current, sends the next.
    pub fn on_thread_exited(
        &mut self,
        thread: u32,
        job: u64,
        rank: u32,
        actions: &mut Vec<Action>,
    ) {
        let suspension = &mut self.suspension;
        suspension.queue.retain(|notice| notice.thread != thread);
        suspension.noticed.remove(&thread);
        if self.last_notice == Some(thread) {
            self.last_notice = None;
        }
        if suspension.current == Some(thread) {
            suspension.current = None;
            self.send_next_notice(job, rank, actions);
        }
    }

    /// Handles a command of an Update.
    pub fn on_command(
        &mut self,
        connection: ConnectionId,
        thread: u32,
        command: AuthorityCommand,
        job: u64,
        rank: u32,
        actions: &mut Vec<Action>,
    ) -> CommandCode {
        if self.has_exited || !self.is_controller(connection) {
            // The message was permitted, so the process has exited since, which has detached the
            // tool.
            return CommandCode::ProcessExiting;
        }
        match command {
            AuthorityCommand::SetContinuationSignal(signal) => {
                self.set_continuation(thread, signal)
            }
            AuthorityCommand::Continue => self.continue_process(thread, job, rank, actions),
            AuthorityCommand::Step => self.step(thread, job, rank, actions),
            AuthorityCommand::Suspend => {
                self.suspend(rank, actions);
                CommandCode::Success
            }
            AuthorityCommand::Release(notify) => {
                self.release(connection, notify, job, rank, actions)
            }
        }
    }

    fn set_continuation(&mut self, thread: u32, signal: u32) -> CommandCode {
        let thread = if thread == 0 { self.last_notice } else { Some(thread) };
        match thread.and_then(|thread| self.suspension.noticed.get_mut(&thread)) {
            Some(noticed) => {
                noticed.continuation = signal;
                CommandCode::Success
            }
            None => CommandCode::ThreadInvalid,
        }
    }

    /// `thread` must be the thread of the last notice. 0 stands for this thread, or for a process
    /// that was suspended without a notice.
    fn continue_process(
        &mut self,
        thread: u32,
        job: u64,
        rank: u32,
        actions: &mut Vec<Action>,
    ) -> CommandCode {
        let is_target = thread == 0 || self.suspension.current == Some(thread);
        if !self.suspension.is_suspended || !is_target {
            return CommandCode::ThreadInvalid;
        }
        self.suspension.current = None;
        if !self.send_next_notice(job, rank, actions) {
            self.resume(rank, actions);
        }
        CommandCode::Success
    }

    /// The step counts as the answer to the current notice, even if another notice is pending and
    /// the step is therefore not done.
    fn step(&mut self, thread: u32, job: u64, rank: u32, actions: &mut Vec<Action>) -> CommandCode {
        self.suspension.current = None;
        if self.send_next_notice(job, rank, actions) {
            return CommandCode::PendingNotify;
        }
        self.suspend(rank, actions);
        let thread = if thread == 0 { self.last_notice.unwrap_or(0) } else { thread };
        let noticed = self.suspension.noticed.remove(&thread);
        let signal = noticed.map_or(0, |noticed| noticed.continuation);
        actions.push(Action::Step { rank, thread, signal });
        CommandCode::Success
    }

    fn release(
        &mut self,
        connection: ConnectionId,
        notify: ReleaseNotify,
        job: u64,
        rank: u32,
        actions: &mut Vec<Action>,
    ) -> CommandCode {
        if !self.suspension.queue.is_empty() {
            return CommandCode::PendingNotify;
        }
        self.resume(rank, actions);
        self.controller = None;
        self.offer(self.attachments[&connection].identity, job, rank, actions);
        // The tool must not be notified of its own release.
        if notify == ReleaseNotify::Yes {
            self.waiting.insert(connection, WaitReason::Released);
        }
        CommandCode::Success
    }
}
