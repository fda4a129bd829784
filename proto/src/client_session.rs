//! The jobs of one login: a connection between scrun and scored carries several at once.
//!
//! Each side's first frame is the plain greeting ([`ClientMessage::Hello`], [`ServerMessage::Hello`]), whose form never
//! changes, so that different versions refuse each other by name; what scored says before its
//! greeting is plain, too. All that follows is [`JobMessage`].

use serde::{Deserialize, Serialize};

use crate::frame::{self, Decoder, FrameError};
use crate::message::{ClientMessage, ServerMessage};

/// Stands for the login itself, where others stand for its jobs: what is said of it concerns all
/// of them, and [`ServerMessage::Refused`] or [`ServerMessage::Finished`] of it is the last word.
pub const SESSION_JOB: u32 = 0;

/// Jobs of one login at the same time.
pub const MAX_JOBS: usize = 64;

/// A message, and the job that it is about.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct JobMessage<M> {
    /// The job, by the number that the client has given it when it submitted it: any but
    /// [`SESSION_JOB`] that no other job of the login has. It is free again after the job's last word,
    /// [`ServerMessage::Refused`] or [`ServerMessage::Finished`].
    pub job: u32,
    /// What is said.
    pub message: M,
}

/// Appends what a client says of a job to `out`, as one frame.
///
/// # Errors
/// As [`frame::encode`].
pub fn encode(job: u32, message: &ClientMessage, out: &mut Vec<u8>) -> Result<(), FrameError> {
    match message {
        ClientMessage::Hello { .. } => frame::encode(message, out),
        message => frame::encode(&JobMessage { job, message }, out),
    }
}

/// What a client hears: cuts the byte stream of scored into messages.
#[derive(Debug, Default)]
pub struct ServerMessageDecoder {
    decoder: Decoder,
    is_greeted: bool,
}

impl ServerMessageDecoder {
    /// Adds bytes as they came from the stream.
    pub fn push(&mut self, bytes: &[u8]) {
        self.decoder.push(bytes);
    }

    /// The next whole message, or `None` until more bytes have come.
    ///
    /// # Errors
    /// See [`FrameError`]; the stream is unusable afterwards.
    #[expect(clippy::should_implement_trait, reason = "as that of the decoder")]
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
    use crate::PROTOCOL_VERSION;
    use crate::message::Level;

    #[test]
    fn the_greeting_is_plain_and_everything_else_names_its_job() {
        let mut stream = Vec::new();
        encode(7, &ClientMessage::Hello { version: 9 }, &mut stream).unwrap();
        encode(7, &ClientMessage::Kill, &mut stream).unwrap();
        let mut decoder = Decoder::default();
        decoder.push(&stream);
        assert_eq!(decoder.next(), Ok(Some(ClientMessage::Hello { version: 9 })));
        assert_eq!(decoder.next(), Ok(Some(JobMessage { job: 7, message: ClientMessage::Kill })));
        assert_eq!(decoder.next::<ClientMessage>(), Ok(None));
    }

    #[test]
    fn messages_before_the_greeting_belong_to_the_session() {
        let refused = ServerMessage::Refused { reason: "no".to_owned(), code: 2 };
        let hello = ServerMessage::Hello { version: PROTOCOL_VERSION };
        let notice = ServerMessage::Notice { level: Level::Info, text: "job 3".to_owned() };
        let mut stream = Vec::new();
        frame::encode(&refused, &mut stream).unwrap();
        frame::encode(&hello, &mut stream).unwrap();
        for job in [SESSION_JOB, 3, u32::MAX] {
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
            expected.extend([SESSION_JOB, 3, u32::MAX].map(|job| (job, notice.clone())));
            assert_eq!(received, expected);
        }
    }

    #[test]
    fn the_greeting_has_the_same_form_in_every_version() {
        let mut stream = Vec::new();
        encode(SESSION_JOB, &ClientMessage::Hello { version: 2 }, &mut stream).unwrap();
        frame::encode(&ServerMessage::Hello { version: 2 }, &mut stream).unwrap();
        assert_eq!(stream, [2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 2]);
    }
}
