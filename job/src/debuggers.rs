//! Decides which processes of a job get a debugger (manual 2.4.4; scrun(1), `debug`). A limited
//! number of processes have a debugger at the same time, and the others wait. A debugger is a tool
//! on the host of its process, or a program that scrun starts on its terminal. The job is held
//! while it waits for the debuggers of a parallel process, so that other jobs get the processors.

use std::collections::VecDeque;

use score_proto::debugger::{DebuggerKind, DebuggerSpec};
use score_proto::ids::ElementIndex;
use score_proto::job_control::{DebuggedProcess, JobOrder, Placement};
use score_proto::message::OsBytes;
use score_proto::nodeset::NodeSet;
use score_proto::tool_start::{ToolId, ToolOrder, ToolOrderKind, ToolProgram};

use crate::gang::HoldReason;
use crate::master::Outbox;
use crate::scheduling::GangRequest;
use crate::signal;

/// A node of a parallel process of the running stage.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DebuggedNode {
    /// The parallel process.
    pub element: ElementIndex,
    /// The node.
    pub node: u32,
}

/// A process that gets a debugger.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Target {
    /// The node of the process.
    pub node: DebuggedNode,
    /// The name of the process for the user.
    pub label: String,
    /// The data by which a debugger finds the process.
    pub process: DebuggedProcess,
    /// The debugger that is started for the process.
    pub kind: DebuggerKind,
}

/// The progress of a debugger.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Progress {
    /// The host starts the debugger.
    Starting,
    /// The debugger runs as this tool.
    Tool(ToolId),
    /// scrun runs the debugger on its terminal.
    OnTerminal,
}

/// See the [module](self).
#[derive(Debug)]
pub struct Debuggers {
    /// None: the user wants no debuggers.
    spec: Option<DebuggerSpec>,
    waiting: VecDeque<Target>,
    running: Vec<(Target, Progress)>,
    hold: JobHold,
}

/// Whether the job is stopped because processes have debuggers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum JobHold {
    Free,
    Held,
}

fn word(text: impl Into<String>) -> OsBytes {
    OsBytes(text.into().into_bytes())
}

impl Target {
    /// The tool that debugs the process. None if scrun starts the debugger on its terminal.
    pub fn tool(&self) -> Option<ToolProgram> {
        let pid = self.process.pid.to_string();
        let (path, arguments) = match &self.kind {
            DebuggerKind::Terminal => return None,
            DebuggerKind::Xterm => {
                let mut words = Vec::new();
                if let Some(display) = &self.process.display {
                    words.extend([word("-display"), word(display.clone())]);
                }
                let rest = ["-T", &self.label, "-e", "gdb", "-q", "-p", &pid];
                words.extend(rest.map(word));
                ("xterm", words)
            }
            DebuggerKind::Script(script) => {
                let mut words = ["-q", "-batch", "-p", &pid].map(word).to_vec();
                match script {
                    Some(path) => words.extend([word("-x"), path.clone()]),
                    None => words.extend(["-ex", "backtrace"].map(word)),
                }
                ("gdb", words)
            }
            DebuggerKind::Ddt => {
                let program = format!("/proc/{pid}/exe");
                ("ddt", ["-attach", &program, &pid].map(word).to_vec())
            }
        };
        Some(ToolProgram { path: word(path), arguments })
    }
}

impl Debuggers {
    /// The state in which no process has requested a debugger.
    pub fn new(spec: Option<DebuggerSpec>) -> Self {
        Self { spec, waiting: VecDeque::new(), running: Vec::new(), hold: JobHold::Free }
    }

    /// Whether the user wants debuggers.
    pub fn are_wanted(&self) -> bool {
        self.spec.is_some()
    }

