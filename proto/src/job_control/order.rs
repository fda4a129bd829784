//! Orders of a job's master, which go down the tree.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::{DebuggerOrder, HostNetworkAddress, JobStart, ProgramAnswer, SubsetFence, SwitchOrder};
use crate::ids::{ElementIndex, JobHostId};
use crate::message::Stream;
use crate::nodeset::NodeSet;
use crate::observation::SampleRound;
use crate::tool_command::ToolCommand;
use crate::tool_files::ToolFilesOrder;
use crate::tool_start::ToolOrder;

/// To a node of the job's range tree.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Order {
    /// This number of bytes of output has been passed on. Only for this node.
    OutputAck(u64),
    /// The answer to a request of this node.
    Program(ProgramAnswer),
    /// An order to all hosts, or to the host in [`JobOrder::host`].
    Job(JobOrder),
    /// An order about one element, to all hosts, or to the host in [`ElementOrder::host`].
    Element {
        /// Element of the running stage.
        element: ElementIndex,
        /// The order.
        order: ElementOrder,
    },
    /// An order to the switch threads of all hosts.
    Switch(SwitchOrder),
}

/// An order about the whole job.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum JobOrder {
    /// The job. Sent once. Every host answers [`super::JobReport::Ready`] or
    /// [`super::JobReport::Refused`].
    StartJob(Arc<JobStart>),
    /// Start every process of this stage.
    StartStage(u32),
    /// An order for debuggers.
    Debugger(DebuggerOrder),
    /// scrun has written all output that precedes [`super::OutputReport::Flush`] with this token.
    Flushed {
        /// The host that has sent the token.
        host: JobHostId,
        /// The token of the call.
        token: u64,
    },
    /// Read the rest of the output of the stage's processes from their pipes, then send
    /// [`super::OutputReport::Drained`].
    Drain,
    /// Bytes for the standard input of node 0. Sent only to its host.
    Stdin(#[serde(with = "serde_bytes")] Vec<u8>),
    /// Standard input has ended.
    StdinEof,
    /// The reader of this stream has closed it. Close the stream at the processes.
    OutputClosed(Stream),
    /// Send this signal of the user to every process.
    Signal(i32),
    /// Send [`super::JobReport::Metrics`] with this period from now on. 0 ends it.
    SubscribeMetrics {
        /// The period in milliseconds.
        period_ms: u32,
    },
    /// The user ends the job. Kill every process at once.
    Kill,
    /// An order about a tool that runs next to the job.
    Tool(ToolOrder),
    /// An order about the files of a tool.
    ToolFiles(ToolFilesOrder),
    /// Release all resources, then send [`super::JobReport::Finished`].
    Finish,
}

impl JobOrder {
    /// The only host that this order is for. Returns `None` if the order is for all hosts.
    pub fn host(&self) -> Option<JobHostId> {
        match self {
            JobOrder::Flushed { host, .. } => Some(*host),
            JobOrder::Stdin(_) | JobOrder::StdinEof => Some(JobHostId(0)),
            _ => None,
        }
    }

    /// The hosts that this order is for. Returns `None` if the order is for all hosts, or for the
    /// host in [`JobOrder::host`].
    pub fn hosts(&self) -> Option<&NodeSet> {
        match self {
            JobOrder::Tool(order) => Some(&order.hosts),
            JobOrder::ToolFiles(order) => Some(&order.hosts),
            _ => None,
        }
    }
}

/// An order about one element of the running stage.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum ElementOrder {
    /// Kill every node of the element that is still alive, and start no more nodes of it.
    End,
    /// Every node of the element has attached. Answer the calls of all of them.
    Welcome {
        /// The network addresses, with one entry per host.
        peers: Vec<HostNetworkAddress>,
    },
    /// These nodes have exited. Messages to them are dropped from now on. Sent only if there are
    /// several hosts.
    NodesExited {
        /// The nodes, which may be on any host.
        nodes: NodeSet,
    },
    /// Every node of the element has called sc_barrier. Answer all of these calls.
    BarrierDone,
    /// Entries that processes in a PMI fence have put. They take effect before the fence ends.
    FenceEntries(#[serde(with = "serde_bytes")] Vec<u8>),
    /// Every node of the element is in a PMI fence. Let all of them continue.
    FenceDone,
    /// Entries that processes in a subset fence have put. For the hosts of the fence's nodes.
    SubsetFenceEntries {
        /// The fence.
        fence: SubsetFence,
        /// The entries.
        #[serde(with = "serde_bytes")]
        entries: Vec<u8>,
    },
    /// All nodes that take part in this subset fence have entered the fence. For their hosts.
    SubsetFenceDone(SubsetFence),
    /// A host requests the entries of a node. The host of the node answers with
    /// [`super::ElementReport::ModexAnswer`].
    ModexRequest {
        /// The host of the node, the only one that this order is for.
        host: JobHostId,
        /// The host that requests them.
        asker: JobHostId,
        /// The node.
        node: u32,
    },
    /// The answer to [`super::ElementReport::ModexRequest`].
    ModexAnswer {
        /// The host that requests the entries, the only one that this order is for.
        asker: JobHostId,
        /// The node.
        node: u32,
        /// The entries that the node has put, or `None` if it has put no entries.
        #[serde(with = "serde_bytes")]
        entries: Option<Vec<u8>>,
    },
    /// Send this signal (0: none) to every node of the element, then send
    /// [`super::ElementReport::Sent`].
    Broadcast {
        /// Serial number of the broadcast in the element.
        serial: u64,
        /// Signal number.
        signal: i32,
    },
    /// Every host has sent a signal. The host of `node` answers the call.
    BroadcastDone {
        /// The caller of sc_signal_bcast.
        node: u32,
    },
    /// Sample every process of the element once, then send [`super::ElementReport::SampleResult`].
    Sample {
        /// Number of the round of samples ([`crate::observation::ActivitySample`]).
        round: SampleRound,
        /// Whether the job is stopped. Threads are then also sampled.
        stopped: bool,
    },
    /// Report with [`super::ElementReport::WaitStates`] what every process of the element waits
    /// for.
    QueryWaits,
    /// A command of a tool to some nodes. Their hosts answer with
    /// [`super::ElementReport::ToolEvent`].
    ToolCommand(ToolCommand),
    /// The stacks of these nodes have been read. Threads that wait after a fault are now killed by
    /// their signal.
    ReleaseFaults {
        /// The nodes.
        nodes: NodeSet,
    },
}

impl ElementOrder {
    /// The only host that this order is for. Returns `None` if the order is for all hosts.
    pub fn host(&self) -> Option<JobHostId> {
        match self {
            ElementOrder::ModexRequest { host, .. } => Some(*host),
            ElementOrder::ModexAnswer { asker, .. } => Some(*asker),
            _ => None,
        }
    }

    /// The nodes whose hosts this order is for. Returns `None` if the order is for all hosts, or
    /// for the host in [`ElementOrder::host`].
    pub fn nodes(&self) -> Option<&NodeSet> {
        match self {
            ElementOrder::SubsetFenceEntries { fence, .. }
            | ElementOrder::SubsetFenceDone(fence) => Some(&fence.members),
            ElementOrder::ToolCommand(command) => Some(&command.nodes),
            ElementOrder::ReleaseFaults { nodes } => Some(nodes),
            _ => None,
        }
    }

    /// The order for this element.
    pub fn to(self, element: ElementIndex) -> Order {
        Order::Element { element, order: self }
    }
}
