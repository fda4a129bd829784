//! The jobs of one login: a connection between scrun and scored carries several at once.
//!
//! Each side's first frame is the plain greeting ([`Down::Hello`], [`Up::Hello`]), whose form never
//! changes, so that different versions refuse each other by name; what scored says before its
//! greeting is plain, too. All that follows is [`OfJob`].

use serde::{Deserialize, Serialize};

use crate::frame::{self, Decoder, FrameError};
use crate::message::{Down, Up};

/// Stands for the login itself, where others stand for its jobs: what is said of it concerns all
/// of them, and [`Up::Refused`] or [`Up::Finished`] of it is the last word.
pub const LOGIN: u32 = 0;

/// Jobs of one login at the same time.
pub const JOBS: usize = 64;

/// A message, and the job that it is about.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct OfJob<M> {
    /// The job, by the number that the client has given it when it submitted it: any but
    /// [`LOGIN`] that no other job of the login has. It is free again after the job's last word,
    /// [`Up::Refused`] or [`Up::Finished`].
    pub job: u32,
    /// What is said.
    pub message: M,
}

/// Appends what a client says of a job to `out`, as one frame.
///
/// # Errors
/// As [`frame::encode`].
pub fn encode(job: u32, message: &Down, out: &mut Vec<u8>) -> Result<(), FrameError> {
    match message {
        Down::Hello { .. } => frame::encode(message, out),
        message => frame::encode(&OfJob { job, message }, out),
    }
}

/// What a client hears: cuts the byte stream of scored into messages.
#[derive(Debug, Default)]
pub struct Ups {
    decoder: Decoder,
    greeted: bool,
}

impl Ups {
    /// Adds bytes as they came from the stream.
    pub fn push(&mut self, bytes: &[u8]) {
        self.decoder.push(bytes);
    }

    /// The next whole message, or `None` until more bytes have come.
    ///
    /// # Errors
    /// See [`FrameError`]; the stream is unusable afterwards.
    #[expect(clippy::should_implement_trait, reason = "as that of the decoder")]
    pub fn next(&mut self) -> Result<Option<OfJob<Up>>, FrameError> {
        if self.greeted {
            return self.decoder.next();
        }
        let Some(message) = self.decoder.next::<Up>()? else { return Ok(None) };
        self.greeted = matches!(message, Up::Hello { .. });
        Ok(Some(OfJob { job: LOGIN, message }))
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
        encode(7, &Down::Hello { version: 9 }, &mut stream).unwrap();
        encode(7, &Down::Kill, &mut stream).unwrap();
        let mut decoder = Decoder::default();
        decoder.push(&stream);
        assert_eq!(decoder.next(), Ok(Some(Down::Hello { version: 9 })));
        assert_eq!(decoder.next(), Ok(Some(OfJob { job: 7, message: Down::Kill })));
        assert_eq!(decoder.next::<Down>(), Ok(None));
    }

    #[test]
    fn what_is_heard_before_the_greeting_is_of_the_login() {
        let refused = Up::Refused { reason: "no".to_owned(), code: 2 };
        let hello = Up::Hello { version: PROTOCOL_VERSION };
        let notice = Up::Notice { level: Level::Info, text: "job 3".to_owned() };
        let mut stream = Vec::new();
        frame::encode(&refused, &mut stream).unwrap();
        frame::encode(&hello, &mut stream).unwrap();
        for job in [LOGIN, 3, u32::MAX] {
            frame::encode(&OfJob { job, message: &notice }, &mut stream).unwrap();
        }
        for step in [1, 7, stream.len()] {
            let (mut ups, mut got) = (Ups::default(), Vec::new());
            for piece in stream.chunks(step) {
                ups.push(piece);
                while let Some(one) = ups.next().unwrap() {
                    got.push((one.job, one.message));
                }
            }
            let mut expected = vec![(LOGIN, refused.clone()), (LOGIN, hello.clone())];
            expected.extend([LOGIN, 3, u32::MAX].map(|job| (job, notice.clone())));
            assert_eq!(got, expected);
        }
    }

    #[test]
    fn the_greetings_form_is_that_of_every_version() {
        let mut stream = Vec::new();
        encode(LOGIN, &Down::Hello { version: 2 }, &mut stream).unwrap();
        frame::encode(&Up::Hello { version: 2 }, &mut stream).unwrap();
        assert_eq!(stream, [2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 2]);
    }
}
