//! Starting the processes of a stage: their pipes, files, environment and control sockets.

use std::collections::{HashMap, VecDeque};
use std::ffi::{CStr, CString};
use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

use nix::fcntl::OFlag;
use nix::sched::CpuSet;
use nix::sys::socket::{AddressFamily, SockFlag, SockType, socketpair};
use nix::unistd::pipe2;
use score_proto::env;
use score_proto::message::{ElementSpec, Input, JobSpec, Kind, OsBytes, Output};
use score_proto::order;

use super::files::{self, Place};
use super::processors;
use super::work::At;
use crate::job::staging;
use crate::sys::spawn::{CONTROL_NUMBER, Fault, Launch, Opening, Program, Source, Spawner};

/// What is the same for all processes of one parallel process.
#[derive(Debug)]
struct Plan {
    program: Program,
    shown: String,
    /// NAME=VALUE, the node's own variables not included.
    environment: Vec<CString>,
    directory: CString,
    per_host: bool,
}

/// The starts of a stage that are still to be made.
#[derive(Debug, Default)]
pub struct Starts {
    /// This host's first node, and how many there are.
    first: u32,
    nodes: usize,
    plans: Vec<Plan>,
    queue: VecDeque<At>,
    /// Files that processes have to open, by number and descriptor.
    openings: HashMap<(usize, usize), Opening>,
    /// Read end of the pipe from the left-hand neighbour, by node of this host.
    from_left: Vec<Option<OwnedFd>>,
    /// The processor of each process, where they are kept to one.
    processors: Vec<CpuSet>,
    spawner: Spawner,
}

/// What the shepherd keeps of a process that it has started.
#[derive(Debug)]
pub struct Started {
    /// Its process id.
    pub pid: i32,
    /// Our end of its control socket.
    pub control: OwnedFd,
    /// Write end of its standard input, when scrun feeds it.
    pub stdin: Option<OwnedFd>,
    /// Read end of its standard output, when it goes to scrun.
    pub stdout: Option<OwnedFd>,
    /// Read end of its standard error.
    pub stderr: OwnedFd,
}

/// Why a process was not started.
#[derive(Debug)]
pub enum NotStarted {
    /// It needs not be (`system -host`): counts as ended with 0.
    Skipped,
    /// Its program could not be run: exit code and reason.
    Program(u8, String),
    /// The job cannot go on: reason.
    Job(String),
}

/// What the starts of a job have in common.
#[derive(Debug)]
pub struct Ground<'a> {
    /// The job.
    pub spec: &'a JobSpec,
    /// This host's nodes.
    pub here: &'a order::Place,
    /// This host.
    pub host: u32,
    /// Hosts of the job.
    pub hosts: u32,
    /// The job's directory.
    pub directory: &'a Path,
    /// RLIMIT_NOFILE as it was before the shepherd raised its own.
    pub descriptor_limit: libc::rlimit,
    /// There is no PID namespace.
    pub die_with_parent: bool,
    /// Whether daemons serve several users.
    pub multi_user: bool,
    /// /dev/null, open for reading and writing.
    pub null: &'a File,
}

fn c_string(bytes: &[u8]) -> CString {
    // check() has refused NUL bytes; to cut there is harmless.
    CString::new(bytes.split(|byte| *byte == 0).next().unwrap_or_default()).unwrap_or_default()
}

fn strip(error: nix::errno::Errno) -> &'static str {
    error.desc()
}

impl Starts {
    /// Prepares a stage.
    pub fn begin(&mut self, ground: &Ground<'_>, stage: usize) {
        let elements = &ground.spec.stages[stage].elements;
        let here = ground.here;
        self.plans = elements.iter().map(|element| Plan::new(ground, element)).collect();
        self.queue = (0..elements.len() as u32)
            .flat_map(|element| here.range().map(move |node| At { element, node }))
            .collect();
        self.from_left = here.range().map(|_| None).collect();
        self.openings.clear();
        (self.first, self.nodes) = (here.first, here.nodes as usize);
        self.processors = match ground.multi_user {
            true => processors::of_stage(ground.spec, stage, here.nodes),
            false => Vec::new(),
        };
        self.spawner.begin();
    }

    /// Which of this host's nodes it is.
    fn process(&self, at: At) -> usize {
        (at.node - self.first) as usize
    }

    fn number(&self, at: At) -> usize {
        at.element as usize * self.nodes + self.process(at)
    }

    /// Why a process that has ended was never more than an attempt, if so.
    pub fn failure(&mut self, at: At) -> Option<NotStarted> {
        let number = self.number(at);
        let fault = self.spawner.fault(number)?;
        if let Fault::File(descriptor, path, errno) = fault {
            let path = self.openings.get(&(self.number(at), descriptor))?.paths.get(path)?;
            return Some(NotStarted::Job(files::fault(path, errno)));
        }
        Some(self.plans.get(at.element as usize)?.explain(fault))
    }

