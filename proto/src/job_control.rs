//! What the master of a job orders, and what the hosts of the job report. Orders go from the
//! master down the job's tree to every shepherd, reports the same way up; see
//! docs/ARCHITECTURE.md, "A job on many hosts".
//!
//! What can be counted is reported as a set of nodes ([`NodeSet`]), so that one report speaks for
//! many. Nodes are global numbers everywhere here. Numbers of calls never leave the shepherd.

mod placement;

use std::ops::Range;

use serde::{Deserialize, Serialize};

use crate::message::{ContentHash, JobSpec, Level, NodeUsage, OsBytes, Stream};
use crate::nodeset::NodeSet;
use crate::observation::{ActivitySample, IdleSummary, Metrics, WaitState};
pub use placement::{HostPlacement, Placement};

/// Output that may be under way on one hop of the job's tree without leave, in bytes.
pub const HOP_WINDOW: u64 = 1024 * 1024;

/// When a job that runs stops again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum StopCondition {
    /// As was said last; this is but a new pace, and who has stopped by now stays so.
    Unchanged,
    /// When it is ordered.
    OnOrder,
    /// By itself, on each host so long after it has heard this; as by an order to stop of that
    /// number. An order that comes before counts.
    After {
        /// Microseconds.
        run_us: u32,
        /// Larger than all before.
        switch_seq: u64,
    },
    /// It does not run yet: it takes turns with other jobs of its one host, whose daemon has each
    /// run as by [`StopCondition::After`], one after the other, and tells only when the last one stops.
    LocalRotation(LocalRotation),
}

/// How a job takes turns with others. All of them are told, each its own place.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct LocalRotation {
    /// The number by which the first turn stops; each further turn has the next one.
    pub first_switch_seq: u64,
    /// How long a turn is, in microseconds.
    pub turn_us: u32,
    /// How many there are in all.
    pub turn_count: u32,
    /// How many jobs take part.
    pub job_count: u8,
    /// The job's place among them, counted from 0.
    pub position: u8,
}

/// Towards the shepherds.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Order {
    /// First on the socket to a shepherd: [`crate::PROTOCOL_VERSION`].
    Hello {
        /// The sender's protocol version.
        version: u32,
    },
    /// Which hosts the job has; once, before [`Order::Begin`].
    SetPlacement(Placement),
    /// The job; once. Every host answers [`Report::Ready`] or [`Report::Refused`].
    StartJob(Box<JobStart>),
    /// Start every process of this stage.
    StartStage(u32),
    /// Kill every node of this element that still lives, and start no further one.
    EndElement {
        /// Element of the running stage.
        element: u32,
    },
    /// Every node of the element has attached: answer all of them.
    Welcome {
        /// Element of the running stage.
        element: u32,
        /// Where the networks of all hosts can be reached, host by host.
        peers: Vec<HostNetworkAddress>,
    },
    /// These nodes have ended: what is sent to them is dropped from now on. Only where there are
    /// several hosts.
    NodesExited {
        /// Element of the running stage.
        element: u32,
        /// The nodes, on whichever host.
        nodes: NodeSet,
    },
    /// Every node of the element is in sc_barrier: answer all of them.
    BarrierDone {
        /// Element of the running stage.
        element: u32,
    },
    /// scrun has written everything before [`Report::Flush`] with this token.
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
        /// Which broadcast of the element.
        serial: u64,
        /// Signal number.
        signal: i32,
    },
    /// Every host has sent a signal: the host of `node` answers it.
    BroadcastDone {
        /// Element of the running stage.
        element: u32,
        /// Who called sc_signal_bcast.
        node: u32,
    },
    /// Read what the processes of the stage have left in their pipes; then [`Report::Drained`].
    Drain,
    /// Bytes for the standard input of node 0; goes to its host only.
    Stdin(#[serde(with = "serde_bytes")] Vec<u8>),
    /// Standard input has ended.
    StdinEof,
    /// That many bytes of [`Report::Output`] have gone on from here: for the next hop only.
    OutputAck(u64),
    /// Nobody reads this stream any more: close it at the processes.
    OutputClosed(Stream),
    /// The user sends this signal to every process.
    Signal(i32),
    /// Stop every process, its threads and descendants; then [`Report::Stopped`].
    Stop {
        /// Which order to stop or run; larger than all before.
        switch_seq: u64,
        /// For longer than a slice.
        is_lasting: bool,
    },
    /// Let every process go on, or be started.
    Run {
        /// Which order to stop or run; larger than all before.
        switch_seq: u64,
        /// How often it is looked whether all are idle, in microseconds; 0 for never.
        idle_check_interval_us: u32,
        /// When it stops again.
        stop_condition: StopCondition,
    },
    /// Look at every process of the element, once; then [`Report::SampleResult`].
    Sample {
        /// Element of the running stage.
        element: u32,
        /// Which look ([`crate::observation::ActivitySample`]).
        round: u64,
        /// The job is stopped: threads are looked at, too.
        stopped: bool,
    },
    /// Say what every process of the element waits for, by [`Report::WaitStates`].
    QueryWaits {
        /// Element of the running stage.
        element: u32,
    },
    /// From now on [`Report::Metrics`] every so often; 0 for never again.
    SubscribeMetrics {
        /// Milliseconds.
        period_ms: u32,
    },
    /// The user ends the job: kill every process at once.
    Kill,
    /// Reclaim everything; then [`Report::Finished`].
    Finish,
    /// A piece of a program that [`Report::FileRequest`] has asked for: for that host only. No bytes:
    /// there is no more, or it is not what it was said to be.
    FileChunk {
        /// Which.
        hash: ContentHash,
        /// Where the piece begins.
        offset: u64,
        /// At most [`crate::message::MAX_IO_CHUNK`] bytes.
        #[serde(with = "serde_bytes")]
        bytes: Vec<u8>,
    },
    /// A program that [`Report::FileRequest`] has asked for lies in this file, on the disk that virtual
    /// hosts share; for that host only. Nobody changes it before the job's first process runs.
    SharedFile {
        /// Which.
        hash: ContentHash,
        /// Absolute path.
        path: OsBytes,
    },
    /// End everything at once; nobody wants to hear of it any more.
    Abort,
}

