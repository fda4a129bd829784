//! The rights of tools over the processes of a job on a host (CDTI 4.5 and 4.6; docs/dev/tools.md,
//! groups A and P, and the rules of signal notices in group G).
//!
//! [`Authority`] is a state machine without I/O: it takes an [`Event`] and returns [`Action`]s. No
//! rule depends on time, so it needs no clock. The service that owns it:
//!
//! - passes [`Event::Connected`] for each new connection, [`Event::Message`] for each record that
//!   [`crate::wire::ToolMessage::decode`] accepts, [`Event::Closed`] when a connection ends, and
//!   the events of the processes;
//! - carries out the actions in their order, before it passes the next event;
//! - on [`Action::Execute`] carries out the commands of the message and answers it. It passes each
//!   [`AuthorityCommand`] to [`Authority::command`], and puts the returned code into the answer. It
//!   carries out the returned actions after it has sent the answer. [`FailedThreads`] records which
//!   commands must be skipped because an earlier command of the message has failed. The service
//!   itself checks whether a thread exists and can be stepped.
//!
//! ```
//! use score_tools::authority::*;
//! use score_tools::wire::*;
//!
//! let mut authority = Authority::new(17, 1000);
//! let connection = ConnectionId(1);
//! authority.handle(Event::Started { rank: 0 });
//! authority.handle(Event::Connected { connection, uid: 1000, reach: Reach::Host });
//!
//! // A tool attaches, and requests a number.
//! let body = Attach { tag: *b"snapshot", priority: 10, select: ProcessSelect::RanksInNode };
//! let record = ToolRequest::Attach(body).encode(&Header::new(17, 0, 0, 1)).unwrap();
//!
//! // The service traces the process, and sends the answer.
//! let (header, message) = ToolMessage::decode(&record).unwrap();
//! let actions = authority.handle(Event::Message { connection, header, message: &message });
//! let [Action::Seize { ranks, .. }] = &actions[..] else { panic!("rank 0 is not traced yet") };
//! let (ranks, result) = (ranks.clone(), Ok(()));
//! let actions = authority.handle(Event::Seized { connection, ranks, result });
//! let [Action::Send { header, message, .. }] = &actions[..] else { panic!("an answer") };
//! assert_eq!(header.tool, FIRST_OWN_TOOL);
//! let record = message.encode(header);
//! let (_, answer) = ServiceMessage::decode(&record).unwrap();
//! assert_eq!(answer, ServiceMessage::AttachAck(vec![0]));
//! ```
//!
//! The memory use is bounded by the numbers of connections, processes and threads. For each
//! process, a tool has a bounded number of unread notices: one of a signal, one of an exit, and one
//! for each conflict. A conflict is a request of another tool for authority since authority was
//! last granted. Because a tool can detach, attach and request again, the service must limit the
//! output that waits for a tool that does not read.
//!
//! The sources leave some rules open. This module uses the following ones:
//!
//! - If the connection of a tool with authority ends, the process continues as if the tool had
//!   never been attached: [`Action::Undo`] follows, and threads that stopped at a notice continue
//!   with their own signals. The modifications of a tool without authority may have been handed
//!   over, so they remain until the last tool has left ([`Action::Unseize`]).
//! - If the tool that was notified of "available" leaves without requesting authority, the next
//!   tool is notified. Otherwise that tool would wait for ever.
//! - Ranks whose process has exited do not belong to "all ranks of the host".
#![forbid(unsafe_code)]

mod attach;
mod control_conflict;
mod events;
mod failed_threads;
#[cfg(test)]
mod model;
mod process;
#[cfg(test)]
mod simulation;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, VecDeque};

use crate::wire::{
    Control, ControlAck, Detach, ExitNotice, Header, Notice, ProcessSelect, ReturnCode,
    ServiceMessage, SharedLength, ToolMessage, TrapMode, errno,
};

pub use control_conflict::{CONSOLE_TAG, GDB_TAG, describe_control_conflict};
pub use events::{Action, ConnectionId, Event, Reach, SeizeFailure, ToolIdentity};
pub use failed_threads::FailedThreads;
use process::Process;
pub use process::{AuthorityCommand, MAX_TOOLS};

/// The highest priority of a tool.
pub const MAX_PRIORITY: u8 = 99;
/// The first number for tools that were not started by `start_tool` (ruling O21).
pub const FIRST_OWN_TOOL: u32 = 1 << 31;

/// A connection of a tool.
#[derive(Debug)]
struct Connection {
    reach: Reach,
    /// The number of the tool, which it gets with its first Attach.
    tool: Option<u32>,
    /// The Attach messages that wait for [`Event::Seized`], with their ranks.
    attaching: VecDeque<(Header, Vec<u32>)>,
}

impl Connection {
    fn reaches(&self, rank: u32) -> bool {
        match self.reach {
            Reach::Rank(only) => only == rank,
            Reach::Host => true,
        }
    }
}

