//! The description of a job: hosts, stages, programs, files. scrun creates it from its command
//! line.

use serde::{Deserialize, Serialize};

use super::{FileDigest, JobTerms, OsBytes};
use crate::debugger::DebuggerSpec;
use crate::ids::JobHostId;
use crate::network::HostNetwork;
use crate::tool_start::ToolProgram;

/// The number of threads of an OpenMP program.
pub const OMP_THREADS_ENV: &str = "OMP_NUM_THREADS";

/// A parallel job: stages run one after the other (`::`), each a pipeline (`==`). The default has
/// no hosts, no stages and no options.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct JobSpec {
    /// The hosts in the order of their nodes, at least one. Each has a block of consecutive nodes.
    pub hosts: Vec<HostSpec>,
    /// The stages in order, at least one.
    pub stages: Vec<StageSpec>,
    /// scrun's environment as NAME=VALUE bytes.
    pub environment: Vec<EnvVar>,
    /// NAME=VALUE bytes for the processes of the job alone (`-x`). They override
    /// [`JobSpec::environment`]. The leftmost of equal names takes effect.
    pub rank_environment: Vec<EnvVar>,
    /// scrun's working directory.
    pub directory: OsBytes,
    /// scrun's umask.
    pub umask: u32,
    /// All options as given, the leftmost one first. `score_get_opt` searches them.
    pub options: Vec<(String, Option<String>)>,
    /// The options that scored applies, in the form that scored needs.
    pub terms: Box<JobTerms>,
    /// Whether [`super::JobEnd`] contains statistics of each node (`stat`).
    pub statistics: bool,
    /// Whether scored may request scrun's standard input.
    pub reads_stdin: bool,
    /// Whether each node of a program that does not use libscore is a separate command, as with
    /// scout. Its exit does not end other nodes, and only [`super::JobEnd::usage`] reports it.
    pub independent_nodes: bool,
    /// Whether the processes of a stage are held for a debugger. Each then waits before its first
    /// own instruction until [`super::DebuggerRequest::ReleaseStage`].
    /// [`super::DebuggerRequest::HoldStages`] changes this option for later stages.
    pub hold: bool,
    /// Names of the networks, one for each network set ([`crate::network_choice::choose`]). If
    /// scored chooses the hosts, these are the networks that the user has named.
    pub networks: Vec<String>,
    /// Number of network sets that the programs request (SCORE_RSRC_NUM_NETS).
    pub network_sets: u32,
    /// A tool that is started on every host before the first process (`-tool`).
    pub tool: Option<ToolProgram>,
    /// A directory for the job's tools, which each host gets as one file
    /// ([`crate::file_tree::FileTree`]).
    pub tool_files: Option<Box<FileDigest>>,
    /// Debuggers for processes that fault or call sc_inspectme (`-debug`).
    pub debuggers: Option<Box<DebuggerSpec>>,
}

impl JobSpec {
    /// Number of nodes of each parallel process.
    pub fn nodes(&self) -> u32 {
        self.hosts.iter().fold(0, |sum, host| sum.saturating_add(host.procs))
    }

    /// The environment of the processes of the job, without the variables that their host adds.
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

    /// Whether the threads of a program use all processors of its hosts: the program uses OpenMP,
    /// and the user has not set the number of its threads.
    pub fn fills_hosts(&self, element: &ElementSpec) -> bool {
        let sets_threads = |variable: &EnvVar| {
            let value = variable.0.strip_prefix(OMP_THREADS_ENV.as_bytes());
            value.is_some_and(|value| value.starts_with(b"="))
        };
        let mut variables = self.environment.iter().chain(&self.rank_environment);
        element.uses_openmp && !variables.any(sets_threads)
    }

    /// Whether the job needs all processors of its hosts, because one of its programs uses them.
    pub fn needs_whole_hosts(&self) -> bool {
        let mut elements = self.stages.iter().flat_map(|stage| &stage.elements);
        elements.any(|element| self.fills_hosts(element))
    }

    /// The location of a node. A node that the job does not have gets a location outside all hosts.
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
    /// The name of the host in scorehosts.db.
    pub name: String,
    /// The name or address to connect to. It is empty unless the host is [`HostKind::Remote`].
    pub address: String,
    /// The kind of host, relative to the machine on which the job was submitted.
    pub kind: HostKind,
    /// The number of processors of the host; 0 if unknown.
    pub processors: u32,
    /// Number of processes of each parallel process on the host.
    pub procs: u32,
    /// The networks to which the host is connected, according to its configuration.
    pub networks: Vec<HostNetwork>,
}

impl HostSpec {
    /// The machine on which the job is submitted, with this number of processes.
    pub fn local(procs: u32) -> Self {
        let (name, address) = (String::new(), String::new());
        let networks = Vec::new();
        Self { name, address, kind: HostKind::Local, processors: 0, procs, networks }
    }
}

/// The kind of a host, relative to the machine on which the job was submitted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum HostKind {
    /// The machine itself.
    Local,
    /// A virtual host on that machine (`local:N`).
    Virtual,
    /// Another machine.
    Remote,
}

/// The location of a node of a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NodeLocation {
    /// Index of the host.
    pub host: JobHostId,
    /// The node's number among the processes of that host.
    pub process: u32,
    /// Number of processes on that host.
    pub procs: u32,
}

/// One NAME=VALUE string.
pub type EnvVar = OsBytes;

