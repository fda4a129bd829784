//! The answers that a client expects: each kind of client decodes only the answers to its own
//! requests.

use super::{
    ConsoleAnswer, JobAnswer, ListAnswer, ListedProcesses, PageAddress, ScoutAnswer, ScoutHosts,
    ServerMessage, SessionAnswer, ToolAnswer,
};
use crate::client_session::JobMessage;
use crate::frame::{Decoder, FrameError};
use crate::observation::Metrics;
use crate::tool_start::ToolActionAnswer;

/// The answers of one conversation, which a client expects after the greeting.
pub trait ConversationAnswer: Sized {
    /// The answer that a message contains. None: the message belongs to another conversation.
    fn from_message(message: ServerMessage) -> Option<Self>;
}

/// A message in the form in which a client receives it that expects the answers `A`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SessionMessage<A> {
    /// About the session itself.
    Session(SessionAnswer),
    /// An answer to the client's request.
    Answer(A),
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

impl<A: ConversationAnswer> SessionMessage<A> {
    /// The message in the form that the client expects. None: it belongs to another conversation.
    fn from_message(message: ServerMessage) -> Option<Self> {
        match message {
            ServerMessage::Session(answer) => Some(Self::Session(answer)),
            other => A::from_message(other).map(Self::Answer),
        }
    }
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

/// The client's side: splits the byte stream of scored into messages.
#[derive(Debug, Default)]
pub struct ServerMessageDecoder {
    decoder: Decoder,
    is_greeted: bool,
}

impl ServerMessageDecoder {
    /// Adds bytes that were read from the stream.
    pub fn push(&mut self, bytes: &[u8]) {
        self.decoder.push(bytes);
    }

    /// The next complete message, or `None` if more bytes are needed.
    ///
    /// # Errors
    /// See [`FrameError`]. The stream is unusable after an error. A message of another conversation
    /// than that of `A` is malformed.
    #[expect(clippy::should_implement_trait, reason = "same name as in Decoder")]
    pub fn next<A: ConversationAnswer>(&mut self) -> Result<Option<SessionMessage<A>>, FrameError> {
        if self.is_greeted {
            let Some(message) = self.decoder.next::<ServerMessage>()? else { return Ok(None) };
            return SessionMessage::from_message(message).map(Some).ok_or(FrameError::Malformed);
        }
        let Some(answer) = self.decoder.next()? else { return Ok(None) };
        self.is_greeted = matches!(answer, SessionAnswer::Hello { .. });
        Ok(Some(SessionMessage::Session(answer)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::PROTOCOL_VERSION;
    use crate::client_session::SESSION_JOB;
    use crate::frame;
    use crate::ids::SessionJobId;
    use crate::message::Level;

    #[test]
    fn messages_before_the_greeting_belong_to_the_session() {
        let refused = SessionAnswer::Refused { reason: "no".to_owned(), code: 2 };
        let hello = SessionAnswer::Hello { version: PROTOCOL_VERSION };
        let notice = |job| ServerMessage::notice(job, Level::Info, "job 3".to_owned());
        let mut stream = Vec::new();
        frame::encode(&refused, &mut stream).unwrap();
        frame::encode(&hello, &mut stream).unwrap();
        for job in [SESSION_JOB, SessionJobId(3), SessionJobId(u32::MAX)] {
            frame::encode(&notice(job), &mut stream).unwrap();
        }
        for step in [1, 7, stream.len()] {
            let (mut decoder, mut received) = (ServerMessageDecoder::default(), Vec::new());
            for chunk in stream.chunks(step) {
                decoder.push(chunk);
                while let Some(message) = decoder.next::<JobMessage<JobAnswer>>().unwrap() {
                    received.push(match message {
                        SessionMessage::Session(answer) => ServerMessage::Session(answer),
                        SessionMessage::Answer(message) => ServerMessage::Job(message),
                    });
                }
            }
            let before = [refused.clone(), hello.clone()].map(ServerMessage::Session);
            let after = [SESSION_JOB, SessionJobId(3), SessionJobId(u32::MAX)].map(notice);
            assert_eq!(received, [before.as_slice(), &after].concat());
        }
    }

    #[test]
    fn a_message_of_another_conversation_is_malformed() {
        let hello = SessionAnswer::Hello { version: PROTOCOL_VERSION };
        let finished = ServerMessage::Console(ConsoleAnswer::Finished { code: 0 });
        let page = PageAddress { host: "a".to_owned(), url: "u".to_owned() };
        let page = ServerMessage::Console(ConsoleAnswer::Page(page));
        let unknown = ServerMessage::job_answer(SessionJobId(3), JobAnswer::UnknownJob);
        fn accepts<A: ConversationAnswer>(hello: &SessionAnswer, message: &ServerMessage) -> bool {
            let (mut decoder, mut stream) = (ServerMessageDecoder::default(), Vec::new());
            frame::encode(hello, &mut stream).unwrap();
            frame::encode(message, &mut stream).unwrap();
            decoder.push(&stream);
            decoder.next::<A>().unwrap();
            decoder.next::<A>().is_ok()
        }
        let accepted = |message| {
            [
                accepts::<JobMessage<JobAnswer>>(&hello, message),
                accepts::<ConsoleReply<ListAnswer>>(&hello, message),
                accepts::<ConsoleReply<PageAddress>>(&hello, message),
                accepts::<ScoutAnswer>(&hello, message),
                accepts::<ScoutHosts>(&hello, message),
            ]
        };
        assert_eq!(accepted(&finished), [false, true, true, false, false]);
        assert_eq!(accepted(&page), [false, false, true, false, false]);
        assert_eq!(accepted(&unknown), [true, false, false, false, false]);
        let opened = ServerMessage::Scout(ScoutAnswer::Opened { socket: "/s".to_owned() });
        assert_eq!(accepted(&opened), [false, false, false, true, false]);
        let hosts = ServerMessage::ScoutHosts(ScoutHosts(Vec::new()));
        assert_eq!(accepted(&hosts), [false, false, false, false, true]);
    }
}
