//! The requests of debuggers of the whole job: processes of a stage wait before their first
//! instruction, and the hosts list the processes. The hosts make one list at a time. Requests that
//! arrive before a list begins share it.

use std::collections::BTreeSet;

use score_proto::job_control::{DebuggerOrder, JobOrder};

use crate::jobs::SessionKey;

/// Sessions that may wait for lists of a job at the same time.
pub const MAX_LIST_SESSIONS: usize = 64;

/// A recipient of a list of processes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Lister {
    /// scrun, for its debugger.
    Scrun,
    /// A session of start_tool, for its debugger.
    Session(SessionKey),
}

/// See the [module](self).
#[derive(Debug)]
pub struct StageHold {
    /// The processes of stages that start from now on are held.
    holds_stages: bool,
    /// The recipients of the list that the hosts make now.
    listers: BTreeSet<Lister>,
    /// The recipients of the next list.
    next_listers: BTreeSet<Lister>,
    state: State,
    /// Processes that are missing in the list that is being made.
    unlisted: u64,
    /// Processes of the running stage.
    processes: u64,
}

/// The state of the running stage.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// The stage is not held.
    Free,
    /// The stage is held, but some of its processes may not wait yet.
    Beginning,
    /// All of its processes wait.
    Held,
}

impl StageHold {
    /// `holds_stages`: the processes of each stage are held.
    pub const fn new(holds_stages: bool) -> Self {
        Self {
            holds_stages,
            listers: BTreeSet::new(),
            next_listers: BTreeSet::new(),
            state: State::Free,
            unlisted: 0,
            processes: 0,
        }
    }

    /// Sets whether the processes of stages that start from now on are held.
    pub fn hold_stages(&mut self, hold: bool) {
        self.holds_stages = hold;
    }

    /// A stage with this many processes starts. Returns the orders for the hosts. If there are
    /// requests for a list, the list begins.
    pub fn on_stage_start(&mut self, stage: u32, processes: u64) -> Vec<JobOrder> {
        self.processes = processes;
        // The previous stage has ended before its list was complete.
        self.next_listers.append(&mut self.listers);
        if self.holds_stages {
            self.next_listers.insert(Lister::Scrun);
        }
        self.state = if self.holds_stages { State::Beginning } else { State::Free };
        let list = self.begin_list().map(JobOrder::Debugger);
        let start = JobOrder::StartStage(stage);
        match (self.holds_stages, list) {
            (true, _) => vec![JobOrder::Debugger(DebuggerOrder::HoldStage), start],
            (false, list) => [start].into_iter().chain(list).collect(),
        }
    }

    /// A recipient requests the list of processes. Returns the order if a list begins at once.
    ///
    /// # Errors
    /// One line, if too many sessions wait for lists.
    pub fn list(
        &mut self,
        lister: Lister,
        is_running: bool,
    ) -> Result<Option<DebuggerOrder>, String> {
        // scrun gets the list of a held stage anyway, when all processes of the stage wait.
        if self.state == State::Beginning && lister == Lister::Scrun && is_running {
            return Ok(None);
        }
        if lister != Lister::Scrun
            && self.listers.len() + self.next_listers.len() >= MAX_LIST_SESSIONS
        {
            return Err(format!("{MAX_LIST_SESSIONS} debuggers wait for the job's processes"));
        }
        self.next_listers.insert(lister);
        Ok(if is_running && self.unlisted == 0 { self.begin_list() } else { None })
    }

    fn begin_list(&mut self) -> Option<DebuggerOrder> {
        self.listers = std::mem::take(&mut self.next_listers);
        self.unlisted = if self.listers.is_empty() { 0 } else { self.processes };
        (!self.listers.is_empty()).then_some(DebuggerOrder::ListProcesses)
    }

    /// The recipients of the list that the hosts make now.
    pub fn listers(&self) -> impl Iterator<Item = Lister> {
        self.listers.iter().copied()
    }

    /// The hosts have listed this many processes. Returns false if no list was requested.
    pub fn on_listed(&mut self, count: u64) -> bool {
        let Some(left) = self.unlisted.checked_sub(count) else { return false };
        self.unlisted = left;
        if left == 0 && self.state == State::Beginning {
            self.state = State::Held;
        }
        true
    }

    /// If the list is complete, returns its recipients, and the order for the next list if one
    /// begins.
    pub fn finish_list(&mut self) -> (BTreeSet<Lister>, Option<DebuggerOrder>) {
        if self.unlisted > 0 {
            return (BTreeSet::new(), None);
        }
        let finished = std::mem::take(&mut self.listers);
        (finished, self.begin_list())
    }

