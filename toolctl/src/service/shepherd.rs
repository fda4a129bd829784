//! The socket of the shepherd: its orders, and the reports to the shepherd. This module stores the
//! orders that concern this process itself, until the main loop asks for them.

use std::io::{self, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;

use nix::errno::Errno;
use nix::sys::socket::{MsgFlags, recv};
use score_proto::frame::{self, Decoder};
use score_proto::ids::ElementIndex;
use score_proto::tool_command::{CommandId, ToolResult};
use score_proto::toolctl::{ToolProcess, ToolctlOrder, ToolctlReport};

/// The process and the command of an answer.
#[derive(Debug, Clone, Copy)]
pub struct Target {
    /// The element of the process in the running stage.
    pub element: ElementIndex,
    /// The number of the command.
    pub id: CommandId,
    /// The node of the process.
    pub node: u32,
}

/// The connection to the shepherd.
pub struct Shepherd {
    socket: UnixStream,
    decoder: Decoder,
    /// Whether the shepherd has sent the job and its processes.
    serves_tools: bool,
    /// The last report on whether tools are connected.
    has_tools: bool,
    /// Whether the shepherd has requested that this process exits, unless a tool has connected.
    may_leave: bool,
    /// Whether the job ends.
    is_ending: bool,
}

impl Shepherd {
    /// The connection on this socket.
    pub fn new(socket: OwnedFd) -> Self {
        Self {
            socket: socket.into(),
            decoder: Decoder::default(),
            serves_tools: false,
            has_tools: false,
            may_leave: false,
            is_ending: false,
        }
    }

    /// The socket, for poll(2).
    pub fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// Reads from the socket. Returns false if the shepherd has ended.
    pub fn receive(&mut self) -> io::Result<bool> {
        let mut buffer = vec![0; 64 << 10];
        loop {
            match recv(self.socket.as_raw_fd(), &mut buffer, MsgFlags::MSG_DONTWAIT) {
                Ok(0) => return Ok(false),
                Ok(len) => self.decoder.push(&buffer[..len]),
                Err(Errno::EAGAIN) => return Ok(true),
                Err(Errno::EINTR) => {}
                Err(errno) => return Err(errno.into()),
            }
        }
    }

    /// The next order about the job and its processes.
    pub fn next_order(&mut self) -> io::Result<Option<ToolctlOrder>> {
        loop {
            match self.decoder.next().map_err(io::Error::other)? {
                Some(ToolctlOrder::ServeTools) => self.serves_tools = true,
                Some(ToolctlOrder::Leave) => self.may_leave = true,
                Some(ToolctlOrder::End) => self.is_ending = true,
                order => return Ok(order),
            }
        }
    }

    /// Whether the shepherd has sent the job and its processes, so that tools can be served.
    pub fn serves_tools(&self) -> bool {
        self.serves_tools
    }

    /// Whether the job ends.
    pub fn is_ending(&self) -> bool {
        self.is_ending
    }

    /// Takes the request that this process exits, unless a tool has connected.
    pub fn take_leave(&mut self) -> bool {
        std::mem::take(&mut self.may_leave)
    }

    /// Sends reports. This may block, but the shepherd always reads.
    pub fn report(&mut self, reports: &[ToolctlReport]) -> io::Result<()> {
        let mut bytes = Vec::new();
        for report in reports {
            frame::encode(report, &mut bytes).map_err(io::Error::other)?;
        }
        self.socket.write_all(&bytes)
    }

    /// Reports whether tools are connected. The shepherd does not end this process while tools are
    /// connected.
    pub fn report_tools(&mut self, has_tools: bool) -> io::Result<()> {
        if std::mem::replace(&mut self.has_tools, has_tools) != has_tools {
            self.report(&[ToolctlReport::HasTools(has_tools)])?;
        }
        Ok(())
    }

    /// Reports a change of breakpoints. The shepherd keeps the list of breakpoints in case this
    /// process is killed.
    pub fn report_breakpoint(&mut self, report: ToolctlReport) {
        // If the shepherd has ended, the loop detects it.
        _ = self.report(&[report]);
    }

    /// Requests the time for which the job has been running.
    pub fn ask_time(&mut self) {
        // If the shepherd has ended, the loop detects it.
        _ = self.report(&[ToolctlReport::TimeQuestion]);
    }

    /// Answers a command for one process.
    pub fn answer(&mut self, Target { element, id, node }: Target, result: &ToolResult) {
        // If the shepherd has ended, the loop detects it.
        _ = self.report(&[ToolctlReport::Answer { element, id, node, body: result.encode() }]);
    }

    /// Answers a command for one process with the reason why it has failed.
    pub fn fail(&mut self, target: Target, reason: &str) {
        self.answer(target, &ToolResult::Failed(reason.to_owned()));
    }

    /// Sends the same answer to a command for all of its processes.
    pub fn answer_all(
        &mut self,
        (element, id): (ElementIndex, CommandId),
        processes: &[ToolProcess],
        result: &ToolResult,
    ) -> io::Result<()> {
        let body = result.encode();
        let answer = |node| ToolctlReport::Answer { element, id, node, body: body.clone() };
        let reports: Vec<_> = processes.iter().map(|process| answer(process.node)).collect();
        self.report(&reports)
    }
}
