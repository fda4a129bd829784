//! The messages that go down and up the tree.

use std::net::IpAddr;
use std::ops::Range;
use std::time::Duration;

use score_proto::frame;
use score_proto::nodeset::NodeSet;
use score_tools::merge::output::OutputLine;
use score_tools::merge::{CommandId, EventBody, MergedEvent};
use serde::{Deserialize, Serialize};

use crate::routing::TreeShape;

/// The number of the initialisation, which is the first command. Its events are
/// [`DebugEvent::Ready`] and [`DebugEvent::Unreachable`].
pub const INIT_COMMAND: CommandId = CommandId(0);

/// Maximum length of the text of an event in bytes. Longer text is cut.
pub const MAX_TEXT_LEN: usize = 64 << 10;

/// A message to the children.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum DownMessage {
    /// The initialisation, which is the first message.
    Init(TreeInit),
    /// A command for some servers.
    Command(DebugCommand),
    /// Closes a command: its sender no longer waits for its events.
    Close(CommandId),
    /// Ends all servers and their processes. Attached processes continue.
    Quit,
}

/// The initialisation (SDM "Initialization", step 1).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TreeInit {
    /// Number of servers.
    pub servers: u32,
    /// Shape of the tree.
    pub shape: TreeShape,
    /// The hosts of the branch's servers.
    pub table: RoutingTable,
    /// Time after which the hops pass on the events that they have, to report which servers are
    /// ready.
    pub timeout: Duration,
}

/// The address of each server's host, by id, and the port at which the search for a server begins.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RoutingTable {
    /// The id of the first server of the table.
    pub first: u32,
    /// The hosts in order of the ids of their servers.
    pub hosts: Vec<HostServers>,
    /// The port that the servers were given.
    pub port: u16,
}

/// Servers with consecutive ids on one host.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct HostServers {
    /// Address of the host.
    pub address: IpAddr,
    /// Number of servers.
    pub servers: u32,
}

impl RoutingTable {
    /// The address of a server's host.
    pub fn address_of(&self, id: u32) -> Option<IpAddr> {
        let mut index = u64::from(id.checked_sub(self.first)?);
        for host in &self.hosts {
            match index.checked_sub(host.servers.into()) {
                Some(rest) => index = rest,
                None => return Some(host.address),
            }
        }
        None
    }

    /// The part of the table that a branch needs.
    pub fn part(&self, branch: Range<u32>) -> Self {
        let mut hosts = Vec::new();
        let mut start = u64::from(self.first);
        let (from, to) = (u64::from(branch.start), u64::from(branch.end));
        for host in &self.hosts {
            let end = start + u64::from(host.servers);
            let servers = end.min(to).saturating_sub(start.max(from)) as u32;
            if servers > 0 {
                hosts.push(HostServers { servers, ..*host });
            }
            start = end;
        }
        Self { first: branch.start, hosts, port: self.port }
    }
}

/// A command.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DebugCommand {
    /// The number of the command. [`INIT_COMMAND`] is reserved.
    pub id: CommandId,
    /// The servers that execute the command.
    pub ranks: NodeSet,
    /// Time after which a hop passes on the events that it has.
    pub timeout: Duration,
    /// The operation.
    pub operation: Operation,
}

/// An operation of a server on its process. Each operation has one event.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Operation {
    /// Starts a program. The event is its first stop, or its end.
    Start {
        /// The program.
        executable: String,
        /// The arguments of the program.
        arguments: Vec<String>,
        /// Whether the program stops in main.
        stop_in_main: bool,
    },
    /// Attaches to existing processes.
    Attach {
        /// The rank of the first process.
        first: u32,
        /// Process identifiers, by rank.
        pids: Vec<u32>,
    },
    /// Sets a breakpoint.
    Break {
        /// A function, `file:line` or `*address`.
        location: String,
    },
    /// Continues the process. The event is its next stop, or its end.
    Continue,
    /// Runs to the next line, also into functions.
    Step,
    /// Runs to the next line, without stopping in functions.
    Next,
    /// Runs until the function returns.
    Finish,
    /// Stops a running process.
    Interrupt,
    /// Lists the frames of the current thread.
    Where,
    /// Evaluates an expression.
    Print {
        /// The expression, in the language of the program.
        expression: String,
    },
    /// Writes bytes to the standard input of a program that was started here.
    Input {
        /// The bytes.
        #[serde(with = "serde_bytes")]
        bytes: Vec<u8>,
    },
    /// Lets the process run without a debugger.
    Detach,
    /// Ends the process.
    Kill,
}

impl Operation {
    /// The part of the operation that a branch needs.
    pub fn part(&self, branch: Range<u32>) -> Self {
        match self {
            Self::Attach { first, pids } => {
                let from = branch.start.saturating_sub(*first) as usize;
                let pids = pids.iter().skip(from).take(branch.len()).copied().collect();
                Self::Attach { first: branch.start.max(*first), pids }
            }
            other => other.clone(),
        }
    }
}

