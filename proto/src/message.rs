//! The control messages between scrun and scored ([`Down`] away from the user, [`Up`] towards the
//! user; which job one is about, [`crate::login`] says), and between a process and its shepherd
//! ([`Call`], [`Reply`]). What lies between is in [`crate::order`].
//!
//! Everything here is data: what a sender may send in which state is told in
//! docs/ARCHITECTURE.md, "A job's life", and checked by the receivers.

use serde::{Deserialize, Serialize};

use crate::listing::JobLine;
use crate::network::HostNetwork;
use crate::order::Limit;
use crate::shape::Shape;
use crate::sight::Figures;

/// Bytes of output or input in one message at most; leaves room for the frame's own fields.
pub const CHUNK: usize = 64 * 1024;

/// Standard input that may be under way to a shepherd without its leave, in bytes.
pub const STDIN_WINDOW: u64 = 256 * 1024;

/// Output that may be under way to scrun without its acknowledgement, in bytes.
pub const OUTPUT_WINDOW: u64 = 1024 * 1024;

/// Towards the processes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Down {
    /// First on every stream: [`crate::PROTOCOL_VERSION`].
    Hello {
        /// The sender's protocol version.
        version: u32,
    },
    /// The job, under a number that no other of the login has.
    Submit(JobSpec),
    /// Of the login, instead of jobs: daemons on these hosts, and a socket where scruns submit jobs
    /// for them, as long as this connection lives. Answered by [`Up::Opened`] or [`Up::Refused`].
    /// Of the hosts, [`HostSpec::procs`] means nothing.
    Open(Vec<HostSpec>),
    /// The next bytes of scrun's standard input, at most [`CHUNK`]; only within the window that
    /// [`Up::StdinWindow`] has opened.
    Stdin(#[serde(with = "serde_bytes")] Vec<u8>),
    /// scrun's standard input has ended.
    StdinEof,
    /// That many bytes of [`Up::Output`] have been written (or dropped after EPIPE) by scrun.
    OutputTaken(u64),
    /// Everything before [`Up::Flush`] with this token has been written by scrun.
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
    /// From now on [`Up::Figures`] of the job every so many milliseconds; 0 for never again.
    Watch(u32),
    /// End the job at once: every process is killed.
    Kill,
    /// A piece of a program that [`Up::Want`] has asked for, in order; at most [`CHUNK`] bytes, and
    /// none when it cannot be read any more.
    Content {
        /// Which.
        hash: ContentHash,
        /// Where the piece begins.
        offset: u64,
        /// The piece.
        #[serde(with = "serde_bytes")]
        bytes: Vec<u8>,
    },
    /// Of the login, to a scored that serves several users, after [`Down::Hello`]: who is there.
    Login(Login),
    /// To a scored that serves several users, instead of [`Down::Submit`]: it chooses the hosts.
    Request {
        /// How many nodes are wanted, and how they are to lie.
        shape: Shape,
        /// The job; its list of hosts is replaced.
        spec: JobSpec,
    },
    /// Of the login, to a scored that serves several users, instead of jobs. Answered by what the
    /// question says, and [`Up::Finished`].
    Console(Console),
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
pub enum Console {
    /// Which jobs there are: [`Up::Jobs`], until [`Up::Finished`].
    List,
    /// Where the page of the cluster is, for this user: [`Up::Page`].
    Page,
    /// End this one.
    Kill(u32),
    /// [`Up::Figures`] of this one every so many milliseconds, until it ends.
    Watch {
        /// Its number.
        job: u32,
        /// Milliseconds.
        period_ms: u32,
    },
}

/// Towards the user.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Up {
    /// Answer to [`Down::Hello`].
    Hello {
        /// The sender's protocol version.
        version: u32,
    },
    /// Behind the greeting, where the hosts of jobs are those of a scout session: these.
    Hosts(Vec<HostSpec>),
    /// Answer to [`Down::Open`]: every host's daemon is up.
    Opened {
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
        /// At most [`CHUNK`] bytes.
        #[serde(with = "serde_bytes")]
        bytes: Vec<u8>,
    },
    /// Answer with [`Down::Flushed`] once everything before has been written.
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
    /// So many bytes of this program are wanted, from there on: [`Down::Content`].
    Want {
        /// Which.
        hash: ContentHash,
        /// From here.
        offset: u64,
        /// So many.
        length: u64,
    },
    /// What [`Down::Watch`] wants: not of all hosts and processes at once.
    Figures(Figures),
    /// Jobs of the cluster: some of them, at most [`crate::listing::LINES`].
    Jobs(Vec<JobLine>),
    /// The page of the cluster, for this user.
    Page {
        /// The server, where the page is.
        host: String,
        /// Its address, with the user's token in it.
        address: String,
    },
    /// Answer to a message about a job that the login does not have, or has no longer; none to
    /// [`Down::OutputTaken`] and [`Down::Flushed`].
    NoJob,
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

/// A parallel job: stages run one after the other (`::`), each a pipeline (`==`).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct JobSpec {
    /// The hosts in the order of their nodes: each has a block of consecutive ones. At least one.
    pub hosts: Vec<HostSpec>,
    /// Stages in order; at least one.
    pub stages: Vec<StageSpec>,
    /// scrun's environment as NAME=VALUE bytes.
    pub environment: Vec<EnvVar>,
    /// scrun's working directory.
    pub directory: OsBytes,
    /// scrun's umask.
    pub umask: u32,
    /// All options as given, leftmost first: what `score_get_opt` looks in.
    pub options: Vec<(String, Option<String>)>,
    /// Whether Finished shall carry per-node figures (`stat`).
    pub statistics: bool,
    /// Whether scrun's standard input is to be asked for at all.
    pub stdin: bool,
    /// Each node of a program that is none of SCore's is a command of its own, as those of scout:
    /// what becomes of it ends no other, and is told by [`JobEnd::usage`] alone.
    pub separate: bool,
    /// Names of the networks, one for each network set ([`crate::network::choose`]); to a scored
    /// that chooses the hosts: those that the user has named.
    pub networks: Vec<String>,
    /// How many network sets the programs ask for (SCORE_RSRC_NUM_NETS).
    pub sets: u32,
}