/// The authority of tools over the processes of a job on a host.
#[derive(Debug)]
pub struct Authority {
    job: u64,
    owner: u32,
    connections: BTreeMap<ConnectionId, Connection>,
    processes: BTreeMap<u32, Process>,
    next_own_tool: u32,
}

impl Authority {
    /// The state for a job of this user. No process has started.
    pub fn new(job: u64, owner: u32) -> Self {
        Self {
            job,
            owner,
            connections: BTreeMap::new(),
            processes: BTreeMap::new(),
            next_own_tool: FIRST_OWN_TOOL,
        }
    }

    /// Handles an event. Returns the actions to carry out.
    pub fn handle(&mut self, event: Event) -> Vec<Action> {
        let mut actions = Vec::new();
        match event {
            Event::Connected { connection, uid, reach } => {
                if uid == self.owner {
                    let attaching = VecDeque::new();
                    let new = Connection { reach, tool: None, attaching };
                    self.connections.insert(connection, new);
                } else {
                    actions.push(Action::Close { connection });
                }
            }
            Event::Message { connection, header, message } => {
                if self.connections.contains_key(&connection) {
                    self.on_message(connection, &header, message, &mut actions);
                } else {
                    actions.push(Action::Close { connection });
                }
            }
            Event::Seized { connection, ranks, result } => {
                self.on_seized(connection, ranks, result, &mut actions);
            }
            Event::Closed { connection } => {
                self.connections.remove(&connection);
                for (rank, process) in &mut self.processes {
                    process.on_tool_died(connection, self.job, *rank, &mut actions);
                }
            }
            Event::Started { rank } => {
                let process = self.processes.entry(rank).or_default();
                if process.has_exited {
                    *process = Process::default();
                }
            }
            Event::Exited { rank, status } => self.on_exited(rank, status, &mut actions),
            Event::ThreadExited { rank, thread } => {
                if let Some(process) = self.processes.get_mut(&rank) {
                    process.on_thread_exited(thread, self.job, rank, &mut actions);
                }
            }
            Event::Signal { rank, notice } => match self.processes.get_mut(&rank) {
                Some(process) => process.on_signal(notice, self.job, rank, &mut actions),
                None => actions.push(Action::Pass { rank, notice }),
            },
        }
        actions
    }

    /// Carries out a command of an Update for which [`Authority::handle`] has returned
    /// [`Action::Execute`]. `thread` is the thread that the command names, or 0. The returned code
    /// belongs into the answer. Carry out the actions after the answer has been sent.
    pub fn command(
        &mut self,
        connection: ConnectionId,
        rank: u32,
        thread: u32,
        command: AuthorityCommand,
    ) -> (crate::wire::CommandCode, Vec<Action>) {
        let mut actions = Vec::new();
        let code = match self.processes.get_mut(&rank) {
            Some(process) => {
                process.on_command(connection, thread, command, self.job, rank, &mut actions)
            }
            None => crate::wire::CommandCode::ProcessExiting,
        };
        (code, actions)
    }

    /// The thread to which a command with thread id 0 applies: the thread of the last signal
    /// notice, if it still exists. `None` stands for the process leader.
    pub fn default_thread(&self, rank: u32) -> Option<u32> {
        self.processes.get(&rank)?.last_notice_thread()
    }

    /// Whether all threads of the process are suspended.
    pub fn is_suspended(&self, rank: u32) -> bool {
        self.processes.get(&rank).is_some_and(Process::is_suspended)
    }

    /// The tool that has authority for the process.
    pub fn controller(&self, rank: u32) -> Option<ToolIdentity> {
        self.processes.get(&rank)?.controller_identity()
    }

    /// Checks whether a tool may send a message. All checks are in this function. Only the job's
    /// owner can have connections ([`Event::Connected`]).
    fn permit(
        &self,
        connection: ConnectionId,
        header: &Header,
        message: &ToolMessage,
    ) -> Result<(), ReturnCode> {
        let rank = header.rank;
        if header.job != self.job {
            return Err(ReturnCode::JobIdError);
        }
        match message {
            // The functions for these messages check them.
            ToolMessage::Attach(_) | ToolMessage::Detach(_) | ToolMessage::NotifyAck => {
                return Ok(());
            }
            ToolMessage::Control(_)
            | ToolMessage::Query(_)
            | ToolMessage::Update(_)
            | ToolMessage::ShareMemory => {}
        }
        let tool = &self.connections[&connection];
        if tool.tool != Some(header.tool) {
            return Err(ReturnCode::ToolIdError);
        }
        if *message == ToolMessage::ShareMemory {
            // The memory belongs to the connection, not to a process.
            return Ok(());
        }
        let process = self.processes.get(&rank).filter(|_| tool.reaches(rank));
        let process = process.ok_or(ReturnCode::ProcessIdError)?;
        if process.has_exited {
            Err(ReturnCode::ToolProcessExiting)
        } else if !process.is_attached(connection) {
            Err(ReturnCode::ToolRankNotFound)
        } else if matches!(message, ToolMessage::Update(_)) && !process.is_controller(connection) {
            Err(ReturnCode::ToolControlRequired)
        } else {
            Ok(())
        }
    }

