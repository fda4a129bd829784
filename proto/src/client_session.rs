//! The jobs of one session: a connection between scrun and scored carries several at the same time.
//!
//! The first frame of each side is the plain greeting ([`Greeting::Hello`],
//! [`ServerMessage::Hello`]). Its form never changes, so that different versions can refuse each
//! other with a clear message. Messages of scored before its greeting are also plain. All later
//! frames are [`JobMessage`].

use serde::{Deserialize, Serialize};

use crate::PROTOCOL_VERSION;
use crate::frame::{self, Decoder, FrameError};
use crate::ids::SessionJobId;
use crate::message::{Greeting, JobRequest, ServerMessage, SingleUserRequest, UserRequest};

/// The session itself, in place of a job number: a message with it is about all jobs of the
/// session. [`ServerMessage::Refused`] or [`ServerMessage::Finished`] with it is the last message.
pub const SESSION_JOB: SessionJobId = SessionJobId(0);

/// Most jobs of one session at the same time.
pub const MAX_JOBS: usize = 64;

/// A message, and the job that it is about.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct JobMessage<M> {
    /// The number that the client has chosen when it submitted the job. It is free again after the
    /// job's last message, [`ServerMessage::Refused`] or [`ServerMessage::Finished`].
    pub job: SessionJobId,
    /// The message.
    pub message: M,
}

/// What the requests of a session are: the daemon accepts no other ones in its state.
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
    /// As [`frame::encode`].
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
/// As [`frame::encode`].
pub fn encode_greeting(out: &mut Vec<u8>) -> Result<(), FrameError> {
    frame::encode(&Greeting::Hello { version: PROTOCOL_VERSION }, out)
}

/// Appends a client's message to `out`, as one frame: [`SingleUserRequest`], [`UserRequest`] or
/// [`crate::message::Login`].
///
/// # Errors
/// As [`frame::encode`].
pub fn encode<M: Serialize>(
    job: SessionJobId,
    message: &M,
    out: &mut Vec<u8>,
) -> Result<(), FrameError> {
    frame::encode(&JobMessage { job, message }, out)
}

/// The client's side: cuts the byte stream of scored into messages.
#[derive(Debug, Default)]
pub struct ServerMessageDecoder {
    decoder: Decoder,
    is_greeted: bool,
}

impl ServerMessageDecoder {
    /// Adds bytes as read from the stream.
    pub fn push(&mut self, bytes: &[u8]) {
        self.decoder.push(bytes);
    }

    /// The next whole message, or `None` until more bytes have been added.
    ///
    /// # Errors
    /// See [`FrameError`]; the stream is unusable afterwards.
    #[expect(clippy::should_implement_trait, reason = "same name as in Decoder")]
    pub fn next(&mut self) -> Result<Option<JobMessage<ServerMessage>>, FrameError> {
        if self.is_greeted {
            return self.decoder.next();
        }
        let Some(message) = self.decoder.next::<ServerMessage>()? else { return Ok(None) };
        self.is_greeted = matches!(message, ServerMessage::Hello { .. });
        Ok(Some(JobMessage { job: SESSION_JOB, message }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::message::Level;

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
        let refused = ServerMessage::Refused { reason: "no".to_owned(), code: 2 };
        let hello = ServerMessage::Hello { version: PROTOCOL_VERSION };
        let notice = ServerMessage::Notice { level: Level::Info, text: "job 3".to_owned() };
        let mut stream = Vec::new();
        frame::encode(&refused, &mut stream).unwrap();
        frame::encode(&hello, &mut stream).unwrap();
        for job in [SESSION_JOB, SessionJobId(3), SessionJobId(u32::MAX)] {
            frame::encode(&JobMessage { job, message: &notice }, &mut stream).unwrap();
        }
        for step in [1, 7, stream.len()] {
            let (mut server_messages, mut received) = (ServerMessageDecoder::default(), Vec::new());
            for chunk in stream.chunks(step) {
                server_messages.push(chunk);
                while let Some(entry) = server_messages.next().unwrap() {
                    received.push((entry.job, entry.message));
                }
            }
            let mut expected = vec![(SESSION_JOB, refused.clone()), (SESSION_JOB, hello.clone())];
            expected.extend(
                [SESSION_JOB, SessionJobId(3), SessionJobId(u32::MAX)]
                    .map(|job| (job, notice.clone())),
            );
            assert_eq!(received, expected);
        }
    }

    #[test]
    fn the_greeting_has_the_same_form_in_every_version() {
        let mut stream = Vec::new();
        frame::encode(&Greeting::Hello { version: 2 }, &mut stream).unwrap();
        frame::encode(&ServerMessage::Hello { version: 2 }, &mut stream).unwrap();
        assert_eq!(stream, [2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 2]);
    }
}
