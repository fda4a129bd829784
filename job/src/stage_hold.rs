//! The requests of debuggers of the whole job: processes of a stage wait before their first
//! instruction, and the hosts list the processes. The hosts make one list at a time. Requests that
//! arrive before a list begins share it. A job whose processes all wait gives up its processors.

use std::collections::BTreeSet;

use score_proto::ids::JobId;
use score_proto::job_control::{DebuggerOrder, JobOrder, Placement, ProcessBlock};
use score_proto::message::OsBytes;
use score_proto::server_message::{ConsoleAnswer, JobAnswer, ListedProcesses};

use crate::gang::HoldReason;
use crate::jobs::SessionKey;
use crate::master::Outbox;
use crate::scheduling::GangRequest;

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

impl Lister {
    fn session(self) -> Option<SessionKey> {
        match self {
            Self::Session(session_key) => Some(session_key),
            Self::Scrun => None,
        }
    }
}

/// A stage whose processes are listed.
#[derive(Debug)]
pub struct ListedStage<'a> {
    /// The number of the stage.
    pub stage: u32,
    /// The paths of its programs.
    pub paths: &'a [OsBytes],
    /// The hosts of the job.
    pub placement: &'a Placement,
}

impl ListedStage<'_> {
    fn processes(&self) -> u64 {
        self.paths.len() as u64 * u64::from(self.placement.nodes())
    }

    /// The name of the host that reports a block. None: the stage has no such processes.
    fn host_name(&self, block: &ProcessBlock) -> Option<String> {
        let host = self.placement.hosts.get(block.host.index())?;
        (block.element.index() < self.paths.len()).then(|| host.name.clone())
    }
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

    /// A stage is about to start. Its processes are held, if a debugger has requested that. Returns
    /// the order for their list, if the list begins now.
    pub fn before_start(&mut self, stage: &ListedStage, out: &mut Outbox) -> Option<DebuggerOrder> {
        let (before, after) = self.on_stage_start(stage.processes());
        send(before, out);
        after
    }

    /// The order for the start of the stage was sent. `list` is the result of
    /// [`StageHold::before_start`].
    pub fn after_start(&self, list: Option<DebuggerOrder>, stage: &ListedStage, out: &mut Outbox) {
        send(list, out);
        self.announce_list(stage, out);
    }

    /// Ends the hold of the stage, and lets its processes run.
    pub fn release_stage(&mut self, out: &mut Outbox) {
        let order = self.end_hold(out);
        send(order, out);
    }

    /// All processes of the stage have ended.
    pub fn on_stage_end(&mut self, out: &mut Outbox) {
        self.end_hold(out);
    }

    fn end_hold(&mut self, out: &mut Outbox) -> Option<DebuggerOrder> {
        if self.is_held() {
            out.gang(GangRequest::Release(HoldReason::HeldStage));
        }
        self.release()
    }

    /// A recipient requests the list of processes. `is_running`: the processes of the stage have
    /// been started.
    ///
    /// # Errors
    /// One line, if too many sessions wait for lists.
    pub fn request_list(
        &mut self,
        lister: Lister,
        is_running: bool,
        stage: &ListedStage,
        out: &mut Outbox,
    ) -> Result<(), String> {
        let order = self.list(lister, is_running)?;
        if order.is_some() {
            send(order, out);
            self.announce_list(stage, out);
        }
        Ok(())
    }

    /// A list has begun. Each session gets its stage and programs. scrun already has the list of
    /// programs.
    fn announce_list(&self, stage: &ListedStage, out: &mut Outbox) {
        let (number, nodes) = (stage.stage, stage.placement.nodes());
        for session_key in self.listers().filter_map(Lister::session) {
            let programs = stage.paths.to_vec();
            let begin = ListedProcesses::Stage { stage: number, programs, nodes };
            out.to_session(session_key, ConsoleAnswer::Processes(begin));
        }
    }

    /// Hosts have listed processes of the running stage.
    pub fn on_processes(
        &mut self,
        blocks: Vec<ProcessBlock>,
        stage: &ListedStage,
        out: &mut Outbox,
    ) {
        let was_held = self.is_held();
        for block in blocks {
            if let Some(host_name) = stage.host_name(&block)
                && self.on_listed(block.pids.len() as u64)
            {
                self.send_block(stage.stage, &host_name, &block, out);
            }
        }
        if self.is_held() && !was_held {
            // All processes of the stage wait. Meanwhile other jobs can use the processors.
            out.gang(GangRequest::Hold(HoldReason::HeldStage));
        }
        let (finished, order) = self.finish_list();
        for session_key in finished.into_iter().filter_map(Lister::session) {
            out.to_session(session_key, ConsoleAnswer::Finished { code: 0 });
        }
        if order.is_some() {
            send(order, out);
            self.announce_list(stage, out);
        }
    }

    fn send_block(&self, stage: u32, host_name: &str, block: &ProcessBlock, out: &mut Outbox) {
        for lister in self.listers() {
            let (host_name, block) = (host_name.to_owned(), block.clone());
            match lister {
                Lister::Scrun => out.to_client(JobAnswer::Processes { stage, host_name, block }),
                Lister::Session(session_key) => {
                    let part = ListedProcesses::Block { host_name, block };
                    out.to_session(session_key, ConsoleAnswer::Processes(part));
                }
            }
        }
    }

    /// The job ends, or has lost a host. Refuses the sessions that wait for a list.
    pub fn refuse_sessions(&mut self, job: JobId, out: &mut Outbox) {
        for session_key in self.take_sessions() {
            out.refuse(session_key, format!("job {job} ends, or has lost a host"));
        }
    }

    /// Sets whether the processes of stages that start from now on are held.
    pub fn hold_stages(&mut self, hold: bool) {
        self.holds_stages = hold;
    }

    /// A stage with this many processes starts. Returns the orders before and after the order for
    /// the start. If there are requests for a list, the list begins.
    fn on_stage_start(&mut self, processes: u64) -> (Option<DebuggerOrder>, Option<DebuggerOrder>) {
        self.processes = processes;
        // The previous stage has ended before its list was complete.
        self.next_listers.append(&mut self.listers);
        if self.holds_stages {
            self.next_listers.insert(Lister::Scrun);
        }
        self.state = if self.holds_stages { State::Beginning } else { State::Free };
        match (self.holds_stages, self.begin_list()) {
            // The processes of a held stage are listed without another order.
            (true, _) => (Some(DebuggerOrder::HoldStage), None),
            (false, list) => (None, list),
        }
    }

    /// A recipient requests the list of processes. Returns the order if a list begins at once.
    ///
    /// # Errors
    /// One line, if too many sessions wait for lists.
    fn list(&mut self, lister: Lister, is_running: bool) -> Result<Option<DebuggerOrder>, String> {
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
    fn listers(&self) -> impl Iterator<Item = Lister> {
        self.listers.iter().copied()
    }

    /// The hosts have listed this many processes. Returns false if fewer processes were still to be
    /// listed.
    fn on_listed(&mut self, count: u64) -> bool {
        let Some(left) = self.unlisted.checked_sub(count) else { return false };
        self.unlisted = left;
        if left == 0 && self.state == State::Beginning {
            self.state = State::Held;
        }
        true
    }

    /// If the list is complete, returns its recipients, and the order for the next list if one
    /// begins.
    fn finish_list(&mut self) -> (BTreeSet<Lister>, Option<DebuggerOrder>) {
        if self.unlisted > 0 {
            return (BTreeSet::new(), None);
        }
        let finished = std::mem::take(&mut self.listers);
        (finished, self.begin_list())
    }

    /// No list will become complete from now on. Returns the sessions that wait for one.
    fn take_sessions(&mut self) -> Vec<SessionKey> {
        let waiting = self.listers.iter().chain(&self.next_listers).copied();
        let waiting = waiting.filter_map(Lister::session).collect();
        self.listers.retain(|lister| *lister == Lister::Scrun);
        self.next_listers.retain(|lister| *lister == Lister::Scrun);
        waiting
    }

    /// Ends the hold. Returns the order for the hosts if the stage was held.
    fn release(&mut self) -> Option<DebuggerOrder> {
        let was_held = std::mem::replace(&mut self.state, State::Free) != State::Free;
        was_held.then_some(DebuggerOrder::ReleaseStage)
    }

    /// Whether all processes of the running stage wait.
    fn is_held(&self) -> bool {
        self.state == State::Held
    }
}

