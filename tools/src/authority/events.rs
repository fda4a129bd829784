//! What goes into the machine, and what comes out.

use crate::wire::{Control, Header, ServiceMessage, SignalNotice, ToolMessage, ToolTag};

/// The service's number of a connection. It never uses one twice.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ConnectionId(pub u64);

/// The processes that a connection may name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reach {
    /// It has come by the socket of this rank.
    Rank(u32),
    /// It has come by the socket of the host.
    Host,
}

/// A tool, as others see it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ToolIdentity {
    /// Its number.
    pub tool: u32,
    /// Its tag.
    pub tag: ToolTag,
    /// Its priority at this process.
    pub priority: u8,
}

/// What has happened.
#[derive(Debug, Clone)]
pub enum Event<'a> {
    /// A connection has been accepted.
    Connected {
        /// The connection.
        connection: ConnectionId,
        /// The user at the other end, as the kernel says.
        uid: u32,
        /// By which socket it has come.
        reach: Reach,
    },
    /// A message has come.
    Message {
        /// The connection.
        connection: ConnectionId,
        /// Its header.
        header: Header,
        /// What it says.
        message: &'a ToolMessage<'a>,
    },
    /// An [`Action::Seize`] has been carried out. The answers come in the order of the actions.
    Seized {
        /// The connection of the action.
        connection: ConnectionId,
        /// The ranks of the action.
        ranks: Vec<u32>,
        /// If one process could not be seized, none is.
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
    /// A process exits.
    Exited {
        /// Its rank.
        rank: u32,
        /// Its state as wait(2) gives it.
        status: i32,
    },
    /// A thread has ended, and the process lives.
    ThreadExited {
        /// The rank of its process.
        rank: u32,
        /// The thread.
        thread: u32,
    },
    /// A thread stands at a signal, or at a trap.
    Signal {
        /// The rank of its process.
        rank: u32,
        /// What a tool would be sent.
        notice: SignalNotice,
    },
}

/// Why processes could not be seized.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SeizeFailure {
    /// The rank of one of them.
    pub rank: u32,
    /// The errno value.
    pub error_code: u32,
    /// One line for the user.
    pub reason: String,
}

/// What the service does.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Action {
    /// Send a message.
    Send {
        /// To this connection.
        connection: ConnectionId,
        /// Its header.
        header: Header,
        /// The message.
        message: ServiceMessage<'static>,
    },
    /// Carry out the commands of the message that was the event, and answer it.
    Execute {
        /// The connection that gets the answer.
        connection: ConnectionId,
        /// The process.
        rank: u32,
    },
    /// Begin to trace these processes, all or none, and report by [`Event::Seized`].
    Seize {
        /// The connection that waits for it.
        connection: ConnectionId,
        /// The processes.
        ranks: Vec<u32>,
    },
    /// The last tool has left: remove what tools have left behind, release all threads, and trace
    /// the process no more.
    Unseize {
        /// The process.
        rank: u32,
    },
    /// The tool with authority has died: remove its breakpoints, watchpoints, handler and memory,
    /// release its threads, and end its step.
    Undo {
        /// The process.
        rank: u32,
        /// The tool.
        tool: u32,
    },
    /// Authority has been given: from now on these settings hold.
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
    /// Stop all threads of the process, and new ones, until [`Action::Resume`]. When this has been
    /// done the next action follows.
    Suspend {
        /// The process.
        rank: u32,
    },
    /// Let all threads go on that are not held.
    Resume {
        /// The process.
        rank: u32,
        /// Threads that get a signal first. All others that stand at a notice go on without one.
        signals: Vec<(u32, u32)>,
    },
    /// Let this thread alone carry out one instruction. 0 is the process leader.
    Step {
        /// The process.
        rank: u32,
        /// The thread.
        thread: u32,
        /// A signal that it gets first, or 0.
        signal: u32,
    },
    /// No tool is notified. A generic signal goes to the program; at a breakpoint, a watchpoint or
    /// the end of a step the thread goes on as if there were none. While the process is suspended
    /// the thread stays so.
    Pass {
        /// The process.
        rank: u32,
        /// What the thread stands at.
        notice: SignalNotice,
    },
    /// Close the connection, without a message.
    Close {
        /// The connection.
        connection: ConnectionId,
    },
}
