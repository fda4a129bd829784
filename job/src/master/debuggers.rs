//! The master's part of debuggers for processes that wait after a fault. It connects the elements,
//! which decide when their processes may end, [`Debuggers`](crate::debuggers::Debuggers), and the
//! tools of the job.

use score_proto::ids::ElementIndex;
use score_proto::job_control::{DebuggedProcess, Status};
use score_proto::message::Level;
use score_proto::nodeset::NodeSet;
use score_proto::server_message::{JobAnswer, TerminalDebugger};
use score_proto::tool_start::{ToolActionAnswer, ToolId};

use super::JobMaster;
use crate::debuggers::{self, DebuggedNode, Target};

impl JobMaster {
    /// A process requests a debugger. The process has already reported the reason.
    pub(super) fn on_debugger_wanted(
        &mut self,
        number: ElementIndex,
        node: u32,
        process: DebuggedProcess,
    ) {
        if self.elements.waits_for_debugger(number, node) {
            let label = format!("node {node} of {}", self.elements.name(number));
            self.debuggers.add(DebuggedNode { element: number, node }, label, process);
            self.start_debuggers();
        }
    }

    fn start_debuggers(&mut self) {
        while let Some(target) = self.debuggers.start_next() {
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
                    self.actions.to_client(JobAnswer::OpenDebugger(debugger));
                }
            }
        }
    }

    /// The host of a process has started its debugger, or cannot start it.
    pub(super) fn on_debugger_answer(&mut self, node: DebuggedNode, answer: ToolActionAnswer) {
        match answer {
            ToolActionAnswer::Started(tool) => {
                if !self.debuggers.on_started(node, tool)
                    && let Some(host) = self.placement.host_of(node.node)
                {
                    debuggers::kill(tool, NodeSet::one(host.0), &mut self.actions);
                }
            }
            // Only requests of users send signals.
            ToolActionAnswer::Signaled(_) => {}
            ToolActionAnswer::Refused { reason, .. } => {
                self.actions.notice(Level::Warning, format!("no debugger: {reason}"));
                self.on_debugger_ended(node, true);
            }
        }
    }

    /// A tool has ended on its last host.
    pub(super) fn on_tool_ended(&mut self, tool: ToolId, status: Option<Status>) {
        if let Some(node) = self.debuggers.node_of(tool) {
            // For example, an xterm that cannot reach its display.
            let has_failed = matches!(status, Some(Status::Exited(1..)));
            self.on_debugger_ended(node, has_failed);
        }
    }

    /// The debugger of a node has ended, or there was none.
    pub(super) fn on_debugger_ended(&mut self, node: DebuggedNode, is_refused: bool) {
        self.debuggers.on_ended(node, is_refused);
        self.start_debuggers();
        // The end of the element continues when its last debugger has ended.
        if !self.debuggers.is_busy(node.element) {
            self.debuggers.release_if_idle(&mut self.actions);
            self.elements.on_debugged(node.element, &mut self.actions);
        }
    }
}
