//! Commands of tools to the processes of a job, and the events with which the processes answer
//! (docs/dev/tools.md). A command goes down the job's tree to the hosts of its ranks. Events come
//! up, and equal events are merged on the way. The daemons do not decode the bodies. Only the tool
//! and the tool control service of each host use [`ToolRequest`] and [`ToolResult`].

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::message::OsBytes;
use crate::nodeset::NodeSet;

/// Length in bytes of the longest body of a command or an answer. The longest message of tool
/// control and its framing fit into it.
pub const MAX_TOOL_BODY: usize = 65 << 10;

/// Largest number of bytes of the answers to one command at a hop of the tree, and at the master.
pub const MAX_TOOL_ANSWER_BYTES: usize = 3 << 20;

/// Largest number of commands of one job that have not got their last event: two of each debugger
/// ([`RelayAction`]), and a few of consoles.
pub const MAX_TOOL_COMMANDS: usize = 80;

/// The longest time to wait for answers that a command may specify.
pub const MAX_ANSWER_TIMEOUT: Duration = Duration::from_secs(600);

/// The number that the sender has given to a command. It is not reused.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize,
)]
pub struct CommandId(pub u64);

impl std::fmt::Display for CommandId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}", self.0)
    }
}

/// A command to some nodes of an element. Each of them answers with one event.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ToolCommand {
    /// The number of the command.
    pub id: CommandId,
    /// The nodes that have to answer.
    pub nodes: NodeSet,
    /// How long a hop of the tree waits before it passes on the events that it has, in
    /// milliseconds.
    pub wait_ms: u32,
    /// An encoded [`ToolRequest`].
    #[serde(with = "serde_bytes")]
    pub body: Vec<u8>,
}

/// The answer of some ranks to a command.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MergedEvent {
    /// The command that the event answers.
    pub command: CommandId,
    /// The ranks that have sent the event, or that the event concerns. In the tree of a job these
    /// are nodes of the element.
    pub ranks: NodeSet,
    /// The body.
    pub body: EventBody,
}

/// The body of an event.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum EventBody {
    /// The answer of the ranks: an encoded [`ToolResult`], which only the sender of the command
    /// decodes.
    Answer(#[serde(with = "serde_bytes")] Vec<u8>),
    /// The hosts of these ranks can no longer be reached.
    Lost,
    /// A hop no longer waits for these ranks, because newer commands needed the space.
    Abandoned,
    /// The ranks have answered, but their bodies exceeded the limit for the answers to one command.
    Dropped {
        /// Number of events without a body.
        events: u64,
    },
}

/// The reason for the user if ranks have not answered a command in time.
pub const NOT_ANSWERED: &str = "no answer in time";
/// The reason for the user if the tool control service of the ranks does not support the command.
pub const OTHER_RELEASE: &str = "its scored-toolctl belongs to another release";

impl EventBody {
    /// The reason for the user why the ranks have no answer, or `None` if they have an answer.
    pub fn failure(&self) -> Option<&'static str> {
        match self {
            Self::Answer(_) => None,
            Self::Lost => Some("its host is lost"),
            Self::Abandoned => Some(NOT_ANSWERED),
            Self::Dropped { .. } => Some("too many different answers; ask for fewer ranks"),
        }
    }
}

/// The request of a tool to each process.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum ToolRequest {
    /// Get the stacks of all threads: [`ToolResult::Stacks`].
    Stacks {
        /// Whether to include source lines. Stacks that differ only in a line are then different.
        lines: bool,
    },
    /// Get the stack of the thread that waits after a fault or in sc_inspectme, with source lines,
    /// as it was at the fault: [`ToolResult::Stacks`]. If a process has no such thread, get the
    /// stacks of all of its threads.
    FaultStack,
    /// An action of a tool that has no connection to the service: [`ToolResult::Records`].
    Relay {
        /// The session of the tool ([`crate::message::ToolSession`]).
        session: u64,
        /// The action.
        action: RelayAction,
    },
    /// A question about files: [`ToolResult::File`].
    File(FileQuestion),
    /// Get the threads, one by one: [`ToolResult::Threads`].
    Threads(ThreadDetail),
    /// An action of a console: [`ToolResult::Console`].
    Console {
        /// The session of the console ([`crate::message::ToolSession`]).
        session: u64,
        /// The action.
        action: ConsoleAction,
    },
}

