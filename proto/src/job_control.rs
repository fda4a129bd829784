//! The orders of a job's master and the reports of the job's hosts. Orders go from the master down
//! the job's range tree to every shepherd; reports go up the same way. See docs/ARCHITECTURE.md, "A
//! job on many hosts".
//!
//! Countable events are reported as a set of nodes ([`NodeSet`]), so that one report can cover many
//! nodes. Node numbers here are always global. Numbers of calls stay inside the shepherd.

mod placement;

use std::ops::Range;

use serde::{Deserialize, Serialize};

use crate::message::{ContentHash, JobSpec, Level, NodeUsage, OsBytes, Stream};
use crate::nodeset::NodeSet;
use crate::observation::{ActivitySample, IdleSummary, Metrics, WaitState};
pub use placement::{HostPlacement, Placement};

/// Output that may be on its way on one hop of the job's tree without permission, in bytes.
pub const HOP_WINDOW: u64 = 1024 * 1024;

/// When a running job stops again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum StopCondition {
    /// As in the last order: only the sampling interval changes, and a job that has stopped stays
    /// stopped.
    Unchanged,
    /// On an order to stop.
    OnOrder,
    /// By itself, on each host so long after the host has received this order, as if it had
    /// received an order to stop with that number. An order to stop that arrives earlier takes
    /// effect.
    After {
        /// Microseconds.
        run_us: u32,
        /// Larger than all earlier ones.
        switch_seq: u64,
    },
    /// The job does not run yet: it takes turns with other jobs of its only host. The daemon of
    /// that host lets each job run as by [`StopCondition::After`], one after the other. The daemon
    /// reports only the stop of the last one.
    LocalRotation(LocalRotation),
}

/// How a job takes turns with others. Every one of these jobs gets this, with its own position.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct LocalRotation {
    /// The number of the stop that ends the first turn; each further turn has the next number.
    pub first_switch_seq: u64,
    /// How long a turn is, in microseconds.
    pub turn_us: u32,
    /// Number of turns in all.
    pub turn_count: u32,
    /// Number of jobs that take part.
    pub job_count: u8,
    /// The job's position among them, from 0.
    pub position: u8,
}

