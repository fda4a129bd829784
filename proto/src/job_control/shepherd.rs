//! Messages between a daemon and its own shepherd, on the shepherd's control socket.

use serde::{Deserialize, Serialize};

use super::{
    ElementOrder, ElementReport, FileRequest, JobOrder, JobReport, OutputReport, Placement,
    ProgramAnswer,
};
use crate::message::OsBytes;

/// From a daemon to its shepherd.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum ShepherdOrder {
    /// The first message: [`crate::PROTOCOL_VERSION`]. A shepherd of another version exits.
    Hello {
        /// The sender's protocol version.
        version: u32,
    },
    /// The hosts of the job; once, before [`JobOrder::StartJob`].
    SetPlacement(Placement),
    /// As [`super::Order::OutputAck`].
    OutputAck(u64),
    /// As [`super::Order::Program`].
    Program(ProgramAnswer),
    /// A child host has sent a request. Answered by [`ShepherdReport::Program`].
    SendFile {
        /// The index of the child, repeated in the answer.
        child: u32,
        /// Its request.
        request: FileRequest,
    },
    /// Make the directory in which tools find what they need. Answered by
    /// [`ShepherdReport::ToolsPrepared`].
    PrepareTools,
    /// An order of the master.
    Job(JobOrder),
    /// An order of the master about one parallel process.
    Element {
        /// Element of the running stage.
        element: u32,
        /// The order.
        order: ElementOrder,
    },
}

/// From a shepherd to its daemon.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum ShepherdReport {
    /// The shepherd needs bytes of a program.
    FileRequest(FileRequest),
    /// Answer to [`ShepherdOrder::SendFile`].
    Program {
        /// The index of the child that gets it.
        child: u32,
        /// The answer.
        answer: ProgramAnswer,
    },
    /// Answer to [`ShepherdOrder::PrepareTools`]: the path of the job's directory, or why there is
    /// no directory for tools. For the daemon itself.
    ToolsPrepared(Result<OsBytes, String>),
    /// Output, and what keeps its position after output.
    Output(OutputReport),
    /// A report to the master.
    Job(JobReport),
    /// A report to the master about one parallel process.
    Element {
        /// Element of the running stage.
        element: u32,
        /// The report.
        report: ElementReport,
    },
}
