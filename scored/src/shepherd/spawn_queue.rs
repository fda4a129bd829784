//! Starts the processes of a stage with their pipes, files, environment and control sockets.

use std::collections::{HashSet, VecDeque};
use std::ffi::{CStr, CString};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;

use nix::fcntl::OFlag;
use nix::sched::CpuSet;
use nix::sys::stat::fstat;
use nix::unistd::pipe2;
use score_job::program_paths;
use score_proto::env;
use score_proto::ids::ElementIndex;
use score_proto::message::{
    ElementSpec, Input, JobSpec, MpiStart, OMP_THREADS_ENV, Output, ProgramKind,
};
use score_sys::unix_socket::seqpacket_pair;

use super::cpu_binding;
use super::environment::environment_value;
use super::job_info::{JobInfo, LocalNodes, ProcessKey, ShepherdContext};
use super::mpi_library;
use super::mpi_provider::{MpiProvider, preload_without_pm};
use super::pmi_service::NewPmiSocket;
use super::pmix_service::is_foreign_variable;
use super::redirection::{self, RedirectContext};
use super::tool_directory::StageProgram;
use crate::sys::spawn::{SpawnError, Spawner};
use crate::sys::spawn_args::{CONTROL_FD, ChildFile, FdSource, PMI_FD, Program, SpawnArgs};

/// Properties that all processes of one parallel process share.
#[derive(Debug)]
struct SpawnPlan {
    program: Program,
    display_name: String,
    /// NAME=VALUE, without the variables that differ between nodes.
    environment: Vec<CString>,
    directory: CString,
    is_per_host: bool,
}

/// The processes of a stage that are still to be started.
#[derive(Debug, Default)]
pub struct SpawnQueue {
    nodes: LocalNodes,
    plans: Vec<SpawnPlan>,
    pending: VecDeque<ProcessKey>,
    /// Read ends of the pipes from the left-hand neighbours, by node of this host.
    left_pipes: Vec<Option<LeftPipe>>,
    /// The processor sets of the processes, if processes are bound.
    cpu_sets: Vec<CpuSet>,
    /// Whether the processes of the stage stop before their first instruction.
    hold: bool,
    /// Signals of the user that arrived before all processes of the stage were started.
    early_signals: Vec<i32>,
    spawner: Spawner,
}

/// A process that the shepherd has started.
#[derive(Debug)]
pub struct SpawnedProcess {
    /// Its process id.
    pub pid: i32,
    /// The shepherd's end of its control socket.
    pub control: OwnedFd,
    /// Its PMI socket, if it is an MPI program.
    pub pmi_socket: Option<NewPmiSocket>,
    /// Write end of its standard input, if it gets scrun's input.
    pub stdin: Option<OwnedFd>,
    /// Read end of its standard output, if its output goes to scrun.
    pub stdout: Option<OwnedFd>,
    /// Read end of its standard error.
    pub stderr: OwnedFd,
    /// Files that it opens as its standard input and output.
    pub child_files: [Option<ChildFile>; 2],
}

/// The read end of a process's standard output, for the process of the next program.
#[derive(Debug)]
struct LeftPipe {
    /// The program of the process.
    writer: ElementIndex,
    reader: OwnedFd,
}

impl LeftPipe {
    /// The read end, if `reader` is the next program. Otherwise the program between both was
    /// cancelled. The pipe is then closed, so that its writers do not block.
    fn for_reader(self, reader: ElementIndex) -> Option<OwnedFd> {
        (self.writer.index() + 1 == reader.index()).then_some(self.reader)
    }
}

/// Why a process was not started.
#[derive(Debug)]
pub enum StartError {
    /// The process is not needed (`system -host`) and counts as exited with code 0.
    Skipped,
    /// Its program could not be run: exit code and reason.
    Program(u8, String),
    /// The job cannot continue: reason.
    Job(String),
}

fn c_string(bytes: &[u8]) -> CString {
    // check() has rejected NUL bytes, so that truncation does no harm here.
    CString::new(bytes.split(|byte| *byte == 0).next().unwrap_or_default()).unwrap_or_default()
}