    /// No list will become complete from now on. Returns the sessions that wait for one.
    pub fn take_sessions(&mut self) -> Vec<SessionKey> {
        let session = |lister: &Lister| match lister {
            Lister::Session(session_key) => Some(*session_key),
            Lister::Scrun => None,
        };
        let waiting = self.listers.iter().chain(&self.next_listers).filter_map(session).collect();
        self.listers.retain(|lister| *lister == Lister::Scrun);
        self.next_listers.retain(|lister| *lister == Lister::Scrun);
        waiting
    }

    /// The client lets a held stage run. Returns the order for the hosts if the stage was held.
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
    const LIST: DebuggerOrder = DebuggerOrder::ListProcesses;
    const FIRST: Lister = Lister::Session(SessionKey(1));
    const SECOND: Lister = Lister::Session(SessionKey(2));

    #[test]
    fn a_held_stage_is_listed_once_and_then_released_once() {
        let mut hold = StageHold::new(true);
        assert_eq!(
            hold.on_stage_start(3, 5),
            [JobOrder::Debugger(DebuggerOrder::HoldStage), START]
        );
        let late = hold.list(Lister::Scrun, true);
        assert_eq!(late, Ok(None), "they are listed when all of them wait");
        assert!(hold.on_listed(3) && !hold.is_held());
        assert!(!hold.on_listed(3), "there are only five");
        assert!(hold.on_listed(2) && hold.is_held());
        assert!(!hold.on_listed(1));
        assert_eq!(hold.finish_list(), (BTreeSet::from([Lister::Scrun]), None));
        assert_eq!(hold.release(), Some(DebuggerOrder::ReleaseStage));
        assert_eq!((hold.release(), hold.is_held()), (None, false));
        hold.hold_stages(false);
        assert_eq!(hold.on_stage_start(3, 5), [START]);
        assert!(!hold.on_listed(1), "nobody has asked");
        assert_eq!(hold.release(), None);
    }

    #[test]
    fn a_request_between_stages_gets_the_list_of_the_next_stage() {
        let mut hold = StageHold::new(false);
        assert_eq!(hold.list(Lister::Scrun, false), Ok(None));
        assert_eq!(hold.on_stage_start(3, 1), [START, JobOrder::Debugger(LIST)]);
        assert!(hold.on_listed(1) && !hold.is_held());
        assert_eq!(hold.finish_list(), (BTreeSet::from([Lister::Scrun]), None));
        assert_eq!(hold.list(Lister::Scrun, true), Ok(Some(LIST)));
        assert!(hold.on_listed(1) && !hold.on_listed(1));
        hold.finish_list();
        assert_eq!(hold.on_stage_start(3, 1), [START]);
    }

    #[test]
    fn a_request_during_a_list_gets_the_next_list() {
        let mut hold = StageHold::new(false);
        hold.on_stage_start(0, 2);
        assert_eq!(hold.list(FIRST, true), Ok(Some(LIST)));
        assert!(hold.on_listed(1));
        // Half of the list has been sent, so these would miss that half.
        for late in [SECOND, Lister::Scrun] {
            assert_eq!(hold.list(late, true), Ok(None));
        }
        assert_eq!(hold.finish_list(), (BTreeSet::new(), None));
        assert!(hold.on_listed(1));
        assert_eq!(hold.finish_list(), (BTreeSet::from([FIRST]), Some(LIST)));
        assert_eq!(hold.listers().collect::<Vec<_>>(), [Lister::Scrun, SECOND]);
        // The stage ends before these get their list.
        assert!(hold.on_listed(1));
        assert_eq!(hold.on_stage_start(3, 2), [START, JobOrder::Debugger(LIST)]);
        assert!(hold.on_listed(2) && !hold.on_listed(1));
        assert_eq!(hold.finish_list().0.len(), 2);
        assert_eq!(hold.finish_list(), (BTreeSet::new(), None));
        // The job ends before these get their list.
        assert_eq!(hold.list(FIRST, true), Ok(Some(LIST)));
        for late in [Lister::Scrun, SECOND] {
            assert_eq!(hold.list(late, true), Ok(None));
        }
        assert_eq!(hold.take_sessions(), [SessionKey(1), SessionKey(2)]);
        assert_eq!(hold.take_sessions(), []);
    }

    #[test]
    fn the_number_of_sessions_that_wait_for_a_list_is_bounded() {
        let mut hold = StageHold::new(false);
        for key in 0..MAX_LIST_SESSIONS {
            assert_eq!(hold.list(Lister::Session(SessionKey(key)), false), Ok(None));
        }
        let one_more = Lister::Session(SessionKey(MAX_LIST_SESSIONS));
        assert!(hold.list(one_more, false).unwrap_err().contains("64 debuggers"));
        assert_eq!(hold.list(Lister::Scrun, false), Ok(None), "scrun is the job's own");
    }
}
