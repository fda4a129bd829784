//! The messages from scored to a user's program. Each conversation has its own type of answers,
//! like each state of a session has its own type of requests ([`crate::message`]). A receiver thus
//! has to handle only what its own requests can cause.

mod conversation;

use serde::{Deserialize, Serialize};

use crate::client_session::{JobMessage, SESSION_JOB};
use crate::daemon_statistics::DaemonStatistics;
use crate::ids::{ElementIndex, JobHostId, JobId, SessionJobId};
use crate::job_control::{DebuggedProcess, FileRequest, ProcessBlock};
use crate::job_list::JobEntry;
use crate::message::{ContentHash, HostSpec, JobEnd, Level, OsBytes, Stream};
use crate::nodeset::NodeSet;
use crate::observation::Metrics;
use crate::tool_command::EventBody;
use crate::tool_start::ToolActionAnswer;
pub use conversation::{ConsoleReply, ConversationAnswer, ToolStartAnswer};

/// From scored, after the greetings. Before its greeting, scored sends only [`SessionAnswer`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum ServerMessage {
    /// About the session itself. Any client may receive it.
    Session(SessionAnswer),
    /// To a client at the socket of a scout session, immediately after the greeting.
    ScoutHosts(ScoutHosts),
    /// To a client that opens a scout session.
    Scout(ScoutAnswer),
    /// To a client that has sent a [`crate::message::ConsoleRequest`].
    Console(ConsoleAnswer),
    /// About a job of the session.
    Job(JobMessage<JobAnswer>),
}

impl ServerMessage {
    /// An answer about a job of the session.
    pub fn job_answer(job: SessionJobId, message: JobAnswer) -> Self {
        Self::Job(JobMessage { job, message })
    }

    /// Whether newer metrics can replace the message.
    pub fn has_metrics(&self) -> bool {
        match self {
            Self::Console(answer) => matches!(answer, ConsoleAnswer::Metrics(_)),
            Self::Job(JobMessage { message, .. }) => matches!(message, JobAnswer::Metrics(_)),
            Self::Session(_) | Self::ScoutHosts(_) | Self::Scout(_) => false,
        }
    }

    /// The job whose last message this is. It is [`SESSION_JOB`] if this is the last message of the
    /// session.
    pub fn ended_job(&self) -> Option<SessionJobId> {
        match self {
            Self::Session(SessionAnswer::Refused { .. })
            | Self::Console(ConsoleAnswer::Finished { .. }) => Some(SESSION_JOB),
            Self::Job(JobMessage {
                job,
                message: JobAnswer::Refused { .. } | JobAnswer::Finished(_),
            }) => Some(*job),
            _ => None,
        }
    }

    /// A line for the user about a job, or about the session itself ([`SESSION_JOB`]).
    pub fn notice(job: SessionJobId, level: Level, text: String) -> Self {
        match job {
            SESSION_JOB => Self::Session(SessionAnswer::Notice { level, text }),
            _ => Self::job_answer(job, JobAnswer::Notice { level, text }),
        }
    }

    /// The refusal of a job, or of the session itself ([`SESSION_JOB`]).
    pub fn refusal(job: SessionJobId, reason: String, code: u8) -> Self {
        match job {
            SESSION_JOB => Self::Session(SessionAnswer::Refused { reason, code }),
            _ => Self::job_answer(job, JobAnswer::Refused { reason, code }),
        }
    }
}

/// About a session itself. The greeting of scored, and messages before it, have this form without
/// an enclosing [`ServerMessage`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum SessionAnswer {
    /// The answer to [`crate::message::Greeting::Hello`]. Its form is the same in every version.
    Hello {
        /// The sender's protocol version.
        version: u32,
    },
    /// The session and its jobs end. This is the last message.
    Refused {
        /// One line with the cause.
        reason: String,
        /// Exit code of the user's program.
        code: u8,
    },
    /// A line for the user, without newline.
    Notice {
        /// The level, for the filters `message=concise` and `message=quiet`.
        level: Level,
        /// The line.
        text: String,
    },
}

/// The hosts of a scout session. Its jobs run only on these hosts.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ScoutHosts(pub Vec<HostSpec>);

/// Answers to [`crate::message::SingleUserRequest::OpenScoutSession`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum ScoutAnswer {
    /// The path at which scored is about to create the directory of the scout session. Sent before
    /// the directory is created, so that scout can remove it even if scored is killed at any
    /// moment.
    Directory(String),
    /// The daemons of all hosts run.
    Opened {
        /// Path of the socket at which jobs can be submitted.
        socket: String,
    },
}