impl SpawnQueue {
    /// Prepares a stage. `hold`: its processes stop before their first instruction.
    ///
    /// # Errors
    /// The reason why none of its processes can be started, in one line.
    pub fn begin(
        &mut self,
        context: &ShepherdContext,
        job: &JobInfo,
        hold: bool,
    ) -> Result<(), String> {
        self.hold = hold;
        let elements = &job.spec().stages[job.stage].elements;
        let local_host = &job.local_host;
        // Fill the queue first. If the stage cannot be started, its processes are then skipped. The
        // job ends only when each of its processes is accounted for.
        self.pending = ElementIndex::all(elements.len())
            .flat_map(|element| {
                local_host.node_range().map(move |node| ProcessKey { element, node })
            })
            .collect();
        self.plan_stage(context, job)?;
        self.left_pipes = local_host.node_range().map(|_| None).collect();
        self.nodes = job.local_nodes();
        self.cpu_sets = match context.multi_user {
            true => cpu_binding::stage_cpu_sets(job.spec(), job.stage, local_host.nodes),
            false => Vec::new(),
        };
        self.spawner.reset();
        Ok(())
    }

    fn plan_stage(&mut self, context: &ShepherdContext, job: &JobInfo) -> Result<(), String> {
        let elements = &job.spec().stages[job.stage].elements;
        let mpi_library = mpi_library::link_libraries(job.spec(), &context.directory)?;
        let provider = match elements.iter().any(|element| element.uses_pm_provider) {
            true => Some(MpiProvider::find()?),
            false => None,
        };
        let mpi = MpiLibraries { folder: mpi_library.as_deref(), provider: provider.as_ref() };
        let plan = |element| SpawnPlan::new(context, job, element, mpi);
        self.plans = elements.iter().map(plan).collect();
        Ok(())
    }

