//! MPIR: lets a debugger that does not support SCore itself find the processes of a job (CDTI 2.1
//! and 2.2, docs/dev/tools.md). scrun is the starter. The crate `mpir/` holds the parts that other
//! starters share.
//!
//! | file | contents |
//! |---|---|
//! | `starter` | the state machine of the starter, without I/O |

mod starter;

use std::fs;
use std::time::Duration;

use score_mpir::{DebugState, call_breakpoint, is_being_debugged, requested_start};
use score_proto::client_session::SessionKind;
use score_proto::ids::JobId;
use score_proto::job_control::ProcessBlock;
use score_proto::message::{DebuggerRequest, ElementSpec, JobRequest, JobSpec};
use score_proto::tool_start::ToolActionAnswer;
use score_sys::host_name::system_host_name;

use starter::Starter;

/// Interval at which scrun reads the flag `MPIR_being_debugged` while a debugger traces scrun.
pub const LOOK_INTERVAL: Duration = Duration::from_millis(20);

/// Serves the debuggers of a job.
#[derive(Debug)]
pub struct Debugger {
    starter: Starter,
    /// The programs, by stage and element.
    programs: Vec<Vec<Vec<u8>>>,
    /// Whether the debugger's request to start servers, if there was one, has been handled. Reset
    /// when the debugger detaches.
    servers_requested: bool,
    is_abort_reported: bool,
}

/// The requests that result from an event, and a line for the user if there is a problem.
#[derive(Debug, Default)]
pub struct Reaction {
    /// The requests, for the job.
    pub requests: Vec<JobRequest>,
    /// The line for the user.
    pub problem: Option<String>,
}

impl From<Vec<DebuggerRequest>> for Reaction {
    fn from(requests: Vec<DebuggerRequest>) -> Self {
        let requests = requests.into_iter().map(JobRequest::Debugger).collect();
        Self { requests, problem: None }
    }
}

/// Shows a debugger that this process has started and that the job does not exist yet. Returns
/// whether the debugger requests that the processes are held.
pub fn begin() -> bool {
    score_mpir::begin();
    is_being_debugged()
}

impl Debugger {
    /// Serves debuggers of this job.
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

    /// The interval at which the flag must be read even if there is no event.
    pub fn look_interval(&self) -> Option<Duration> {
        self.starter.is_traced().then_some(LOOK_INTERVAL)
    }

    /// Reads the flag. `is_interrupted` is true if a signal or a tracer has interrupted a system
    /// call.
    pub fn look(&mut self, is_interrupted: bool) -> Reaction {
        let is_flag_set = is_being_debugged();
        let may_have_tracer = is_interrupted || is_flag_set || self.starter.is_traced();
        let result = self.starter.on_look(is_flag_set, if may_have_tracer { tracer() } else { 0 });
        if result.reset_flag {
            score_mpir::reset_being_debugged();
            // If this fails, the next debugger receives one more signal.
            let _ = score_mpir::remove_stale_breakpoints();
        }
        if result.reset_flag || !is_flag_set {
            self.servers_requested = false;
        }
        result.requests.into()
    }

    /// Called when the job has been accepted.
    pub fn on_accepted(&mut self, job: JobId, nodes: u32, kind: SessionKind) -> Reaction {
        let id = match kind {
            SessionKind::MultiUser => job.to_string(),
            // The job number of a private daemon has no meaning for other processes.
            SessionKind::SingleUser => format!("{}@{}", std::process::id(), system_host_name()),
        };
        score_mpir::set_job_id(id);
        self.starter.on_accepted(nodes).into()
    }

    /// Handles a list of some processes of the job. When the table is complete, the debugger gets
    /// it.
    pub fn on_processes(&mut self, stage: u32, host_name: &str, block: &ProcessBlock) -> Reaction {
        let Some(table) = self.starter.on_processes(stage, host_name, block) else {
            return Reaction::default();
        };
        if !is_being_debugged() {
            // The debugger has left in the meantime.
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

    /// Handles the job's answer to the request to start servers.
    pub fn on_tool_answer(&mut self, answer: &ToolActionAnswer) -> Reaction {
        self.show(match answer {
            ToolActionAnswer::Started(_) | ToolActionAnswer::Signaled(_) => None,
            ToolActionAnswer::Refused { reason, .. } => {
                Some(format!("MPIR_executable_path: the servers are not started: {reason}"))
            }
        })
    }

    /// Shows the table to the debugger, which can stop this process for any length of time.
    /// Afterwards a held stage can run.
    fn show(&mut self, problem: Option<String>) -> Reaction {
        if is_being_debugged() {
            call_breakpoint(DebugState::Spawned);
        }
        self.starter.on_shown();
        let release = JobRequest::Debugger(DebuggerRequest::ReleaseStage);
        Reaction { requests: vec![release], problem }
    }

    /// Handles a signal that ends this process. The debugger may stop the process before that.
    pub fn on_abort(&mut self) {
        if !std::mem::replace(&mut self.is_abort_reported, true) {
            call_breakpoint(DebugState::Aborting);
        }
    }
}

/// The process id of the tracer of this process, or 0.
fn tracer() -> u32 {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("TracerPid:"));
    line.and_then(|pid| pid.trim().parse().ok()).unwrap_or(0)
}
