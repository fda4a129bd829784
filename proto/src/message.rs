//! The control messages between scrun and scored ([`ClientMessage`] away from the user, [`ServerMessage`] towards the
//! user; which job one is about, [`crate::client_session`] says), and between a process and its shepherd
//! ([`Call`], [`Reply`]). What lies between is in [`crate::job_control`].
//!
//! Everything here is data: what a sender may send in which state is told in
//! docs/ARCHITECTURE.md, "A job's life", and checked by the receivers.

mod job_spec;

use std::ops::Range;

use serde::{Deserialize, Serialize};

use crate::allocation_request::AllocationRequest;
use crate::job_control::Limit;
use crate::job_list::JobEntry;
use crate::nodeset::NodeSet;
use crate::observation::Metrics;
pub use job_spec::{
    ContentHash, ElementSpec, EnvVar, FileDigest, FileName, HostKind, HostSpec, Input, JobSpec,
    NodeLocation, OsBytes, Output, ProgramKind, StageSpec,
};

/// Bytes of output or input in one message at most; leaves room for the frame's own fields.
pub const MAX_IO_CHUNK: usize = 64 * 1024;

/// Standard input that may be under way to a shepherd without its leave, in bytes.
pub const STDIN_WINDOW: u64 = 256 * 1024;

/// Output that may be under way to scrun without its acknowledgement, in bytes.
pub const OUTPUT_WINDOW: u64 = 1024 * 1024;

/// Towards the processes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum ClientMessage {
    /// First on every stream: [`crate::PROTOCOL_VERSION`].
    Hello {
        /// The sender's protocol version.
        version: u32,
    },
    /// The job, under a number that no other of the login has.
    Submit(JobSpec),
    /// Of the login, instead of jobs: daemons on these hosts, and a socket where scruns submit jobs
    /// for them, as long as this connection lives. Answered by [`ServerMessage::ScoutSessionOpened`] or [`ServerMessage::Refused`].
    /// Of the hosts, [`HostSpec::procs`] means nothing.
    OpenScoutSession(Vec<HostSpec>),
    /// The next bytes of scrun's standard input, at most [`MAX_IO_CHUNK`]; only within the window that
    /// [`ServerMessage::StdinWindow`] has opened.
    Stdin(#[serde(with = "serde_bytes")] Vec<u8>),
    /// scrun's standard input has ended.
    StdinEof,
    /// That many bytes of [`ServerMessage::Output`] have been written (or dropped after EPIPE) by scrun.
    OutputAck(u64),
    /// Everything before [`ServerMessage::Flush`] with this token has been written by scrun.
    Flushed(u64),
    /// The reader of scrun's stdout (false) or stderr (true) has gone: close that stream at the
    /// processes, so that they see SIGPIPE as in a pipeline.
    OutputClosed(Stream),
    /// Broadcast this signal to every process of the job (manual, table 3.1).
    Signal(i32),
    /// Stop every process of the job (^Z).
    Suspend,
    /// Continue them (fg).
    Resume,
    /// From now on [`ServerMessage::Metrics`] of the job every so many milliseconds; 0 for never again.
    SubscribeMetrics(u32),
    /// End the job at once: every process is killed.
    Kill,
    /// A piece of a program that [`ServerMessage::FileRequest`] has asked for, in order; at most [`MAX_IO_CHUNK`] bytes, and
    /// none when it cannot be read any more.
    FileChunk {
        /// Which.
        hash: ContentHash,
        /// Where the piece begins.
        offset: u64,
        /// The piece.
        #[serde(with = "serde_bytes")]
        bytes: Vec<u8>,
    },
    /// Of the login, to a scored that serves several users, after [`ClientMessage::Hello`]: who is there.
    Login(Login),
    /// To a scored that serves several users, instead of [`ClientMessage::Submit`]: it chooses the hosts.
    Request {
        /// How many nodes are wanted, and how they are to lie.
        allocation: AllocationRequest,
        /// The job; its list of hosts is replaced.
        spec: JobSpec,
    },
    /// Of the login, to a scored that serves several users, instead of jobs. Answered by what the
    /// question says, and [`ServerMessage::Finished`].
    Console(ConsoleRequest),
}

/// Who logs in, as scrun says; the uid is held against what the kernel says of the socket.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Login {
    /// Its uid.
    pub uid: u32,
    /// Its name on this host; empty when it has none.
    pub name: OsBytes,
    /// A host expression that names the cluster; empty for the cluster of this host.
    pub cluster: String,
    /// What scrun is limited to.
    pub limits: Vec<Limit>,
}

/// What a user or an operator asks about jobs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum ConsoleRequest {
    /// Which jobs there are: [`ServerMessage::Jobs`], until [`ServerMessage::Finished`].
    List,
    /// Where the page of the cluster is, for this user: [`ServerMessage::Page`].
    Page,
    /// End this one.
    Kill(u32),
    /// [`ServerMessage::Metrics`] of this one every so many milliseconds, until it ends.
    SubscribeMetrics {
        /// Its number.
        job: u32,
        /// Milliseconds.
        period_ms: u32,
    },
}

