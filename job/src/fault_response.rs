//! The job master's response to processes that are about to die of a fault, or that have called
//! sc_inspectme (manual 2.4.4). These processes wait until their stacks have been read.
//!
//! | phase | event | steps |
//! |---|---|---|
//! | none | a fault | |
//! | gathering | 200 ms, or all running nodes have a fault | `ReadStacks` |
//! | reading | the stacks are read, or 3 s | `Title`, then `Release`, `EndInspected`, or both |
//! | dying | 2 s | `EndKilled` |
//! | debugging, instead of gathering and reading | 200 ms | `Hold` |
//! | | the last debugger has ended | `Release`, `EndInspected`, or both |
//! | none, after the report of a deadlock | a fault | `Release`, or `EndInspected` |
//!
//! Programs on many nodes often fail on all of them, but not at the same instant. The times bound
//! how long a fault delays the end of a job.

use std::collections::BTreeMap;
use std::time::Duration;

use score_proto::nodeset::NodeSet;

use crate::cluster::MonotonicTime;
use crate::signal;

/// Faults within this time after the first fault are shown together with it.
const GATHER_WINDOW: Duration = Duration::from_millis(200);
/// How long the reading of the stacks may take.
pub const READ_TIMEOUT: Duration = Duration::from_secs(3);
/// The time in which a released process has to die.
const DEATH_TIMEOUT: Duration = Duration::from_secs(2);

/// An action for the master.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FaultAction {
    /// Read the stacks of these nodes; [`FaultResponse::on_stacks_read`] follows.
    ReadStacks(NodeSet),
    /// Show the stacks below this line.
    Title(String),
    /// Stop the job while its processes have debuggers.
    Hold,
    /// These nodes may die of their signals.
    Release(NodeSet),
    /// End the parallel process, because a node has called sc_inspectme.
    EndInspected {
        /// The argument of the call.
        signal: i32,
        /// A line for the user.
        text: String,
    },
    /// End the parallel process: this node has not died of its signal.
    EndKilled {
        /// The node.
        node: u32,
        /// The signal of the node.
        signal: i32,
    },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum Phase {
    #[default]
    None,
    Gathering(MonotonicTime),
    Reading,
    /// The job runs until this time, so that other nodes can also reach their fault.
    Debugging(Option<MonotonicTime>),
    Dying(MonotonicTime),
    Over,
}

/// The handling of processes with a fault before they end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum Handling {
    /// The stacks of the processes are read.
    #[default]
    Stacks,
    /// The processes get a debugger.
    Debuggers,
    /// The processes end at once: the user has seen their stacks in the report of a deadlock.
    AlreadyShown,
}

/// See the [module](self).
#[derive(Debug, Default)]
pub struct FaultResponse {
    phase: Phase,
    handling: Handling,
    /// The last debugger has ended.
    is_debugged: bool,
    /// Nodes that are about to die, by signal.
    dying: BTreeMap<i32, NodeSet>,
    /// Nodes that have called sc_inspectme.
    inspected: NodeSet,
    /// The first call of sc_inspectme: its argument, and the line for the user.
    first_call: Option<(i32, String)>,
}

impl FaultResponse {
    /// No node has a fault yet.
    pub fn new(has_debuggers: bool) -> Self {
        let handling = if has_debuggers { Handling::Debuggers } else { Handling::Stacks };
        Self { handling, ..Self::default() }
    }

    /// The user has seen the stacks of all nodes. Next, the nodes get the signal of a deadlock.
    pub fn on_stacks_shown(&mut self) {
        if self.handling == Handling::Stacks {
            self.handling = Handling::AlreadyShown;
        }
    }

    /// Whether a node waits and has not been released.
    pub fn waits(&self, node: u32) -> bool {
        let is_released = matches!(self.phase, Phase::Dying(_) | Phase::Over);
        !is_released && self.nodes().contains(node)
    }

    /// Whether a node has had a fault or has called sc_inspectme. The parallel process then ends
    /// soon, and a hang until its end is not a deadlock.
    pub fn is_active(&self) -> bool {
        self.phase != Phase::None
    }

    /// When [`FaultResponse::on_tick`] is due.
    pub fn deadline(&self) -> Option<MonotonicTime> {
        match self.phase {
            Phase::Gathering(deadline) | Phase::Dying(deadline) => Some(deadline),
            Phase::Debugging(deadline) => deadline,
            Phase::None | Phase::Reading | Phase::Over => None,
        }
    }

    /// These nodes are about to die of a signal. `running` are the nodes that have not ended.
    pub fn on_fault(
        &mut self,
        nodes: &NodeSet,
        signal: i32,
        running: &NodeSet,
        now: MonotonicTime,
    ) -> Vec<FaultAction> {
        self.dying.entry(signal).or_default().union(nodes);
        match self.phase {
            Phase::Dying(_) => vec![FaultAction::Release(nodes.clone())],
            _ => self.gather(running, now),
        }
    }