    /// The programs of the stage, in the form that tools need.
    ///
    /// # Errors
    /// The errors of [`SpawnQueue::begin`].
    pub fn programs(
        &mut self,
        context: &ShepherdContext,
        job: &JobInfo,
    ) -> Result<Vec<StageProgram<'_>>, String> {
        if self.plans.is_empty() {
            // The first stage has not begun.
            self.plan_stage(context, job)?;
        }
        Ok(self.plans.iter().map(SpawnPlan::for_tools).collect())
    }

    /// The index of a process's node among this host's nodes.
    fn process_index(&self, key: ProcessKey) -> usize {
        (key.node - self.nodes.first) as usize
    }

    /// The reason why an exited process had not run its program. None: it had run its program.
    /// `child_files`: those of its [`SpawnedProcess`].
    pub fn spawn_failure(
        &mut self,
        key: ProcessKey,
        child_files: &[Option<ChildFile>; 2],
    ) -> Option<StartError> {
        let index = self.nodes.index(key);
        let error = self.spawner.error_of(index)?;
        if let SpawnError::File(fd, path, errno) = error {
            let path = child_files.get(fd)?.as_ref()?.paths.get(path)?;
            return Some(StartError::Job(redirection::open_error(path, errno)));
        }
        Some(self.plans.get(key.element.index())?.to_start_error(error))
    }

    /// The next process to start, if any.
    pub fn next(&mut self) -> Option<ProcessKey> {
        let next = self.pending.pop_front();
        if next.is_none() {
            // Close the read ends whose readers were not started. Otherwise the writers would block
            // for ever when their pipes are full.
            self.left_pipes.clear();
        }
        next
    }

    /// Whether there are processes to start.
    pub fn is_pending(&self) -> bool {
        !self.pending.is_empty()
    }

    /// Keeps a signal of the user for the processes that have not been started yet.
    pub fn add_early_signal(&mut self, signal: i32) {
        if !self.early_signals.contains(&signal) {
            self.early_signals.push(signal);
        }
    }

    /// The signals that a process receives as soon as it has been started.
    pub fn early_signals(&self) -> &[i32] {
        &self.early_signals
    }

    /// Called after each attempt to start a process. Drops the early signals if no process is left
    /// to start.
    pub fn on_process_handled(&mut self) {
        if self.pending.is_empty() {
            self.early_signals.clear();
        }
    }

    /// The indexes of processes that have neither executed their program nor exited.
    pub fn pre_exec_indexes(&mut self) -> HashSet<usize> {
        self.spawner.pre_exec_indexes()
    }

    /// Removes the processes of one element, or of all elements, from the queue and returns them.
    pub fn cancel(&mut self, element: Option<ElementIndex>) -> Vec<ProcessKey> {
        let (cancelled, remaining): (Vec<ProcessKey>, Vec<ProcessKey>) =
            self.pending.drain(..).partition(|key| element.is_none_or(|only| only == key.element));
        self.pending = remaining.into();
        cancelled
    }

    /// Starts one process. `pmix_environment`: the variables that name its PMIx server.
    ///
    /// # Errors
    /// See [`StartError`]. On an error, no process has been created.
    pub fn start(
        &mut self,
        context: &ShepherdContext,
        job: &JobInfo,
        key: ProcessKey,
        pmix_environment: &[CString],
    ) -> Result<SpawnedProcess, StartError> {
        let elements = &job.spec().stages[job.stage].elements;
        let spec = &elements[key.element.index()];
        let process = self.process_index(key);
        let left_pipe = self.left_pipes.get_mut(process).and_then(Option::take);
        let left_pipe = left_pipe.and_then(|pipe| pipe.for_reader(key.element));
        let plan = &self.plans[key.element.index()];
        if plan.is_per_host && process > 0 {
            return Err(StartError::Skipped);
        }
        let (child_stdin, stdin) = standard_input(context, job, key, spec, left_pipe)?;
        let is_last = key.element.index() + 1 == elements.len();
        let (child_stdout, stdout_reader) = standard_output(context, job, key, spec, is_last)?;
        let (stderr, child_stderr) = pipe()?;
        let (control, child_control) =
            seqpacket_pair().map_err(|error| creation_error("control socket", error))?;
        let (pmi_socket, child_pmi_socket) = match spec.kind {
            ProgramKind::Mpi(MpiStart::Pmi) => {
                let (own_end, process_end) = pmi_socket_pair()?;
                (Some(own_end), Some(process_end))
            }
            _ => (None, None),
        };
        let node_variables = node_environment(job, key, spec.kind);
        let variables = plan.environment.iter().chain(&node_variables).chain(pmix_environment);
        let environment: Vec<&CStr> = variables.map(CString::as_c_str).collect();
        let spawn_args = SpawnArgs {
            program: &plan.program,
            environment: &environment,
            directory: &plan.directory,
            descriptors: [
                child_stdin.source(),
                child_stdout.source(),
                FdSource::Fd(child_stderr.as_fd()),
                FdSource::Fd(child_control.as_fd()),
            ],
            pmi_socket: child_pmi_socket.as_ref().map(AsFd::as_fd),
            descriptor_limit: context.descriptor_limit,
            die_with_parent: context.outer_proc.is_none(),
            cpu_set: self.cpu_sets.get(process),
            hold: self.hold,
        };
        let index = self.nodes.index(key);
        let pid =
            self.spawner.spawn(&spawn_args, index).map_err(|error| plan.to_start_error(error))?;
        let child_files = [child_stdin, child_stdout].map(StdioSource::into_file);
        let mut stdout = stdout_reader;
        if !is_last {
            let pipe = stdout.take().map(|reader| LeftPipe { writer: key.element, reader });
            self.left_pipes[process] = pipe;
        }
        Ok(SpawnedProcess { pid, control, pmi_socket, stdin, stdout, stderr, child_files })
    }
}

/// The process's end of its standard input or output.
enum StdioSource {
    Fd(OwnedFd),
    File(ChildFile),
}

