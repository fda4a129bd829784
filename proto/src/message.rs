//! The control messages between scrun and scored and between a process and its shepherd.
//! [`SingleUserRequest`], [`Login`], [`UserRequest`] and [`JobRequest`] go from the user's program
//! to scored, each in another state of the session; [`crate::server_message`] has the answers;
//! [`crate::client_session`] adds the number of the job. [`Call`] goes from a process to its
//! shepherd, [`Reply`] back. The messages between scored and the shepherds are in
//! [`crate::job_control`].
//!
//! Everything here is data. docs/dev/job-control.md, defines what a sender may send in
//! which state; the receivers check it.

mod job_spec;

use std::ops::Range;

use serde::{Deserialize, Serialize};

use crate::allocation_request::AllocationRequest;
use crate::ids::JobId;
use crate::nodeset::NodeSet;
#[cfg(doc)]
use crate::server_message::{
    ConsoleAnswer, JobAnswer, ListAnswer, ListedProcesses, ScoutAnswer, SessionAnswer, ToolAnswer,
};
use crate::tool_start::ToolAction;
pub use job_spec::{
    ContentHash, ElementSpec, EnvVar, FileDigest, FileName, HostKind, HostSpec, Input, JobSpec,
    MPICH_LIBRARY_NAMES, MpiStart, NodeLocation, OsBytes, Output, ProgramKind, StageSpec,
};

/// Most bytes of output or input in one message; leaves space for the frame's own fields.
pub const MAX_IO_CHUNK: usize = 64 * 1024;

/// Standard input that may be on its way to a shepherd without its permission, in bytes.
pub const STDIN_WINDOW: u64 = 256 * 1024;

/// Output that may be on its way to scrun without its acknowledgement, in bytes.
pub const OUTPUT_WINDOW: u64 = 1024 * 1024;

/// The first message on every stream, in both directions: the sender's protocol version. Its form
/// never changes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Greeting {
    /// [`crate::PROTOCOL_VERSION`].
    Hello {
        /// The sender's protocol version.
        version: u32,
    },
}

/// From scrun to its own scored, in single-user mode.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum SingleUserRequest {
    /// The job, under a number that no other job of the session has.
    Submit(JobSpec),
    /// About the session, instead of jobs: start daemons on these hosts, and open a socket at which
    /// scruns submit jobs for them. Both last as long as this connection. Answered by
    /// [`ScoutAnswer`] or [`SessionAnswer::Refused`]. [`HostSpec::procs`] of the hosts is ignored.
    OpenScoutSession(Vec<HostSpec>),
    /// To a job of the session.
    Job(JobRequest),
}

/// From a client that has logged in to a multi-user scored. Before that it may send nothing but
/// [`Login`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum UserRequest {
    /// A job, under a number that no other job of the session has. The scored chooses the hosts.
    SubmitJob {
        /// How many nodes the job requests, and how they are to be distributed.
        allocation: AllocationRequest,
        /// The job; its list of hosts is replaced.
        spec: JobSpec,
    },
    /// About the session, instead of jobs. Answered by [`ConsoleAnswer`].
    Console(ConsoleRequest),
    /// To a job of the session.
    Job(JobRequest),
}

