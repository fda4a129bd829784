//! Messages between a daemon and its shepherd, on the shepherd's control socket.

use serde::{Deserialize, Serialize};

use super::{
    ElementOrder, ElementReport, FileRequest, JobOrder, JobReport, OutputReport, Placement,
    ProgramAnswer,
};
use crate::ids::ElementIndex;
use crate::message::OsBytes;
use crate::tool_start::ToolId;

/// From a daemon to its shepherd.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum ShepherdOrder {
    /// The first message: [`crate::PROTOCOL_VERSION`]. A shepherd with another version exits.
    Hello {
        /// The sender's protocol version.
        version: u32,
    },
    /// The hosts of the job. Sent once, before [`JobOrder::StartJob`].
    SetPlacement(Placement),
    /// The same as [`super::Order::OutputAck`].
    OutputAck(u64),
    /// The same as [`super::Order::Program`].
    Program(ProgramAnswer),
    /// A child host has sent a request. [`ShepherdReport::Program`] answers it.
    SendFile {
        /// The index of the child, which the answer repeats.
        child: u32,
        /// The request of the child.
        request: FileRequest,
    },
    /// Create the directory that describes the job to tools. [`ShepherdReport::ToolsPrepared`]
    /// answers it.
    PrepareTools,
    /// This tool has ended: remove its files ([`crate::tool_files`]).
    RemoveToolFiles(ToolId),
    /// An order of the master.
    Job(JobOrder),
    /// An order of the master about one element.
    Element {
        /// Element of the running stage.
        element: ElementIndex,
        /// The order.
        order: ElementOrder,
    },
}

/// From a shepherd to its daemon.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum ShepherdReport {
    /// The shepherd requests bytes of a program.
    FileRequest(FileRequest),
    /// The answer to [`ShepherdOrder::SendFile`].
    Program {
        /// The index of the child that receives it.
        child: u32,
        /// The answer.
        answer: ProgramAnswer,
    },
    /// The answer to [`ShepherdOrder::PrepareTools`]: the path of the job's directory, or the
    /// reason why there is no directory for tools. For the daemon itself.
    ToolsPrepared(Result<OsBytes, String>),
    /// The host has the files of this tool, or the reason why the host cannot get the files or pass
    /// them on ([`crate::tool_files`]). The daemon reports it to the master.
    ToolFiles {
        /// The tool.
        tool: ToolId,
        /// The result.
        result: Result<(), String>,
    },
    /// Output, and reports that keep their position relative to output.
    Output(OutputReport),
    /// A report to the master.
    Job(JobReport),
    /// A report to the master about one element.
    Element {
        /// Element of the running stage.
        element: ElementIndex,
        /// The report.
        report: ElementReport,
    },
}