impl StdioSource {
    fn source(&self) -> FdSource<'_> {
        match self {
            StdioSource::Fd(descriptor) => FdSource::Fd(descriptor.as_fd()),
            StdioSource::File(child_file) => FdSource::File(child_file),
        }
    }

    fn into_file(self) -> Option<ChildFile> {
        match self {
            StdioSource::Fd(_) => None,
            StdioSource::File(child_file) => Some(child_file),
        }
    }
}

fn creation_error(what: &str, error: impl Into<io::Error>) -> StartError {
    StartError::Job(format!("cannot create a {what}: {}", error.into()))
}

/// A new pipe: read end, write end.
fn pipe() -> Result<(OwnedFd, OwnedFd), StartError> {
    pipe2(OFlag::O_CLOEXEC).map_err(|error| creation_error("pipe", error))
}

/// A PMI socket: the shepherd's end, and the end of the process.
fn pmi_socket_pair() -> Result<(NewPmiSocket, OwnedFd), StartError> {
    let creation_error = |error| creation_error("PMI socket", error);
    let (own_end, process_end) = UnixStream::pair().map_err(creation_error)?;
    let status = fstat(&process_end).map_err(|errno| creation_error(errno.into()))?;
    let own_end = NewPmiSocket { own_end: own_end.into(), process_inode: status.st_ino };
    Ok((own_end, process_end.into()))
}

fn clone_null(context: &ShepherdContext) -> Result<OwnedFd, StartError> {
    context
        .null
        .as_fd()
        .try_clone_to_owned()
        .map_err(|error| StartError::Job(format!("cannot duplicate a descriptor: {error}")))
}

/// The process's standard input. Also the write end of the pipe, if the process gets scrun's input.
fn standard_input(
    context: &ShepherdContext,
    job: &JobInfo,
    key: ProcessKey,
    spec: &ElementSpec,
    left_pipe: Option<OwnedFd>,
) -> Result<(StdioSource, Option<OwnedFd>), StartError> {
    let redirect =
        RedirectContext { directory: &context.directory, process_count: job.local_host.nodes };
    match &spec.input {
        Input::File(name) => Ok((StdioSource::File(redirect.input(name, key.node)), None)),
        Input::Default if receives_stdin(job.spec(), job.stage, key) => {
            let (reader, writer) = pipe()?;
            Ok((StdioSource::Fd(reader), Some(writer)))
        }
        // There is no input if the process has no left-hand neighbour, or if that neighbour was
        // skipped or could not be started.
        Input::Default => {
            Ok((StdioSource::Fd(left_pipe.map_or_else(|| clone_null(context), Ok)?), None))
        }
    }
}

/// Whether scrun's standard input goes to this process.
pub fn receives_stdin(spec: &JobSpec, stage: usize, key: ProcessKey) -> bool {
    spec.reads_stdin
        && stage == 0
        && key == ProcessKey { element: ElementIndex(0), node: 0 }
        && spec.stages[0].elements[0].input == Input::Default
}

/// The process's standard output. Also the read end, if the output goes to a pipe.
fn standard_output(
    context: &ShepherdContext,
    job: &JobInfo,
    key: ProcessKey,
    spec: &ElementSpec,
    is_last: bool,
) -> Result<(StdioSource, Option<OwnedFd>), StartError> {
    let redirect =
        RedirectContext { directory: &context.directory, process_count: job.local_host.nodes };
    match &spec.output {
        Output::File { name, append } if is_last => {
            let process = job.local_host.process_of(key.node);
            let source = match redirect.output(name, *append, process, key.node) {
                Some(child_file) => StdioSource::File(child_file),
                None => StdioSource::Fd(clone_null(context)?),
            };
            Ok((source, None))
        }
        _ => {
            let (reader, writer) = pipe()?;
            Ok((StdioSource::Fd(writer), Some(reader)))
        }
    }
}

