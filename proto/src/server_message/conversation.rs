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
    /// The answer that a message contains. Returns `None` if the message belongs to another
    /// conversation.
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::SessionJobId;
    use crate::nodeset::NodeSet;
    use crate::tool_start::ToolId;

    #[test]
    fn each_client_decodes_only_the_answers_of_its_conversation() {
        fn decode<A: ConversationAnswer>(message: &ServerMessage) -> Option<A> {
            A::from_message(message.clone())
        }
        let hosts = ScoutHosts(Vec::new());
        let opened = ScoutAnswer::Opened { socket: "/socket".to_owned() };
        let job = JobMessage { job: SessionJobId(7), message: JobAnswer::StdinClosed };
        let messages = [
            ServerMessage::ScoutHosts(hosts.clone()),
            ServerMessage::Scout(opened.clone()),
            ServerMessage::Console(ConsoleAnswer::Finished { code: 3 }),
            ServerMessage::Job(job.clone()),
        ];
        let all = messages.each_ref();
        assert_eq!(all.map(decode::<ScoutHosts>), [Some(hosts), None, None, None]);
        assert_eq!(all.map(decode::<ScoutAnswer>), [None, Some(opened), None, None]);
        let finished: ConsoleReply<Metrics> = ConsoleReply::Finished { code: 3 };
        assert_eq!(all.map(decode::<ConsoleReply<Metrics>>), [None, None, Some(finished), None]);
        assert_eq!(all.map(decode::<JobMessage<JobAnswer>>), [None, None, None, Some(job)]);
    }

    #[test]
    fn each_console_request_has_its_own_answers() {
        type IsAnswer = fn(&ConsoleAnswer) -> bool;
        fn is_answer<A: TryFrom<ConsoleAnswer>>(answer: &ConsoleAnswer) -> bool {
            ConsoleReply::<A>::from_message(ServerMessage::Console(answer.clone())).is_some()
        }
        let requests: [(&str, IsAnswer); 7] = [
            ("list", is_answer::<ListAnswer>),
            ("page", is_answer::<PageAddress>),
            ("metrics", is_answer::<Metrics>),
            ("tool", is_answer::<ToolAnswer>),
            ("action", is_answer::<ToolActionAnswer>),
            ("start", is_answer::<ToolStartAnswer>),
            ("processes", is_answer::<ListedProcesses>),
        ];
        let page = PageAddress { host: "server".to_owned(), url: "http://server/".to_owned() };
        let part = FileRequest { hash: [7; 32], offset: 0, length: 1 };
        let stage = ListedProcesses::Stage { stage: 0, programs: Vec::new(), nodes: 1 };
        for (answer, expected) in [
            (ConsoleAnswer::List(ListAnswer::Jobs(Vec::new())), &["list"][..]),
            (ConsoleAnswer::Page(page), &["page"]),
            (ConsoleAnswer::Metrics(Metrics::default()), &["metrics"]),
            (ConsoleAnswer::Tool(ToolAnswer::Missing(NodeSet::new())), &["tool"]),
            (ConsoleAnswer::ToolAction(ToolActionAnswer::Started(ToolId(1))), &["action", "start"]),
            (ConsoleAnswer::ToolFileRequest(part), &["start"]),
            (ConsoleAnswer::Processes(stage), &["processes"]),
        ] {
            let found = requests.iter().filter(|(_, is_answer)| is_answer(&answer));
            let names: Vec<&str> = found.map(|(name, _)| *name).collect();
            assert_eq!(names, expected, "{answer:?}");
        }
    }
}
