//! The master's part of debuggers for processes that wait after a fault.

use score_proto::job_control::{DebuggedProcess, JobOrder, Order, Status};
use score_proto::message::Level;
use score_proto::nodeset::NodeSet;
use score_proto::server_message::{JobAnswer, TerminalDebugger};
use score_proto::tool_start::{ToolActionAnswer, ToolId, ToolOrder, ToolOrderKind};

use super::{JobMaster, notice};
use crate::debuggers::{DebuggedNode, Target};
use crate::gang::HoldReason;
use crate::scheduling::GangRequest;
use crate::signal;

impl JobMaster {
    /// A process wants a debugger. The process has reported the reason before.
    pub(super) fn on_debugger_wanted(&mut self, number: u32, node: u32, process: DebuggedProcess) {
        let process = DebuggedProcess {
            display: process.display.filter(|text| text.len() <= 256 && !text.contains('\0')),
            ..process
        };
        let Some(part) = self.elements.get(number as usize) else { return };
        let is_waiting = part.element.may_go_on() && part.faults.waits(node);
        let label = format!("node {node} of {}", self.element_name(number));
        let Some(debuggers) = self.debuggers.as_mut().filter(|_| is_waiting) else { return };
        debuggers.add(DebuggedNode { element: number, node }, label, process);
        self.start_debuggers();
    }

    /// Stops the job, so that other jobs get the processors while processes have debuggers.
    pub(super) fn hold_for_debuggers(&mut self, number: u32) {
        if self.debuggers.as_ref().is_none_or(|debuggers| !debuggers.is_busy(number)) {
            // The hosts of these processes cannot identify them for a debugger.
            return self.on_debugged(number);
        }
        if !std::mem::replace(&mut self.is_held_for_debuggers, true) {
            self.send_to_gang(GangRequest::Hold(HoldReason::Debugger));
        }
    }

    fn start_debuggers(&mut self) {
        while let Some(target) = self.debuggers.as_mut().and_then(|one| one.start_next()) {
            match target.tool() {
                Some(program) => {
                    let Target { node, label, .. } = target;
                    let Some(host) = self.placement.host_of(node.node) else { continue };
                    let now = self.now;
                    self.with_tools(|tools, _, out| {
                        tools.start_debugger(node, label, program, host, now, out);
                    });
                }
                None => {
                    let Target { node: DebuggedNode { element, node }, label, process, .. } =
                        target;
                    let debugger = TerminalDebugger { element, node, title: label, process };
                    self.send_to_client(JobAnswer::OpenDebugger(debugger));
                }
            }
        }
    }

    /// The host of a process has started its debugger, or cannot start it.
    pub(super) fn on_debugger_answer(&mut self, node: DebuggedNode, answer: ToolActionAnswer) {
        match answer {
            ToolActionAnswer::Started(tool) => {
                let debuggers = self.debuggers.as_mut();
                if !debuggers.is_some_and(|debuggers| debuggers.on_started(node, tool)) {
                    self.kill_debugger(node, tool);
                }
            }
            // Only requests of users send signals.
            ToolActionAnswer::Signaled(_) => {}
            ToolActionAnswer::Refused { reason, .. } => {
                self.actions.push(notice(Level::Warning, format!("no debugger: {reason}")));
                self.on_debugger_ended(node, true);
            }
        }
    }

    /// A tool has ended on its last host.
    pub(super) fn on_tool_ended(&mut self, tool: ToolId, status: Option<Status>) {
        let node = self.debuggers.as_ref().and_then(|debuggers| debuggers.node_of(tool));
        if let Some(node) = node {
            // For example, an xterm that cannot reach its display.
            let has_failed = matches!(status, Some(Status::Exited(1..)));
            self.on_debugger_ended(node, has_failed);
        }
    }

    /// The debugger of a node has ended, or there was none.
    pub(super) fn on_debugger_ended(&mut self, node: DebuggedNode, is_refused: bool) {
        let Some(debuggers) = &mut self.debuggers else { return };
        debuggers.on_ended(node, is_refused);
        self.start_debuggers();
        self.check_debuggers(node.element);
    }

    /// Continues the end of an element when its last debugger has ended.
    fn check_debuggers(&mut self, number: u32) {
        if self.debuggers.as_ref().is_some_and(|debuggers| debuggers.is_busy(number)) {
            return;
        }
        self.release_debugged();
        self.on_debugged(number);
    }

    /// Lets the job run again if no process has a debugger.
    fn release_debugged(&mut self) {
        if self.debuggers.as_ref().is_none_or(|debuggers| !debuggers.is_any_busy()) {
            self.resume_for_end();
        }
    }

    /// Lets the job run, so that its processes can end.
    pub(super) fn resume_for_end(&mut self) {
        if std::mem::take(&mut self.is_held_for_debuggers) {
            self.send_to_gang(GangRequest::Release(HoldReason::Debugger));
        }
    }

    /// An element has ended. Its debuggers are killed.
    pub(super) fn end_debuggers_of(&mut self, number: u32) {
        let Some(debuggers) = &mut self.debuggers else { return };
        if !debuggers.is_busy(number) {
            return;
        }
        let nodes = debuggers.nodes_of(number);
        let tools = debuggers.on_element_ended(number);
        // Each debugger runs on the host of one of these nodes.
        let hosts: NodeSet =
            nodes.iter().filter_map(|node| Some(self.placement.host_of(node)?.0)).collect();
        for tool in tools {
            let kind = ToolOrderKind::Signal(signal::SIGKILL);
            let order = ToolOrder { tool, hosts: hosts.clone(), kind };
            self.send_order(Order::Job(JobOrder::Tool(order)));
        }
        self.release_debugged();
    }

    fn kill_debugger(&mut self, node: DebuggedNode, tool: ToolId) {
        let Some(host) = self.placement.host_of(node.node) else { return };
        let kind = ToolOrderKind::Signal(signal::SIGKILL);
        let order = ToolOrder { tool, hosts: NodeSet::one(host.0), kind };
        self.send_order(Order::Job(JobOrder::Tool(order)));
    }
}