/// An action of a tool that has no connection to the service. It concerns one process.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum RelayAction {
    /// Sends a record. The answer is sent when there is a record for the tool, or after this time.
    Ask {
        /// A message of tool control. An empty record is not sent.
        #[serde(with = "serde_bytes")]
        record: Vec<u8>,
        /// The time in milliseconds.
        wait_ms: u32,
    },
    /// Receives records that are not answers to [`Self::Ask`], such as notices. It is answered like
    /// [`Self::Ask`]. Both can be pending at the same time, so that a notice of an exit reaches the
    /// tool.
    Listen {
        /// The time in milliseconds.
        wait_ms: u32,
    },
    /// The tool has exited. Its processes are restored to the state without the tool.
    End,
}

/// The longest time of a [`RelayAction`]. The daemons do not wait much longer for a service.
pub const MAX_RELAY_TIMEOUT: Duration = Duration::from_secs(5);

/// A question about files in the mount namespace of a process. The service reads only what its user
/// may read.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum FileQuestion {
    /// Get the path of the program: [`FileAnswer::Bytes`].
    Program,
    /// Get the target of a link: [`FileAnswer::Bytes`].
    Link(OsBytes),
    /// Get the attributes of a file: [`FileAnswer::Attributes`].
    Attributes(OsBytes),
    /// Read a part of a file: [`FileAnswer::Bytes`]. The answer has fewer bytes at the end of the
    /// file.
    Read {
        /// The path of the file.
        path: OsBytes,
        /// Offset of the first byte.
        offset: u64,
        /// The number of bytes, at most [`MAX_FILE_PART`].
        length: u32,
    },
    /// Get the name of the thread that has this id outside of the job: [`FileAnswer::Bytes`].
    ThreadName(u32),
}

/// Size in bytes of the largest part of a file in an answer.
pub const MAX_FILE_PART: u32 = 64 << 10;

/// The answer to a [`FileQuestion`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum FileAnswer {
    /// Bytes.
    Bytes(#[serde(with = "serde_bytes")] Vec<u8>),
    /// The attributes, as stat(2) returns them.
    Attributes(FileAttributes),
    /// The error number, see errno(3).
    Errno(i32),
}

/// The attributes of a regular file, from stat(2). Other files are not read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileAttributes {
    /// Number of the device.
    pub device: u64,
    /// Number of the inode.
    pub inode: u64,
    /// Type and permissions.
    pub mode: u32,
    /// Number of hard links.
    pub links: u64,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Size in bytes.
    pub size: u64,
    /// Time of the last modification, in seconds and nanoseconds.
    pub modified: (i64, i64),
}

/// The details of threads that a console requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum ThreadDetail {
    /// The stack of the first thread, or of the thread at which a tool has stopped the process,
    /// with source lines.
    FirstStack,
    /// The stacks of all threads, with source lines.
    AllStacks,
    /// The state and the innermost function of all threads.
    TopFrames,
}

/// An action of a console on a process. The console is a tool, and needs Control authority as every
/// tool does.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum ConsoleAction {
    /// Stop all threads until they are released.
    Hold,
    /// Let a held process run, and remove its breakpoints and watchpoints.
    Release,
    /// Let a held process run. A process that has stopped remains stopped.
    Unhold,
    /// Stop the process when a thread reaches this location.
    Break(Location),
    /// Stop the process when it writes to this memory.
    Watch(Location),
    /// Remove the breakpoints or watchpoints at this location. Without a location, remove all.
    Clear(Option<Location>),
    /// Let a stopped process run.
    Continue,
    /// Let the stopped thread execute one instruction.
    StepInstruction,
    /// Let the stopped thread execute instructions until it is in another line of the source.
    StepLine,
    /// Do nothing. The answer contains the state of the process.
    Look,
    /// The console has exited. Its processes are restored to the state without the console.
    End,
}

/// A location in a process, as a user specifies it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Location {
    /// An address.
    Address(u64),
    /// A function, or a global variable of the program.
    Name(String),
    /// A line of a source file. The file may have a path in front of its name.
    Line {
        /// The file.
        file: String,
        /// The line.
        line: u32,
    },
}

/// The answer of a host's service about one process.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum ToolResult {
    /// The stacks of the threads, in order. Equal stacks are listed once.
    Stacks {
        /// The stacks.
        stacks: Vec<ThreadStacks>,
        /// Number of threads that are missing, because there were too many.
        omitted: u32,
    },
    /// The records that the service holds for a tool without a connection to the service.
    Records {
        /// The number of the answer. It orders the answers of a session, which may arrive over
        /// different connections.
        number: u64,
        /// The records, in order.
        records: Vec<ToolRecord>,
    },
    /// The answer to a question about a file.
    File(FileAnswer),
    /// The command failed for this process, for this reason.
    Failed(String),
    /// The threads of the process, the first one first.
    Threads {
        /// The threads.
        threads: Vec<ThreadInfo>,
        /// Number of threads that are missing, because there were too many.
        omitted: u32,
    },
    /// The state of the process after an action of a console.
    Console(ProcessState),
}

