//! Reports to a job's master, on their way up the tree.

use std::ops::Range;

use serde::{Deserialize, Serialize};

use super::{FileRequest, HostNetworkAddress, ProcessBlock, Status, SubsetFence, SwitchReport};
use crate::ids::JobHostId;
use crate::message::{Level, NodeUsage, Stream};
use crate::nodeset::NodeSet;
use crate::observation::{ActivitySample, Metrics, SampleRound, WaitState};
use crate::tool_command::MergedEvent;
use crate::tool_start::ToolReport;

/// From a node of the job's range tree to its parent.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Report {
    /// This node needs bytes of a program.
    FileRequest(FileRequest),
    /// These hosts no longer work for the job, because their shepherd, daemon or link is lost.
    HostsLost {
        /// Exit code.
        code: u8,
        /// First host and the one after the last.
        hosts: Range<u32>,
        /// Why; names the host, if there are several.
        reason: String,
    },
    /// Output, and what keeps its position after output.
    Output(OutputReport),
    /// About the whole job.
    Job(JobReport),
    /// About one parallel process.
    Element {
        /// Element of the running stage.
        element: u32,
        /// The report.
        report: ElementReport,
    },
    /// From the switch threads.
    Switch(SwitchReport),
}

/// Output of the job, in order, with the marks in it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum OutputReport {
    /// Output of processes, in whole lines if that is possible.
    Text {
        /// The host whose processes wrote it.
        host: JobHostId,
        /// Which stream.
        stream: Stream,
        /// At most [`crate::message::MAX_IO_CHUNK`] bytes.
        #[serde(with = "serde_bytes")]
        bytes: Vec<u8>,
        /// The next output on this hop continues in the middle of a line: nothing else may come in
        /// between.
        is_partial_line: bool,
    },
    /// sc_flush was called: answer with [`super::JobOrder::Flushed`] once all earlier output has
    /// been written.
    Flush {
        /// The host of the caller.
        host: JobHostId,
        /// Its token.
        token: u64,
    },
    /// All output that the ended stage left has been sent.
    Drained,
}

/// About the whole job.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum JobReport {
    /// This host and all hosts below it are ready to start processes.
    Ready,
    /// A host cannot do its part; no process has been started there.
    Refused {
        /// scrun's exit code.
        code: u8,
        /// One line that names the host, if there are several.
        reason: String,
    },
    /// Answer to [`super::JobOrder::SubscribeMetrics`]; merged for several hosts and processes on
    /// the way.
    Metrics(Metrics),
    /// The job cannot continue.
    JobFailed {
        /// Exit code.
        code: u8,
        /// Why.
        reason: String,
    },
    /// Permission to send so many more bytes of standard input.
    StdinWindow(u64),
    /// Node 0 has closed its standard input.
    StdinClosed,
    /// A line for the user.
    Notice {
        /// How important the line is.
        level: Level,
        /// The line.
        text: String,
    },
    /// About a tool that runs beside the job. Only daemons send it.
    Tool(ToolReport),
    /// Answer to [`super::DebuggerOrder::ListProcesses`] and [`super::DebuggerOrder::HoldStage`];
    /// merged for several hosts on the way. Each process that a host should run is in one block.
    Processes {
        /// The stage.
        stage: u32,
        /// The processes.
        blocks: Vec<ProcessBlock>,
    },
    /// The resources that processes have used, if statistics were requested.
    Usage(Vec<NodeUsage>),
    /// This host and all hosts below it have reclaimed everything of the job. The last report.
    Finished {
        /// From the start of the first process to the end of the last.
        elapsed_ns: u64,
    },
}

/// A process, as a debugger on its host finds it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DebuggedProcess {
    /// Its process id, outside of the job's PID namespace.
    pub pid: i32,
    /// The X display that it has named.
    pub display: Option<String>,
    /// The boot of its host, as in `/proc/sys/kernel/random/boot_id`.
    pub boot_id: String,
}