/// Answers to [`crate::message::ConsoleRequest`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum ConsoleAnswer {
    /// The answer to [`crate::message::ConsoleRequest::List`].
    List(ListAnswer),
    /// The answer to [`crate::message::ConsoleRequest::Page`].
    Page(PageAddress),
    /// The answer to [`crate::message::ConsoleRequest::SubscribeMetrics`]. One message covers some
    /// of the hosts and processes.
    Metrics(Metrics),
    /// The answer to [`crate::message::ConsoleRequest::Tool`].
    Tool(ToolAnswer),
    /// The answer to [`crate::message::ConsoleRequest::ToolAction`].
    ToolAction(ToolActionAnswer),
    /// A request for bytes of the files of the tool that the session starts.
    /// [`crate::message::ConsoleRequest::ToolFile`] answers it.
    ToolFileRequest(FileRequest),
    /// The answer to [`crate::message::ConsoleRequest::Processes`].
    Processes(ListedProcesses),
    /// The request has been carried out, or the job of the subscription has ended. This is the last
    /// message.
    Finished {
        /// 0, or the exit code of the job of the subscription.
        code: u8,
    },
}

/// Parts of the answer to [`crate::message::ConsoleRequest::Tool`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum ToolAnswer {
    /// The first part: the programs of the running stage. Rank `r` is node `r % nodes` of program
    /// `r / nodes`.
    Programs {
        /// The name of each program.
        names: Vec<String>,
        /// The number of nodes of each program.
        nodes: u32,
    },
    /// The answer of these ranks, or the reason why there is none.
    Event {
        /// The ranks.
        ranks: NodeSet,
        /// The answer.
        body: EventBody,
    },
    /// These ranks have not answered in time, or have exited.
    Missing(NodeSet),
}

/// Parts of the answer to [`crate::message::ConsoleRequest::Processes`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum ListedProcesses {
    /// A list begins. An earlier list of a stage that has ended in the meantime stays incomplete.
    Stage {
        /// The stage.
        stage: u32,
        /// The path of the program of each element.
        programs: Vec<OsBytes>,
        /// The number of nodes of each element.
        nodes: u32,
    },
    /// Some of the processes. Each node of each element is in one of these messages.
    Block {
        /// The name of the host of the block.
        host_name: String,
        /// The processes.
        block: ProcessBlock,
    },
}

/// A debugger on scrun's terminal.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TerminalDebugger {
    /// The element in the running stage.
    pub element: ElementIndex,
    /// The node.
    pub node: u32,
    /// The event, for a line above the debugger.
    pub title: String,
    /// The process.
    pub process: DebuggedProcess,
}

/// The stacks of ranks that are about to end after a fault or a deadlock, in parts.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum ReportedStacks {
    /// A part.
    Part(ToolAnswer),
    /// All parts have been sent.
    End {
        /// The event, for the line above the stacks.
        title: String,
    },
}

/// Parts of the answer to [`crate::message::ConsoleRequest::List`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum ListAnswer {
    /// Some of the cluster's jobs, at most [`crate::job_list::MAX_JOBS_PER_MESSAGE`].
    Jobs(Vec<JobEntry>),
    /// Statistics about the server, for operators.
    Statistics(DaemonStatistics),
}

/// The address of the cluster's page for this user.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PageAddress {
    /// The name of the server, which serves the page.
    pub host: String,
    /// The page's URL, which contains the user's token.
    pub url: String,
}

