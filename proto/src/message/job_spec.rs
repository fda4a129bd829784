//! The description of a job: hosts, stages, programs, files. scrun makes it from its command line.

use serde::{Deserialize, Serialize};

use crate::debugger::DebuggerSpec;
use crate::ids::JobHostId;
use crate::network::HostNetwork;
use crate::tool_start::ToolProgram;

/// A parallel job: stages run one after the other (`::`), each a pipeline (`==`). The default has
/// no hosts, no stages and no options.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct JobSpec {
    /// The hosts in the order of their nodes: each has a block of consecutive nodes. At least one.
    pub hosts: Vec<HostSpec>,
    /// Stages in order; at least one.
    pub stages: Vec<StageSpec>,
    /// scrun's environment as NAME=VALUE bytes.
    pub environment: Vec<EnvVar>,
    /// NAME=VALUE bytes for the processes of the job alone (`-x`). The leftmost of equal names
    /// counts, and counts more than [`JobSpec::environment`].
    pub rank_environment: Vec<EnvVar>,
    /// scrun's working directory.
    pub directory: OsBytes,
    /// scrun's umask.
    pub umask: u32,
    /// All options as given, leftmost first: `score_get_opt` searches them.
    pub options: Vec<(String, Option<String>)>,
    /// Whether Finished carries statistics of each node (`stat`).
    pub statistics: bool,
    /// Whether scored may ask for scrun's standard input at all.
    pub reads_stdin: bool,
    /// Each node of a program that does not use libscore is a separate command, as with scout. Its
    /// end does not end other nodes, and only [`super::JobEnd::usage`] reports it.
    pub independent_nodes: bool,
    /// The processes of a stage are held for a debugger: each waits before its first own
    /// instruction until [`super::DebuggerRequest::ReleaseStage`].
    /// [`super::DebuggerRequest::HoldStages`] changes it for later stages.
    pub hold: bool,
    /// Names of the networks, one for each network set ([`crate::network::choose`]). To a scored
    /// that chooses the hosts: the networks that the user has named.
    pub networks: Vec<String>,
    /// Number of network sets that the programs request (SCORE_RSRC_NUM_NETS).
    pub network_sets: u32,
    /// A tool that is started on every host before the first process (`-tool`).
    pub tool: Option<ToolProgram>,
    /// A folder that each host gets for the job's tools, as one file
    /// ([`crate::file_tree::FileTree`]).
    pub tool_files: Option<Box<FileDigest>>,
    /// Debuggers of processes that get a fault or call sc_inspectme (`-debug`).
    pub debuggers: Option<Box<DebuggerSpec>>,
}

impl JobSpec {
    /// Nodes of every parallel process.
    pub fn nodes(&self) -> u32 {
        self.hosts.iter().fold(0, |sum, host| sum.saturating_add(host.procs))
    }

    /// The environment of the processes of the job, but for what their host adds.
    pub fn environment_of_ranks(&self) -> Vec<EnvVar> {
        let name = |variable: &EnvVar| {
            variable.0.iter().position(|byte| *byte == b'=').unwrap_or(variable.0.len())
        };
        let mut variables: Vec<EnvVar> = Vec::new();
        for given in &self.rank_environment {
            let is_new = |known: &EnvVar| known.0[..name(known)] != given.0[..name(given)];
            if variables.iter().all(is_new) {
                variables.push(given.clone());
            }
        }
        let own_count = variables.len();
        let is_set = |inherited: &EnvVar, own: &[EnvVar]| {
            own.iter().any(|known| known.0[..name(known)] == inherited.0[..name(inherited)])
        };
        for inherited in &self.environment {
            if !is_set(inherited, &variables[..own_count]) {
                variables.push(inherited.clone());
            }
        }
        variables
    }

    /// Where a node runs. A node that the job does not have gets a location outside all hosts.
    pub fn location_of(&self, node: u32) -> NodeLocation {
        let mut process = node;
        for (host, spec) in (0..).map(JobHostId).zip(&self.hosts) {
            if process < spec.procs {
                return NodeLocation { host, process, procs: spec.procs };
            }
            process -= spec.procs;
        }
        NodeLocation {
            host: JobHostId(u32::try_from(self.hosts.len()).unwrap_or(u32::MAX)),
            process: 0,
            procs: 0,
        }
    }

    /// The nodes of a host.
    pub fn nodes_of_host(&self, host: usize) -> std::ops::Range<u32> {
        let before = self.hosts.iter().take(host);
        let first = before.fold(0u32, |sum, host| sum.saturating_add(host.procs));
        let procs = self.hosts.get(host).map_or(0, |host| host.procs);
        first..first.saturating_add(procs)
    }
}

/// A host of a job, as chosen by scrun or the server.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct HostSpec {
    /// Its name in scorehosts.db, which users see.
    pub name: String,
    /// The name or address to connect to; empty unless [`HostKind::Remote`].
    pub address: String,
    /// The kind of host, relative to the machine on which the job was submitted.
    pub kind: HostKind,
    /// Number of its processors; 0 if unknown.
    pub processors: u32,
    /// Processes of every parallel process on it.
    pub procs: u32,
    /// The networks that it is configured to be on.
    pub networks: Vec<HostNetwork>,
}

impl HostSpec {
    /// The machine on which the job is submitted, with so many processes.
    pub fn local(procs: u32) -> Self {
        let (name, address) = (String::new(), String::new());
        let networks = Vec::new();
        Self { name, address, kind: HostKind::Local, processors: 0, procs, networks }
    }
}

/// The kind of a host, relative to the machine on which the job was submitted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum HostKind {
    /// That machine.
    Local,
    /// A virtual host on that machine (`local:N`).
    Virtual,
    /// Another machine.
    Remote,
}

