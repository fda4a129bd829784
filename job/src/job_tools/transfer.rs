//! The transfer of the files of a tool (`start_tool --files`), on the side of the job's master. The
//! session of start_tool has the archive. The hosts request its bytes through the first host of the
//! job, as they do with programs, and the master passes requests and bytes on. A job has one
//! transfer at a time.

use std::time::Duration;

use score_proto::exit_code::{EXIT_FAILED, EXIT_REFUSED};
use score_proto::file_tree::{MAX_TREE_FILE, TREE_PREFIX};
use score_proto::ids::JobHostId;
use score_proto::job_control::{FileRequest, JobOrder, Order, Placement, ProgramAnswer};
use score_proto::message::FileDigest;
use score_proto::nodeset::NodeSet;
use score_proto::tool_files::{ToolFilesKind, ToolFilesOrder};
use score_proto::tool_start::{
    ToolActionAnswer, ToolEventKind, ToolId, ToolOrderKind, ToolProgram,
};

use super::{HOST_TIMEOUT, JobTools, ToolRequester, ToolStep, host_name, order};
use crate::cluster::MonotonicTime;
use crate::jobs::SessionKey;

/// How long start_tool may take to send the next of the requested bytes.
const SEND_TIMEOUT: Duration = Duration::from_secs(30);
/// Largest number of bytes that the hosts may have requested and not yet received. An honest first
/// host requests half of it.
const MAX_REQUESTED_BYTES: u64 = 2 << 20;

/// See the [module](self).
#[derive(Debug)]
pub struct ToolFileTransfer {
    tool: ToolId,
    /// The session that sends the files.
    session: SessionKey,
    content: FileDigest,
    /// The program that is started after the transfer.
    program: ToolProgram,
    hosts: NodeSet,
    /// The hosts that do not have the files yet.
    pending_hosts: NodeSet,
    /// Bytes that start_tool has to send.
    requested_bytes: u64,
    /// When start_tool has to have sent the next bytes.
    deadline: Option<MonotonicTime>,
}

/// Checks the archive that start_tool has named.
///
/// # Errors
/// One line with the reason.
fn check(content: FileDigest) -> Result<(), String> {
    match content.size {
        size if size < TREE_PREFIX as u64 => Err("--files: not an archive".to_owned()),
        size if size > MAX_TREE_FILE => {
            Err(format!("--files: more than {} MB", MAX_TREE_FILE >> 20))
        }
        _ => Ok(()),
    }
}

impl ToolFileTransfer {
    /// Begins a transfer to these hosts. The caller sends [`ToolFilesKind::Fetch`].
    pub fn new(
        (tool, program): (ToolId, ToolProgram),
        session: SessionKey,
        content: FileDigest,
        hosts: NodeSet,
    ) -> Self {
        let pending_hosts = hosts.clone();
        Self {
            tool,
            session,
            content,
            program,
            hosts,
            pending_hosts,
            requested_bytes: 0,
            deadline: None,
        }
    }

    /// The tool that gets the files.
    pub fn tool(&self) -> ToolId {
        self.tool
    }

    /// The session that sends the files.
    pub fn session(&self) -> SessionKey {
        self.session
    }

    /// The order to fetch the files.
    pub fn fetch(&self) -> Order {
        self.order(ToolFilesKind::Fetch(self.content))
    }

    /// An order to the hosts of the transfer.
    pub fn order(&self, kind: ToolFilesKind) -> Order {
        let (tool, hosts) = (self.tool, self.hosts.clone());
        Order::Job(JobOrder::ToolFiles(ToolFilesOrder { tool, hosts, kind }))
    }

    /// When start_tool has to have sent the next bytes, if it has to send any.
    pub fn deadline(&self) -> Option<MonotonicTime> {
        self.deadline
    }

    /// The first host requests bytes. Returns whether start_tool gets the request.
    pub fn on_request(&mut self, request: FileRequest, now: MonotonicTime) -> bool {
        let requested_bytes = self.requested_bytes.saturating_add(request.length);
        let is_valid = request.hash == self.content.hash
            && request.length > 0
            && requested_bytes <= MAX_REQUESTED_BYTES;
        if is_valid {
            self.requested_bytes = requested_bytes;
            self.deadline.get_or_insert(now + SEND_TIMEOUT);
        }
        is_valid
    }

    /// start_tool has sent bytes. Returns whether the first host has requested them.
    pub fn on_chunk(&mut self, answer: &ProgramAnswer, now: MonotonicTime) -> bool {
        let ProgramAnswer::Chunk { hash, .. } = answer else { return false };
        if *hash != self.content.hash {
            return false;
        }
        let left = self.requested_bytes.checked_sub(answer.charge());
        if let Some(left) = left {
            self.requested_bytes = left;
            self.deadline = (left > 0).then_some(now + SEND_TIMEOUT);
        }
        left.is_some()
    }

    /// A host has the files. Returns whether all hosts have them.
    pub fn on_host_ready(&mut self, host: u32) -> bool {
        self.pending_hosts.remove(host) && self.pending_hosts.is_empty()
    }

