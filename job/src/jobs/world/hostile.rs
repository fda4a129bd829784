//! Hostile users: at any time, their clients send any request and their shepherds any report.

use score_proto::ids::{ElementIndex, JobHostId, JobId};
use score_proto::job_control::{
    ElementReport, FileRequest, JobReport, OutputReport, ProcessBlock, ProgramAnswer,
    ShepherdReport, Status, SubsetFence, SwitchReport, SwitchSeq,
};
use score_proto::message::{DebuggerRequest, FileDigest, JobRequest, Level, OsBytes, Stream};
use score_proto::nodeset::NodeSet;
use score_proto::observation::{Activity, ActivitySample, IdleSummary, Metrics, SampleRound};
use score_proto::tool_files::ToolFileChunk;
use score_proto::tool_start::{ToolAction, ToolEventKind, ToolId, ToolProgram, ToolReport};

use super::{Event, LAST_FAULT_AT, SERVER_HOST, World};
use crate::jobs::{Input, LocalReport, SessionKey};

impl World {
    /// A hostile user acts, and schedules the next attack.
    pub fn attack(&mut self, job: JobId) {
        for _ in 0..=self.random.below(4) {
            if self.random.chance(40) {
                let request = self.any_request();
                self.input(SERVER_HOST, Input::FromSession(job, request));
                continue;
            }
            if self.random.chance(20) {
                let input = self.any_input_of_start_tool(job);
                self.input(SERVER_HOST, input);
                continue;
            }
            let hosts = &self.jobs[&job].hosts;
            let host = hosts[self.random.below(hosts.len() as u64) as usize];
            if self.hosts[host].shepherds.get(&job).is_some_and(|one| !one.has_ended()) {
                let report = self.any_report();
                self.report(host, job, report);
            }
        }
        if self.now < LAST_FAULT_AT && self.jobs[&job].code.is_none() {
            let delay = self.random.time(0, 200);
            self.at(delay, Event::Attack(job));
        }
    }

    fn any_number(&mut self) -> u64 {
        match self.random.below(4) {
            0 => self.random.below(4),
            1 => self.random.below(100),
            2 => u64::MAX - self.random.below(3),
            _ => self.random.below(u64::MAX),
        }
    }

    fn any_nodes(&mut self) -> NodeSet {
        let first = self.any_number() as u32;
        NodeSet::from(first..first.saturating_add(self.random.below(5) as u32))
    }

    fn any_bytes(&mut self) -> Vec<u8> {
        vec![b'x'; self.random.below(2000) as usize]
    }

    fn any_request(&mut self) -> JobRequest {
        match self.random.below(15) {
            0 => JobRequest::Stdin(self.any_bytes()),
            1 => JobRequest::StdinEof,
            2 => JobRequest::OutputAck(self.any_number()),
            3 => JobRequest::Flushed(self.any_number()),
            4 => JobRequest::OutputClosed(Stream::Stderr),
            5 => JobRequest::Signal(self.any_number() as i32),
            6 => JobRequest::Suspend,
            7 => JobRequest::SubscribeMetrics(self.any_number() as u32),
            8 => JobRequest::FileChunk {
                hash: [0; 32],
                offset: self.any_number(),
                bytes: self.any_bytes(),
            },
            9 if self.random.chance(5) => JobRequest::Kill,
            10 => JobRequest::ToolAction(self.any_tool_action()),
            11 => JobRequest::Debugger(DebuggerRequest::HoldStages(self.random.chance(50))),
            12 => JobRequest::Debugger(DebuggerRequest::ListProcesses),
            13 => JobRequest::Debugger(DebuggerRequest::ReleaseStage),
            _ => JobRequest::Resume,
        }
    }

    /// An input that a session of start_tool can cause.
    fn any_input_of_start_tool(&mut self, job: JobId) -> Input {
        let session_key = SessionKey(1_000_000 + self.random.below(2) as usize);
        match self.random.below(4) {
            0 => Input::ToolSessionEnded(session_key),
            1 => Input::ToolAction(session_key, job, self.any_tool_action()),
            _ => {
                let (offset, bytes) = (self.any_number(), self.any_bytes());
                Input::ToolFile(session_key, ToolFileChunk { job, hash: [0; 32], offset, bytes })
            }
        }
    }

    fn any_tool_action(&mut self) -> ToolAction {
        let signal = self.any_number() as i32;
        let program = ToolProgram { path: OsBytes(self.any_bytes()), arguments: Vec::new() };
        match self.random.below(2) {
            0 => ToolAction::Signal { tool: ToolId(self.random.below(6) as u32), signal },
            _ => {
                let files = self
                    .random
                    .chance(30)
                    .then_some(FileDigest { hash: [0; 32], size: self.random.below(100_000) });
                ToolAction::Start { program, hosts: Vec::new(), files }
            }
        }
    }

    fn any_tool_report(&mut self) -> ToolReport {
        let kind = match self.random.below(6) {
            0 => ToolEventKind::Started,
            1 => ToolEventKind::NotStarted { code: 127, reason: String::new() },
            2 => ToolEventKind::Signaled,
            3 => ToolEventKind::Output(self.any_bytes()),
            4 => ToolEventKind::FilesReady,
            _ => ToolEventKind::Ended(Status::Signaled(self.any_number() as i32)),
        };
        let tool = ToolId(self.random.below(6) as u32);
        ToolReport { host: JobHostId(self.any_number() as u32), tool, kind }
    }

