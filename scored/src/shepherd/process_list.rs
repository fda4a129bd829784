//! Lists the processes of a stage for debuggers. The processes of a held stage wait before their
//! first instruction.
//!
//! A held process stops itself with SIGSTOP when it executes its program (`sys/clone_exec.rs`). A
//! debugger therefore finds an ordinary stopped process that is not traced. SIGCONT lets the
//! process run. Only this module sends it, because the switch thread ignores held processes.

use std::time::{Duration, Instant};

use score_proto::ids::ElementIndex;
use score_proto::job_control::{DebuggerOrder, JobReport, MAX_BLOCK_PIDS, ProcessBlock};

use super::gang_switch::RunGate;
use super::job_info::{JobInfo, ProcessKey, ShepherdContext};
use super::processes::ProcessTable;
use super::spawn_queue::SpawnQueue;
use crate::sys::{process, process_stop};

/// Interval between checks of processes that do not wait yet.
const CHECK_INTERVAL: Duration = Duration::from_millis(1);

/// See the [module](self).
#[derive(Debug, Default)]
pub struct ProcessList {
    hold: Hold,
    /// Whether the next stage is held.
    hold_is_due: bool,
    /// Whether to list the processes when all of them have been started.
    list_is_due: bool,
}

#[derive(Debug, Default)]
enum Hold {
    /// The processes run.
    #[default]
    Free,
    /// The processes are being started.
    Starting {
        /// Whether to let them run as soon as all of them wait.
        is_released: bool,
    },
    /// All processes have been started. `processes` did not wait at the last check.
    Awaited {
        processes: Vec<ProcessKey>,
        next_check: Instant,
        /// The same as in [`Hold::Starting`].
        is_released: bool,
    },
    /// All processes wait.
    Held {
        /// Whether to let them run in the next slice.
        is_released: bool,
    },
}

impl ProcessList {
    /// Carries out an order.
    pub fn on_order(&mut self, order: DebuggerOrder) {
        match order {
            DebuggerOrder::HoldStage => self.hold_is_due = true,
            DebuggerOrder::ListProcesses => self.list_is_due = true,
            DebuggerOrder::ReleaseStage => self.release(),
        }
    }

    /// Called when a stage starts. Returns whether its processes are held.
    pub fn on_stage_start(&mut self) -> bool {
        let is_held = std::mem::take(&mut self.hold_is_due);
        self.list_is_due = is_held;
        self.hold = if is_held { Hold::Starting { is_released: false } } else { Hold::Free };
        is_held
    }

    /// Lets the processes of the held stage run.
    fn release(&mut self) {
        match &mut self.hold {
            Hold::Free => {}
            Hold::Starting { is_released }
            | Hold::Awaited { is_released, .. }
            | Hold::Held { is_released } => *is_released = true,
        }
    }

    /// Whether the processes of the stage are held.
    pub fn is_holding(&self) -> bool {
        !matches!(self.hold, Hold::Free)
    }

    /// Time of the next check, if some processes do not wait yet.
    pub fn next_check(&self) -> Option<Instant> {
        match &self.hold {
            Hold::Awaited { next_check, .. } => Some(*next_check),
            Hold::Free | Hold::Starting { .. } | Hold::Held { .. } => None,
        }
    }

    /// Whether [`ProcessList::update`] can release the processes of a held stage now.
    pub fn is_release_possible(&self, run_gate: &RunGate) -> bool {
        matches!(self.hold, Hold::Held { is_released: true }) && !run_gate.is_stopped()
    }

    /// Carries out the debugger's orders that are due: checks, lists and releases the processes.
    /// Returns the list.
    pub fn update(
        &mut self,
        now: Instant,
        run_gate: &RunGate,
        mut stage: ListedStage<'_>,
    ) -> Vec<JobReport> {
        if stage.spawn_queue.is_pending() {
            return Vec::new();
        }
        self.check_held(now, &mut stage);
        let is_complete = matches!(self.hold, Hold::Free | Hold::Held { .. });
        let is_listed = is_complete && std::mem::take(&mut self.list_is_due);
        let reports = if is_listed { stage.list() } else { Vec::new() };
        if let Hold::Held { is_released: true } = self.hold
            && let Some(mut run_guard) = run_gate.acquire()
        {
            for pid in run_guard.take_held() {
                process::kill(pid, libc::SIGCONT);
            }
            self.hold = Hold::Free;
        }
        reports
    }

