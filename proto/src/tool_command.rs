//! Commands of tools to the processes of a job, and the events with which these answer
//! (docs/tools.md). A command goes down the job's tree to the hosts of its ranks. Events come up,
//! and equal ones merge on the way. The daemons do not read the bodies: [`ToolRequest`] and
//! [`ToolResult`] are for the tool and for the tool control service of each host.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::message::OsBytes;
use crate::nodeset::NodeSet;

/// The longest body of a command or an answer, in bytes: the longest message of tool control, and
/// what carries it.
pub const MAX_TOOL_BODY: usize = 65 << 10;

/// Bytes that the answers to one command may take at a hop of the tree, and at the master.
pub const MAX_TOOL_ANSWER_BYTES: usize = 3 << 20;

/// Commands of one job that may be without their last event at the same time: two of each debugger
/// ([`RelayAction`]), and some of consoles.
pub const MAX_TOOL_COMMANDS: usize = 80;

/// The longest time that a command may name for its answers.
pub const MAX_ANSWER_TIMEOUT: Duration = Duration::from_secs(600);

/// A command, by the number that its sender gave it. It is not used again.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize,
)]
pub struct CommandId(pub u64);

impl std::fmt::Display for CommandId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}", self.0)
    }
}

/// A command to some processes of a parallel process. Each of them gives one event.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ToolCommand {
    /// Its number.
    pub id: CommandId,
    /// The nodes that it is for.
    pub nodes: NodeSet,
    /// How long a hop of the tree waits before it passes on what it has, in milliseconds.
    pub wait_ms: u32,
    /// An encoded [`ToolRequest`].
    #[serde(with = "serde_bytes")]
    pub body: Vec<u8>,
}

/// What some ranks answer to a command.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MergedEvent {
    /// The command that it belongs to.
    pub command: CommandId,
    /// The ranks that it comes from, or is about. In the tree of a job: the nodes of the parallel
    /// process.
    pub ranks: NodeSet,
    /// What it says.
    pub body: EventBody,
}

/// What an event says.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum EventBody {
    /// The answer of the ranks, an encoded [`ToolResult`]; only the sender of the command
    /// understands it.
    Answer(#[serde(with = "serde_bytes")] Vec<u8>),
    /// The branch of these ranks cannot be reached any more.
    Lost,
    /// A hop gave up waiting for these ranks, as newer commands needed the room.
    Abandoned,
    /// The ranks answered, but their bodies were beyond the bytes of a command.
    Dropped {
        /// Events of which the body is missing.
        events: u64,
    },
}

/// Why ranks that have not answered a command in time have no answer, for the user.
pub const NOT_ANSWERED: &str = "no answer in time";
/// Why ranks have none whose service of tools does not know the command.
pub const OTHER_RELEASE: &str = "its scored-toolctl is of another release";

impl EventBody {
    /// Why the ranks have no answer, for the user. None: they have one.
    pub fn failure(&self) -> Option<&'static str> {
        match self {
            Self::Answer(_) => None,
            Self::Lost => Some("its host is lost"),
            Self::Abandoned => Some(NOT_ANSWERED),
            Self::Dropped { .. } => Some("too many different answers; ask for fewer ranks"),
        }
    }
}

/// What a tool wants of each process.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum ToolRequest {
    /// The stacks of all threads: [`ToolResult::Stacks`].
    Stacks {
        /// With source lines, which keep stacks apart that differ in a line only.
        lines: bool,
    },
    /// The stack, with source lines, of the thread that waits after a fault or in sc_inspectme, as
    /// it was at the fault: [`ToolResult::Stacks`]. Of a process without such a thread the stacks
    /// of all.
    FaultStack,
    /// What a tool of tool control does that has no connection to the service:
    /// [`ToolResult::Records`].
    Relay {
        /// The session of the tool ([`crate::message::ToolSession`]).
        session: u64,
        /// What it does.
        action: RelayAction,
    },
    /// What a tool wants to know of files: [`ToolResult::File`].
    File(FileQuestion),
    /// The threads, one by one: [`ToolResult::Threads`].
    Threads(ThreadDetail),
    /// What a console does: [`ToolResult::Console`].
    Console {
        /// The session of the console ([`crate::message::ToolSession`]).
        session: u64,
        /// What it does.
        action: ConsoleAction,
    },
}