/// From the job master to the shepherds.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Order {
    /// The first message on the socket to a shepherd: [`crate::PROTOCOL_VERSION`].
    Hello {
        /// The sender's protocol version.
        version: u32,
    },
    /// The hosts of the job; once, before [`Order::StartJob`].
    SetPlacement(Placement),
    /// The job; once. Every host answers [`Report::Ready`] or [`Report::Refused`].
    StartJob(Box<JobStart>),
    /// Start every process of this stage.
    StartStage(u32),
    /// Kill every node of this element that is still alive, and start no more of them.
    EndElement {
        /// Element of the running stage.
        element: u32,
    },
    /// Every node of the element has attached: answer all their calls.
    Welcome {
        /// Element of the running stage.
        element: u32,
        /// The network addresses of all hosts, one entry per host.
        peers: Vec<HostNetworkAddress>,
    },
    /// These nodes have exited: messages to them are dropped from now on. Sent only if there are
    /// several hosts.
    NodesExited {
        /// Element of the running stage.
        element: u32,
        /// The nodes, on any host.
        nodes: NodeSet,
    },
    /// Every node of the element has called sc_barrier: answer all these calls.
    BarrierDone {
        /// Element of the running stage.
        element: u32,
    },
    /// scrun has written all output from before [`Report::Flush`] with this token.
    Flushed {
        /// The host that asked.
        host: u32,
        /// Its token.
        token: u64,
    },
    /// Send this signal (0: none) to every node of the element; then [`Report::Sent`].
    Broadcast {
        /// Element of the running stage.
        element: u32,
        /// Serial number of the broadcast in the element.
        serial: u64,
        /// Signal number.
        signal: i32,
    },
    /// Every host has sent a signal: the host of `node` answers the call.
    BroadcastDone {
        /// Element of the running stage.
        element: u32,
        /// The caller of sc_signal_bcast.
        node: u32,
    },
    /// Read what the processes of the stage have left in their pipes; then send
    /// [`Report::Drained`].
    Drain,
    /// Bytes for the standard input of node 0; sent only to its host.
    Stdin(#[serde(with = "serde_bytes")] Vec<u8>),
    /// Standard input has ended.
    StdinEof,
    /// So many bytes of [`Report::Output`] have been passed on; for the next hop only.
    OutputAck(u64),
    /// This stream has no reader any more: close it at the processes.
    OutputClosed(Stream),
    /// The user sends this signal to every process.
    Signal(i32),
    /// Stop every process with its threads and descendants; then send [`Report::Stopped`].
    Stop {
        /// Number of this order to stop or run; larger than all earlier ones.
        switch_seq: u64,
        /// Whether the stop lasts longer than a slice.
        is_lasting: bool,
    },
    /// Let every process continue, or allow it to be started.
    Run {
        /// Number of this order to stop or run; larger than all earlier ones.
        switch_seq: u64,
        /// Interval in which the host checks whether all processes are idle, in microseconds; 0 for
        /// never.
        idle_check_interval_us: u32,
        /// When the job stops again.
        stop_condition: StopCondition,
    },
    /// Sample every process of the element once; then send [`Report::SampleResult`].
    Sample {
        /// Element of the running stage.
        element: u32,
        /// Number of the round of samples ([`crate::observation::ActivitySample`]).
        round: u64,
        /// The job is stopped: threads are also sampled.
        stopped: bool,
    },
    /// Report by [`Report::WaitStates`] what every process of the element waits for.
    QueryWaits {
        /// Element of the running stage.
        element: u32,
    },
    /// Send [`Report::Metrics`] in this period from now on; 0 ends it.
    SubscribeMetrics {
        /// Milliseconds.
        period_ms: u32,
    },
    /// The user ends the job: kill every process at once.
    Kill,
    /// Reclaim everything; then send [`Report::Finished`].
    Finish,
    /// A piece of a program that [`Report::FileRequest`] has asked for; for that host only. No
    /// bytes: the file has ended, or does not match its digest.
    FileChunk {
        /// Hash of the program.
        hash: ContentHash,
        /// Offset of the piece in the file.
        offset: u64,
        /// At most [`crate::message::MAX_IO_CHUNK`] bytes.
        #[serde(with = "serde_bytes")]
        bytes: Vec<u8>,
    },
    /// A program that [`Report::FileRequest`] has asked for is in this file, on the disk that
    /// virtual hosts share; for that host only. The file does not change before the job's first
    /// process runs.
    SharedFile {
        /// Hash of the program.
        hash: ContentHash,
        /// Absolute path.
        path: OsBytes,
    },
    /// End everything at once; no report is needed any more.
    Abort,
    /// From a daemon to its own shepherd: a child host has sent [`Report::FileRequest`]. Answered
    /// by [`Report::FileChunk`] or [`Report::SharedFile`].
    SendFile {
        /// The index of the child, repeated in the answer.
        child: u32,
        /// Hash of the program.
        hash: ContentHash,
        /// Offset of the first byte.
        offset: u64,
        /// Number of bytes.
        length: u64,
    },
}

impl Order {
    /// The only host that this order is for, or None if it is for all.
    pub fn host(&self) -> Option<u32> {
        match self {
            Order::Flushed { host, .. } => Some(*host),
            Order::Stdin(_) | Order::StdinEof => Some(0),
            _ => None,
        }
    }
}

/// The job as its hosts receive it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct JobStart {
    /// Job number.
    pub job: u32,
    /// The secret in the packets of this job's networks; packets without it are dropped.
    pub secret: u64,
    /// The job as it was submitted.
    pub spec: JobSpec,
    /// The owner of the job, if daemons serve several users. None: the daemon's own user.
    pub owner: Option<Owner>,
}

/// The owner of a job: its shepherds switch to this user before they access anything.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Owner {
    /// The uid that the daemon of the login host has verified.
    pub uid: u32,
    /// The user's group, also verified.
    pub gid: u32,
    /// The user's name on the login host, as its name services know it; empty if they do not know
    /// the uid. A host on which the uid has another name refuses the job.
    pub name: OsBytes,
    /// scrun's own limits. No host exceeds its own limits.
    pub limits: Vec<Limit>,
}