/// About one parallel process of the running stage.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum ElementReport {
    /// score_initialize was called.
    Attached {
        /// By these nodes.
        nodes: NodeSet,
        /// Network addresses of hosts that report for the first time.
        addresses: Vec<HostNetworkAddress>,
    },
    /// sc_barrier was called.
    InBarrier {
        /// By these nodes.
        nodes: NodeSet,
    },
    /// All processes of a host are in a fence of PMI, except those that have ended.
    InFence {
        /// The nodes that are in the fence.
        nodes: NodeSet,
        /// The entries of the key-value space that they have put since the last fence. At most
        /// [`super::MAX_FENCE_BYTES_PER_NODE`] for each node of the host, and
        /// [`super::MAX_FENCE_BYTES_PER_HOST`].
        #[serde(with = "serde_bytes")]
        entries: Vec<u8>,
    },
    /// All processes of a host that take part in a fence of some nodes are in it. The processes of
    /// a host are in at most [`super::max_subset_fences`] of them at once.
    InSubsetFence {
        /// The fence.
        fence: SubsetFence,
        /// The nodes of the host that take part.
        nodes: NodeSet,
        /// What they have put, within the limits of [`ElementReport::InFence`]; all such fences of
        /// a host together have [`super::MAX_FENCE_BYTES_PER_HOST`].
        #[serde(with = "serde_bytes")]
        entries: Vec<u8>,
    },
    /// A process of a host wants what a node of another host has put (PMIx_Get without a fence that
    /// has collected it). A host has at most [`super::max_modex_requests`] of them without an
    /// answer.
    ModexRequest {
        /// The host that wants it.
        asker: JobHostId,
        /// The node of another host.
        node: u32,
    },
    /// Answer to [`super::ElementOrder::ModexRequest`].
    ModexAnswer {
        /// The host that has asked.
        asker: JobHostId,
        /// The node.
        node: u32,
        /// What it has put, at most [`super::MAX_MODEX_BYTES`]. None: nothing.
        #[serde(with = "serde_bytes")]
        entries: Option<Vec<u8>>,
    },
    /// Processes have ended.
    Ended {
        /// These nodes.
        nodes: NodeSet,
        /// How each of them ended.
        status: Status,
    },
    /// Processes that are not to be started (`system -host`, or the element ends): they count as
    /// having ended with 0.
    Skipped {
        /// These nodes.
        nodes: NodeSet,
    },
    /// The program could not be started.
    NotStarted {
        /// On these nodes.
        nodes: NodeSet,
        /// Exit code: 126 or 127.
        code: u8,
        /// What went wrong.
        reason: String,
    },
    /// sc_exit was called.
    Exit {
        /// Its argument.
        code: i32,
    },
    /// sc_signal_bcast was called; answered by [`super::ElementOrder::BroadcastDone`].
    Broadcast {
        /// The caller.
        node: u32,
        /// Signal number.
        signal: i32,
    },
    /// Answer to [`super::ElementOrder::Broadcast`].
    Sent {
        /// Serial number of the broadcast.
        serial: u64,
        /// All nodes of the hosts that have sent the signal.
        nodes: NodeSet,
    },
    /// Threads of processes are about to die of a signal and wait for
    /// [`super::ElementOrder::ReleaseFaults`].
    Faulted {
        /// These nodes.
        nodes: NodeSet,
        /// Signal number.
        signal: i32,
    },
    /// A process waits for a debugger; after [`ElementReport::Faulted`] or
    /// [`ElementReport::Inspect`], if the job has debuggers.
    DebuggerWanted {
        /// The process.
        node: u32,
        /// How a debugger finds it.
        process: DebuggedProcess,
    },
    /// sc_inspectme was called.
    Inspect {
        /// The caller, which waits for the end of its parallel process.
        node: u32,
        /// The caller's hint.
        signal: i32,
        /// The text for the user.
        text: String,
    },
    /// sc_sleep was called: the whole job gives up its slices for so long.
    Sleep {
        /// Seconds.
        seconds: u32,
    },
    /// sc_yield was called: the job gives up the rest of its slice.
    Yield,
    /// Answer to [`super::ElementOrder::Sample`], for this host and all hosts below it.
    SampleResult {
        /// Number of the round of samples.
        round: SampleRound,
        /// The result.
        sample: ActivitySample,
    },
    /// Answer to [`super::ElementOrder::QueryWaits`].
    WaitStates {
        /// One entry per process.
        waits: Vec<WaitState>,
    },
    /// An answer to [`super::ElementOrder::ToolCommand`]: one of each node.
    ToolEvent(MergedEvent),
    /// A process has written something to its control socket that is not a call.
    ProtocolViolation {
        /// The process.
        node: u32,
        /// The violation.
        violation: String,
    },
    /// The parallel process cannot continue.
    Failed {
        /// Its exit code, not 0.
        code: u8,
        /// Why.
        reason: String,
    },
}

impl ElementReport {
    /// The report about this element.
    pub fn of(self, element: u32) -> Report {
        Report::Element { element, report: self }
    }
}