/// What a tool without a connection does. It is for one process.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum RelayAction {
    /// It sends a record. The answer comes when there is any record for the tool, or after so many
    /// milliseconds.
    Ask {
        /// A message of tool control; nothing if it is empty.
        #[serde(with = "serde_bytes")]
        record: Vec<u8>,
        /// Milliseconds.
        wait_ms: u32,
    },
    /// It takes what comes while it does not ask, such as notices. It is answered as [`Self::Ask`]
    /// is, and stays while the tool asks, so that a notice of an exit finds its way.
    Listen {
        /// Milliseconds.
        wait_ms: u32,
    },
    /// The tool has ended: its processes are as if it had never been there.
    End,
}

/// The longest wait of a [`RelayAction`]. The daemons do not wait much longer for a service.
pub const MAX_RELAY_TIMEOUT: Duration = Duration::from_secs(5);

/// What a tool wants to know of files as a process sees them. The service reads what its user may
/// read.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum FileQuestion {
    /// The path of the program: [`FileAnswer::Bytes`].
    Program,
    /// Where a link leads: [`FileAnswer::Bytes`].
    Link(OsBytes),
    /// What is known about a file: [`FileAnswer::Attributes`].
    Attributes(OsBytes),
    /// A part of a file: [`FileAnswer::Bytes`], fewer at its end.
    Read {
        /// Its path.
        path: OsBytes,
        /// The first byte.
        offset: u64,
        /// The number of bytes, [`MAX_FILE_PART`] at most.
        length: u32,
    },
    /// The name of the thread with this id outside of the job: [`FileAnswer::Bytes`].
    ThreadName(u32),
}

/// The longest part of a file in an answer.
pub const MAX_FILE_PART: u32 = 64 << 10;

/// An answer to a [`FileQuestion`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum FileAnswer {
    /// Bytes.
    Bytes(#[serde(with = "serde_bytes")] Vec<u8>),
    /// As stat(2).
    Attributes(FileAttributes),
    /// Why not, as errno(3).
    Errno(i32),
}

/// What stat(2) says of a regular file. Others are not read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileAttributes {
    /// Number of the device.
    pub device: u64,
    /// Number of the inode.
    pub inode: u64,
    /// Type and permissions.
    pub mode: u32,
    /// Number of names.
    pub links: u64,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Bytes.
    pub size: u64,
    /// Time of the last change, in seconds and nanoseconds.
    pub modified: (i64, i64),
}

/// What a console wants to know of threads.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum ThreadDetail {
    /// The stack of the first thread, or of the one at which a tool has stopped the process, with
    /// source lines.
    FirstStack,
    /// The stacks of all threads, with source lines.
    AllStacks,
    /// Of all threads the state, and the innermost function.
    TopFrames,
}

/// What a console does to a process. It is a tool as others are: it needs Control authority.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum ConsoleAction {
    /// All threads stop, and stay so until they are released.
    Hold,
    /// What is held runs on, without breakpoints and watchpoints.
    Release,
    /// What is held runs on; what has stopped stays so.
    Unhold,
    /// Threads that come here stop the process.
    Break(Location),
    /// Writes to this memory stop the process.
    Watch(Location),
    /// Breakpoints or watchpoints here are removed; those everywhere if no place is named.
    Clear(Option<Location>),
    /// A process that has stopped runs on.
    Continue,
    /// The thread that has stopped executes one instruction.
    Step,
    /// Nothing; the answer says what the process does.
    Look,
    /// The console has ended: its processes are as if it had never been there.
    End,
}

