//! The jobs of one session. A connection between scrun and scored carries several jobs at the same
//! time.
//!
//! The first frame of each side is a plain greeting ([`Greeting::Hello`],
//! [`crate::server_message::SessionAnswer::Hello`]). Its form never changes, so that different
//! versions can reject each other with a clear message. Messages of scored before its greeting are
//! also plain. All later frames of the client are [`JobMessage`], and those of scored are
//! [`crate::server_message::ServerMessage`].

use serde::{Deserialize, Serialize};

use crate::PROTOCOL_VERSION;
use crate::frame::{self, FrameError};
use crate::ids::SessionJobId;
use crate::message::Greeting;

/// Identifies the session itself, instead of a job. A request with this number concerns all jobs of
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
    /// [`crate::message::SingleUserRequest`].
    SingleUser,
    /// [`crate::message::UserRequest`], after [`crate::message::Login`].
    MultiUser,
}

/// Appends the greeting of this version to `out`, as one frame.
///
/// # Errors
/// The errors of [`frame::encode`].
pub fn encode_greeting(out: &mut Vec<u8>) -> Result<(), FrameError> {
    frame::encode(&Greeting::Hello { version: PROTOCOL_VERSION }, out)
}

/// Appends a client's message to `out`, as one frame:
/// [`crate::message::SingleUserRequest`], [`crate::message::UserRequest`] or
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::frame::Decoder;
    use crate::message::JobRequest;
    use crate::server_message::SessionAnswer;

    #[test]
    fn only_the_greeting_has_no_job_number() {
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
    fn the_greeting_has_the_same_form_in_every_version() {
        let mut stream = Vec::new();
        frame::encode(&Greeting::Hello { version: 2 }, &mut stream).unwrap();
        frame::encode(&SessionAnswer::Hello { version: 2 }, &mut stream).unwrap();
        assert_eq!(stream, [2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 2]);
    }
}
