//! The master's part of tools: commands to processes, and tools that run in addition to the job.

use std::time::Duration;

use score_proto::job_control::{FileRequest, Placement, ProgramAnswer};
use score_proto::message::{ToolCall, ToolSession};
use score_proto::nodeset::NodeSet;
use score_proto::server_message::{ConsoleAnswer, JobAnswer};
use score_proto::tool_command::ToolRequest;
use score_proto::tool_files::ToolFileChunk;
use score_proto::tool_start::{ToolAction, ToolActionAnswer, ToolReport};

use super::{JobMaster, MasterAction, PageStacks, State, notice};
use crate::job_tools::{JobTools, ToolRequester, ToolStep};
use crate::jobs::SessionKey;
use crate::tool_commands::{Asker, StagePrograms};

/// How long the status page waits for the stacks of a job.
const PAGE_TIMEOUT: Duration = Duration::from_secs(5);

impl JobMaster {
    /// A session sends a command of a tool.
    pub(super) fn on_tool_call(&mut self, session_key: SessionKey, call: ToolCall) {
        if let Err(reason) = self.begin_tool_command(Asker::Session(session_key), call) {
            self.actions.push(MasterAction::RefuseTool(session_key, reason));
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

    pub(super) fn begin_tool_command(
        &mut self,
        asker: Asker,
        call: ToolCall,
    ) -> Result<(), String> {
        let programs = self.running_programs();
        self.tool_commands.begin(asker, call, programs, self.now, &mut self.actions)
    }

    /// Continues with the parallel processes whose stacks have been read.
    pub(super) fn finish_reading_stacks(&mut self) {
        for asker in self.tool_commands.take_finished_reports() {
            match asker {
                Asker::Fault(number) => self.on_stacks_read(number),
                Asker::Deadlock(number) => self.on_deadlock_stacks_read(number),
                Asker::Session(_) | Asker::Page => {}
            }
        }
    }

    /// Requests the stacks of nodes of an element, for the user.
    pub(super) fn read_stacks(
        &mut self,
        asker: Asker,
        number: u32,
        nodes: &NodeSet,
        request: &ToolRequest,
        timeout: Duration,
    ) -> Result<(), String> {
        let first = number.saturating_mul(self.placement.nodes());
        let ranks = nodes.iter().map(|node| first.saturating_add(node)).collect();
        let wait_ms = u32::try_from(timeout.as_millis()).unwrap_or(u32::MAX);
        let body = request.encode();
        let (job, session) = (self.number, None);
        let call = ToolCall { job, ranks: Some(ranks), wait_ms, body, session };
        self.begin_tool_command(asker, call)
    }

    fn running_programs(&self) -> StagePrograms {
        let names = match self.state {
            State::Running => &self.stage_programs[self.stage][..],
            _ => &[],
        };
        let names = names.iter().map(|(name, _)| name.clone()).collect();
        StagePrograms { names, nodes: self.placement.nodes() }
    }

    /// A tool begins a session, in which it may keep state in processes.
    pub(super) fn on_tool_session(&mut self, session_key: SessionKey, session: ToolSession) {
        let programs = self.running_programs();
        let begun =
            self.tool_commands.begin_session(session_key, session, programs, &mut self.actions);
        if let Err(reason) = begun {
            self.actions.push(MasterAction::RefuseTool(session_key, reason));
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
        let takes_tools = matches!(
            self.state,
            State::ToolDue | State::StageDue | State::Running | State::Draining
        );
        let now = self.now;
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
                ToolStep::Order(order) => self.send_order(order),
                ToolStep::Notice(level, text) => self.actions.push(notice(level, text)),
                ToolStep::Output(text) => self.send_to_client(JobAnswer::ToolOutput(text)),
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
                let answer = ConsoleAnswer::ToolAction(answer);
                let end = ConsoleAnswer::Finished { code };
                let answers = [answer, end].map(|one| MasterAction::ToSession(session_key, one));
                self.actions.extend(answers);
            }
            (ToolRequester::Scrun, answer) => {
                self.send_to_client(JobAnswer::ToolAction(answer));
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