/// From scrun to a job.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum JobRequest {
    /// The next bytes of scrun's standard input, at most [`MAX_IO_CHUNK`]. They must fit into the
    /// window that [`JobAnswer::StdinWindow`] has opened.
    Stdin(#[serde(with = "serde_bytes")] Vec<u8>),
    /// scrun's standard input has ended.
    StdinEof,
    /// scrun has written so many bytes of [`JobAnswer::Output`] (or dropped them after EPIPE).
    OutputAck(u64),
    /// scrun has written all output that it received before [`JobAnswer::Flush`] with this
    /// token.
    Flushed(u64),
    /// The reader of scrun's stdout or stderr has closed it: close that stream at the processes, so
    /// that they receive SIGPIPE as in a pipeline.
    OutputClosed(Stream),
    /// Broadcast this signal to every process of the job (manual, table 3.1).
    Signal(i32),
    /// Stop every process of the job (^Z).
    Suspend,
    /// Continue them (fg).
    Resume,
    /// Send [`JobAnswer::Metrics`] of the job every so many milliseconds from now on; 0 ends
    /// it.
    SubscribeMetrics(u32),
    /// Start a tool beside the job, or send one a signal. Answered by [`JobAnswer::ToolAction`].
    ToolAction(ToolAction),
    /// What a debugger that uses MPIR makes scrun request.
    Debugger(DebuggerRequest),
    /// The debugger of [`crate::server_message::JobAnswer::OpenDebugger`] has ended.
    DebuggerEnded {
        /// The parallel process.
        element: u32,
        /// The node.
        node: u32,
        /// It could not be started here.
        is_refused: bool,
    },
    /// End the job at once: every process is killed.
    Kill,
    /// A piece of a program that [`JobAnswer::FileRequest`] has asked for, in order: at most
    /// [`MAX_IO_CHUNK`] bytes, and none if the file can no longer be read.
    FileChunk {
        /// Hash of the program.
        hash: ContentHash,
        /// Offset of the piece in the file.
        offset: u64,
        /// The piece.
        #[serde(with = "serde_bytes")]
        bytes: Vec<u8>,
    },
}

/// What a debugger makes scrun request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum DebuggerRequest {
    /// Whether the processes of stages that start from now on are held ([`JobSpec::hold`]).
    HoldStages(bool),
    /// Let the processes of a held stage run.
    ReleaseStage,
    /// Send [`JobAnswer::Processes`] of the running stage, or else of the next one.
    ListProcesses,
}

/// The user, as scrun claims it. scored compares the uid with the one that the kernel reports for
/// the socket.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Login {
    /// The user's uid.
    pub uid: u32,
    /// The user's name on this host, or empty. scored looks the name up and refuses another one.
    pub name: OsBytes,
    /// A host expression that names the cluster; empty for the cluster of this host.
    pub cluster: String,
}

/// What a user or an operator requests about jobs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum ConsoleRequest {
    /// List the jobs: [`ListAnswer`]s until [`ConsoleAnswer::Finished`].
    List,
    /// The address of the cluster's page, for this user: [`ConsoleAnswer::Page`].
    Page,
    /// End this job.
    Kill(JobId),
    /// Send [`ConsoleAnswer::Metrics`] of this job every so many milliseconds, until it ends.
    SubscribeMetrics {
        /// The job's number.
        job: JobId,
        /// Milliseconds.
        period_ms: u32,
    },
    /// A command of a tool to processes of this job: [`ToolAnswer`]s until
    /// [`ConsoleAnswer::Finished`].
    Tool(ToolCall),
    /// Start a tool beside this job, or send one a signal: [`ConsoleAnswer::ToolAction`], then
    /// [`ConsoleAnswer::Finished`].
    ToolAction {
        /// The job's number.
        job: JobId,
        /// What is wanted.
        action: ToolAction,
    },
    /// A tool that keeps something in processes of a job: [`ToolAnswer::Programs`], and
    /// [`ConsoleAnswer::Finished`] at the end of the job.
    ToolSession(ToolSession),
    /// List the processes of the running stage of this job, or else of the next one:
    /// [`ListedProcesses`] until [`ConsoleAnswer::Finished`].
    Processes(JobId),
}

/// A command of a tool to processes of a job.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ToolCall {
    /// The job's number.
    pub job: JobId,
    /// The ranks: rows of the job's process table, which has the elements of the running stage
    /// from left to right, each with all of its nodes. None: all.
    pub ranks: Option<NodeSet>,
    /// How long each hop of the job's tree waits for answers, in milliseconds. At most
    /// [`crate::tool_command::MAX_ANSWER_TIMEOUT`].
    pub wait_ms: u32,
    /// An encoded [`crate::tool_command::ToolRequest`].
    #[serde(with = "serde_bytes")]
    pub body: Vec<u8>,
    /// The command is of this session ([`ToolSession`]), and refused when that has ended.
    pub session: Option<u64>,
}