    /// A node has called sc_inspectme.
    pub fn on_inspect(
        &mut self,
        node: u32,
        signal: i32,
        text: String,
        running: &NodeSet,
        now: MonotonicTime,
    ) -> Vec<FaultAction> {
        self.inspected.insert(node);
        self.first_call.get_or_insert((signal, text));
        match self.phase {
            Phase::Dying(_) => self.end_inspected(),
            _ => self.gather(running, now),
        }
    }

    fn gather(&mut self, running: &NodeSet, now: MonotonicTime) -> Vec<FaultAction> {
        self.is_debugged = false;
        match (self.phase, self.handling) {
            (Phase::None, Handling::AlreadyShown) => return self.release(now),
            (Phase::None, Handling::Debuggers) => {
                self.phase = Phase::Debugging(Some(now + GATHER_WINDOW));
            }
            (Phase::None, Handling::Stacks) => self.phase = Phase::Gathering(now + GATHER_WINDOW),
            _ => {}
        }
        let is_complete = running.difference(&self.nodes()).is_empty();
        match self.phase {
            Phase::Gathering(_) if is_complete => self.read(),
            _ => Vec::new(),
        }
    }

    fn read(&mut self) -> Vec<FaultAction> {
        self.phase = Phase::Reading;
        vec![FaultAction::ReadStacks(self.nodes())]
    }

    /// The nodes that wait.
    fn nodes(&self) -> NodeSet {
        let mut nodes = self.inspected.clone();
        self.dying.values().for_each(|dying| nodes.union(dying));
        nodes
    }

    /// The stacks have been read as far as possible. `name` is the name of the program.
    pub fn on_stacks_read(&mut self, name: &str, now: MonotonicTime) -> Vec<FaultAction> {
        if self.phase != Phase::Reading {
            return Vec::new();
        }
        let title = FaultAction::Title(self.title(name));
        std::iter::once(title).chain(self.release(now)).collect()
    }

    /// The last debugger has ended.
    pub fn on_debugged(&mut self, now: MonotonicTime) -> Vec<FaultAction> {
        self.is_debugged = true;
        match self.phase {
            Phase::Debugging(None) => self.release(now),
            _ => Vec::new(),
        }
    }

    fn release(&mut self, now: MonotonicTime) -> Vec<FaultAction> {
        let mut steps = Vec::new();
        self.phase = Phase::Dying(now + DEATH_TIMEOUT);
        let mut dying = NodeSet::new();
        self.dying.values().for_each(|nodes| dying.union(nodes));
        if !dying.is_empty() {
            steps.push(FaultAction::Release(dying));
        }
        steps.extend(self.end_inspected());
        steps
    }

    fn end_inspected(&mut self) -> Vec<FaultAction> {
        match self.first_call.take() {
            Some((signal, text)) => {
                self.phase = Phase::Over;
                vec![FaultAction::EndInspected { signal, text }]
            }
            None => Vec::new(),
        }
    }

    /// Time has passed.
    pub fn on_tick(&mut self, now: MonotonicTime) -> Vec<FaultAction> {
        match self.phase {
            Phase::Gathering(deadline) if deadline <= now => self.read(),
            Phase::Debugging(Some(deadline)) if deadline <= now => {
                self.phase = Phase::Debugging(None);
                if self.is_debugged { self.release(now) } else { vec![FaultAction::Hold] }
            }
            Phase::Dying(deadline) if deadline <= now => {
                self.phase = Phase::Over;
                let first = self.dying.iter().find_map(|(signal, nodes)| {
                    Some(FaultAction::EndKilled { node: nodes.first()?, signal: *signal })
                });
                first.into_iter().collect()
            }
            _ => Vec::new(),
        }
    }

