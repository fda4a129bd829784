//! Reports to a job's master, which go up the tree.

use std::ops::Range;

use serde::{Deserialize, Serialize};

use super::{FileRequest, HostNetworkAddress, ProcessBlock, Status, SubsetFence, SwitchReport};
use crate::ids::{ElementIndex, JobHostId};
use crate::message::{Level, NodeUsage, Stream};
use crate::nodeset::NodeSet;
use crate::observation::{ActivitySample, Metrics, SampleRound, WaitState};
use crate::tool_command::MergedEvent;
use crate::tool_start::ToolReport;

/// From a node of the job's range tree to its parent.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Report {
    /// This node requests bytes of a program.
    FileRequest(FileRequest),
    /// These hosts no longer work for the job, because their shepherd, daemon or link is lost.
    HostsLost {
        /// Exit code.
        code: u8,
        /// The first host, and the host after the last.
        hosts: Range<u32>,
        /// Whether processes of the job may be left on these hosts.
        remains: Remains,
        /// The reason. It names the host if there are several.
        reason: String,
    },
    /// Output, and reports that keep their position relative to output.
    Output(OutputReport),
    /// A report about the whole job.
    Job(JobReport),
    /// A report about one element.
    Element {
        /// Element of the running stage.
        element: ElementIndex,
        /// The report.
        report: ElementReport,
    },
    /// A report of the switch threads.
    Switch(SwitchReport),
}

/// What lost hosts may still have of a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Remains {
    /// No process of the job: the hosts have not begun the job, or their shepherd has died.
    Nothing,
    /// Processes of the job, until the hosts notice that their link is broken.
    Processes,
}

/// Output of the job, in order, and the markers in it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum OutputReport {
    /// Output of processes, in complete lines if possible.
    Text {
        /// The host whose processes wrote it.
        host: JobHostId,
        /// The output stream.
        stream: Stream,
        /// At most [`crate::message::MAX_IO_CHUNK`] bytes.
        #[serde(with = "serde_bytes")]
        bytes: Vec<u8>,
        /// Whether the next output on this hop continues the last line. No other output may come in
        /// between.
        is_partial_line: bool,
    },
    /// sc_flush was called. [`super::JobOrder::Flushed`] answers it when all earlier output has
    /// been written.
    Flush {
        /// The host of the caller.
        host: JobHostId,
        /// The token of the call.
        token: u64,
    },
    /// All remaining output of the ended stage has been sent.
    Drained,
}

/// A report about the whole job.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum JobReport {
    /// This host and all hosts below it are ready to start processes.
    Ready,
    /// A host cannot run its part of the job. No process has been started there.
    Refused {
        /// scrun's exit code.
        code: u8,
        /// One line with the reason. It names the host if there are several.
        reason: String,
    },
    /// The answer to [`super::JobOrder::SubscribeMetrics`]. Metrics of several hosts and processes
    /// are merged on the way.
    Metrics(Metrics),
    /// The job cannot continue.
    JobFailed {
        /// Exit code.
        code: u8,
        /// The reason.
        reason: String,
    },
    /// Permission to send this number of additional bytes of standard input.
    StdinWindow(u64),
    /// Node 0 has closed its standard input.
    StdinClosed,
    /// A line for the user.
    Notice {
        /// The importance of the line.
        level: Level,
        /// The line.
        text: String,
    },
    /// A report about a tool that runs next to the job. Only daemons send it.
    Tool(ToolReport),
    /// The answer to [`super::DebuggerOrder::ListProcesses`] and
    /// [`super::DebuggerOrder::HoldStage`]. Answers of several hosts are merged on the way. Each
    /// process that a host should run is in one block.
    Processes {
        /// The stage.
        stage: u32,
        /// The processes.
        blocks: Vec<ProcessBlock>,
    },
    /// The resources that processes have used, if statistics were requested.
    Usage(Vec<NodeUsage>),
    /// This host and all hosts below it have released all resources of the job. This is the last
    /// report.
    Finished {
        /// Time from the start of the first process to the end of the last, in nanoseconds.
        elapsed_ns: u64,
    },
}

/// A process, described so that a debugger on its host finds it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DebuggedProcess {
    /// The process id in the PID namespace of the host.
    pub pid: i32,
    /// The X display that the process has specified, if any.
    pub display: Option<String>,
    /// The id of the host's current boot, from `/proc/sys/kernel/random/boot_id`.
    pub boot_id: String,
}