impl Order {
    /// The one host that this order is for, if it is not for all.
    pub fn host(&self) -> Option<u32> {
        match self {
            Order::Flushed { host, .. } => Some(*host),
            Order::Stdin(_) | Order::StdinEof => Some(0),
            _ => None,
        }
    }
}

/// The job as its hosts get it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct JobStart {
    /// Job number.
    pub job: u32,
    /// What packets of this job's networks carry, so that all others are dropped.
    pub secret: u64,
    /// What was submitted.
    pub spec: JobSpec,
    /// Whose it is, where daemons serve several users; else it is theirs.
    pub owner: Option<Owner>,
}

/// Whose a job is: what its shepherds become before they touch anything.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Owner {
    /// What the daemon of the login host has seen.
    pub uid: u32,
    /// Its group, likewise.
    pub gid: u32,
    /// The name that scrun says it has there; empty when unknown. A host where the uid has another
    /// name refuses the job.
    pub name: OsBytes,
    /// What scrun was limited to. No host goes above its own limits.
    pub limits: Vec<Limit>,
}

/// A resource limit, as getrlimit(2).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Limit {
    /// RLIMIT_
    pub resource: u32,
    /// Soft limit; all ones for none.
    pub soft: u64,
    /// Hard limit, likewise.
    pub hard: u64,
}

/// Where the networks of one parallel process can be reached on one host.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct HostNetworkAddress {
    /// The host.
    pub host: u32,
    /// What its shepherd's devices say; opaque to everybody on the way.
    #[serde(with = "serde_bytes")]
    pub address: Vec<u8>,
}

/// How a process ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Status {
    /// exit or return from main.
    Exited(u8),
    /// Killed by this signal.
    Signaled(i32),
}