    /// The next process to start, if any.
    pub fn next(&mut self) -> Option<At> {
        let next = self.queue.pop_front();
        if next.is_none() {
            // No end of a pipe may stay open here: readers would wait for ever.
            self.from_left.clear();
        }
        next
    }

    /// Whether there are processes to start.
    pub fn is_pending(&self) -> bool {
        !self.queue.is_empty()
    }

    /// Takes the processes of one element, or of all, off the list and returns them.
    pub fn cancel(&mut self, element: Option<u32>) -> Vec<At> {
        let (cancelled, kept): (Vec<At>, Vec<At>) =
            self.queue.drain(..).partition(|at| element.is_none_or(|one| one == at.element));
        self.queue = kept.into();
        cancelled
    }

    /// Starts one process.
    ///
    /// # Errors
    /// See [`NotStarted`]; nothing is left of it then.
    pub fn start(
        &mut self,
        ground: &Ground<'_>,
        stage: usize,
        at: At,
    ) -> Result<Started, NotStarted> {
        let elements = &ground.spec.stages[stage].elements;
        let spec = &elements[at.element as usize];
        let process = self.process(at);
        let left = self.from_left.get_mut(process).and_then(Option::take);
        let plan = &self.plans[at.element as usize];
        if plan.per_host && process > 0 {
            return Err(NotStarted::Skipped);
        }
        let (their_in, stdin) = standard_input(ground, stage, at, spec, left)?;
        let last = at.element as usize + 1 == elements.len();
        let (their_out, our_out) = standard_output(ground, at, spec, last)?;
        let (stderr, their_err) = pipe()?;
        let (control, theirs) =
            socketpair(AddressFamily::Unix, SockType::SeqPacket, None, SockFlag::SOCK_CLOEXEC)
                .map_err(|error| lacking("control socket", error))?;
        let own = own_variables(ground, at);
        let environment: Vec<&CStr> =
            plan.environment.iter().chain(&own).map(CString::as_c_str).collect();
        let launch = Launch {
            program: &plan.program,
            environment: &environment,
            directory: &plan.directory,
            descriptors: [
                their_in.source(),
                their_out.source(),
                Source::Here(their_err.as_fd()),
                Source::Here(theirs.as_fd()),
            ],
            descriptor_limit: ground.descriptor_limit,
            die_with_parent: ground.die_with_parent,
            processor: self.processors.get(process),
        };
        let number = self.number(at);
        let pid = self.spawner.spawn(&launch, number).map_err(|fault| plan.explain(fault))?;
        for (descriptor, end) in [their_in, their_out].into_iter().enumerate() {
            if let End::File(opening) = end {
                self.openings.insert((number, descriptor), opening);
            }
        }
        let mut stdout = our_out;
        if !last {
            self.from_left[process] = stdout.take();
        }
        Ok(Started { pid, control, stdin, stdout, stderr })
    }
}

/// The process's end of its standard input or output.
enum End {
    Here(OwnedFd),
    File(Opening),
}

impl End {
    fn source(&self) -> Source<'_> {
        match self {
            End::Here(descriptor) => Source::Here(descriptor.as_fd()),
            End::File(opening) => Source::File(opening),
        }
    }
}

fn lacking(what: &str, error: nix::errno::Errno) -> NotStarted {
    NotStarted::Job(format!("no {what} can be made: {}", strip(error)))
}

/// Read end, write end.
fn pipe() -> Result<(OwnedFd, OwnedFd), NotStarted> {
    pipe2(OFlag::O_CLOEXEC).map_err(|error| lacking("pipe", error))
}

fn null(ground: &Ground<'_>) -> Result<OwnedFd, NotStarted> {
    ground
        .null
        .as_fd()
        .try_clone_to_owned()
        .map_err(|error| NotStarted::Job(format!("no descriptor can be made: {error}")))
}

/// The process's end, and ours if scrun's input goes there.
fn standard_input(
    ground: &Ground<'_>,
    stage: usize,
    at: At,
    spec: &ElementSpec,
    left: Option<OwnedFd>,
) -> Result<(End, Option<OwnedFd>), NotStarted> {
    let place = Place { directory: ground.directory, processes: ground.here.nodes };
    match &spec.input {
        Input::File(name) => Ok((End::File(place.input(name, at.node)), None)),
        Input::Default if feeds(ground.spec, stage, at) => {
            let (theirs, ours) = pipe()?;
            Ok((End::Here(theirs), Some(ours)))
        }
        // No neighbour wrote (it was skipped, or could not be started): nothing to read.
        Input::Default => Ok((End::Here(left.map_or_else(|| null(ground), Ok)?), None)),
    }
}

/// Whether scrun's standard input goes to this process.
pub fn feeds(spec: &JobSpec, stage: usize, at: At) -> bool {
    spec.stdin
        && stage == 0
        && at == At { element: 0, node: 0 }
        && spec.stages[0].elements[0].input == Input::Default
}