/// A resource limit, as in getrlimit(2).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Limit {
    /// RLIMIT_
    pub resource: u32,
    /// Soft limit; all ones for none.
    pub soft: u64,
    /// Hard limit; all ones for none.
    pub hard: u64,
}

/// The addresses of the networks of one parallel process on one host.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct HostNetworkAddress {
    /// The host.
    pub host: u32,
    /// The addresses that its shepherd's devices report; opaque to all others on the way.
    #[serde(with = "serde_bytes")]
    pub address: Vec<u8>,
}

/// How a process ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Status {
    /// The process called exit or returned from main.
    Exited(u8),
    /// Killed by this signal.
    Signaled(i32),
}

/// From the shepherds to the job master.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Report {
    /// Answer to [`Order::Hello`].
    Hello {
        /// The sender's protocol version.
        version: u32,
    },
    /// The path at which a host is about to make the job's directory.
    Directory {
        /// The host.
        host: u32,
        /// Absolute path.
        path: String,
    },
    /// This host and all hosts below it are ready to start processes.
    Ready,
    /// A request for bytes of this program; for the next hop only.
    FileRequest {
        /// Hash of the program.
        hash: ContentHash,
        /// Offset of the first byte.
        offset: u64,
        /// Number of bytes.
        length: u64,
    },
    /// A host cannot do its part; no process has been started there.
    Refused {
        /// scrun's exit code.
        code: u8,
        /// One line that names the host, if there are several.
        reason: String,
    },
    /// score_initialize was called.
    Attached {
        /// Element of the running stage.
        element: u32,
        /// By these nodes.
        nodes: NodeSet,
        /// Network addresses of hosts that report for the first time.
        addresses: Vec<HostNetworkAddress>,
    },
    /// sc_barrier was called.
    InBarrier {
        /// Element of the running stage.
        element: u32,
        /// By these nodes.
        nodes: NodeSet,
    },
    /// Processes have ended.
    Ended {
        /// Element of the running stage.
        element: u32,
        /// These nodes.
        nodes: NodeSet,
        /// How each of them ended.
        status: Status,
    },
    /// Processes that are not to be started (`system -host`, or the element ends): they count as
    /// having ended with 0.
    Skipped {
        /// Element of the running stage.
        element: u32,
        /// These nodes.
        nodes: NodeSet,
    },
    /// The program could not be started.
    NotStarted {
        /// Element of the running stage.
        element: u32,
        /// On these nodes.
        nodes: NodeSet,
        /// Exit code: 126 or 127.
        code: u8,
        /// What went wrong.
        reason: String,
    },
    /// sc_exit was called.
    Exit {
        /// Element of the running stage.
        element: u32,
        /// Its argument.
        code: i32,
    },
    /// sc_signal_bcast was called; answered by [`Order::BroadcastDone`].
    Broadcast {
        /// Element of the running stage.
        element: u32,
        /// The caller.
        node: u32,
        /// Signal number.
        signal: i32,
    },
    /// Answer to [`Order::Broadcast`].
    Sent {
        /// Element of the running stage.
        element: u32,
        /// Serial number of the broadcast.
        serial: u64,
        /// All nodes of the hosts that have sent the signal.
        nodes: NodeSet,
    },
    /// sc_inspectme was called.
    Inspect {
        /// Element of the running stage.
        element: u32,
        /// The caller's hint.
        signal: i32,
        /// The text for the user.
        text: String,
    },
    /// sc_sleep was called: the whole job gives up its slices for so long.
    Sleep {
        /// Element of the running stage.
        element: u32,
        /// Seconds.
        seconds: u32,
    },
    /// sc_yield was called: the job gives up the rest of its slice.
    Yield {
        /// Element of the running stage.
        element: u32,
    },
    /// The whole job has stopped, on this host and on all hosts below it.
    Stopped {
        /// Number of the order that was carried out.
        switch_seq: u64,
    },
    /// Whether all processes of the element are idle, on this host and all hosts below it. Sent
    /// when that changes, or when the counters change while they are idle.
    IdleSummary {
        /// Element of the running stage.
        element: u32,
        /// The result.
        summary: IdleSummary,
    },
    /// Answer to [`Order::Sample`], for this host and all hosts below it.
    SampleResult {
        /// Element of the running stage.
        element: u32,
        /// Number of the round of samples.
        round: u64,
        /// The result.
        sample: ActivitySample,
    },
    /// Answer to [`Order::QueryWaits`].
    WaitStates {
        /// Element of the running stage.
        element: u32,
        /// One entry per process.
        waits: Vec<WaitState>,
    },
    /// Answer to [`Order::SubscribeMetrics`]; merged for several hosts and processes on the way.
    Metrics(Metrics),
    /// sc_flush was called: answer with [`Order::Flushed`] once all earlier output has been
    /// written. Keeps its position after the output.
    Flush {
        /// The host of the caller.
        host: u32,
        /// Its token.
        token: u64,
    },
    /// A process has written something to its control socket that is not a call.
    ProtocolViolation {
        /// Element of the running stage.
        element: u32,
        /// The process.
        node: u32,
        /// The violation.
        violation: String,
    },
    /// A parallel process cannot continue.
    ElementFailed {
        /// Element of the running stage.
        element: u32,
        /// Why.
        reason: String,
    },
    /// Answer to an order about a job that the receiver does not have and must not start; for the
    /// next hop only.
    UnknownJob {
        /// Why.
        reason: String,
    },
    /// The job cannot continue.
    JobFailed {
        /// Exit code.
        code: u8,
        /// Why.
        reason: String,
    },
    /// These hosts no longer work for the job, because their shepherd, daemon or link is lost.
    HostsLost {
        /// Exit code.
        code: u8,
        /// First host and the one after the last.
        hosts: Range<u32>,
        /// Why; names the host, if there are several.
        reason: String,
    },
    /// Output of processes, in whole lines if that is possible.
    Output {
        /// The host whose processes wrote it.
        host: u32,
        /// Which stream.
        stream: Stream,
        /// At most [`crate::message::MAX_IO_CHUNK`] bytes.
        #[serde(with = "serde_bytes")]
        bytes: Vec<u8>,
        /// The next output on this hop continues in the middle of a line: nothing else may come in
        /// between.
        is_partial_line: bool,
    },
    /// All output that the ended stage left has been sent. Keeps its position after the output.
    Drained,
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
    /// The resources that processes have used, if statistics were requested.
    Usage(Vec<NodeUsage>),
    /// This host and all hosts below it have reclaimed everything of the job. The last report.
    Finished {
        /// From the start of the first process to the end of the last.
        elapsed_ns: u64,
    },
    /// From a shepherd to its daemon: answer to [`Order::SendFile`], to be passed on as
    /// [`Order::FileChunk`].
    FileChunk {
        /// The index of the child.
        child: u32,
        /// Hash of the program.
        hash: ContentHash,
        /// Offset of the piece in the file.
        offset: u64,
        /// At most [`crate::message::MAX_IO_CHUNK`] bytes.
        #[serde(with = "serde_bytes")]
        bytes: Vec<u8>,
    },
    /// From a shepherd to its daemon: answer to [`Order::SendFile`], to be passed on as
    /// [`Order::SharedFile`].
    SharedFile {
        /// The index of the child.
        child: u32,
        /// Hash of the program.
        hash: ContentHash,
        /// Absolute path.
        path: OsBytes,
    },
}

impl Report {
    /// The element of the running stage that the report is about, if any.
    pub fn element(&self) -> Option<u32> {
        match self {
            Report::Attached { element, .. }
            | Report::InBarrier { element, .. }
            | Report::Ended { element, .. }
            | Report::Skipped { element, .. }
            | Report::NotStarted { element, .. }
            | Report::Exit { element, .. }
            | Report::Broadcast { element, .. }
            | Report::Sent { element, .. }
            | Report::Inspect { element, .. }
            | Report::ProtocolViolation { element, .. }
            | Report::Sleep { element, .. }
            | Report::Yield { element }
            | Report::IdleSummary { element, .. }
            | Report::SampleResult { element, .. }
            | Report::WaitStates { element, .. }
            | Report::ElementFailed { element, .. } => Some(*element),
            _ => None,
        }
    }
}