/// A tool that changes processes of a job by commands. Each command has a connection of its own;
/// the one of this request lasts as long as the tool, and says when it has ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ToolSession {
    /// The job's number.
    pub job: JobId,
    /// A random number, by which the commands of the tool name the session.
    pub session: u64,
    /// The ranks that it may change. None: all.
    pub ranks: Option<NodeSet>,
    /// The body of the command that these ranks get when the connection has ended.
    #[serde(with = "serde_bytes")]
    pub at_end: Vec<u8>,
}

/// One of the two output streams.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Stream {
    /// Standard output.
    Stdout,
    /// Standard error.
    Stderr,
}

/// How important a line is (manual, scrun(1), `message`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Level {
    /// Suppressed by `concise` and `quiet`.
    Info,
    /// Suppressed by `quiet`.
    Warning,
    /// Always shown.
    Error,
}

/// How a job ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct JobEnd {
    /// scrun's exit code.
    pub code: u8,
    /// Per parallel process and node, if statistics were requested.
    pub usage: Vec<NodeUsage>,
    /// From the start of the first process to the end of the last, in nanoseconds.
    pub elapsed_ns: u64,
}

/// What one process used (getrusage), and what it has sent and received.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeUsage {
    /// Stage, from 0.
    pub stage: u32,
    /// Element in the stage, from 0.
    pub element: u32,
    /// Node.
    pub node: u32,
    /// User time, nanoseconds.
    pub user_ns: u64,
    /// System time, nanoseconds.
    pub system_ns: u64,
    /// Peak resident size, KiB.
    pub max_rss_kib: u64,
    /// Exit code, or 128 + signal.
    pub code: u8,
    /// Messages sent.
    pub sent: u64,
    /// Messages received.
    pub received: u64,
    /// Bytes of those sent.
    pub sent_bytes: u64,
    /// Bytes of those received.
    pub received_bytes: u64,
    /// The share of its time in which the process was busy, by its idle flag, in thousandths. None:
    /// it never set the flag, or ended too soon to be sampled.
    pub busy_permille: Option<u16>,
}

/// From a process to its shepherd, one datagram each.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Call {
    /// score_initialize. Answered by [`Reply::Welcome`] once all nodes of the parallel process
    /// have called (the start barrier).
    Attach {
        /// [`crate::PROTOCOL_VERSION`] of the library.
        version: u32,
    },
    /// sc_barrier; answered by [`Reply::Done`] when all nodes have called.
    Barrier {
        /// Chosen by the caller, repeated in the answer.
        id: u32,
    },
    /// sc_flush; answered when scrun has written everything that the processes wrote earlier.
    Flush {
        /// Chosen by the caller, repeated in the answer.
        id: u32,
    },
    /// sc_signal_bcast; answered when the signal has been sent.
    SignalBroadcast {
        /// Chosen by the caller, repeated in the answer.
        id: u32,
        /// Signal number.
        signal: i32,
    },
    /// sc_exit: end the parallel process with this code. Never answered.
    Exit {
        /// Exit code of the parallel process (low 8 bits).
        code: i32,
    },
    /// sc_inspectme: notify the user and end the parallel process. Never answered.
    Inspect {
        /// A hint for the user.
        signal: i32,
        /// X display, if the caller gave one.
        display: Option<String>,
        /// The calling thread, as it knows itself.
        thread: i32,
    },
    /// sc_sleep: do not schedule the whole job for so long. Never answered: the caller measures the
    /// time itself.
    Sleep {
        /// Seconds.
        seconds: u32,
    },
    /// sc_yield: the job gives up the rest of its slice. Never answered.
    Yield,
    /// A thread is about to die of a signal, and waits until its stack has been read. Any process
    /// may send it, attached or not. The answer is the same signal, sent to the thread.
    Fault {
        /// Signal number.
        signal: i32,
        /// The thread, as it knows itself.
        thread: i32,
    },
}