    /// A summary of the faults: `nodes 0-2 of a.out got SIGSEGV, node 3 called sc_inspectme()`.
    fn title(&self, name: &str) -> String {
        let noun = |nodes: &NodeSet| if nodes.len() == 1 { "node" } else { "nodes" };
        let mut parts: Vec<String> = Vec::new();
        let mut add = |nodes: &NodeSet, what: &str| {
            let of = if parts.is_empty() { format!(" of {name}") } else { String::new() };
            parts.push(format!("{} {nodes}{of} {what}", noun(nodes)));
        };
        for (signal, nodes) in &self.dying {
            add(nodes, &format!("got {}", signal::name(*signal)));
        }
        if !self.inspected.is_empty() {
            add(&self.inspected, "called sc_inspectme()");
        }
        parts.join(", ")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const T0: MonotonicTime = Duration::from_secs(9);
    const SIGSEGV: i32 = 11;
    const SIGABRT: i32 = 6;

    fn all() -> NodeSet {
        NodeSet::from(0..4)
    }

    fn after(time: Duration) -> MonotonicTime {
        T0 + time
    }

    #[test]
    fn stacks_of_nearly_simultaneous_faults_are_read_together() {
        let mut response = FaultResponse::default();
        assert!(!response.is_active());
        assert_eq!(response.on_fault(&NodeSet::one(1), SIGSEGV, &all(), T0), []);
        assert!(response.is_active());
        assert_eq!(response.deadline(), Some(after(GATHER_WINDOW)));
        assert_eq!(response.on_fault(&NodeSet::one(3), SIGABRT, &all(), T0), []);
        assert_eq!(response.on_tick(T0), []);
        let two: NodeSet = [1, 3].into_iter().collect();
        let steps = response.on_tick(after(GATHER_WINDOW));
        assert_eq!(steps, [FaultAction::ReadStacks(two.clone())]);
        // A node with a fault during the reading of the stacks dies with the other nodes.
        assert_eq!(response.on_fault(&NodeSet::one(0), SIGSEGV, &all(), T0), []);
        let title = "node 3 of a.out got SIGABRT, nodes 0-1 got SIGSEGV".to_owned();
        let released: NodeSet = [0, 1, 3].into_iter().collect();
        assert_eq!(
            response.on_stacks_read("a.out", T0),
            [FaultAction::Title(title), FaultAction::Release(released)]
        );
        assert_eq!(response.on_stacks_read("a.out", T0), []);
        let late = NodeSet::one(2);
        let release = FaultAction::Release(late.clone());
        assert_eq!(response.on_fault(&late, SIGSEGV, &all(), T0), [release]);
    }

    #[test]
    fn the_report_does_not_wait_if_all_running_nodes_have_a_fault() {
        let mut response = FaultResponse::default();
        let running = NodeSet::from(1..4);
        let steps = response.on_fault(&running, SIGSEGV, &running, T0);
        assert_eq!(steps, [FaultAction::ReadStacks(running)]);
        assert_eq!(response.deadline(), None);
    }

    #[test]
    fn a_call_of_sc_inspectme_shows_its_stack_and_ends_the_parallel_process() {
        let mut response = FaultResponse::default();
        let text = |node| format!("node {node} called");
        assert_eq!(response.on_inspect(2, 7, text(2), &all(), T0), []);
        assert_eq!(response.on_inspect(0, 8, text(0), &all(), T0), []);
        assert_eq!(response.on_tick(after(GATHER_WINDOW)).len(), 1);
        let title = FaultAction::Title("nodes 0, 2 of a.out called sc_inspectme()".to_owned());
        let end = FaultAction::EndInspected { signal: 7, text: text(2) };
        assert_eq!(response.on_stacks_read("a.out", T0), [title, end]);
        assert_eq!(response.deadline(), None);
    }

    #[test]
    fn with_debuggers_no_stack_is_read_and_all_nodes_continue_after_the_last_debugger() {
        let mut response = FaultResponse::new(true);
        assert_eq!(response.on_fault(&all(), SIGSEGV, &all(), T0), []);
        assert_eq!(response.deadline(), Some(after(GATHER_WINDOW)));
        assert!(response.is_active() && response.waits(3) && !response.waits(4));
        assert_eq!(response.on_tick(after(GATHER_WINDOW)), [FaultAction::Hold]);
        assert_eq!(response.deadline(), None);
        assert_eq!(response.on_debugged(T0), [FaultAction::Release(all())]);
        assert!(!response.waits(3));
        assert_eq!(response.on_debugged(T0), []);
    }

    #[test]
    fn a_debugger_that_ends_at_once_does_not_end_the_job_before_further_faults() {
        let mut response = FaultResponse::new(true);
        response.on_fault(&NodeSet::one(0), SIGSEGV, &all(), T0);
        assert_eq!(response.on_debugged(T0), []);
        response.on_fault(&NodeSet::one(1), SIGSEGV, &all(), T0);
        assert_eq!(response.on_debugged(T0), []);
        let released = FaultAction::Release(NodeSet::from(0..2));
        assert_eq!(response.on_tick(after(GATHER_WINDOW)), [released]);
    }

    #[test]
    fn without_debuggers_no_stack_is_read_again_after_the_report_of_a_deadlock() {
        let text = || "node 2 called".to_owned();
        let mut response = FaultResponse::new(false);
        response.on_stacks_shown();
        let end = FaultAction::EndInspected { signal: 1, text: text() };
        assert_eq!(response.on_inspect(2, 1, text(), &all(), T0), [end]);
        let mut response = FaultResponse::new(true);
        response.on_stacks_shown();
        assert_eq!(response.on_inspect(2, 1, text(), &all(), T0), []);
        assert_eq!(response.on_tick(after(GATHER_WINDOW)), [FaultAction::Hold]);
    }

    #[test]
    fn a_process_that_does_not_die_is_killed() {
        let mut response = FaultResponse::default();
        response.on_fault(&NodeSet::from(2..4), SIGABRT, &all(), T0);
        response.on_tick(after(GATHER_WINDOW));
        response.on_stacks_read("a.out", T0);
        assert_eq!(response.on_tick(T0), []);
        let end = FaultAction::EndKilled { node: 2, signal: SIGABRT };
        assert_eq!(response.on_tick(after(DEATH_TIMEOUT)), [end]);
        assert_eq!(response.on_tick(after(2 * DEATH_TIMEOUT)), []);
    }
}
