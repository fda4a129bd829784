//! The answers that a client expects: each kind of client decodes only the answers to its own
//! requests.

use super::{
    ConsoleAnswer, JobAnswer, ListAnswer, ListedProcesses, PageAddress, ScoutAnswer, ScoutHosts,
    ServerMessage, ToolAnswer,
};
use crate::client_session::JobMessage;
use crate::job_control::FileRequest;
use crate::observation::Metrics;
use crate::tool_start::ToolActionAnswer;

/// The answers of one conversation, which a client expects after the greeting.
pub trait ConversationAnswer: Sized {
    /// The answer that a message contains. None: the message belongs to another conversation.
    fn from_message(message: ServerMessage) -> Option<Self>;
}

/// The answer to one kind of [`crate::message::ConsoleRequest`], in the form in which its client
/// receives it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ConsoleReply<A> {
    /// A part of the answer.
    Answer(A),
    /// The same as [`ConsoleAnswer::Finished`].
    Finished {
        /// 0, or the exit code of the job of the subscription.
        code: u8,
    },
}

impl ConversationAnswer for ScoutHosts {
    fn from_message(message: ServerMessage) -> Option<Self> {
        match message {
            ServerMessage::ScoutHosts(hosts) => Some(hosts),
            _ => None,
        }
    }
}

impl ConversationAnswer for ScoutAnswer {
    fn from_message(message: ServerMessage) -> Option<Self> {
        match message {
            ServerMessage::Scout(answer) => Some(answer),
            _ => None,
        }
    }
}

impl<A: TryFrom<ConsoleAnswer>> ConversationAnswer for ConsoleReply<A> {
    fn from_message(message: ServerMessage) -> Option<Self> {
        match message {
            ServerMessage::Console(ConsoleAnswer::Finished { code }) => {
                Some(Self::Finished { code })
            }
            ServerMessage::Console(answer) => answer.try_into().ok().map(Self::Answer),
            _ => None,
        }
    }
}

impl TryFrom<ConsoleAnswer> for ListAnswer {
    type Error = ConsoleAnswer;

    fn try_from(answer: ConsoleAnswer) -> Result<Self, ConsoleAnswer> {
        match answer {
            ConsoleAnswer::List(answer) => Ok(answer),
            other => Err(other),
        }
    }
}

impl TryFrom<ConsoleAnswer> for PageAddress {
    type Error = ConsoleAnswer;

    fn try_from(answer: ConsoleAnswer) -> Result<Self, ConsoleAnswer> {
        match answer {
            ConsoleAnswer::Page(address) => Ok(address),
            other => Err(other),
        }
    }
}

impl TryFrom<ConsoleAnswer> for ToolAnswer {
    type Error = ConsoleAnswer;

    fn try_from(answer: ConsoleAnswer) -> Result<Self, ConsoleAnswer> {
        match answer {
            ConsoleAnswer::Tool(answer) => Ok(answer),
            other => Err(other),
        }
    }
}

impl TryFrom<ConsoleAnswer> for ToolActionAnswer {
    type Error = ConsoleAnswer;

    fn try_from(answer: ConsoleAnswer) -> Result<Self, ConsoleAnswer> {
        match answer {
            ConsoleAnswer::ToolAction(answer) => Ok(answer),
            other => Err(other),
        }
    }
}

/// An answer to start_tool, which may send files for its tool.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ToolStartAnswer {
    /// The answer to the request to start a tool.
    Action(ToolActionAnswer),
    /// A request for bytes of the files.
    FileRequest(FileRequest),
}

impl TryFrom<ConsoleAnswer> for ToolStartAnswer {
    type Error = ConsoleAnswer;

    fn try_from(answer: ConsoleAnswer) -> Result<Self, ConsoleAnswer> {
        match answer {
            ConsoleAnswer::ToolAction(answer) => Ok(Self::Action(answer)),
            ConsoleAnswer::ToolFileRequest(request) => Ok(Self::FileRequest(request)),
            other => Err(other),
        }
    }
}

impl TryFrom<ConsoleAnswer> for ListedProcesses {
    type Error = ConsoleAnswer;

    fn try_from(answer: ConsoleAnswer) -> Result<Self, ConsoleAnswer> {
        match answer {
            ConsoleAnswer::Processes(answer) => Ok(answer),
            other => Err(other),
        }
    }
}

impl TryFrom<ConsoleAnswer> for Metrics {
    type Error = ConsoleAnswer;

    fn try_from(answer: ConsoleAnswer) -> Result<Self, ConsoleAnswer> {
        match answer {
            ConsoleAnswer::Metrics(metrics) => Ok(metrics),
            other => Err(other),
        }
    }
}

impl ConversationAnswer for JobMessage<JobAnswer> {
    fn from_message(message: ServerMessage) -> Option<Self> {
        match message {
            ServerMessage::Job(message) => Some(message),
            _ => None,
        }
    }
}