impl JobSpec {
    /// Nodes of every parallel process.
    pub fn nodes(&self) -> u32 {
        self.hosts.iter().fold(0, |sum, host| sum.saturating_add(host.procs))
    }

    /// Where a node lives; a node that is none of the job's gets a seat on no host.
    pub fn seat(&self, node: u32) -> Seat {
        let mut process = node;
        for (host, spec) in (0..).zip(&self.hosts) {
            if process < spec.procs {
                return Seat { host, process, procs: spec.procs };
            }
            process -= spec.procs;
        }
        Seat { host: u32::try_from(self.hosts.len()).unwrap_or(u32::MAX), process: 0, procs: 0 }
    }

    /// The nodes of a host.
    pub fn block(&self, host: usize) -> std::ops::Range<u32> {
        let before = self.hosts.iter().take(host);
        let first = before.fold(0u32, |sum, host| sum.saturating_add(host.procs));
        let procs = self.hosts.get(host).map_or(0, |host| host.procs);
        first..first.saturating_add(procs)
    }
}

/// A host of a job, as scrun or the server has chosen it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct HostSpec {
    /// Its name: that of scorehosts.db, and that users read.
    pub name: String,
    /// What to dial, a name or an address; empty unless [`HostKind::Other`].
    pub address: String,
    /// What it is, seen from where the job was submitted.
    pub kind: HostKind,
    /// Its processors; 0 where nobody knows.
    pub processors: u32,
    /// Processes of every parallel process on it.
    pub procs: u32,
    /// The networks that it is said to be on.
    pub networks: Vec<HostNetwork>,
}

impl HostSpec {
    /// The machine that the job is submitted on, with so many processes.
    pub fn this(procs: u32) -> Self {
        let (name, address) = (String::new(), String::new());
        let networks = Vec::new();
        Self { name, address, kind: HostKind::This, processors: 0, procs, networks }
    }
}

/// What a host is, seen from where the job was submitted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum HostKind {
    /// That machine itself.
    This,
    /// A virtual host on it (`local:N`).
    Virtual,
    /// Another machine.
    Other,
}

/// Where a node of a job lives.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Seat {
    /// Index of its host.
    pub host: u32,
    /// Its number among the processes of that host.
    pub process: u32,
    /// Processes on that host.
    pub procs: u32,
}

/// Bytes that the operating system gave: a path or an argument, not necessarily UTF-8.
#[derive(Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct OsBytes(#[serde(with = "serde_bytes")] pub Vec<u8>);

impl std::fmt::Debug for OsBytes {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:?}", String::from_utf8_lossy(&self.0))
    }
}

/// One NAME=VALUE string.
pub type EnvVar = OsBytes;

/// A pipeline: parallel processes whose equal node numbers are joined by pipes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct StageSpec {
    /// From left to right; at least one.
    pub elements: Vec<ElementSpec>,
}

/// One parallel process.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ElementSpec {
    /// What scrun resolved the program's name to: absolute path of the executable.
    pub path: OsBytes,
    /// Arguments, argv[0] included.
    pub args: Vec<OsBytes>,
    /// Standard input, for the first element of a stage.
    pub input: Input,
    /// Standard output, for the last element of a stage.
    pub output: Output,
    /// What kind of program it is.
    pub kind: Kind,
    /// What the file at `path` holds, where it has to travel: for jobs of several hosts.
    pub content: Option<Content>,
}

/// What a file holds: known by its hash, fetched by [`Up::Want`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Content {
    /// BLAKE3.
    pub hash: ContentHash,
    /// Bytes.
    pub size: u64,
}

/// A BLAKE3 hash.
pub type ContentHash = [u8; 32];

