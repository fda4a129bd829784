//! What a debugger has requested of a job: that the processes of a stage wait before their first
//! instruction, and that the hosts list them.

use score_proto::job_control::{DebuggerOrder, JobOrder};

/// See the [module](self).
#[derive(Debug)]
pub struct StageHold {
    /// The processes of stages that start from now on are held.
    holds_stages: bool,
    /// The processes of the next stage are to be listed when it starts.
    list_due: bool,
    state: State,
    /// Processes that are to be listed before the request is answered.
    unlisted: u64,
    /// Processes of the running stage.
    processes: u64,
}

/// The state of the running stage.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// It runs.
    Free,
    /// Some of its processes may not wait yet.
    Beginning,
    /// All of its processes wait.
    Held,
}

impl StageHold {
    /// `holds_stages`: the processes of each stage are held.
    pub const fn new(holds_stages: bool) -> Self {
        Self { holds_stages, list_due: false, state: State::Free, unlisted: 0, processes: 0 }
    }

    /// Whether the processes of stages that start from now on are held.
    pub fn hold_stages(&mut self, hold: bool) {
        self.holds_stages = hold;
    }

    /// A stage with so many processes starts. Returns the orders for the hosts.
    pub fn on_stage_start(&mut self, stage: u32, processes: u64) -> Vec<JobOrder> {
        self.processes = processes;
        let is_listed = std::mem::take(&mut self.list_due) || self.holds_stages;
        self.unlisted = if is_listed { processes } else { 0 };
        self.state = if self.holds_stages { State::Beginning } else { State::Free };
        let start = JobOrder::StartStage(stage);
        match (self.holds_stages, is_listed) {
            (true, _) => vec![JobOrder::Debugger(DebuggerOrder::HoldStage), start],
            (false, true) => vec![start, JobOrder::Debugger(DebuggerOrder::ListProcesses)],
            (false, false) => vec![start],
        }
    }

    /// The client wants the processes listed: at once, if a stage is running.
    pub fn list(&mut self, is_running: bool) -> Option<DebuggerOrder> {
        match self.state {
            _ if !is_running => {
                self.list_due = true;
                None
            }
            // They are listed when all of them wait.
            State::Beginning => None,
            State::Free | State::Held => {
                self.unlisted = self.processes;
                Some(DebuggerOrder::ListProcesses)
            }
        }
    }

    /// The hosts have listed so many processes. False: nobody has requested that.
    pub fn on_listed(&mut self, count: u64) -> bool {
        let Some(left) = self.unlisted.checked_sub(count) else { return false };
        self.unlisted = left;
        if left == 0 && self.state == State::Beginning {
            self.state = State::Held;
        }
        true
    }

    /// The client lets a held stage run.
    pub fn release(&mut self) -> Option<DebuggerOrder> {
        let was_held = std::mem::replace(&mut self.state, State::Free) != State::Free;
        was_held.then_some(DebuggerOrder::ReleaseStage)
    }

    /// Whether all processes of the running stage wait.
    pub fn is_held(&self) -> bool {
        self.state == State::Held
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const START: JobOrder = JobOrder::StartStage(3);

    #[test]
    fn a_held_stage_is_listed_once_and_then_released_once() {
        let mut hold = StageHold::new(true);
        assert_eq!(
            hold.on_stage_start(3, 5),
            [JobOrder::Debugger(DebuggerOrder::HoldStage), START]
        );
        assert_eq!(hold.list(true), None, "they are listed when all of them wait");
        assert!(hold.on_listed(3) && !hold.is_held());
        assert!(!hold.on_listed(3), "there are only five");
        assert!(hold.on_listed(2) && hold.is_held());
        assert!(!hold.on_listed(1));
        assert_eq!(hold.release(), Some(DebuggerOrder::ReleaseStage));
        assert_eq!((hold.release(), hold.is_held()), (None, false));
        hold.hold_stages(false);
        assert_eq!(hold.on_stage_start(3, 5), [START]);
        assert!(!hold.on_listed(1), "nobody has asked");
        assert_eq!(hold.release(), None);
    }

    #[test]
    fn a_list_that_is_requested_between_stages_is_that_of_the_next_one() {
        let mut hold = StageHold::new(false);
        assert_eq!(hold.list(false), None);
        assert_eq!(
            hold.on_stage_start(3, 1),
            [START, JobOrder::Debugger(DebuggerOrder::ListProcesses)]
        );
        assert!(hold.on_listed(1) && !hold.is_held());
        assert_eq!(hold.list(true), Some(DebuggerOrder::ListProcesses));
        assert!(hold.on_listed(1) && !hold.on_listed(1));
        assert_eq!(hold.on_stage_start(3, 1), [START]);
    }
}