/// A place in a process, as a user names it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Location {
    /// An address.
    Address(u64),
    /// A function, or a variable of the whole program.
    Name(String),
    /// A line of a source file, which may have a path before its name.
    Line {
        /// The file.
        file: String,
        /// The line.
        line: u32,
    },
}

/// What the service of a host answers about one process.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum ToolResult {
    /// The stacks of the threads, in order; equal ones once.
    Stacks {
        /// The stacks.
        stacks: Vec<ThreadStacks>,
        /// Threads that are not among them, because there were too many.
        omitted: u32,
    },
    /// What the service has for a tool that has no connection to it.
    Records {
        /// The number of the answer: those of a session come on several ways.
        number: u64,
        /// The records, in order.
        records: Vec<ToolRecord>,
    },
    /// About a file.
    File(FileAnswer),
    /// The command failed for this process, for this reason.
    Failed(String),
    /// Its threads, the first one first.
    Threads {
        /// The threads.
        threads: Vec<ThreadInfo>,
        /// Threads that are not among them, because there were too many.
        omitted: u32,
    },
    /// What the process does after an action of a console.
    Console(ProcessState),
}

/// A message of tool control (`score_tools::wire`).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ToolRecord(#[serde(with = "serde_bytes")] pub Vec<u8>);

/// A thread of a process.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct ThreadInfo {
    /// Its number in its process, from 1 on, in the order of thread ids.
    pub number: u32,
    /// Its name.
    pub name: String,
    /// What it does, if that was asked for.
    pub state: Option<ThreadState>,
    /// Its frames, encoded by `score_stacks::frame::Stack::encode`.
    #[serde(with = "serde_bytes")]
    pub stack: Vec<u8>,
}

/// What a thread does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum ThreadState {
    /// It runs, or waits for a processor.
    Running,
    /// It sleeps in a system call.
    Sleeping,
    /// It waits in the kernel, and no signal ends that.
    Uninterruptible,
    /// A signal has stopped it.
    Stopped,
    /// A tool holds it.
    Held,
}

/// What a process does for a console.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum ProcessState {
    /// The console does not hold it.
    Running,
    /// It stands until it is released.
    Held,
    /// It stands until it is continued.
    Stopped {
        /// Why.
        reason: StopReason,
        /// The number of the thread that has stopped it.
        thread: u32,
        /// The innermost frame of this thread, encoded by `score_stacks::frame::Stack::encode`.
        #[serde(with = "serde_bytes")]
        stack: Vec<u8>,
    },
}

/// Why a process has stopped.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum StopReason {
    /// A breakpoint.
    Breakpoint,
    /// A write to memory that is watched.
    Watchpoint,
    /// The end of a step.
    Step,
    /// A SIGTRAP of the program itself.
    Trap,
}

impl ToolRequest {
    /// The body of a command.
    pub fn encode(&self) -> Vec<u8> {
        // Writing into memory does not fail.
        postcard::to_stdvec(self).unwrap_or_default()
    }

    /// Reads the body of a command; `None` if it is not one.
    pub fn decode(body: &[u8]) -> Option<Self> {
        postcard::from_bytes(body).ok()
    }
}

impl ToolResult {
    /// The body of an answer.
    pub fn encode(&self) -> Vec<u8> {
        postcard::to_stdvec(self).unwrap_or_default()
    }

    /// Reads the body of an answer; `None` if it is not one.
    pub fn decode(body: &[u8]) -> Option<Self> {
        postcard::from_bytes(body).ok()
    }
}

/// Threads of a process that are of one kind and have the same stack.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct ThreadStacks {
    /// What the threads are.
    pub kind: ThreadKind,
    /// The stack, encoded by `score_stacks::frame::Stack::encode`: equal stacks of different
    /// processes have equal bytes.
    #[serde(with = "serde_bytes")]
    pub stack: Vec<u8>,
    /// The number of threads.
    pub threads: u32,
}

/// What a thread is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum ThreadKind {
    /// A thread of the program.
    Program,
    /// A communication thread of libpm.
    Communication,
}
