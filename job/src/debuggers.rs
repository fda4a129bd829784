//! Decides which processes of a job get a debugger (manual 2.4.4; scrun(1), `debug`). A limited
//! number of processes have one at a time, and the others wait. A debugger is a tool on the host of
//! its process, or a program that scrun starts on its terminal.

use std::collections::VecDeque;

use score_proto::debugger::{DebuggerKind, DebuggerSpec};
use score_proto::job_control::DebuggedProcess;
use score_proto::message::OsBytes;
use score_proto::nodeset::NodeSet;
use score_proto::tool_start::{ToolId, ToolProgram};

/// A node of a parallel process of the running stage.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DebuggedNode {
    /// The parallel process.
    pub element: u32,
    /// The node.
    pub node: u32,
}

/// A process that wants a debugger.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Target {
    /// The node of the process.
    pub node: DebuggedNode,
    /// The name of the process for the user.
    pub label: String,
    /// How a debugger finds it.
    pub process: DebuggedProcess,
    /// The debugger that is started for it.
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
    spec: DebuggerSpec,
    waiting: VecDeque<Target>,
    running: Vec<(Target, Progress)>,
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
    /// No process wants a debugger yet.
    pub fn new(spec: DebuggerSpec) -> Self {
        Self { spec, waiting: VecDeque::new(), running: Vec::new() }
    }

    /// A process wants a debugger. A second request of the same process is ignored.
    pub fn add(&mut self, node: DebuggedNode, label: String, process: DebuggedProcess) {
        if self.nodes().any(|one| one == node) {
            return;
        }
        let kind = match (&self.spec.kind, &process.display) {
            // The process has named a display itself.
            (DebuggerKind::Script(_) | DebuggerKind::Terminal, Some(_)) => DebuggerKind::Xterm,
            (kind, _) => kind.clone(),
        };
        self.waiting.push_back(Target { node, label, process, kind });
    }

    /// The next process whose debugger is started now.
    pub fn start_next(&mut self) -> Option<Target> {
        let is_terminal = |target: &Target| target.kind == DebuggerKind::Terminal;
        let is_taken = self.running.iter().any(|(target, _)| is_terminal(target));
        let has_room = self.running.len() < usize::from(self.spec.max_count);
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

    /// The debugger of a node runs as this tool. Returns false if the node no longer wants a
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
    /// a back-trace instead, unless the back-trace has failed. Returns whether it gets a
    /// back-trace.
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
    pub fn is_busy(&self, element: u32) -> bool {
        self.nodes().any(|node| node.element == element)
    }

    /// Whether any node has a debugger, or waits for one.
    pub fn is_any_busy(&self) -> bool {
        self.nodes().next().is_some()
    }

    /// Removes the nodes of an element that has ended. Returns the tools to kill.
    pub fn on_element_ended(&mut self, element: u32) -> Vec<ToolId> {
        self.waiting.retain(|target| target.node.element != element);
        let (ended, running) = std::mem::take(&mut self.running)
            .into_iter()
            .partition(|(target, _)| target.node.element == element);
        self.running = running;
        let tool = |(_, progress): &(Target, Progress)| match progress {
            Progress::Tool(tool) => Some(*tool),
            Progress::Starting | Progress::OnTerminal => None,
        };
        let ended: Vec<(Target, Progress)> = ended;
        ended.iter().filter_map(tool).collect()
    }

    /// The nodes of an element that have a debugger or wait for one.
    pub fn nodes_of(&self, element: u32) -> NodeSet {
        self.nodes().filter(|one| one.element == element).map(|one| one.node).collect()
    }

    fn nodes(&self) -> impl Iterator<Item = DebuggedNode> + '_ {
        let running = self.running.iter().map(|(target, _)| target.node);
        self.waiting.iter().map(|target| target.node).chain(running)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn process(display: Option<&str>) -> DebuggedProcess {
        DebuggedProcess { pid: 77, display: display.map(str::to_owned), boot_id: "boot".to_owned() }
    }

    fn node(node: u32) -> DebuggedNode {
        DebuggedNode { element: 0, node }
    }

    fn debuggers(max_count: u8, kind: DebuggerKind, nodes: u32) -> Debuggers {
        let mut debuggers = Debuggers::new(DebuggerSpec { max_count, kind });
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
        assert!(!debuggers.on_started(node(2), ToolId(6)), "it has none yet");
        assert_eq!(debuggers.node_of(ToolId(5)), Some(node(0)));
        assert!(!debuggers.on_ended(node(0), false));
        assert_eq!(debuggers.start_next().unwrap().node, node(2));
        assert!(debuggers.on_started(node(2), ToolId(7)));
        assert!(debuggers.is_busy(0) && !debuggers.is_busy(1));
        assert_eq!(debuggers.on_element_ended(0), [ToolId(7)]);
        assert!(!debuggers.is_any_busy());
    }

    #[test]
    fn a_process_whose_debugger_fails_gets_one_back_trace() {
        let mut debuggers = debuggers(1, DebuggerKind::Ddt, 1);
        assert_eq!(words(&debuggers.start_next().unwrap()), "ddt -attach /proc/77/exe 77");
        assert!(debuggers.on_ended(node(0), true));
        let target = debuggers.start_next().unwrap();
        assert_eq!(words(&target), "gdb -q -batch -p 77 -ex backtrace");
        assert!(!debuggers.on_ended(node(0), true));
        assert!(!debuggers.is_any_busy());
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
        assert_eq!(debuggers.nodes_of(0), NodeSet::from(1..3));
    }
}