/// From a shepherd to its process.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Reply {
    /// Carries, as SCM_RIGHTS in this order: the board (read-only), the C-Area, then one PM attach
    /// descriptor per member of each network set.
    Welcome(Box<Welcome>),
    /// The call was refused; the process prints the line and exits.
    Refused(String),
    /// Answer to the call with this id: 0 or an errno value.
    Done {
        /// The caller's id.
        id: u32,
        /// 0 or a positive errno value.
        error: i32,
    },
}

/// What score_initialize receives.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Welcome {
    /// Job number.
    pub job: JobId,
    /// Index of this process's area in the C-Area.
    pub area: u32,
    /// Manual, table 2.1.
    pub self_node: u32,
    /// Manual, table 2.1.
    pub num_node: u32,
    /// Manual, table 2.1.
    pub self_proc: u32,
    /// Manual, table 2.1.
    pub num_proc: u32,
    /// Manual, table 2.1.
    pub self_host: u32,
    /// Manual, table 2.1.
    pub num_host: u32,
    /// The network sets; none if there is only one node.
    pub networks: Vec<NetworkSet>,
    /// scrun's options, leftmost first.
    pub options: Vec<(String, Option<String>)>,
    /// The job's directory.
    pub dir: String,
    /// Abstract name of the datagram socket on which the shepherd is notified
    /// ([`crate::idle_notify`]).
    #[serde(with = "serde_bytes")]
    pub notify_socket_name: Vec<u8>,
}

/// One network set (manual 2.1): the PM contexts that together reach every node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NetworkSet {
    /// In the order of their attach descriptors.
    pub members: Vec<NetworkMember>,
}

/// A PM context of a network set.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NetworkMember {
    /// The type of its device.
    pub device: NetworkDevice,
    /// The nodes that it reaches. Each node, also the process's own, is in one range of one member.
    pub node_ranges: Vec<NodeMapping>,
}

/// The devices of which a process can get contexts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum NetworkDevice {
    /// The processes of one host.
    Shmem,
    /// Processes of any hosts.
    Ethernet,
    /// Processes of hosts with RDMA hardware.
    Verbs,
}

/// Consecutive nodes to which a context gives consecutive numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeMapping {
    /// The first node of the range.
    pub first: u32,
    /// Number of nodes.
    pub count: u32,
    /// The number of the first node in the context.
    pub first_in_context: u32,
}

impl NetworkSet {
    /// All `node_count` nodes through shared memory.
    pub fn one_host(node_count: u32) -> Self {
        let node_ranges = vec![NodeMapping { first: 0, count: node_count, first_in_context: 0 }];
        Self { members: vec![NetworkMember { device: NetworkDevice::Shmem, node_ranges }] }
    }

    /// The `local_nodes` of this host through shared memory, if there is more than one. The other
    /// nodes through devices that use the same node numbers as the job.
    pub fn many_hosts(local_nodes: Range<u32>, others: &[(NetworkDevice, NodeSet)]) -> Self {
        let mut members = Vec::new();
        if local_nodes.len() > 1 {
            let node_ranges = vec![NodeMapping {
                first: local_nodes.start,
                count: local_nodes.len() as u32,
                first_in_context: 0,
            }];
            members.push(NetworkMember { device: NetworkDevice::Shmem, node_ranges });
        }
        for (device, nodes) in others {
            let mut nodes = nodes.clone();
            if members.is_empty() {
                nodes.insert_range(local_nodes.clone());
            }
            let node_range = |Range { start, end }| NodeMapping {
                first: start,
                count: end - start,
                first_in_context: start,
            };
            let node_ranges = nodes.ranges().map(node_range).collect();
            members.push(NetworkMember { device: *device, node_ranges });
        }
        Self { members }
    }
}