/// Towards the user.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum ServerMessage {
    /// Answer to [`ClientMessage::Hello`].
    Hello {
        /// The sender's protocol version.
        version: u32,
    },
    /// Behind the greeting, where the hosts of jobs are those of a scout session: these.
    Hosts(Vec<HostSpec>),
    /// Answer to [`ClientMessage::OpenScoutSession`]: every host's daemon is up.
    ScoutSessionOpened {
        /// Path of the socket.
        socket: String,
    },
    /// The job has been accepted under this number (what `sc_getpid` gives); every host is ready.
    Accepted {
        /// Job number, from 1.
        job: u32,
        /// Nodes of every parallel process.
        nodes: u32,
        /// Hosts that it runs on.
        hosts: u32,
    },
    /// Not accepted; nothing was started. `code` is scrun's exit code. Its last message.
    Refused {
        /// One line that names what is at fault.
        reason: String,
        /// Exit code.
        code: u8,
    },
    /// scrun may send that many more bytes of standard input.
    StdinWindow(u64),
    /// Node 0 has closed its standard input: no more is wanted.
    StdinClosed,
    /// Bytes for scrun's standard output or error.
    Output {
        /// The host they come from: its place among the job's.
        host: u32,
        /// Which of the two.
        stream: Stream,
        /// At most [`MAX_IO_CHUNK`] bytes.
        #[serde(with = "serde_bytes")]
        bytes: Vec<u8>,
    },
    /// Answer with [`ClientMessage::Flushed`] once everything before has been written.
    Flush(u64),
    /// A line for the user, without newline.
    Notice {
        /// What `message=concise` and `message=quiet` filter by.
        level: Level,
        /// The line.
        text: String,
    },
    /// All processes of the job have ended and everything has been reclaimed. Its last message.
    Finished(JobEnd),
    /// Where the job's directory on this host is about to be made. Written before it is made, so
    /// that scrun can remove it at whatever moment scored dies.
    Directory(String),
    /// So many bytes of this program are wanted, from there on: [`ClientMessage::FileChunk`].
    FileRequest {
        /// Which.
        hash: ContentHash,
        /// From here.
        offset: u64,
        /// So many.
        length: u64,
    },
    /// What [`ClientMessage::SubscribeMetrics`] wants: not of all hosts and processes at once.
    Metrics(Metrics),
    /// Jobs of the cluster: some of them, at most [`crate::job_list::MAX_JOBS_PER_MESSAGE`].
    Jobs(Vec<JobEntry>),
    /// The page of the cluster, for this user.
    Page {
        /// The server, where the page is.
        host: String,
        /// Its address, with the user's token in it.
        url: String,
    },
    /// Answer to a message about a job that the login does not have, or has no longer; none to
    /// [`ClientMessage::OutputAck`] and [`ClientMessage::Flushed`].
    UnknownJob,
}

/// One of the two output streams.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Stream {
    /// Standard output.
    Stdout,
    /// Standard error.
    Stderr,
}

/// How loud a line is (manual, scrun(1), `message`).
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
    /// Per parallel process and node, when statistics were asked for.
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
    /// How much of its time it was busy, by its idle flag, in thousandths. None: it never set the
    /// flag, or ended too soon to be watched.
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
    /// sc_flush; answered when scrun has written everything that was written before.
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
    /// sc_inspectme: tell the user and end the parallel process. Never answered.
    Inspect {
        /// A hint for the user.
        signal: i32,
        /// X display, if the caller gave one.
        display: Option<String>,
    },
    /// sc_sleep: the whole job is not scheduled for so long. Never answered: the caller knows when
    /// it is over.
    Sleep {
        /// Seconds.
        seconds: u32,
    },
    /// sc_yield: the job gives up the rest of its slice. Never answered.
    Yield,
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

/// What score_initialize learns.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Welcome {
    /// Job number.
    pub job: u32,
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
    /// The network sets; none when there is one node.
    pub networks: Vec<NetworkSet>,
    /// scrun's options, leftmost first.
    pub options: Vec<(String, Option<String>)>,
    /// The job's directory.
    pub dir: String,
    /// Abstract name of the datagram socket where the shepherd is rung for
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
    /// The nodes that it reaches: each in one range of one member. The own node is among them.
    pub node_ranges: Vec<NodeMapping>,
}

/// What a process can be given contexts of.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum NetworkDevice {
    /// The processes of one host.
    Shmem,
    /// Processes of any hosts.
    Ethernet,
    /// Processes of hosts with RDMA hardware.
    Verbs,
}

/// Consecutive nodes that a context knows by consecutive numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeMapping {
    /// The first node.
    pub first: u32,
    /// How many.
    pub count: u32,
    /// What the context calls the first.
    pub first_in_context: u32,
}

impl NetworkSet {
    /// All of `nodes` nodes by shared memory.
    pub fn one_host(node_count: u32) -> Self {
        let node_ranges = vec![NodeMapping { first: 0, count: node_count, first_in_context: 0 }];
        Self { members: vec![NetworkMember { device: NetworkDevice::Shmem, node_ranges }] }
    }

    /// The `local_nodes` host's nodes by shared memory, where it has more than one; those of others by
    /// devices that know every node by its own number.
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