/// A message of tool control (`score_tools::wire`).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ToolRecord(#[serde(with = "serde_bytes")] pub Vec<u8>);

/// A thread of a process.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct ThreadInfo {
    /// The number of the thread in the process, from 1, in the order of thread ids.
    pub number: u32,
    /// The name of the thread.
    pub name: String,
    /// The state of the thread, if it was requested.
    pub state: Option<ThreadState>,
    /// The frames of the thread, encoded by `score_stacks::frame::Stack::encode`.
    #[serde(with = "serde_bytes")]
    pub stack: Vec<u8>,
}

/// The state of a thread.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum ThreadState {
    /// The thread runs, or waits for a processor.
    Running,
    /// The thread sleeps in a system call.
    Sleeping,
    /// The thread waits in the kernel, and no signal can interrupt the wait.
    Uninterruptible,
    /// A signal has stopped the thread.
    Stopped,
    /// A tool holds the thread.
    Held,
}

/// The state of a process, for a console.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum ProcessState {
    /// The console does not hold the process.
    Running,
    /// The process is stopped until it is released.
    Held,
    /// The process is stopped until it is continued.
    Stopped {
        /// The reason for the stop.
        reason: StopReason,
        /// The number of the thread that has caused the stop.
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
    /// A write to watched memory.
    Watchpoint,
    /// The end of a step.
    Step,
    /// A SIGTRAP that the program itself has raised.
    Trap,
}

impl ToolRequest {
    /// The body of a command.
    pub fn encode(&self) -> Vec<u8> {
        // Writing to memory cannot fail.
        postcard::to_stdvec(self).unwrap_or_default()
    }

    /// Decodes the body of a command. `None` if it is invalid.
    pub fn decode(body: &[u8]) -> Option<Self> {
        postcard::from_bytes(body).ok()
    }
}

impl ToolResult {
    /// The body of an answer.
    pub fn encode(&self) -> Vec<u8> {
        postcard::to_stdvec(self).unwrap_or_default()
    }

    /// Decodes the body of an answer. `None` if it is invalid.
    pub fn decode(body: &[u8]) -> Option<Self> {
        postcard::from_bytes(body).ok()
    }
}

/// Threads of a process that have the same kind and the same stack.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct ThreadStacks {
    /// The kind of the threads.
    pub kind: ThreadKind,
    /// The stack, encoded by `score_stacks::frame::Stack::encode`. Equal stacks of different
    /// processes have equal bytes.
    #[serde(with = "serde_bytes")]
    pub stack: Vec<u8>,
    /// The number of threads.
    pub threads: u32,
}

/// The kind of a thread.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum ThreadKind {
    /// A thread of the program.
    Program,
    /// A communication thread of libpm.
    Communication,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_and_results_are_decoded_unchanged() {
        let request = ToolRequest::Console { session: 7, action: ConsoleAction::Hold };
        assert_eq!(ToolRequest::decode(&request.encode()), Some(request));
        let result = ToolResult::Failed("the process has exited".to_owned());
        assert_eq!(ToolResult::decode(&result.encode()), Some(result));
        assert_eq!((ToolRequest::decode(&[0xff]), ToolResult::decode(&[0xff])), (None, None));
    }

    #[test]
    fn the_largest_part_of_a_file_fits_into_an_answer() {
        let part = FileAnswer::Bytes(vec![7; MAX_FILE_PART as usize]);
        let len = ToolResult::File(part).encode().len();
        assert!((64 << 10..=MAX_TOOL_BODY).contains(&len), "{len} bytes");
        assert!(len < MAX_TOOL_ANSWER_BYTES);
    }

    #[test]
    fn an_event_without_an_answer_has_a_reason_for_the_user() {
        for (body, reason) in [
            (EventBody::Answer(Vec::new()), None),
            (EventBody::Lost, Some("its host is lost")),
            (EventBody::Abandoned, Some("no answer in time")),
            (
                EventBody::Dropped { events: 1 },
                Some("too many different answers; ask for fewer ranks"),
            ),
        ] {
            assert_eq!(body.failure(), reason, "{body:?}");
        }
    }

    #[test]
    fn the_number_of_a_command_is_printed_as_a_number() {
        assert_eq!(CommandId(7).to_string(), "7");
    }
}
