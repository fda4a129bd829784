//! Orders of a job's master, on their way down the tree.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::{DebuggerOrder, HostNetworkAddress, JobStart, ProgramAnswer, SubsetFence, SwitchOrder};
use crate::ids::JobHostId;
use crate::message::Stream;
use crate::nodeset::NodeSet;
use crate::observation::SampleRound;
use crate::tool_command::ToolCommand;
use crate::tool_start::ToolOrder;

/// To a node of the job's range tree.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Order {
    /// So many bytes of output have been passed on; for this node only.
    OutputAck(u64),
    /// Answer to a request of this node.
    Program(ProgramAnswer),
    /// For all hosts, or the one in [`JobOrder::host`].
    Job(JobOrder),
    /// For all hosts, or the one in [`ElementOrder::host`], about one parallel process.
    Element {
        /// Element of the running stage.
        element: u32,
        /// The order.
        order: ElementOrder,
    },
    /// For the switch threads of all hosts.
    Switch(SwitchOrder),
}

/// About the whole job.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum JobOrder {
    /// The job; once. Every host answers [`super::JobReport::Ready`] or
    /// [`super::JobReport::Refused`].
    StartJob(Arc<JobStart>),
    /// Start every process of this stage.
    StartStage(u32),
    /// What a debugger has requested.
    Debugger(DebuggerOrder),
    /// scrun has written all output from before [`super::OutputReport::Flush`] with this token.
    Flushed {
        /// The host that asked.
        host: JobHostId,
        /// Its token.
        token: u64,
    },
    /// Read what the processes of the stage have left in their pipes; then send
    /// [`super::OutputReport::Drained`].
    Drain,
    /// Bytes for the standard input of node 0; sent only to its host.
    Stdin(#[serde(with = "serde_bytes")] Vec<u8>),
    /// Standard input has ended.
    StdinEof,
    /// This stream has no reader any more: close it at the processes.
    OutputClosed(Stream),
    /// The user sends this signal to every process.
    Signal(i32),
    /// Send [`super::JobReport::Metrics`] in this period from now on; 0 ends it.
    SubscribeMetrics {
        /// Milliseconds.
        period_ms: u32,
    },
    /// The user ends the job: kill every process at once.
    Kill,
    /// About a tool that runs beside the job.
    Tool(ToolOrder),
    /// Reclaim everything; then send [`super::JobReport::Finished`].
    Finish,
}

impl JobOrder {
    /// The only host that this order is for, or None if it is for all.
    pub fn host(&self) -> Option<JobHostId> {
        match self {
            JobOrder::Flushed { host, .. } => Some(*host),
            JobOrder::Stdin(_) | JobOrder::StdinEof => Some(JobHostId(0)),
            _ => None,
        }
    }

    /// The hosts that this order is for, or None if it is for all, or for the one in
    /// [`JobOrder::host`].
    pub fn hosts(&self) -> Option<&NodeSet> {
        match self {
            JobOrder::Tool(order) => Some(&order.hosts),
            _ => None,
        }
    }
}

/// About one parallel process of the running stage.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum ElementOrder {
    /// Kill every node of the element that is still alive, and start no more of them.
    End,
    /// Every node of the element has attached: answer all their calls.
    Welcome {
        /// The network addresses of all hosts, one entry per host.
        peers: Vec<HostNetworkAddress>,
    },
    /// These nodes have exited: messages to them are dropped from now on. Sent only if there are
    /// several hosts.
    NodesExited {
        /// The nodes, on any host.
        nodes: NodeSet,
    },
    /// Every node of the element has called sc_barrier: answer all these calls.
    BarrierDone,
    /// Entries that processes in a fence of PMI have put. They are in effect before the fence ends.
    FenceEntries(#[serde(with = "serde_bytes")] Vec<u8>),
    /// Every node of the element is in a fence of PMI: let all of them go on.
    FenceDone,
    /// Entries that processes in a fence of some nodes have put. For the hosts of these nodes.
    SubsetFenceEntries {
        /// The fence.
        fence: SubsetFence,
        /// The entries.
        #[serde(with = "serde_bytes")]
        entries: Vec<u8>,
    },
    /// All nodes that take part in this fence are in it. For their hosts.
    SubsetFenceDone(SubsetFence),
    /// A host wants what a node has put: its host answers by
    /// [`super::ElementReport::ModexAnswer`].
    ModexRequest {
        /// The host of the node, the only one that this order is for.
        host: JobHostId,
        /// The host that wants it.
        asker: JobHostId,
        /// The node.
        node: u32,
    },
    /// Answer to [`super::ElementReport::ModexRequest`].
    ModexAnswer {
        /// The host that has asked, the only one that this order is for.
        asker: JobHostId,
        /// The node.
        node: u32,
        /// What it has put. None: nothing.
        #[serde(with = "serde_bytes")]
        entries: Option<Vec<u8>>,
    },
    /// Send this signal (0: none) to every node of the element; then
    /// [`super::ElementReport::Sent`].
    Broadcast {
        /// Serial number of the broadcast in the element.
        serial: u64,
        /// Signal number.
        signal: i32,
    },
    /// Every host has sent a signal: the host of `node` answers the call.
    BroadcastDone {
        /// The caller of sc_signal_bcast.
        node: u32,
    },
    /// Sample every process of the element once; then send
    /// [`super::ElementReport::SampleResult`].
    Sample {
        /// Number of the round of samples ([`crate::observation::ActivitySample`]).
        round: SampleRound,
        /// The job is stopped: threads are also sampled.
        stopped: bool,
    },
    /// Report by [`super::ElementReport::WaitStates`] what every process of the element waits for.
    QueryWaits,
    /// A tool's command to some nodes. For their hosts, which answer by
    /// [`super::ElementReport::ToolEvent`].
    ToolCommand(ToolCommand),
    /// The stacks of these nodes have been read, and the threads that wait after a fault may die of
    /// their signal.
    ReleaseFaults {
        /// The nodes.
        nodes: NodeSet,
    },
}

impl ElementOrder {
    /// The only host that this order is for, or None if it is for all.
    pub fn host(&self) -> Option<JobHostId> {
        match self {
            ElementOrder::ModexRequest { host, .. } => Some(*host),
            ElementOrder::ModexAnswer { asker, .. } => Some(*asker),
            _ => None,
        }
    }

    /// The nodes whose hosts this order is for, or None if it is for all, or for the one in
    /// [`ElementOrder::host`].
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
    pub fn to(self, element: u32) -> Order {
        Order::Element { element, order: self }
    }
}