/// A report about one element of the running stage.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum ElementReport {
    /// score_initialize was called.
    Attached {
        /// The nodes that have called it.
        nodes: NodeSet,
        /// Network addresses of hosts that report for the first time.
        addresses: Vec<HostNetworkAddress>,
    },
    /// sc_barrier was called.
    InBarrier {
        /// The nodes that have called it.
        nodes: NodeSet,
    },
    /// All processes of a host, except those that have exited, are in a PMI fence.
    InFence {
        /// The nodes that are in the fence.
        nodes: NodeSet,
        /// The entries of the key-value space that they have put since the last fence. They have at
        /// most [`super::MAX_FENCE_BYTES_PER_NODE`] for each node of the host, and at most
        /// [`super::MAX_FENCE_BYTES_PER_HOST`].
        #[serde(with = "serde_bytes")]
        entries: Vec<u8>,
    },
    /// All processes of a host that take part in a subset fence have entered the fence. The
    /// processes of a host are in at most [`super::max_subset_fences`] subset fences at once.
    InSubsetFence {
        /// The fence.
        fence: SubsetFence,
        /// The nodes of the host that take part.
        nodes: NodeSet,
        /// The entries that they have put, within the limits of [`ElementReport::InFence`]. All
        /// subset fences of a host together have at most [`super::MAX_FENCE_BYTES_PER_HOST`].
        #[serde(with = "serde_bytes")]
        entries: Vec<u8>,
    },
    /// A process of a host requests the entries that a node of another host has put (PMIx_Get
    /// without a fence that has collected them). A host has at most [`super::max_modex_requests`]
    /// unanswered requests.
    ModexRequest {
        /// The host that requests them.
        asker: JobHostId,
        /// The node of another host.
        node: u32,
    },
    /// The answer to [`super::ElementOrder::ModexRequest`].
    ModexAnswer {
        /// The host that requests the entries.
        asker: JobHostId,
        /// The node.
        node: u32,
        /// The entries that the node has put, at most [`super::MAX_MODEX_BYTES`], or `None` if it
        /// has put no entries.
        #[serde(with = "serde_bytes")]
        entries: Option<Vec<u8>>,
    },
    /// Processes have exited.
    Ended {
        /// The nodes of the processes.
        nodes: NodeSet,
        /// The exit status of each of them.
        status: Status,
    },
    /// Processes that will not be started (`system -host`, or the element ends). They count as
    /// exited with code 0.
    Skipped {
        /// The nodes of the processes.
        nodes: NodeSet,
    },
    /// The program could not be started.
    NotStarted {
        /// The nodes without a process.
        nodes: NodeSet,
        /// Exit code: 126 or 127.
        code: u8,
        /// The reason.
        reason: String,
    },
    /// sc_exit was called.
    Exit {
        /// The argument of the call.
        code: i32,
    },
    /// sc_signal_bcast was called. [`super::ElementOrder::BroadcastDone`] answers it.
    Broadcast {
        /// The caller.
        node: u32,
        /// Signal number.
        signal: i32,
    },
    /// The answer to [`super::ElementOrder::Broadcast`].
    Sent {
        /// Serial number of the broadcast.
        serial: u64,
        /// All nodes of the hosts that have sent the signal.
        nodes: NodeSet,
    },
    /// Threads of processes are about to be killed by a signal. They wait for
    /// [`super::ElementOrder::ReleaseFaults`].
    Faulted {
        /// The nodes of these processes.
        nodes: NodeSet,
        /// Signal number.
        signal: i32,
    },
    /// A process waits for a debugger. Sent after [`ElementReport::Faulted`] or
    /// [`ElementReport::Inspect`], if the job has debuggers.
    DebuggerWanted {
        /// The node of the process.
        node: u32,
        /// The process, for the debugger.
        process: DebuggedProcess,
    },
    /// sc_inspectme was called.
    Inspect {
        /// The caller, which waits until its parallel process is ended.
        node: u32,
        /// The caller's hint.
        signal: i32,
        /// The text for the user.
        text: String,
    },
    /// sc_sleep was called: the whole job gives up its slices for this time.
    Sleep {
        /// Number of seconds.
        seconds: u32,
    },
    /// sc_yield was called: the job gives up the rest of its slice.
    Yield,
    /// The answer to [`super::ElementOrder::Sample`], for this host and all hosts below it.
    SampleResult {
        /// Number of the round of samples.
        round: SampleRound,
        /// The result.
        sample: ActivitySample,
    },
    /// The answer to [`super::ElementOrder::QueryWaits`].
    WaitStates {
        /// One entry per process.
        waits: Vec<WaitState>,
    },
    /// An answer to [`super::ElementOrder::ToolCommand`]. Each node sends one.
    ToolEvent(MergedEvent),
    /// A process has sent a malformed datagram on its control socket, or has violated the protocol
    /// in another way.
    ProtocolViolation {
        /// The node of the process.
        node: u32,
        /// The violation.
        violation: String,
    },
    /// The parallel process cannot continue.
    Failed {
        /// The exit code of the parallel process, not 0.
        code: u8,
        /// The reason.
        reason: String,
    },
}

impl ElementReport {
    /// The report about this element.
    pub fn of(self, element: ElementIndex) -> Report {
        Report::Element { element, report: self }
    }
}
