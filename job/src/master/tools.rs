//! The master's part of tools: commands to processes, and tools that run in addition to the job.

use std::time::Duration;

use score_proto::job_control::{FileRequest, Placement, ProgramAnswer};
use score_proto::message::{ToolCall, ToolSession};
use score_proto::nodeset::NodeSet;
use score_proto::server_message::{ConsoleAnswer, JobAnswer};
use score_proto::tool_command::ToolRequest;
use score_proto::tool_files::ToolFileChunk;
use score_proto::tool_start::{ToolAction, ToolActionAnswer, ToolReport};

use super::{JobMaster, MasterAction, PageStacks, State};
use crate::job_tools::{JobTools, ToolRequester, ToolStep};
use crate::jobs::SessionKey;
use crate::tool_commands::{Asker, StagePrograms};

/// How long the status page waits for the stacks of a job.
const PAGE_TIMEOUT: Duration = Duration::from_secs(5);

impl JobMaster {
    /// A session sends a command of a tool.
    pub(super) fn on_tool_call(&mut self, session_key: SessionKey, call: ToolCall) {
        if let Err(reason) = self.begin_tool_command(Asker::Session(session_key), call) {
            self.actions.refuse(session_key, reason);
        }
    }

    /// A reader of the status page requests the stacks of all ranks.
    pub(super) fn on_page_stacks(&mut self) {
        let wait_ms = u32::try_from(PAGE_TIMEOUT.as_millis()).unwrap_or(u32::MAX);
        let body = ToolRequest::Stacks { lines: true }.encode();
        let call = ToolCall { job: self.number, ranks: None, wait_ms, body, session: None };
        if let Err(reason) = self.begin_tool_command(Asker::Page, call) {
            self.actions.push(MasterAction::ToPage(PageStacks::Refused(reason)));
        }
    }

    fn begin_tool_command(&mut self, asker: Asker, call: ToolCall) -> Result<(), String> {
        let programs = self.running_programs();
        self.tool_commands.begin(asker, call, programs, self.now, &mut self.actions)
    }

    /// Reads stacks of ranks, for the user.
    pub(super) fn read_stacks(
        &mut self,
        asker: Asker,
        ranks: NodeSet,
        request: &ToolRequest,
        timeout: Duration,
    ) -> Result<(), String> {
        let wait_ms = u32::try_from(timeout.as_millis()).unwrap_or(u32::MAX);
        let (job, body, session) = (self.number, request.encode(), None);
        let call = ToolCall { job, ranks: Some(ranks), wait_ms, body, session };
        self.begin_tool_command(asker, call)
    }

    fn running_programs(&self) -> StagePrograms {
        let names = match self.state {
            State::Running => self.elements.names(),
            _ => Vec::new(),
        };
        StagePrograms { names, nodes: self.placement.nodes() }
    }

    /// A tool begins a session, in which it may keep state in processes.
    pub(super) fn on_tool_session(&mut self, session_key: SessionKey, session: ToolSession) {
        let programs = self.running_programs();
        let begun =
            self.tool_commands.begin_session(session_key, session, programs, &mut self.actions);
        if let Err(reason) = begun {
            self.actions.refuse(session_key, reason);
        }
    }

    /// The session of a tool or of start_tool has ended. Processes that the tool has changed get
    /// the command for the end of the session.
    pub(super) fn on_tool_session_end(&mut self, session_key: SessionKey) {
        let programs = self.running_programs();
        self.tool_commands.end_session(session_key, &programs, &mut self.actions);
        self.with_tools(|tools, _, out| tools.on_session_ended(session_key, out));
    }

    /// start_tool sends bytes of the files of its tool.
    pub(super) fn on_tool_file(&mut self, session_key: SessionKey, chunk: ToolFileChunk) {
        let ToolFileChunk { hash, offset, bytes, job: _ } = chunk;
        let (answer, now) = (ProgramAnswer::Chunk { hash, offset, bytes }, self.now);
        self.with_tools(|tools, _, out| tools.on_file_chunk(session_key, answer, now, out));
    }

    /// The first host requests bytes of the files of a tool.
    pub(super) fn on_tool_file_request(&mut self, request: FileRequest) {
        let now = self.now;
        self.with_tools(|tools, _, out| tools.on_file_request(request, now, out));
    }

    /// A requester starts a tool, or sends a signal to a tool.
    pub(super) fn on_tool_action(&mut self, requester: ToolRequester, action: ToolAction) {
        let (takes_tools, now) = (self.state.has_hosts(), self.now);
        self.with_tools(|tools, placement, out| {
            tools.on_action(requester, action, takes_tools.then_some(placement), now, out);
        });
    }

    pub(super) fn on_session_tool_action(&mut self, key: SessionKey, action: ToolAction) {
        self.on_tool_action(ToolRequester::Session(key), action);
    }

    pub(super) fn tick_tools(&mut self) {
        let now = self.now;
        self.with_tools(|tools, placement, out| tools.on_tick(placement, now, out));
    }

    pub(super) fn on_tools_lost(&mut self, hosts: std::ops::Range<u32>) {
        let now = self.now;
        self.with_tools(|tools, placement, out| tools.on_hosts_lost(hosts, placement, now, out));
    }

    pub(super) fn on_tool_report(&mut self, report: ToolReport) {
        let now = self.now;
        self.with_tools(|tools, placement, out| tools.on_report(report, placement, now, out));
    }

    pub(super) fn with_tools(
        &mut self,
        update: impl FnOnce(&mut JobTools, &Placement, &mut Vec<ToolStep>),
    ) {
        let mut steps = Vec::new();
        update(&mut self.tools, &self.placement, &mut steps);
        for step in steps {
            match step {
                ToolStep::Order(order) => self.actions.order(order),
                ToolStep::Notice(level, text) => self.actions.notice(level, text),
                ToolStep::Output(text) => self.actions.to_client(JobAnswer::ToolOutput(text)),
                ToolStep::Answer(requester, answer) => self.answer_tool_action(requester, answer),
                ToolStep::RequestFile(session_key, request) => {
                    let request = ConsoleAnswer::ToolFileRequest(request);
                    self.actions.push(MasterAction::ToSession(session_key, request));
                }
                ToolStep::Ended(tool, status) => self.on_tool_ended(tool, status),
            }
        }
    }

    fn answer_tool_action(&mut self, requester: ToolRequester, answer: ToolActionAnswer) {
        match (requester, answer) {
            (ToolRequester::Session(session_key), answer) => {
                let code = match &answer {
                    ToolActionAnswer::Started(_) | ToolActionAnswer::Signaled(_) => 0,
                    ToolActionAnswer::Refused { code, .. } => *code,
                };
                self.actions.to_session(session_key, ConsoleAnswer::ToolAction(answer));
                self.actions.to_session(session_key, ConsoleAnswer::Finished { code });
            }
            (ToolRequester::Scrun, answer) => {
                self.actions.to_client(JobAnswer::ToolAction(answer));
            }
            (ToolRequester::Job, ToolActionAnswer::Started(_)) if self.state == State::ToolDue => {
                self.begin_stage(0);
            }
            (ToolRequester::Job, ToolActionAnswer::Refused { code, reason })
                if self.state == State::ToolDue =>
            {
                self.finish(Some(reason), code);
            }
            (ToolRequester::Job, _) => {}
            (ToolRequester::Debugger(node), answer) => self.on_debugger_answer(node, answer),
        }
    }
}