/// Where a node of a job runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NodeLocation {
    /// Index of the host.
    pub host: JobHostId,
    /// The node's number among the processes of that host.
    pub process: u32,
    /// Processes on that host.
    pub procs: u32,
}

/// Bytes from the operating system: a path or an argument, not necessarily UTF-8.
#[derive(Clone, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
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
    /// Absolute path of the executable to which scrun has resolved the program's name.
    pub path: OsBytes,
    /// Arguments, argv[0] included.
    pub args: Vec<OsBytes>,
    /// Standard input, for the first element of a stage.
    pub input: Input,
    /// Standard output, for the last element of a stage.
    pub output: Output,
    /// What kind of program it is.
    pub kind: ProgramKind,
    /// It runs threads of OpenMP, as far as its libraries tell.
    pub uses_openmp: bool,
    /// It is an MPI program whose library sends messages over PM, by the provider of libfabric.
    pub uses_pm_provider: bool,
    /// The libpmix that it loads, if it starts by PMIx and its files tell.
    pub pmix_library: Option<OsBytes>,
    /// The digest of the file at `path`, if the file has to be copied: for jobs of several hosts.
    pub digest: Option<FileDigest>,
}

impl ElementSpec {
    /// A parallel process without redirections, of whose program no more is known.
    pub fn new(path: OsBytes, args: Vec<OsBytes>, kind: ProgramKind) -> Self {
        Self {
            path,
            args,
            input: Input::Default,
            output: Output::Default,
            kind,
            uses_openmp: false,
            uses_pm_provider: false,
            pmix_library: None,
            digest: None,
        }
    }
}

/// The contents of a file, identified by their hash and fetched by
/// [`crate::server_message::JobAnswer::FileRequest`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct FileDigest {
    /// BLAKE3.
    pub hash: ContentHash,
    /// Size in bytes.
    pub size: u64,
}

/// A BLAKE3 hash.
pub type ContentHash = [u8; 32];

/// The names of MPICH's library: everywhere, and in Debian. They have one interface.
pub const MPICH_LIBRARY_NAMES: [&str; 2] = ["libmpi.so.12", "libmpich.so.12"];

/// The kind of a program, as scrun has determined it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum ProgramKind {
    /// It contains libscore's note: it must call score_initialize. Starts in scrun's directory.
    Score,
    /// It uses an MPI library. Starts in scrun's directory.
    Mpi(MpiStart),
    /// Any other program, also a script: starts on every node, in the job's directory.
    Plain,
    /// The built-in `system`. path and args are those of the sequential program, which each host
    /// looks up in PATH. It runs in the job's directory.
    System {
        /// `-host`: only the first process of each host runs it.
        per_host: bool,
    },
}

/// How the processes of an MPI program get to know each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum MpiStart {
    /// By PMI, as those of MPICH.
    Pmi,
    /// By PMIx, as those of Open MPI.
    Pmix,
}

/// Where a stage reads from (manual, table 1.5).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Input {
    /// Node 0: scrun's standard input (first stage) or /dev/null; other nodes: /dev/null. Or the
    /// pipe.
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
        /// Append to the file (`=::`).
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

    /// Why the name cannot be used, if it cannot (manual, scrun(1), INPUT/OUTPUT REDIRECTION).
    pub fn invalid_reason(&self) -> Option<&'static str> {
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

#[cfg(test)]
mod tests {
    use super::*;

    fn spec(procs: &[u32]) -> JobSpec {
        JobSpec {
            hosts: procs.iter().map(|procs| HostSpec::local(*procs)).collect(),
            ..JobSpec::default()
        }
    }

    #[test]
    fn host_blocks_and_node_locations_agree() {
        let spec = spec(&[3, 0, 2, 1]);
        assert_eq!(spec.nodes(), 6);
        for host in 0..4 {
            for (process, node) in (0..).zip(spec.nodes_of_host(host)) {
                let procs = spec.hosts[host].procs;
                assert_eq!(
                    spec.location_of(node),
                    NodeLocation { host: JobHostId(host as u32), process, procs }
                );
            }
        }
        assert_eq!(spec.nodes_of_host(3), 5..6);
    }

    #[test]
    fn a_node_or_host_outside_the_job_has_no_location() {
        let spec = spec(&[u32::MAX, 2]);
        assert_eq!(spec.nodes(), u32::MAX);
        assert_eq!(
            spec.location_of(u32::MAX),
            NodeLocation { host: JobHostId(1), process: 0, procs: 2 }
        );
        assert_eq!(
            self::spec(&[2]).location_of(2),
            NodeLocation { host: JobHostId(1), process: 0, procs: 0 }
        );
        assert_eq!(
            self::spec(&[]).location_of(0),
            NodeLocation { host: JobHostId(0), process: 0, procs: 0 }
        );
        assert!(self::spec(&[2]).nodes_of_host(7).is_empty());
    }

    #[test]
    fn variables_of_ranks_count_more_than_inherited_ones_and_the_leftmost_most() {
        let variables = |texts: &[&str]| -> Vec<EnvVar> {
            texts.iter().map(|text| OsBytes(text.as_bytes().to_vec())).collect()
        };
        let spec = JobSpec {
            environment: variables(&["A=1", "B=2", "AB=3", "A=4", "odd"]),
            rank_environment: variables(&["A=5", "C=x=y", "A=6", "LD_PRELOAD=/l"]),
            ..JobSpec::default()
        };
        let expected = variables(&["A=5", "C=x=y", "LD_PRELOAD=/l", "B=2", "AB=3", "odd"]);
        assert_eq!(spec.environment_of_ranks(), expected);
    }
}