    /// Checks whether all processes of a held stage wait.
    fn check_held(&mut self, now: Instant, stage: &mut ListedStage<'_>) {
        let (processes, is_released) = match &mut self.hold {
            Hold::Starting { is_released } => {
                let processes = stage.processes.running_mut(None).map(|(key, _)| key).collect();
                (processes, *is_released)
            }
            Hold::Awaited { processes, next_check, is_released } if *next_check <= now => {
                (std::mem::take(processes), *is_released)
            }
            Hold::Free | Hold::Awaited { .. } | Hold::Held { .. } => return,
        };
        let (nodes, pre_exec) = match stage.job_info {
            Some(job_info) => (job_info.local_nodes(), stage.spawn_queue.pre_exec_indexes()),
            None => return,
        };
        let table = &stage.processes;
        let is_awaited = |key: &ProcessKey| {
            let Some(pid) = table.pid_of(*key) else { return false };
            let waits = || {
                // A tool may trace it already.
                let is_stopped = |state| matches!(state, b'T' | b't' | b'Z' | b'X');
                process_stop::read_stat(pid).is_none_or(|stat| is_stopped(stat.state))
            };
            pre_exec.contains(&nodes.index(*key)) || !waits()
        };
        let processes: Vec<ProcessKey> = processes.into_iter().filter(is_awaited).collect();
        self.hold = if processes.is_empty() {
            Hold::Held { is_released }
        } else {
            Hold::Awaited { processes, next_check: now + CHECK_INTERVAL, is_released }
        };
    }

    /// Lets held processes of one element, or of all elements, run so that a signal can end them.
    /// They have no handlers yet.
    pub fn on_signal(
        &self,
        signal: i32,
        element: Option<ElementIndex>,
        processes: &mut ProcessTable,
    ) {
        let is_harmless = matches!(
            signal,
            libc::SIGCHLD
                | libc::SIGCONT
                | libc::SIGURG
                | libc::SIGWINCH
                | libc::SIGSTOP
                | libc::SIGTSTP
                | libc::SIGTTIN
                | libc::SIGTTOU
        );
        if self.is_holding() && !is_harmless {
            for (_, running) in processes.running_mut(element) {
                process::kill(running.pid, libc::SIGCONT);
            }
        }
    }
}

/// The running stage, whose processes are listed.
pub struct ListedStage<'a> {
    /// The job.
    pub job_info: Option<&'a JobInfo>,
    /// State of the shepherd.
    pub context: &'a ShepherdContext,
    /// The processes that run.
    pub processes: &'a mut ProcessTable,
    /// The processes that are being started.
    pub spawn_queue: &'a mut SpawnQueue,
}

impl ListedStage<'_> {
    /// The lists of the processes of the stage.
    fn list(&self) -> Vec<JobReport> {
        let Some(job_info) = self.job_info else { return Vec::new() };
        let (host, stage) = (job_info.placement.self_host, job_info.stage as u32);
        let nodes: Vec<u32> = job_info.local_host.node_range().collect();
        let mut reports = Vec::new();
        for element in self.processes.elements() {
            for chunk in nodes.chunks(MAX_BLOCK_PIDS) {
                let pid = |node: &u32| {
                    let pid = self.processes.pid_of(ProcessKey { element, node: *node });
                    let pid = pid.and_then(|pid| self.context.outer_pid(pid));
                    pid.and_then(|pid| u32::try_from(pid).ok()).unwrap_or(0)
                };
                let pids = chunk.iter().map(pid).collect();
                let block = ProcessBlock { host, element, first_node: chunk[0], pids };
                reports.push(JobReport::Processes { stage, blocks: vec![block] });
            }
        }
        reports
    }
}