fn node_environment(job: &JobInfo, key: ProcessKey, kind: ProgramKind) -> Vec<CString> {
    let process = job.local_host.process_of(key.node);
    let mut variables = vec![
        format!("{}={process}", env::SELF_PROC_ENV),
        format!("{}={}", env::SELF_NODE_ENV, key.node),
    ];
    if kind == ProgramKind::Mpi(MpiStart::Pmi) {
        variables.push(format!("{}={PMI_FD}", env::PMI_FD_ENV));
        variables.push(format!("{}={}", env::PMI_RANK_ENV, key.node));
        variables.push(format!("{}={}", env::PMI_SIZE_ENV, job.spec().nodes()));
    }
    if kind == ProgramKind::Mpi(MpiStart::Pmix) {
        variables.push(env::PMIX_LAUNCHER_ENV.to_owned());
    }
    if let ProgramKind::Mpi(start) = kind {
        let (size, local_size) = (job.spec().nodes(), job.local_host.nodes);
        let numbers = env::mpi_rank_env(start, (key.node, size), (process, local_size));
        variables.extend(numbers.iter().map(|(name, number)| format!("{name}={number}")));
    }
    variables.iter().map(|variable| c_string(variable.as_bytes())).collect()
}

/// Libraries for the MPI programs of a stage.
#[derive(Debug, Clone, Copy)]
struct MpiLibraries<'a> {
    /// The directory with the MPI library that the option `mpi` names.
    folder: Option<&'a Path>,
    /// The provider through which MPI libraries use PM.
    provider: Option<&'a MpiProvider>,
}

impl SpawnPlan {
    fn new(
        context: &ShepherdContext,
        job: &JobInfo,
        element: &ElementSpec,
        mpi: MpiLibraries<'_>,
    ) -> Self {
        use std::os::unix::ffi::OsStrExt;
        let spec = job.spec();
        let given = spec.environment_of_ranks();
        let job_dir = context.directory.as_os_str().as_bytes();
        let (in_job_dir, is_per_host) = match element.kind {
            ProgramKind::Score | ProgramKind::Mpi(_) => (false, false),
            ProgramKind::Plain => (true, false),
            ProgramKind::System { per_host } => (true, per_host),
        };
        let directory = if in_job_dir { job_dir } else { &spec.directory.0 };
        let mut job_environment = vec![
            [env::JOB_DIR_ENV.as_bytes(), b"=", job_dir].concat(),
            format!("{}={CONTROL_FD}", env::CONTROL_FD_ENV).into_bytes(),
            format!("{}={}", env::SELF_HOST_ENV, job.placement.self_host).into_bytes(),
            format!("{}={}", env::NUM_PROC_ENV, job.local_host.nodes).into_bytes(),
            format!("{}={}", env::NUM_HOST_ENV, job.placement.hosts.len()).into_bytes(),
            format!("{}={}", env::NUM_NODE_ENV, spec.nodes()).into_bytes(),
        ];
        if let ProgramKind::Mpi(start) = element.kind {
            match mpi.provider.filter(|_| element.uses_pm_provider) {
                Some(provider) => {
                    job_environment.extend(provider.environment(start, &given));
                }
                None => job_environment.extend(preload_without_pm(&given)),
            }
        }
        if let (ProgramKind::Mpi(MpiStart::Pmi), Some(folder)) = (element.kind, mpi.folder) {
            let inherited = environment_value(&given, env::LIBRARY_PATH_ENV);
            let paths = [Some(folder.as_os_str().as_bytes()), inherited];
            let paths = paths.into_iter().flatten().collect::<Vec<_>>().join(&b':');
            job_environment.push([env::LIBRARY_PATH_ENV.as_bytes(), b"=", &paths].concat());
        }
        if spec.fills_hosts(element) {
            let count = cpu_binding::threads_per_process(spec, job.stage, job.local_host.nodes);
            job_environment.push(format!("{}={count}", OMP_THREADS_ENV).into_bytes());
        }
        if in_job_dir {
            job_environment.push([b"PWD=", job_dir].concat());
            job_environment.push([b"OLDPWD=", spec.directory.0.as_slice()].concat());
        }
        let is_overridden = |variable: &[u8]| {
            let name = variable.split(|byte| *byte == b'=').next().unwrap_or_default();
            let reserved = [env::SELF_PROC_ENV, env::SELF_NODE_ENV, env::RESOURCE_FD_ENV];
            let mut reserved = reserved.iter().chain(&env::PMI_ENV).chain(&env::MPI_RANK_ENV);
            is_foreign_variable(name)
                || reserved.any(|reserved_name| reserved_name.as_bytes() == name)
                || job_environment
                    .iter()
                    .any(|assignment| assignment.strip_prefix(name).is_some_and(|v| v[0] == b'='))
        };
        let inherited = given.iter().filter(|variable| !is_overridden(&variable.0));
        let environment =
            inherited.map(|v| c_string(&v.0)).chain(job_environment.iter().map(|v| c_string(v)));
        let arguments = element.args.iter().map(|argument| c_string(&argument.0)).collect();
        Self {
            program: Program::new(candidates(context, job, element), arguments),
            display_name: String::from_utf8_lossy(&element.path.0).into_owned(),
            environment: environment.collect(),
            directory: c_string(directory),
            is_per_host,
        }
    }