    /// Ends the transfer. Returns the program to start, and its hosts.
    pub fn into_program(self) -> (ToolProgram, NodeSet) {
        (self.program, self.hosts)
    }
}

impl JobTools {
    /// Begins to send the files of a tool to its hosts.
    pub(super) fn begin_transfer(
        &mut self,
        requester: ToolRequester,
        content: FileDigest,
        program: ToolProgram,
        hosts: NodeSet,
        out: &mut Vec<ToolStep>,
    ) -> Result<(), String> {
        let ToolRequester::Session(session) = requester else {
            return Err("only start_tool can send files".to_owned());
        };
        check(content)?;
        if let Some(transfer) = &self.transfer {
            let tool = transfer.tool();
            return Err(format!("the files of tool {tool} are still being sent; try again later"));
        }
        let id = self.add_tool(requester, None, &program, &hosts, None);
        let transfer = ToolFileTransfer::new((id, program), session, content, hosts);
        out.push(ToolStep::Order(transfer.fetch()));
        self.transfer = Some(transfer);
        Ok(())
    }

    pub(super) fn is_in_transfer(&self, id: ToolId) -> bool {
        self.transfer.as_ref().is_some_and(|transfer| transfer.tool() == id)
    }

    /// A host reports on the files of a tool. The report can also come from a host that only passes
    /// the files on.
    pub(super) fn on_transfer_report(
        &mut self,
        host: JobHostId,
        kind: ToolEventKind,
        placement: &Placement,
        now: MonotonicTime,
        out: &mut Vec<ToolStep>,
    ) {
        let Some(transfer) = &mut self.transfer else { return };
        let id = transfer.tool();
        match kind {
            ToolEventKind::FilesReady if transfer.on_host_ready(host.0) => {
                out.push(ToolStep::Order(transfer.order(ToolFilesKind::Complete)));
                self.start_after_transfer(now, out);
            }
            ToolEventKind::NotStarted { code, reason } => {
                let name = host_name(placement, host.0);
                self.refuse_start(id, code, format!("host {name}: {reason}"), out);
            }
            _ => {}
        }
    }

    /// All hosts have the files of the tool.
    fn start_after_transfer(&mut self, now: MonotonicTime, out: &mut Vec<ToolStep>) {
        let Some(transfer) = self.transfer.take() else { return };
        let id = transfer.tool();
        let waiting = self.tools.get_mut(&id).and_then(|tool| tool.waiting.as_mut());
        waiting.into_iter().for_each(|waiting| waiting.deadline = Some(now + HOST_TIMEOUT));
        let (program, hosts) = transfer.into_program();
        let start = ToolOrderKind::Start { program, has_files: true };
        out.push(ToolStep::Order(order(id, hosts, start)));
    }

    /// The first host requests bytes of the files of a tool.
    pub fn on_file_request(
        &mut self,
        request: FileRequest,
        now: MonotonicTime,
        out: &mut Vec<ToolStep>,
    ) {
        if let Some(transfer) = &mut self.transfer
            && transfer.on_request(request, now)
        {
            out.push(ToolStep::RequestFile(transfer.session(), request));
        }
    }

    /// A session sends bytes of the files of its tool. Bytes that the first host has not requested
    /// are dropped.
    pub fn on_file_chunk(
        &mut self,
        session: SessionKey,
        answer: ProgramAnswer,
        now: MonotonicTime,
        out: &mut Vec<ToolStep>,
    ) {
        match &mut self.transfer {
            Some(transfer) if transfer.session() == session => {
                if transfer.on_chunk(&answer, now) {
                    out.push(ToolStep::Order(Order::Program(answer)));
                }
            }
            _ => {
                let reason = "this connection sends no files to the job".to_owned();
                let refused = ToolActionAnswer::Refused { code: EXIT_REFUSED, reason };
                out.push(ToolStep::Answer(ToolRequester::Session(session), refused));
            }
        }
    }

    /// A session has ended. A tool whose files it sends is not started.
    pub fn on_session_ended(&mut self, session: SessionKey, out: &mut Vec<ToolStep>) {
        let transfer = self.transfer.as_ref().filter(|transfer| transfer.session() == session);
        if let Some(id) = transfer.map(ToolFileTransfer::tool) {
            let reason = "start_tool has ended before all hosts had the files".to_owned();
            self.refuse_start(id, EXIT_FAILED, reason, out);
        }
    }

    /// Cancels the transfer if start_tool has not sent the requested bytes in time.
    pub(super) fn tick_transfer(&mut self, now: MonotonicTime, out: &mut Vec<ToolStep>) {
        let transfer = self.transfer.as_ref();
        let late = transfer.filter(|transfer| transfer.deadline.is_some_and(|due| due <= now));
        if let Some(id) = late.map(ToolFileTransfer::tool) {
            let seconds = SEND_TIMEOUT.as_secs();
            let reason = format!("start_tool has sent no bytes of the files for {seconds} s");
            self.refuse_start(id, EXIT_FAILED, reason, out);
        }
    }
}