/// A pipeline: parallel processes whose nodes with equal numbers are joined by pipes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct StageSpec {
    /// The elements from left to right, at least one.
    pub elements: Vec<ElementSpec>,
}

/// One parallel process (element).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ElementSpec {
    /// Absolute path of the executable, which scrun has resolved from the program's name.
    pub path: OsBytes,
    /// Arguments, including argv[0].
    pub args: Vec<OsBytes>,
    /// Standard input, for the first element of a stage.
    pub input: Input,
    /// Standard output, for the last element of a stage.
    pub output: Output,
    /// The kind of the program.
    pub kind: ProgramKind,
    /// Whether the program uses OpenMP, according to its libraries.
    pub uses_openmp: bool,
    /// Whether the program is an MPI program whose library sends messages over PM, with the
    /// provider of libfabric.
    pub uses_pm_provider: bool,
    /// The libpmix that the program loads, if the program uses PMIx and its files identify the
    /// library.
    pub pmix_library: Option<OsBytes>,
    /// The digest of the file at `path`, if the file has to be copied. For jobs on several hosts.
    pub digest: Option<FileDigest>,
}

impl ElementSpec {
    /// A parallel process without redirections. All other properties of its program have default
    /// values.
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

/// The names of MPICH's library: the usual name, and the name in Debian. Both libraries have the
/// same interface.
pub const MPICH_LIBRARY_NAMES: [&str; 2] = ["libmpi.so.12", "libmpich.so.12"];

/// The kind of a program, as scrun has determined it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum ProgramKind {
    /// The program contains libscore's note, and must call score_initialize. It starts in scrun's
    /// directory.
    Score,
    /// The program uses an MPI library. It starts in scrun's directory.
    Mpi(MpiStart),
    /// Any other program, including scripts. It starts on every node, in the job's directory.
    Plain,
    /// The built-in `system`. `path` and `args` are for the sequential program, for which each host
    /// searches PATH. It runs in the job's directory.
    System {
        /// Whether only the first process of each host runs it (`-host`).
        per_host: bool,
    },
}

/// How the processes of an MPI program exchange their addresses.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum MpiStart {
    /// By PMI, like MPICH.
    Pmi,
    /// By PMIx, like Open MPI.
    Pmix,
}

/// The input of a stage (manual, table 1.5).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Input {
    /// scrun's standard input for node 0 of the first stage, and /dev/null for all other nodes. For
    /// an element after `==`, the pipe.
    Default,
    /// `:= FILE`: every process opens the name.
    File(FileName),
}

/// The output of a stage (manual, table 1.5).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Output {
    /// Merged into scrun's standard output, or the pipe.
    Default,
    /// `=: FILE`, or `=:: FILE` to append.
    File {
        /// The file.
        name: FileName,
        /// Whether to append to the file (`=::`).
        append: bool,
    },
}

/// A file on a compute host: a base name in the job's directory, or an absolute path.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileName(pub OsBytes);

impl FileName {
    /// Whether the name is an absolute path. Otherwise it contains no `/`.
    pub fn is_absolute(&self) -> bool {
        self.0.0.first() == Some(&b'/')
    }

    /// The reason why the name cannot be used, if any (manual, scrun(1), INPUT/OUTPUT REDIRECTION).
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
    fn variables_of_ranks_override_inherited_ones_and_the_leftmost_is_used() {
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

    #[test]
    fn a_program_of_openmp_needs_whole_hosts_unless_the_user_sets_its_threads() {
        let text = |text: &str| OsBytes(text.as_bytes().to_vec());
        let element = |uses_openmp| ElementSpec {
            uses_openmp,
            ..ElementSpec::new(text("/bin/prog"), Vec::new(), ProgramKind::Plain)
        };
        let needs_whole_hosts = |uses_openmp, environment: &str, rank_environment: &str| {
            let elements = vec![element(false), element(uses_openmp)];
            let spec = JobSpec {
                stages: vec![StageSpec { elements }],
                environment: vec![text("A=1"), text(environment)],
                rank_environment: vec![text(rank_environment)],
                ..JobSpec::default()
            };
            assert!(!spec.fills_hosts(&spec.stages[0].elements[0]));
            spec.needs_whole_hosts()
        };
        assert!(needs_whole_hosts(true, "B=2", "C=3"));
        assert!(needs_whole_hosts(true, "OMP_NUM_THREADS_MAX=2", "XOMP_NUM_THREADS=2"));
        assert!(!needs_whole_hosts(false, "B=2", "C=3"));
        assert!(!needs_whole_hosts(true, "OMP_NUM_THREADS=2", "C=3"));
        assert!(!needs_whole_hosts(true, "B=2", "OMP_NUM_THREADS=2"));
    }

    #[test]
    fn a_file_name_is_a_base_name_or_an_absolute_path() {
        let name = |text: &str| FileName(OsBytes(text.into()));
        for (text, is_absolute) in [("out", false), ("...", false), ("/out", true), ("/", true)] {
            let name = name(text);
            assert_eq!((name.is_absolute(), name.invalid_reason()), (is_absolute, None), "{text}");
        }
        for (text, part) in [
            ("", "is empty"),
            ("a\0b", "NUL byte"),
            ("/a\0b", "NUL byte"),
            ("a/b", "never a relative path"),
            (".", "is a directory"),
            ("..", "is a directory"),
        ] {
            let reason = name(text).invalid_reason().unwrap_or_default();
            assert!(reason.contains(part), "{text:?}: {reason}");
        }
    }
}