/// About a job of a session.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum JobAnswer {
    /// The job has been accepted with this number (the result of `sc_getpid`), and every host is
    /// ready.
    Accepted {
        /// Job number, from 1.
        job: JobId,
        /// Number of nodes of each parallel process.
        nodes: u32,
        /// Number of hosts that the job runs on.
        hosts: u32,
    },
    /// The job was not accepted, and nothing was started. This is the job's last message.
    Refused {
        /// One line with the cause.
        reason: String,
        /// Exit code of scrun.
        code: u8,
    },
    /// scrun may send this number of additional bytes of standard input.
    StdinWindow(u64),
    /// Node 0 has closed its standard input. scrun has to send no more input.
    StdinClosed,
    /// Bytes for scrun's standard output or error.
    Output {
        /// The host whose processes have written them.
        host: JobHostId,
        /// Standard output or standard error.
        stream: Stream,
        /// At most [`crate::message::MAX_IO_CHUNK`] bytes.
        #[serde(with = "serde_bytes")]
        bytes: Vec<u8>,
    },
    /// scrun has to answer with [`crate::message::JobRequest::Flushed`] when it has written all
    /// earlier output.
    Flush(u64),
    /// A line for the user, without newline.
    Notice {
        /// The level, for the filters `message=concise` and `message=quiet`.
        level: Level,
        /// The line.
        text: String,
    },
    /// All processes of the job have exited, and all of its resources have been released. This is
    /// the job's last message.
    Finished(JobEnd),
    /// The path at which scored is about to create the job's directory on this host. Sent before
    /// the directory is created, so that scrun can remove it even if scored is killed at any
    /// moment.
    Directory(String),
    /// A request for bytes of this program. [`crate::message::JobRequest::FileChunk`] answers it.
    FileRequest {
        /// Hash of the program.
        hash: ContentHash,
        /// Offset of the first byte.
        offset: u64,
        /// Number of bytes.
        length: u64,
    },
    /// The answer to [`crate::message::JobRequest::SubscribeMetrics`]. One message covers some of
    /// the hosts and processes.
    Metrics(Metrics),
    /// The answer to [`crate::message::JobRequest::ToolAction`].
    ToolAction(ToolActionAnswer),
    /// A line that a tool has written, without newline. It names the tool and the host.
    ToolOutput(String),
    /// The answer to [`crate::message::DebuggerRequest::ListProcesses`]. Also sent when every
    /// process of a held stage waits. Each node of each element of the stage is in one of these
    /// messages.
    Processes {
        /// The stage.
        stage: u32,
        /// The name of the host of the block.
        host_name: String,
        /// Some of the processes.
        block: ProcessBlock,
    },
    /// Stacks of ranks that are about to end.
    Stacks(ReportedStacks),
    /// A process requests a debugger on scrun's terminal.
    /// [`crate::message::JobRequest::DebuggerEnded`] answers it.
    OpenDebugger(TerminalDebugger),
    /// The answer to a message about a job that the session does not have, or no longer has.
    /// [`crate::message::JobRequest::OutputAck`] and [`crate::message::JobRequest::Flushed`] do not
    /// get this answer.
    UnknownJob,
}

#[cfg(test)]
mod tests {
    use super::*;

    const JOB: SessionJobId = SessionJobId(7);

    #[test]
    fn a_message_about_the_session_itself_has_no_job() {
        let (level, code) = (Level::Warning, 3);
        let line = || "line".to_owned();
        let notice = |job| ServerMessage::notice(job, level, line());
        let refusal = |job| ServerMessage::refusal(job, line(), code);
        let of_session = SessionAnswer::Notice { level, text: line() };
        assert_eq!(notice(SESSION_JOB), ServerMessage::Session(of_session));
        let of_job = JobAnswer::Notice { level, text: line() };
        assert_eq!(notice(JOB), ServerMessage::job_answer(JOB, of_job));
        let of_session = SessionAnswer::Refused { reason: line(), code };
        assert_eq!(refusal(SESSION_JOB), ServerMessage::Session(of_session));
        let of_job = JobAnswer::Refused { reason: line(), code };
        assert_eq!(refusal(JOB), ServerMessage::job_answer(JOB, of_job));
    }

    #[test]
    fn the_last_message_names_the_job_or_the_session_that_has_ended() {
        let refusal = |job| ServerMessage::refusal(job, String::new(), 1);
        let end = JobEnd { code: 0, usage: Vec::new(), elapsed_ns: 0 };
        for (message, ended) in [
            (refusal(SESSION_JOB), Some(SESSION_JOB)),
            (refusal(JOB), Some(JOB)),
            (ServerMessage::Console(ConsoleAnswer::Finished { code: 0 }), Some(SESSION_JOB)),
            (ServerMessage::job_answer(JOB, JobAnswer::Finished(end)), Some(JOB)),
            (ServerMessage::job_answer(JOB, JobAnswer::StdinClosed), None),
            (ServerMessage::notice(SESSION_JOB, Level::Info, String::new()), None),
        ] {
            assert_eq!(message.ended_job(), ended, "{message:?}");
        }
    }

    #[test]
    fn only_metrics_are_replaced_by_newer_ones() {
        for (message, expected) in [
            (ServerMessage::Console(ConsoleAnswer::Metrics(Metrics::default())), true),
            (ServerMessage::Console(ConsoleAnswer::Finished { code: 0 }), false),
            (ServerMessage::job_answer(JOB, JobAnswer::Metrics(Metrics::default())), true),
            (ServerMessage::job_answer(JOB, JobAnswer::StdinClosed), false),
            (ServerMessage::ScoutHosts(ScoutHosts(Vec::new())), false),
        ] {
            assert_eq!(message.has_metrics(), expected, "{message:?}");
        }
    }
}