    /// A process requests a debugger. A second request of the same process is ignored.
    pub fn add(&mut self, node: DebuggedNode, label: String, process: DebuggedProcess) {
        let is_known = self.nodes().any(|one| one == node);
        let Some(spec) = self.spec.as_ref().filter(|_| !is_known) else { return };
        let display = process.display.filter(|text| text.len() <= 256 && !text.contains('\0'));
        let process = DebuggedProcess { display, ..process };
        let kind = match (&spec.kind, &process.display) {
            // The process itself has specified a display.
            (DebuggerKind::Script(_) | DebuggerKind::Terminal, Some(_)) => DebuggerKind::Xterm,
            (kind, _) => kind.clone(),
        };
        self.waiting.push_back(Target { node, label, process, kind });
    }

    /// The next process whose debugger is started now.
    pub fn start_next(&mut self) -> Option<Target> {
        let is_terminal = |target: &Target| target.kind == DebuggerKind::Terminal;
        let is_taken = self.running.iter().any(|(target, _)| is_terminal(target));
        let has_room = self.running.len() < usize::from(self.spec.as_ref()?.max_count);
        let may_start = |target: &Target| has_room && !(is_taken && is_terminal(target));
        let index = self.waiting.iter().position(may_start)?;
        let target = self.waiting.remove(index)?;
        let progress = match is_terminal(&target) {
            true => Progress::OnTerminal,
            false => Progress::Starting,
        };
        self.running.push((target.clone(), progress));
        Some(target)
    }

    /// The debugger of a node runs as this tool. Returns false if the node no longer waits for a
    /// debugger.
    pub fn on_started(&mut self, node: DebuggedNode, tool: ToolId) -> bool {
        let entry = self.running.iter_mut().find(|(target, _)| target.node == node);
        entry.is_some_and(|(_, progress)| {
            let is_starting = *progress == Progress::Starting;
            *progress = Progress::Tool(tool);
            is_starting
        })
    }

    /// The node that this tool debugs.
    pub fn node_of(&self, tool: ToolId) -> Option<DebuggedNode> {
        let is_tool = |(_, progress): &&(Target, Progress)| *progress == Progress::Tool(tool);
        self.running.iter().find(is_tool).map(|(target, _)| target.node)
    }

    /// The debugger of a node has ended, or could not be started. If `is_refused`, the process gets
    /// a back-trace instead, unless the debugger was a script of gdb. Returns whether the process
    /// gets a back-trace.
    pub fn on_ended(&mut self, node: DebuggedNode, is_refused: bool) -> bool {
        let Some(index) = self.running.iter().position(|(target, _)| target.node == node) else {
            return false;
        };
        let (mut target, _) = self.running.remove(index);
        let is_replaced = is_refused && !matches!(target.kind, DebuggerKind::Script(_));
        if is_replaced {
            target.kind = DebuggerKind::Script(None);
            self.waiting.push_front(target);
        }
        is_replaced
    }

    /// Whether a node of an element has a debugger, or waits for one.
    pub fn is_busy(&self, element: ElementIndex) -> bool {
        self.nodes().any(|node| node.element == element)
    }

    /// Stops the job while processes of an element have debuggers. Returns false if no process of
    /// the element has a debugger or waits for one.
    pub fn hold(&mut self, element: ElementIndex, out: &mut Outbox) -> bool {
        if !self.is_busy(element) {
            return false;
        }
        if std::mem::replace(&mut self.hold, JobHold::Held) == JobHold::Free {
            out.gang(GangRequest::Hold(HoldReason::Debugger));
        }
        true
    }

    /// Lets the job run if no process has a debugger or waits for one.
    pub fn release_if_idle(&mut self, out: &mut Outbox) {
        if self.nodes().next().is_none() {
            self.release(out);
        }
    }

    /// Lets the job run, so that its processes can end.
    pub fn release(&mut self, out: &mut Outbox) {
        if std::mem::replace(&mut self.hold, JobHold::Free) == JobHold::Held {
            out.gang(GangRequest::Release(HoldReason::Debugger));
        }
    }