fn send(order: Option<DebuggerOrder>, out: &mut Outbox) {
    order.into_iter().for_each(|order| out.job_order(JobOrder::Debugger(order)));
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIST: DebuggerOrder = DebuggerOrder::ListProcesses;
    const FIRST: Lister = Lister::Session(SessionKey(1));
    const SECOND: Lister = Lister::Session(SessionKey(2));

    #[test]
    fn a_held_stage_is_listed_once_and_then_released_once() {
        let mut hold = StageHold::new(true);
        assert_eq!(hold.on_stage_start(5), (Some(DebuggerOrder::HoldStage), None));
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
        assert_eq!(hold.on_stage_start(5), (None, None));
        assert!(!hold.on_listed(1), "no list is requested");
        assert_eq!(hold.release(), None);
    }

    #[test]
    fn a_request_between_stages_gets_the_list_of_the_next_stage() {
        let mut hold = StageHold::new(false);
        assert_eq!(hold.list(Lister::Scrun, false), Ok(None));
        assert_eq!(hold.on_stage_start(1), (None, Some(LIST)));
        assert!(hold.on_listed(1) && !hold.is_held());
        assert_eq!(hold.finish_list(), (BTreeSet::from([Lister::Scrun]), None));
        assert_eq!(hold.list(Lister::Scrun, true), Ok(Some(LIST)));
        assert!(hold.on_listed(1) && !hold.on_listed(1));
        hold.finish_list();
        assert_eq!(hold.on_stage_start(1), (None, None));
    }

    #[test]
    fn a_request_during_a_list_gets_the_next_list() {
        let mut hold = StageHold::new(false);
        hold.on_stage_start(2);
        assert_eq!(hold.list(FIRST, true), Ok(Some(LIST)));
        assert!(hold.on_listed(1));
        // Half of the list has been sent, so these recipients would miss that half.
        for late in [SECOND, Lister::Scrun] {
            assert_eq!(hold.list(late, true), Ok(None));
        }
        assert_eq!(hold.finish_list(), (BTreeSet::new(), None));
        assert!(hold.on_listed(1));
        assert_eq!(hold.finish_list(), (BTreeSet::from([FIRST]), Some(LIST)));
        assert_eq!(hold.listers().collect::<Vec<_>>(), [Lister::Scrun, SECOND]);
        // The stage ends before these recipients get their list.
        assert!(hold.on_listed(1));
        assert_eq!(hold.on_stage_start(2), (None, Some(LIST)));
        assert!(hold.on_listed(2) && !hold.on_listed(1));
        assert_eq!(hold.finish_list().0.len(), 2);
        assert_eq!(hold.finish_list(), (BTreeSet::new(), None));
        // The job ends before these recipients get their list.
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
        assert_eq!(hold.list(Lister::Scrun, false), Ok(None), "the limit is for sessions");
    }
}