/// What scrun found a program to be.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Kind {
    /// It carries libscore's note: it must reach score_initialize. Starts in scrun's directory.
    Score,
    /// Any other program, a script included: starts on every node, in the job's directory.
    Plain,
    /// The built-in `system`: path and args are those of the sequential program, looked up in
    /// PATH by each host; in the job's directory.
    System {
        /// `-host`: only the first process of each host runs it.
        per_host: bool,
    },
}

/// Where a stage reads from (manual, table 1.5).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Input {
    /// Node 0: scrun's standard input (first stage) or /dev/null; others /dev/null. Or the pipe.
    Default,
    /// `:= FILE`: every process opens the name.
    File(FileName),
}

/// Where a stage writes to (manual, table 1.5).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Output {
    /// Merged into scrun's standard output, or the pipe.
    Default,
    /// `=: FILE` or, appending, `=:: FILE`.
    File {
        /// The file.
        name: FileName,
        /// `=::`.
        append: bool,
    },
}

/// A file on a compute host: a base name (in the job's directory) or an absolute path.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileName(pub OsBytes);

impl FileName {
    /// Whether the name is an absolute path; otherwise it has no `/` at all.
    pub fn is_absolute(&self) -> bool {
        self.0.0.first() == Some(&b'/')
    }

    /// Why the name cannot be used, if so (manual, scrun(1), INPUT/OUTPUT REDIRECTION).
    pub fn fault(&self) -> Option<&'static str> {
        let bytes = &self.0.0;
        if bytes.is_empty() {
            Some("the file name is empty")
        } else if bytes.contains(&0) {
            Some("the file name holds a NUL byte")
        } else if !self.is_absolute() && bytes.contains(&b'/') {
            Some("a file name is a base name or an absolute path, never a relative path")
        } else if bytes == b"." || bytes == b".." {
            Some("the file name is a directory")
        } else {
            None
        }
    }
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
    pub reach: Vec<Reach>,
}

/// What a process can be given contexts of.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum NetworkDevice {
    /// The processes of one host.
    Shmem,
    /// Processes of any hosts.
    Ethernet,
}

/// Consecutive nodes that a context knows by consecutive numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reach {
    /// The first node.
    pub first: u32,
    /// How many.
    pub count: u32,
    /// What the context calls the first.
    pub there: u32,
}

impl NetworkSet {
    /// All of `nodes` nodes by shared memory.
    pub fn one_host(nodes: u32) -> Self {
        let reach = vec![Reach { first: 0, count: nodes, there: 0 }];
        Self { members: vec![NetworkMember { device: NetworkDevice::Shmem, reach }] }
    }

    /// The host with nodes `first` to `first + local` of `nodes` by shared memory, where it has
    /// more than one; all others by the ethernet device, which knows every node by its own number.
    pub fn many_hosts(nodes: u32, first: u32, local: u32) -> Self {
        let same = |first, count| Reach { first, count, there: first };
        let end = first.saturating_add(local);
        if local <= 1 {
            let reach = vec![same(0, nodes)];
            return Self {
                members: vec![NetworkMember { device: NetworkDevice::Ethernet, reach }],
            };
        }
        let here = vec![Reach { first, count: local, there: 0 }];
        let others = [same(0, first), same(end, nodes.saturating_sub(end))];
        let others = others.into_iter().filter(|reach| reach.count > 0).collect();
        Self {
            members: vec![
                NetworkMember { device: NetworkDevice::Shmem, reach: here },
                NetworkMember { device: NetworkDevice::Ethernet, reach: others },
            ],
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec(procs: &[u32]) -> JobSpec {
        JobSpec {
            hosts: procs.iter().map(|procs| HostSpec::this(*procs)).collect(),
            stages: Vec::new(),
            environment: Vec::new(),
            directory: OsBytes(Vec::new()),
            umask: 0,
            options: Vec::new(),
            statistics: false,
            stdin: false,
            separate: false,
            networks: Vec::new(),
            sets: 0,
        }
    }

    #[test]
    fn blocks_and_seats_of_nodes_agree() {
        let spec = spec(&[3, 0, 2, 1]);
        assert_eq!(spec.nodes(), 6);
        for host in 0..4 {
            for (process, node) in (0..).zip(spec.block(host)) {
                let procs = spec.hosts[host].procs;
                assert_eq!(spec.seat(node), Seat { host: host as u32, process, procs });
            }
        }
        assert_eq!(spec.block(3), 5..6);
    }

    #[test]
    fn what_is_no_node_or_host_of_the_job_gets_nothing() {
        let spec = spec(&[u32::MAX, 2]);
        assert_eq!(spec.nodes(), u32::MAX);
        assert_eq!(spec.seat(u32::MAX), Seat { host: 1, process: 0, procs: 2 });
        assert_eq!(self::spec(&[2]).seat(2), Seat { host: 1, process: 0, procs: 0 });
        assert_eq!(self::spec(&[]).seat(0), Seat { host: 0, process: 0, procs: 0 });
        assert!(self::spec(&[2]).block(7).is_empty());
    }
}