    /// Kills the debuggers of an element that has ended.
    pub fn on_element_ended(
        &mut self,
        element: ElementIndex,
        placement: &Placement,
        out: &mut Outbox,
    ) {
        if !self.is_busy(element) {
            return;
        }
        // Each debugger runs on the host of one of these nodes.
        let nodes = self.nodes().filter(|one| one.element == element);
        let hosts: NodeSet = nodes.filter_map(|one| Some(placement.host_of(one.node)?.0)).collect();
        for tool in self.remove_element(element) {
            kill(tool, hosts.clone(), out);
        }
        self.release_if_idle(out);
    }

    /// Removes the nodes of an element that has ended. Returns the tools to kill.
    fn remove_element(&mut self, element: ElementIndex) -> Vec<ToolId> {
        self.waiting.retain(|target| target.node.element != element);
        let is_ended = |(target, _): &mut (Target, Progress)| target.node.element == element;
        let ended = self.running.extract_if(.., is_ended);
        let tool = |(_, progress): (Target, Progress)| match progress {
            Progress::Tool(tool) => Some(tool),
            Progress::Starting | Progress::OnTerminal => None,
        };
        ended.filter_map(tool).collect()
    }

    fn nodes(&self) -> impl Iterator<Item = DebuggedNode> + '_ {
        let running = self.running.iter().map(|(target, _)| target.node);
        self.waiting.iter().map(|target| target.node).chain(running)
    }
}

/// Kills the debugger that runs as this tool.
pub fn kill(tool: ToolId, hosts: NodeSet, out: &mut Outbox) {
    let kind = ToolOrderKind::Signal(signal::SIGKILL);
    out.job_order(JobOrder::Tool(ToolOrder { tool, hosts, kind }));
}

#[cfg(test)]
mod tests {
    use score_proto::job_control::Order;
    use score_proto::peer_message::JobIncarnation;

    use super::*;
    use crate::master::MasterAction;

    fn process(display: Option<&str>) -> DebuggedProcess {
        DebuggedProcess { pid: 77, display: display.map(str::to_owned), boot_id: "boot".to_owned() }
    }

    fn node(node: u32) -> DebuggedNode {
        DebuggedNode { element: ElementIndex(0), node }
    }

    fn debuggers(max_count: u8, kind: DebuggerKind, nodes: u32) -> Debuggers {
        let mut debuggers = Debuggers::new(Some(DebuggerSpec { max_count, kind }));
        (0..nodes).for_each(|one| debuggers.add(node(one), "a.out".to_owned(), process(None)));
        debuggers
    }