/// Towards the master.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Report {
    /// Answer to [`Order::Hello`].
    Hello {
        /// The sender's protocol version.
        version: u32,
    },
    /// Where a host is about to make the job's directory.
    Directory {
        /// The host.
        host: u32,
        /// Absolute path.
        path: String,
    },
    /// Everything is there to start processes, here and on all hosts below.
    Ready,
    /// So many bytes of this program are wanted, from there on; for the next hop only.
    FileRequest {
        /// Which.
        hash: ContentHash,
        /// From here.
        offset: u64,
        /// So many.
        length: u64,
    },
    /// A host cannot do its part; no process has been started there.
    Refused {
        /// scrun's exit code.
        code: u8,
        /// One line that names the host, where there are several.
        reason: String,
    },
    /// score_initialize was called.
    Attached {
        /// Element of the running stage.
        element: u32,
        /// By these nodes.
        nodes: NodeSet,
        /// Of hosts that speak for the first time.
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
    /// Processes were not to be started (`system -host`, or the element ends): they count as ended
    /// with 0.
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
        /// Which broadcast.
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
        /// What to tell the user.
        text: String,
    },
    /// sc_sleep was called: the whole job wants no slice for so long.
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
    /// All of it has stopped, here and on all hosts below.
    Stopped {
        /// The order that was carried out.
        switch_seq: u64,
    },
    /// Whether all processes of the element are idle, here and on all hosts below; when that, or
    /// what they have counted while they are, has changed.
    IdleSummary {
        /// Element of the running stage.
        element: u32,
        /// What was seen.
        summary: IdleSummary,
    },
    /// Answer to [`Order::Sample`], for this host and all below.
    SampleResult {
        /// Element of the running stage.
        element: u32,
        /// Which look.
        round: u64,
        /// What was seen.
        sample: ActivitySample,
    },
    /// Answer to [`Order::QueryWaits`].
    WaitStates {
        /// Element of the running stage.
        element: u32,
        /// Each process.
        waits: Vec<WaitState>,
    },
    /// What [`Order::SubscribeMetrics`] wants; of several hosts and processes where they meet.
    Metrics(Metrics),
    /// sc_flush was called: answer with [`Order::Flushed`] once everything before has been
    /// written. Keeps its place behind the output.
    Flush {
        /// The host that asks.
        host: u32,
        /// Its token.
        token: u64,
    },
    /// A process has written something to its control socket that is no call.
    ProtocolViolation {
        /// Element of the running stage.
        element: u32,
        /// The process.
        node: u32,
        /// What it has done.
        violation: String,
    },
    /// A parallel process cannot go on.
    ElementFailed {
        /// Element of the running stage.
        element: u32,
        /// Why.
        reason: String,
    },
    /// Answer to an order of a job that the receiver does not have, and must not begin: for the
    /// next hop only.
    UnknownJob {
        /// Why.
        reason: String,
    },
    /// The job cannot go on.
    JobFailed {
        /// Exit code.
        code: u8,
        /// Why.
        reason: String,
    },
    /// These hosts do nothing for the job any more: their shepherd, daemon or link is gone.
    HostsLost {
        /// Exit code.
        code: u8,
        /// First host and the one after the last.
        hosts: Range<u32>,
        /// Why; names the host, where there are several.
        reason: String,
    },
    /// What processes wrote, in whole lines where that is possible.
    Output {
        /// The host whose processes wrote it.
        host: u32,
        /// Which stream.
        stream: Stream,
        /// At most [`crate::message::MAX_IO_CHUNK`] bytes.
        #[serde(with = "serde_bytes")]
        bytes: Vec<u8>,
        /// The next output on this hop goes on in the middle of a line: nothing else may come
        /// between.
        is_partial_line: bool,
    },
    /// All output that the ended stage left has come. Keeps its place behind the output.
    Drained,
    /// So many more bytes of standard input may be sent.
    StdinWindow(u64),
    /// Node 0 has closed its standard input.
    StdinClosed,
    /// A line for the user.
    Notice {
        /// How loud.
        level: Level,
        /// The line.
        text: String,
    },
    /// What processes have used, when statistics were asked for.
    Usage(Vec<NodeUsage>),
    /// Nothing of the job is left, here and on all hosts below. The last report.
    Finished {
        /// From the start of the first process to the end of the last.
        elapsed_ns: u64,
    },
}

impl Report {
    /// The element of the running stage that it is about, if it is about one.
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