/// The process's end, and the other one if there is a pipe.
fn standard_output(
    ground: &Ground<'_>,
    at: At,
    spec: &ElementSpec,
    last: bool,
) -> Result<(End, Option<OwnedFd>), NotStarted> {
    let place = Place { directory: ground.directory, processes: ground.here.nodes };
    match &spec.output {
        Output::File { name, append } if last => {
            let process = at.node - ground.here.first;
            let end = match place.output(name, *append, process, at.node) {
                Some(opening) => End::File(opening),
                None => End::Here(null(ground)?),
            };
            Ok((end, None))
        }
        _ => {
            let (ours, theirs) = pipe()?;
            Ok((End::Here(theirs), Some(ours)))
        }
    }
}

fn own_variables(ground: &Ground<'_>, at: At) -> [CString; 2] {
    let process = at.node - ground.here.first;
    [
        c_string(format!("{}={process}", env::SELF_PROC).as_bytes()),
        c_string(format!("{}={}", env::SELF_NODE, at.node).as_bytes()),
    ]
}

fn value<'a>(environment: &'a [OsBytes], name: &str) -> Option<&'a [u8]> {
    environment
        .iter()
        .find_map(|variable| variable.0.strip_prefix(name.as_bytes())?.strip_prefix(b"="))
}

impl Plan {
    fn new(ground: &Ground<'_>, element: &ElementSpec) -> Self {
        use std::os::unix::ffi::OsStrExt;
        let spec = ground.spec;
        let job_dir = ground.directory.as_os_str().as_bytes();
        let (moved, per_host) = match element.kind {
            Kind::Score => (false, false),
            Kind::Plain => (true, false),
            Kind::System { per_host } => (true, per_host),
        };
        let directory = if moved { job_dir } else { &spec.directory.0 };
        let mut set = vec![
            [env::JOB_DIR.as_bytes(), b"=", job_dir].concat(),
            format!("{}={CONTROL_NUMBER}", env::CONTROL_FD).into_bytes(),
            format!("{}={}", env::SELF_HOST, ground.host).into_bytes(),
            format!("{}={}", env::NUM_PROC, ground.here.nodes).into_bytes(),
            format!("{}={}", env::NUM_HOST, ground.hosts).into_bytes(),
            format!("{}={}", env::NUM_NODE, spec.nodes()).into_bytes(),
        ];
        if moved {
            set.push([b"PWD=", job_dir].concat());
            set.push([b"OLDPWD=", spec.directory.0.as_slice()].concat());
        }
        let ours = |variable: &[u8]| {
            let name = variable.split(|byte| *byte == b'=').next().unwrap_or_default();
            let own = [env::SELF_PROC, env::SELF_NODE, env::RESOURCE_FD];
            own.iter().any(|own| own.as_bytes() == name)
                || set.iter().any(|own| own.strip_prefix(name).is_some_and(|v| v[0] == b'='))
        };
        let kept = spec.environment.iter().filter(|variable| !ours(&variable.0));
        let environment = kept.map(|v| c_string(&v.0)).chain(set.iter().map(|v| c_string(v)));
        let arguments = element.args.iter().map(|argument| c_string(&argument.0)).collect();
        Self {
            program: Program::new(candidates(ground, element), arguments),
            shown: String::from_utf8_lossy(&element.path.0).into_owned(),
            environment: environment.collect(),
            directory: c_string(directory),
            per_host,
        }
    }

    fn explain(&self, fault: Fault) -> NotStarted {
        let reason = |errno: i32| nix::errno::Errno::from_raw(errno).desc();
        match fault {
            Fault::Program(libc::ENOENT) => {
                let text = format!("{}: not found, or its interpreter is not", self.shown);
                NotStarted::Program(127, text)
            }
            Fault::Program(errno) => {
                NotStarted::Program(126, format!("{}: {}", self.shown, reason(errno)))
            }
            Fault::Directory(errno) => {
                let directory = self.directory.to_string_lossy();
                NotStarted::Program(126, format!("cannot enter {directory}: {}", reason(errno)))
            }
            Fault::Process(errno) => {
                NotStarted::Job(format!("no further process can be started: {}", reason(errno)))
            }
            Fault::File(.., errno) | Fault::Setup(errno) => {
                NotStarted::Job(format!("a process cannot be set up: {}", reason(errno)))
            }
        }
    }
}

/// The paths to try, in order: for `system` as execvp(3) does.
fn candidates(ground: &Ground<'_>, element: &ElementSpec) -> Vec<CString> {
    use std::os::unix::ffi::OsStrExt;
    let spec = ground.spec;
    if let Some(place) = staging::place(spec, element) {
        return vec![c_string(ground.directory.join(place).as_os_str().as_bytes())];
    }
    let path = &element.path.0;
    let searched = matches!(element.kind, Kind::System { .. }) && !path.contains(&b'/');
    if !searched {
        return vec![c_string(path)];
    }
    let list = value(&spec.environment, "PATH").unwrap_or(b"/usr/local/bin:/bin:/usr/bin");
    list.split(|byte| *byte == b':')
        .map(|folder| if folder.is_empty() { b".".as_slice() } else { folder })
        .map(|folder| c_string(&[folder, b"/", path].concat()))
        .collect()
}