    fn words(target: &Target) -> String {
        let tool = target.tool().unwrap();
        let words = std::iter::once(&tool.path).chain(&tool.arguments);
        let words = words.map(|word| String::from_utf8_lossy(&word.0).into_owned());
        words.collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn the_number_of_concurrent_debuggers_is_bounded_and_further_processes_wait() {
        let mut debuggers = debuggers(2, DebuggerKind::Xterm, 3);
        debuggers.add(node(0), String::new(), process(None));
        let first = debuggers.start_next().unwrap();
        assert_eq!(words(&first), "xterm -T a.out -e gdb -q -p 77");
        assert_eq!(debuggers.start_next().unwrap().node, node(1));
        assert_eq!(debuggers.start_next(), None);
        assert!(debuggers.on_started(node(0), ToolId(5)));
        assert!(!debuggers.on_started(node(2), ToolId(6)), "node 2 has no debugger yet");
        assert_eq!(debuggers.node_of(ToolId(5)), Some(node(0)));
        assert!(!debuggers.on_ended(node(0), false));
        assert_eq!(debuggers.start_next().unwrap().node, node(2));
        assert!(debuggers.on_started(node(2), ToolId(7)));
        assert!(debuggers.is_busy(ElementIndex(0)) && !debuggers.is_busy(ElementIndex(1)));
        assert_eq!(debuggers.remove_element(ElementIndex(0)), [ToolId(7)]);
        assert!(!debuggers.is_busy(ElementIndex(0)));
    }

    #[test]
    fn a_process_whose_debugger_fails_gets_one_back_trace() {
        let mut debuggers = debuggers(1, DebuggerKind::Ddt, 1);
        assert_eq!(words(&debuggers.start_next().unwrap()), "ddt -attach /proc/77/exe 77");
        assert!(debuggers.on_ended(node(0), true));
        let target = debuggers.start_next().unwrap();
        assert_eq!(words(&target), "gdb -q -batch -p 77 -ex backtrace");
        assert!(!debuggers.on_ended(node(0), true));
        assert!(!debuggers.is_busy(ElementIndex(0)));
    }

    #[test]
    fn one_debugger_uses_the_terminal_and_another_uses_a_named_display() {
        let mut debuggers = debuggers(4, DebuggerKind::Terminal, 2);
        debuggers.add(node(2), "a.out".to_owned(), process(Some(":3")));
        assert_eq!(debuggers.start_next().unwrap().tool(), None);
        let named = debuggers.start_next().unwrap();
        assert_eq!(words(&named), "xterm -display :3 -T a.out -e gdb -q -p 77");
        assert_eq!(debuggers.start_next(), None);
        assert!(!debuggers.on_ended(node(0), false));
        assert_eq!(debuggers.start_next().unwrap().node, node(1));
    }

    #[test]
    fn the_job_is_held_until_no_process_has_a_debugger() {
        let (mut debuggers, mut out) = (debuggers(2, DebuggerKind::Ddt, 2), Outbox::default());
        let hold = MasterAction::Gang(GangRequest::Hold(HoldReason::Debugger));
        let release = MasterAction::Gang(GangRequest::Release(HoldReason::Debugger));
        assert!(
            !debuggers.hold(ElementIndex(1), &mut out),
            "no process of this element has a debugger"
        );
        assert!(
            debuggers.hold(ElementIndex(0), &mut out) && debuggers.hold(ElementIndex(0), &mut out)
        );
        assert_eq!(out.take(), [hold]);
        for _ in 0..2 {
            debuggers.release_if_idle(&mut out);
            assert_eq!(out.take(), []);
            let target = debuggers.start_next().unwrap();
            debuggers.on_ended(target.node, false);
        }
        debuggers.release_if_idle(&mut out);
        debuggers.release(&mut out);
        assert_eq!(out.take(), [release]);
    }

    #[test]
    fn the_debuggers_of_an_element_that_ends_are_killed_on_the_hosts_of_its_nodes() {
        let (mut debuggers, mut out) = (debuggers(2, DebuggerKind::Ddt, 2), Outbox::default());
        let hosts = ["h0", "h1", "h2"].map(|name| (name.to_owned(), None, 1));
        let placement = Placement::new(JobIncarnation(0), hosts);
        debuggers.start_next().unwrap();
        assert!(debuggers.on_started(node(0), ToolId(5)));
        debuggers.on_element_ended(ElementIndex(1), &placement, &mut out);
        assert_eq!(out.take(), []);
        debuggers.on_element_ended(ElementIndex(0), &placement, &mut out);
        let (hosts, kind) = (NodeSet::from(0..2), ToolOrderKind::Signal(signal::SIGKILL));
        let order = JobOrder::Tool(ToolOrder { tool: ToolId(5), hosts, kind });
        assert_eq!(out.take(), [MasterAction::Order(Order::Job(order))]);
        assert!(!debuggers.is_busy(ElementIndex(0)));
    }

    #[test]
    fn no_process_gets_a_debugger_if_the_user_wants_none() {
        let mut debuggers = Debuggers::new(None);
        debuggers.add(node(0), String::new(), process(None));
        assert_eq!((debuggers.are_wanted(), debuggers.start_next()), (false, None));
    }
}
