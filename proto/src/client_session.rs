//! The jobs of one session. A connection between scrun and scored carries several jobs at the same
//! time.
//!
//! The first frame of each side is a plain greeting ([`Greeting::Hello`],
//! [`SessionAnswer::Hello`]). Its form never changes, so that different versions can reject each
//! other with a clear message. Messages of scored before its greeting are also plain. All later
//! frames of the client are [`JobMessage`], and those of scored are [`ServerMessage`].

use serde::{Deserialize, Serialize};

use crate::PROTOCOL_VERSION;
use crate::frame::{self, Decoder, FrameError};
use crate::ids::SessionJobId;
use crate::message::{Greeting, JobRequest, SingleUserRequest, UserRequest};
use crate::server_message::{ConversationAnswer, ServerMessage, SessionAnswer, SessionMessage};

/// Stands for the session itself in place of a job. A request with this number concerns all jobs of
/// the session.
pub const SESSION_JOB: SessionJobId = SessionJobId(0);

/// Largest number of jobs of one session at the same time.
pub const MAX_JOBS: usize = 64;

/// A message, and the job that it concerns.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct JobMessage<M> {
    /// The number that the client has chosen when it submitted the job. It differs from
    /// [`SESSION_JOB`] and from the numbers of all other jobs of the session. The number is free
    /// again after the job's last message: see [`crate::server_message::JobAnswer`].
    pub job: SessionJobId,
    /// The message.
    pub message: M,
}

/// The kind of requests in a session. The daemon accepts no other requests in this session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SessionKind {
    /// [`SingleUserRequest`].
    SingleUser,
    /// [`UserRequest`], after [`crate::message::Login`].
    MultiUser,
}

impl SessionKind {
    /// Appends a request to a job to `out`, as one frame.
    ///
    /// # Errors
    /// The errors of [`frame::encode`].
    pub fn encode_job_request(
        self,
        job: SessionJobId,
        request: JobRequest,
        out: &mut Vec<u8>,
    ) -> Result<(), FrameError> {
        match self {
            SessionKind::SingleUser => encode(job, &SingleUserRequest::Job(request), out),
            SessionKind::MultiUser => encode(job, &UserRequest::Job(request), out),
        }
    }
}

/// Appends the greeting of this version to `out`, as one frame.
///
/// # Errors
/// The errors of [`frame::encode`].
pub fn encode_greeting(out: &mut Vec<u8>) -> Result<(), FrameError> {
    frame::encode(&Greeting::Hello { version: PROTOCOL_VERSION }, out)
}

/// Checks the version in scored's greeting. Frames after the greeting of another version cannot be
/// decoded.
///
/// # Errors
/// One line with both versions.
pub fn check_server_version(version: u32) -> Result<(), String> {
    match version {
        PROTOCOL_VERSION => Ok(()),
        _ => Err(format!(
            "scored speaks protocol {version}, this program {PROTOCOL_VERSION}: use both from one \
             release"
        )),
    }
}

/// Appends a client's message to `out`, as one frame: [`SingleUserRequest`], [`UserRequest`] or
/// [`crate::message::Login`].
///
/// # Errors
/// The errors of [`frame::encode`].
pub fn encode<M: Serialize>(
    job: SessionJobId,
    message: &M,
    out: &mut Vec<u8>,
) -> Result<(), FrameError> {
    frame::encode(&JobMessage { job, message }, out)
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
    use crate::message::Level;
    use crate::server_message::{
        ConsoleAnswer, ConsoleReply, JobAnswer, ListAnswer, PageAddress, ScoutAnswer, ScoutHosts,
    };

    #[test]
    fn another_version_of_scored_is_refused_with_both_numbers() {
        assert_eq!(check_server_version(PROTOCOL_VERSION), Ok(()));
        let error = check_server_version(99).unwrap_err();
        assert!(error.contains("99") && error.contains(&PROTOCOL_VERSION.to_string()), "{error}");
    }

    #[test]
    fn the_greeting_is_plain_and_everything_else_names_its_job() {
        let mut stream = Vec::new();
        encode_greeting(&mut stream).unwrap();
        encode(SessionJobId(7), &JobRequest::Kill, &mut stream).unwrap();
        let mut decoder = Decoder::default();
        decoder.push(&stream);
        assert_eq!(decoder.next(), Ok(Some(Greeting::Hello { version: PROTOCOL_VERSION })));
        assert_eq!(
            decoder.next(),
            Ok(Some(JobMessage { job: SessionJobId(7), message: JobRequest::Kill }))
        );
        assert_eq!(decoder.next::<JobMessage<JobRequest>>(), Ok(None));
    }

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

    #[test]
    fn the_greeting_has_the_same_form_in_every_version() {
        let mut stream = Vec::new();
        frame::encode(&Greeting::Hello { version: 2 }, &mut stream).unwrap();
        frame::encode(&SessionAnswer::Hello { version: 2 }, &mut stream).unwrap();
        assert_eq!(stream, [2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 2]);
    }
}
