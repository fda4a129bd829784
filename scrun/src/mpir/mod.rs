//! MPIR: how a debugger that knows nothing of SCore finds the processes of a job (CDTI 2.1 and 2.2,
//! docs/tools.md). scrun is the starter; what other starters share with it is in `mpir/`.
//!
//! | file | what it is |
//! |---|---|
//! | `starter` | what scrun does when, without I/O |

mod starter;

use std::fs;
use std::time::Duration;

use score_mpir::{DebugState, call_breakpoint, is_being_debugged, requested_start};
use score_proto::client_session::SessionKind;
use score_proto::ids::JobId;
use score_proto::job_control::ProcessBlock;
use score_proto::message::{DebuggerRequest, ElementSpec, JobRequest, JobSpec};
use score_proto::tool_start::ToolActionAnswer;

use starter::Starter;

/// How often the flag is read while this process is traced.
pub const LOOK_INTERVAL: Duration = Duration::from_millis(20);

/// What scrun does for debuggers.
#[derive(Debug)]
pub struct Debugger {
    starter: Starter,
    /// The programs, by stage and element.
    programs: Vec<Vec<Vec<u8>>>,
    /// The debugger has been asked for its servers. This holds as long as it stays.
    servers_requested: bool,
    is_abort_reported: bool,
}

/// The requests that follow from an event, and a line for the user if something is wrong.
#[derive(Debug, Default)]
pub struct Reaction {
    /// To the job.
    pub requests: Vec<JobRequest>,
    /// A line.
    pub problem: Option<String>,
}

impl From<Vec<DebuggerRequest>> for Reaction {
    fn from(requests: Vec<DebuggerRequest>) -> Self {
        let requests = requests.into_iter().map(JobRequest::Debugger).collect();
        Self { requests, problem: None }
    }
}

/// Shows a debugger that this process has begun, and nothing of the job exists. Returns whether it
/// wants the processes held.
pub fn begin() -> bool {
    score_mpir::begin();
    is_being_debugged()
}

impl Debugger {
    /// For debuggers of this job.
    pub fn new(spec: &JobSpec) -> Self {
        let program = |element: &ElementSpec| element.path.0.clone();
        let programs: Vec<Vec<Vec<u8>>> =
            spec.stages.iter().map(|stage| stage.elements.iter().map(program).collect()).collect();
        let elements = programs.iter().map(Vec::len).collect();
        Self {
            starter: Starter::new(elements, spec.hold, tracer()),
            programs,
            servers_requested: false,
            is_abort_reported: false,
        }
    }

    /// When the flag has to be read again even if nothing happens.
    pub fn look_interval(&self) -> Option<Duration> {
        self.starter.is_traced().then_some(LOOK_INTERVAL)
    }

    /// Reads the flag. `is_interrupted`: a signal or a tracer has interrupted a system call.
    pub fn look(&mut self, is_interrupted: bool) -> Reaction {
        let is_flag_set = is_being_debugged();
        let may_have_tracer = is_interrupted || is_flag_set || self.starter.is_traced();
        let result = self.starter.on_look(is_flag_set, if may_have_tracer { tracer() } else { 0 });
        if result.reset_flag {
            score_mpir::reset_being_debugged();
            // Where that is not possible, the next debugger sees one signal more.
            let _ = score_mpir::remove_stale_breakpoints();
        }
        if result.reset_flag || !is_flag_set {
            self.servers_requested = false;
        }
        result.requests.into()
    }

    /// The job has been accepted.
    pub fn on_accepted(&mut self, job: JobId, nodes: u32, kind: SessionKind) -> Reaction {
        let id = match kind {
            SessionKind::MultiUser => job.to_string(),
            // The number means nothing to others.
            SessionKind::SingleUser => {
                let host = nix::unistd::gethostname().unwrap_or_default();
                format!("{}@{}", std::process::id(), host.to_string_lossy())
            }
        };
        score_mpir::set_job_id(id);
        self.starter.on_accepted(nodes).into()
    }

    /// The job has listed some of its processes. If these were the last ones, the debugger gets the
    /// table.
    pub fn on_processes(&mut self, stage: u32, host_name: &str, block: &ProcessBlock) -> Reaction {
        let Some(table) = self.starter.on_processes(stage, host_name, block) else {
            return Reaction::default();
        };
        if !is_being_debugged() {
            // It has left meanwhile.
            return self.show(None);
        }
        let servers = match std::mem::replace(&mut self.servers_requested, true) {
            true => Ok(None),
            false => requested_start(&table),
        };
        let programs = self.programs.get(table.stage as usize).cloned().unwrap_or_default();
        score_mpir::publish_table(table, programs);
        match servers {
            Ok(Some(action)) => {
                Reaction { requests: vec![JobRequest::ToolAction(action)], problem: None }
            }
            Ok(None) => self.show(None),
            Err(problem) => self.show(Some(problem)),
        }
    }

    /// The job has answered the request to start servers.
    pub fn on_tool_answer(&mut self, answer: &ToolActionAnswer) -> Reaction {
        self.show(match answer {
            ToolActionAnswer::Done(_) => None,
            ToolActionAnswer::Refused { reason, .. } => {
                Some(format!("MPIR_executable_path: the servers are not started: {reason}"))
            }
        })
    }

    /// Shows the table to the debugger, which may stop this process for as long as it likes. Then
    /// a held stage can run.
    fn show(&mut self, problem: Option<String>) -> Reaction {
        if is_being_debugged() {
            call_breakpoint(DebugState::Spawned);
        }
        self.starter.on_shown();
        let release = JobRequest::Debugger(DebuggerRequest::ReleaseStage);
        Reaction { requests: vec![release], problem }
    }

    /// A signal ends this process. The debugger may stop it before that.
    pub fn on_abort(&mut self) {
        if !std::mem::replace(&mut self.is_abort_reported, true) {
            call_breakpoint(DebugState::Aborting);
        }
    }
}

/// The process that traces this one, or 0.
fn tracer() -> u32 {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("TracerPid:"));
    line.and_then(|pid| pid.trim().parse().ok()).unwrap_or(0)
}