/// A message to the parent.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum UpMessage {
    /// An answer of servers to a command.
    Event(MergedEvent),
    /// A line that processes have written.
    Output(OutputLine),
}

/// An answer of a server. It contains nothing that differs between equal processes, such as process
/// ids or frame addresses, so that equal answers merge.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum DebugEvent {
    /// The server has joined the tree.
    Ready,
    /// The process has stopped.
    Stopped {
        /// The reason.
        reason: StopReason,
        /// The location.
        frame: StackFrame,
    },
    /// The process has ended.
    Exited {
        /// The exit code of the process.
        code: u32,
    },
    /// A signal has ended the process.
    Killed {
        /// Name of the signal.
        signal: String,
    },
    /// The breakpoint is set.
    BreakpointSet {
        /// The number of the breakpoint.
        number: u32,
        /// The location of the breakpoint, as far as the debugger reports it.
        frame: StackFrame,
    },
    /// The frames, the innermost first.
    Frames(Vec<StackFrame>),
    /// The value of an expression.
    Value(String),
    /// The operation is done and has no result.
    Done,
    /// The operation has failed, for this reason.
    Failed(String),
    /// The server could not be reached. Its parent gives the reason.
    Unreachable(String),
}

/// The reason why a process has stopped.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum StopReason {
    /// The process has reached a breakpoint.
    Breakpoint,
    /// A step is complete.
    StepDone,
    /// A signal arrived.
    Signal(String),
    /// The debugger has attached.
    Attached,
    /// Another reason, in the debugger's words.
    Other(String),
}

/// A frame of a stack.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct StackFrame {
    /// Name of the function. Empty if the name is unknown.
    pub function: String,
    /// The source file, or the module that contains the address.
    pub file: String,
    /// The line number, or 0 if it is unknown.
    pub line: u32,
}

impl DebugEvent {
    /// The body of an event. If the event is too long, the body is an error.
    pub fn to_body(&self) -> EventBody {
        let bytes = frame::encode_datagram(self).unwrap_or_default();
        if !bytes.is_empty() && bytes.len() <= score_tools::merge::MAX_EVENT_BODY_LEN {
            return EventBody::Answer(bytes);
        }
        let failed = Self::Failed("the answer is too long to be sent".to_owned());
        EventBody::Answer(frame::encode_datagram(&failed).unwrap_or_default())
    }

    /// Decodes a body. Returns `None` if the body does not come from a server.
    pub fn from_body(body: &EventBody) -> Option<Self> {
        match body {
            EventBody::Answer(bytes) => frame::decode_datagram(bytes).ok(),
            EventBody::Lost | EventBody::Abandoned | EventBody::Dropped { .. } => None,
        }
    }
}

/// Cuts a text to at most `max_len` bytes, at a character boundary.
pub fn cut_text(text: &str, max_len: usize) -> String {
    let mut end = text.len().min(max_len);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    text[..end].to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_branch_gets_its_part_of_the_table_and_of_the_pids() {
        let host = |last, servers| HostServers { address: IpAddr::from([10, 0, 0, last]), servers };
        let hosts = vec![host(1, 4), host(2, 4), host(3, 2)];
        let table = RoutingTable { first: 0, hosts, port: 7000 };
        assert_eq!(table.address_of(7), Some(IpAddr::from([10, 0, 0, 2])));
        assert_eq!(table.address_of(10), None);
        let part = table.part(3..9);
        assert_eq!(part.hosts, [host(1, 1), host(2, 4), host(3, 1)]);
        assert!((3..9).all(|id| part.address_of(id) == table.address_of(id)));
        assert_eq!((part.address_of(2), part.address_of(9)), (None, None));
        assert_eq!(part.part(4..8).hosts, [host(2, 4)]);

        let attach = Operation::Attach { first: 0, pids: (100..110).collect() };
        let part = Operation::Attach { first: 3, pids: (103..109).collect() };
        assert_eq!(attach.part(3..9), part);
        assert_eq!(part.part(5..6), Operation::Attach { first: 5, pids: vec![105] });
    }

    #[test]
    fn the_table_of_a_hundred_thousand_servers_fits_in_a_message() {
        let address = |host: u32| IpAddr::from((0x0a00_0000 + host).to_be_bytes());
        let hosts = (0..25_000).map(|host| HostServers { address: address(host), servers: 4 });
        let table = RoutingTable { first: 0, hosts: hosts.collect(), port: 7000 };
        let (shape, timeout) = (TreeShape::Kary(16), Duration::from_secs(10));
        let init = DownMessage::Init(TreeInit { servers: 100_000, shape, table, timeout });
        frame::encode_datagram(&init).unwrap();
        let pids = (0..100_000).map(|rank| 4_000_000 + rank).collect();
        frame::encode_datagram(&Operation::Attach { first: 0, pids }).unwrap();
    }
}
