//! The events and the actions of the state machine.

use crate::wire::{Control, Header, ServiceMessage, SignalNotice, ToolMessage, ToolTag};

/// The service's number of a connection. The service never reuses a number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ConnectionId(pub u64);

/// The processes to which a connection gives access.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reach {
    /// The connection uses the socket of this rank.
    Rank(u32),
    /// The connection uses the socket of the host.
    Host,
}

/// The identity of a tool, as notices to other tools contain it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ToolIdentity {
    /// Its number.
    pub tool: u32,
    /// Its tag.
    pub tag: ToolTag,
    /// Its priority for this process.
    pub priority: u8,
}

/// An event.
#[derive(Debug, Clone)]
pub enum Event<'a> {
    /// A connection was accepted.
    Connected {
        /// The connection.
        connection: ConnectionId,
        /// The uid of the peer, as the kernel reports it.
        uid: u32,
        /// The socket that the connection uses.
        reach: Reach,
    },
    /// A message has arrived.
    Message {
        /// The connection.
        connection: ConnectionId,
        /// The header of the message.
        header: Header,
        /// The message.
        message: &'a ToolMessage<'a>,
    },
    /// An [`Action::Seize`] has been carried out. These events have the order of the actions.
    Seized {
        /// The connection of the action.
        connection: ConnectionId,
        /// The ranks of the action.
        ranks: Vec<u32>,
        /// If one process could not be seized, none is seized.
        result: Result<(), SeizeFailure>,
    },
    /// A connection has ended.
    Closed {
        /// The connection.
        connection: ConnectionId,
    },
    /// A process has started.
    Started {
        /// Its rank.
        rank: u32,
    },
    /// A process has exited.
    Exited {
        /// Its rank.
        rank: u32,
        /// Its status, in the form of wait(2).
        status: i32,
    },
    /// A thread has ended, but its process has not.
    ThreadExited {
        /// The rank of its process.
        rank: u32,
        /// The thread.
        thread: u32,
    },
    /// A thread has stopped at a signal or at a trap.
    Signal {
        /// The rank of its process.
        rank: u32,
        /// The notice for a tool.
        notice: SignalNotice,
    },
}

/// Why processes could not be seized.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SeizeFailure {
    /// The rank of a process that could not be seized.
    pub rank: u32,
    /// The errno value.
    pub error_code: u32,
    /// One line for the user.
    pub reason: String,
}

/// An action that the service carries out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Action {
    /// Send a message.
    Send {
        /// The connection.
        connection: ConnectionId,
        /// The header of the message.
        header: Header,
        /// The message.
        message: ServiceMessage<'static>,
    },
    /// Carry out the commands of the message in the event, and answer the message.
    Execute {
        /// The connection that gets the answer.
        connection: ConnectionId,
        /// The process.
        rank: u32,
    },
    /// Map the memory that came with the message in the event, and answer the message.
    ShareMemory {
        /// The connection that gets the answer.
        connection: ConnectionId,
    },
    /// Trace these processes, all or none, and report the result by [`Event::Seized`].
    Seize {
        /// The connection of the tool that requests access to the processes.
        connection: ConnectionId,
        /// The processes.
        ranks: Vec<u32>,
    },
    /// Stop tracing the process, because the last tool has left. Remove all modifications of tools,
    /// and release all threads.
    Unseize {
        /// The process.
        rank: u32,
    },
    /// Undo the work of the tool that had authority, because its connection has ended. Remove its
    /// breakpoints, watchpoints, handler and memory, release its threads, end its step, and reset
    /// its preferences.
    Undo {
        /// The process.
        rank: u32,
        /// The tool.
        tool: u32,
    },
    /// Apply these settings from now on, because authority was given.
    Configure {
        /// The process.
        rank: u32,
        /// The settings.
        settings: Control,
    },
    /// Send this signal to the process leader.
    SignalLeader {
        /// The process.
        rank: u32,
        /// The signal.
        signal: u32,
    },
    /// Stop all threads of the process, and new threads, until [`Action::Resume`]. The next action
    /// follows when they are stopped.
    Suspend {
        /// The process.
        rank: u32,
    },
    /// Continue all threads that are not held.
    Resume {
        /// The process.
        rank: u32,
        /// Threads that get a signal, with the signal. Other threads that stopped at a notice get
        /// none.
        signals: Vec<(u32, u32)>,
    },
    /// Let only this thread execute one instruction.
    Step {
        /// The process.
        rank: u32,
        /// The thread. 0 stands for the process leader.
        thread: u32,
        /// A signal to deliver first, or 0.
        signal: u32,
    },
    /// Continue without notifying a tool. Deliver a generic signal to the program. At a breakpoint,
    /// a watchpoint or the end of a step, continue as if there were none. If the process is
    /// suspended, the thread remains suspended.
    Pass {
        /// The process.
        rank: u32,
        /// The stop of the thread.
        notice: SignalNotice,
    },
    /// Close the connection, without a message.
    Close {
        /// The connection.
        connection: ConnectionId,
    },
}