    fn on_message(
        &mut self,
        connection: ConnectionId,
        header: &Header,
        message: &ToolMessage,
        actions: &mut Vec<Action>,
    ) {
        if let Err(code) = self.permit(connection, header, message) {
            actions.extend(refusal(connection, header, code, message));
            return;
        }
        match message {
            ToolMessage::NotifyAck => {}
            ToolMessage::Attach(body) => self.on_attach(connection, header, body, actions),
            ToolMessage::Detach(body) => self.on_detach(connection, header, body, actions),
            ToolMessage::Control(body) => self.on_control(connection, header, body, actions),
            ToolMessage::Query(_) | ToolMessage::Update(_) => {
                actions.push(Action::Execute { connection, rank: header.rank });
            }
            ToolMessage::ShareMemory => actions.push(Action::ShareMemory { connection }),
        }
    }

    fn on_detach(
        &mut self,
        connection: ConnectionId,
        header: &Header,
        body: &Detach,
        actions: &mut Vec<Action>,
    ) {
        let own = &self.connections[&connection];
        let is_selected = |rank: u32| {
            own.tool == Some(header.tool)
                && own.reaches(rank)
                && (body.select == ProcessSelect::RanksInNode || rank == header.rank)
        };
        let attached = self
            .processes
            .iter()
            .filter(|(rank, process)| is_selected(**rank) && process.is_attached(connection));
        let ranks: Vec<u32> = attached.map(|(rank, _)| *rank).collect();
        let controlled =
            ranks.iter().find(|rank| self.processes[rank].is_controller(connection)).copied();
        if let Some(rank) = controlled {
            let header = Header { rank, ..*header };
            let message = ServiceMessage::DetachAck(Vec::new());
            let code = ReturnCode::ToolControlReleaseRequired;
            actions.push(answer(connection, &header, code, 0, message));
            return;
        }
        let message = ServiceMessage::DetachAck(ranks.clone());
        actions.push(answer(connection, header, ReturnCode::Success, 0, message));
        for rank in ranks {
            let process = self.processes.get_mut(&rank).expect("attached");
            process.remove_tool(connection, self.job, rank, actions);
        }
    }

    fn on_control(
        &mut self,
        connection: ConnectionId,
        header: &Header,
        settings: &Control,
        actions: &mut Vec<Action>,
    ) {
        let process = self.processes.get_mut(&header.rank).expect("permitted");
        let fault = if settings.trap_mode == TrapMode::OnAccess {
            Some(errno::EOPNOTSUPP)
        } else if settings.signal > crate::wire::MAX_SIGNAL {
            Some(errno::EINVAL)
        } else {
            None
        };
        if let Some(error_code) = fault {
            let message = ServiceMessage::ControlAck(process.control_ack());
            let code = ReturnCode::RequestFailed;
            actions.push(answer(connection, header, code, error_code, message));
            return;
        }
        process.on_control(connection, header, settings, actions);
    }

    fn on_exited(&mut self, rank: u32, status: i32, actions: &mut Vec<Action>) {
        let Some(process) = self.processes.get_mut(&rank).filter(|process| !process.has_exited)
        else {
            return;
        };
        for (connection, identity) in process.tools_by_priority() {
            let message = ServiceMessage::Notify(Notice::Exit(ExitNotice { status }));
            let header = Header::new(self.job, rank, identity.tool, 0);
            actions.push(Action::Send { connection, header, message });
        }
        // Authority is released and the tools are detached, without further notices (X4, X5).
        *process = Process::exited();
    }
}

/// The answer to a message.
fn answer(
    connection: ConnectionId,
    request: &Header,
    code: ReturnCode,
    error_code: u32,
    message: ServiceMessage<'static>,
) -> Action {
    let header = Header {
        return_code: code.number(),
        error_code,
        ..Header::new(request.job, request.rank, request.tool, request.sequence)
    };
    Action::Send { connection, header, message }
}

/// The answer to a message that the tool must not send. It has no content.
fn refusal(
    connection: ConnectionId,
    request: &Header,
    code: ReturnCode,
    message: &ToolMessage,
) -> Option<Action> {
    let message = match message {
        ToolMessage::Attach(_) => ServiceMessage::AttachAck(Vec::new()),
        ToolMessage::Detach(_) => ServiceMessage::DetachAck(Vec::new()),
        ToolMessage::Control(_) => ServiceMessage::ControlAck(ControlAck::nobody()),
        ToolMessage::Query(_) => ServiceMessage::QueryAck(Vec::new()),
        ToolMessage::Update(_) => ServiceMessage::UpdateAck(Vec::new()),
        ToolMessage::ShareMemory => ServiceMessage::ShareMemoryAck(SharedLength { length: 0 }),
        ToolMessage::NotifyAck => return None,
    };
    Some(answer(connection, request, code, 0, message))
}