    fn for_tools(&self) -> StageProgram<'_> {
        let (candidates, arguments) = self.program.parts();
        StageProgram {
            candidates: candidates.iter().map(CString::as_c_str).collect(),
            arguments: arguments.iter().skip(1).map(CString::as_c_str).collect(),
            environment: self.environment.iter().map(CString::as_c_str).collect(),
            directory: &self.directory,
        }
    }

    fn to_start_error(&self, error: SpawnError) -> StartError {
        let reason = |errno: i32| nix::errno::Errno::from_raw(errno).desc();
        match error {
            SpawnError::Program(libc::ENOENT) => {
                let text = format!("{}: not found, or its interpreter is not", self.display_name);
                StartError::Program(127, text)
            }
            SpawnError::Program(errno) => {
                StartError::Program(126, format!("{}: {}", self.display_name, reason(errno)))
            }
            SpawnError::Directory(errno) => {
                let directory = self.directory.to_string_lossy();
                StartError::Program(126, format!("cannot enter {directory}: {}", reason(errno)))
            }
            SpawnError::Process(errno) => {
                StartError::Job(format!("no further process can be started: {}", reason(errno)))
            }
            SpawnError::File(.., errno) | SpawnError::Setup(errno) => {
                StartError::Job(format!("a process cannot be set up: {}", reason(errno)))
            }
        }
    }
}

/// The paths of the program to try, in order. For `system`, they are those of execvp(3).
fn candidates(context: &ShepherdContext, job: &JobInfo, element: &ElementSpec) -> Vec<CString> {
    use std::os::unix::ffi::OsStrExt;
    let spec = job.spec();
    if let Some(staged_path) = program_paths::relative_path(spec, element) {
        return vec![c_string(context.directory.join(staged_path).as_os_str().as_bytes())];
    }
    let path = &element.path.0;
    let uses_path = matches!(element.kind, ProgramKind::System { .. }) && !path.contains(&b'/');
    if !uses_path {
        return vec![c_string(path)];
    }
    let search_path =
        environment_value(&spec.environment, "PATH").unwrap_or(b"/usr/local/bin:/bin:/usr/bin");
    search_path
        .split(|byte| *byte == b':')
        .map(|dir| if dir.is_empty() { b".".as_slice() } else { dir })
        .map(|dir| c_string(&[dir, b"/", path].concat()))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_next_program_reads_the_output_of_a_program() {
        let pipe_of = |writer| LeftPipe { writer: ElementIndex(writer), reader: pipe().unwrap().0 };
        assert!(pipe_of(1).for_reader(ElementIndex(2)).is_some());
        assert!(pipe_of(0).for_reader(ElementIndex(2)).is_none());
        // The pipe of a program without a reader is closed, so that its writer does not block.
        let (reader, writer) = pipe().unwrap();
        assert!(LeftPipe { writer: ElementIndex(0), reader }.for_reader(ElementIndex(2)).is_none());
        assert_eq!(nix::unistd::write(&writer, b"x"), Err(nix::errno::Errno::EPIPE));
    }
}