    fn any_report(&mut self) -> LocalReport {
        let report = match self.random.below(9) {
            0 | 1 => return LocalReport::Switch(self.any_switch_report()),
            2 => {
                let (offset, length) = (self.any_number(), self.any_number());
                let hash = [0; 32];
                ShepherdReport::FileRequest(FileRequest { hash, offset, length })
            }
            3 => {
                let (offset, bytes) = (self.any_number(), self.any_bytes());
                let answer = ProgramAnswer::Chunk { hash: [0; 32], offset, bytes };
                ShepherdReport::Program { child: self.any_number() as u32, answer }
            }
            4 => ShepherdReport::Output(self.any_output()),
            5 | 6 => ShepherdReport::Job(self.any_job_report()),
            _ => {
                let element = ElementIndex(self.any_number() as u32);
                ShepherdReport::Element { element, report: self.any_element_report() }
            }
        };
        LocalReport::Shepherd(report)
    }

    fn any_switch_report(&mut self) -> SwitchReport {
        if self.random.chance(50) {
            return SwitchReport::Stopped { switch_seq: SwitchSeq(self.any_number()) };
        }
        let summary = IdleSummary {
            activity: match self.random.below(10) {
                0..7 => Activity::Idle,
                7 => Activity::Held,
                _ => Activity::Busy,
            },
            sent: self.any_number(),
            received: self.any_number(),
            outstanding_rma: self.any_number(),
            stop_seq: SwitchSeq(self.any_number()),
        };
        SwitchReport::IdleSummary { element: ElementIndex(self.random.below(3) as u32), summary }
    }

    fn any_output(&mut self) -> OutputReport {
        match self.random.below(4) {
            0 => OutputReport::Drained,
            1 => OutputReport::Flush {
                host: JobHostId(self.any_number() as u32),
                token: self.any_number(),
            },
            _ => OutputReport::Text {
                host: JobHostId(self.any_number() as u32),
                stream: Stream::Stdout,
                bytes: self.any_bytes(),
                is_partial_line: self.random.chance(50),
            },
        }
    }

    fn any_job_report(&mut self) -> JobReport {
        match self.random.below(9) {
            0 => JobReport::Ready,
            1 if self.random.chance(10) => JobReport::Refused { code: 0, reason: String::new() },
            2 => JobReport::Metrics(Metrics::default()),
            3 if self.random.chance(10) => JobReport::JobFailed { code: 0, reason: String::new() },
            4 => JobReport::StdinWindow(self.any_number()),
            5 => JobReport::StdinClosed,
            6 => JobReport::Tool(self.any_tool_report()),
            7 => {
                let block = ProcessBlock {
                    host: JobHostId(self.random.below(3) as u32),
                    element: ElementIndex(self.any_number() as u32),
                    first_node: self.any_number() as u32,
                    pids: vec![1; self.random.below(3) as usize],
                };
                JobReport::Processes { stage: self.random.below(2) as u32, blocks: vec![block] }
            }
            _ => JobReport::Notice { level: Level::Error, text: "lie".to_owned() },
        }
    }

    fn any_element_report(&mut self) -> ElementReport {
        let nodes = self.any_nodes();
        match self.random.below(16) {
            0 => ElementReport::Attached { nodes, addresses: Vec::new() },
            1 => ElementReport::InBarrier { nodes },
            2 => ElementReport::Ended { nodes, status: Status::Signaled(self.any_number() as i32) },
            3 => ElementReport::Skipped { nodes },
            4 => ElementReport::NotStarted { nodes, code: 0, reason: String::new() },
            5 => ElementReport::Exit { code: self.any_number() as i32 },
            6 => {
                let (node, signal) = (self.any_number() as u32, self.any_number() as i32);
                ElementReport::Broadcast { node, signal }
            }
            7 => ElementReport::Sent { serial: self.any_number(), nodes },
            8 => ElementReport::Sleep { seconds: self.any_number() as u32 },
            9 => ElementReport::Yield,
            10 => {
                let round = SampleRound(self.any_number());
                ElementReport::SampleResult { round, sample: ActivitySample::EMPTY }
            }
            11 => ElementReport::InFence { nodes, entries: self.any_bytes() },
            12 => {
                let asker = JobHostId(self.random.below(4) as u32);
                ElementReport::ModexRequest { asker, node: self.any_number() as u32 }
            }
            13 => {
                let (asker, node) = (JobHostId(self.any_number() as u32), self.any_number() as u32);
                ElementReport::ModexAnswer { asker, node, entries: Some(self.any_bytes()) }
            }
            14 => {
                let (members, tag) = (self.any_nodes(), self.any_number());
                let fence = SubsetFence { members, tag };
                ElementReport::InSubsetFence { fence, nodes, entries: self.any_bytes() }
            }
            _ => ElementReport::WaitStates { waits: Vec::new() },
        }
    }
}
