//! Length-prefixed frames on a byte stream: four bytes of length, little-endian, then a [postcard]
//! body. This module converts between bytes and messages. Only [`Decoder::read_next`] does I/O: it
//! reads from a stream that may block.

use std::io;

use serde::{Serialize, de::DeserializeOwned};
use thiserror::Error;

/// Length of the longest body in bytes. A [`Decoder`] may have a lower limit. The connection to a
/// peer that announces a longer body is closed.
pub const MAX_BODY: usize = 1 << 20;

/// Length of the length prefix in bytes.
const PREFIX_LEN: usize = 4;

/// Capacity in bytes that an empty [`Decoder`] keeps. Common messages fit, so that only a large
/// message causes an allocation.
const MAX_IDLE_CAPACITY: usize = 64 << 10;

/// Why a stream of frames can no longer be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum FrameError {
    /// The announced length exceeds the limit: [`MAX_BODY`], or the limit of the [`Decoder`].
    #[error("a frame of {len} bytes exceeds the limit of {max}")]
    TooLong {
        /// The length of the body.
        len: usize,
        /// The limit.
        max: usize,
    },
    /// The body is not a message of the expected type.
    #[error("a frame does not decode as the expected message")]
    Malformed,
}

/// Appends bytes to a vector that it does not own.
struct Appender<'a>(&'a mut Vec<u8>);

impl Extend<u8> for Appender<'_> {
    fn extend<T: IntoIterator<Item = u8>>(&mut self, bytes: T) {
        self.0.extend(bytes);
    }
}

/// Appends `message` as one frame to `out`.
///
/// # Errors
/// [`FrameError::TooLong`] if the body exceeds [`MAX_BODY`], [`FrameError::Malformed`] if the
/// message has a value that cannot be encoded. `out` is then unchanged.
pub fn encode<M: Serialize>(message: &M, out: &mut Vec<u8>) -> Result<(), FrameError> {
    let start = out.len();
    let body_start = start + PREFIX_LEN;
    out.resize(body_start, 0);
    let encoded = postcard::to_extend(message, Appender(&mut *out)).map(drop);
    let body_len = out.len() - body_start;
    let error = match encoded {
        Ok(()) if body_len <= MAX_BODY => {
            out[start..body_start].copy_from_slice(&(body_len as u32).to_le_bytes());
            return Ok(());
        }
        Ok(()) => FrameError::TooLong { len: body_len, max: MAX_BODY },
        Err(_) => FrameError::Malformed,
    };
    out.truncate(start);
    Err(error)
}

/// Splits a byte stream into messages.
#[derive(Debug)]
pub struct Decoder {
    bytes: Vec<u8>,
    start: usize,
    max_body: usize,
}

impl Default for Decoder {
    fn default() -> Self {
        Self { bytes: Vec::new(), start: 0, max_body: MAX_BODY }
    }
}

impl Decoder {
    /// Sets the length of the longest body that is accepted, at most [`MAX_BODY`]. It applies to
    /// frames that have not been returned yet.
    pub fn set_max_body(&mut self, max_body: usize) {
        self.max_body = max_body.min(MAX_BODY);
    }

    /// Adds bytes that were read from the stream.
    pub fn push(&mut self, bytes: &[u8]) {
        if self.start > 0 && self.start == self.bytes.len() {
            self.bytes.clear();
            self.start = 0;
        } else if self.start > self.max_body {
            self.bytes.drain(..self.start);
            self.start = 0;
        }
        self.bytes.extend_from_slice(bytes);
    }

    /// The next complete message, or `None` if more bytes are needed.
    ///
    /// # Errors
    /// See [`FrameError`]. The stream is unusable after an error.
    #[expect(clippy::should_implement_trait, reason = "generic over the message")]
    pub fn next<M: DeserializeOwned>(&mut self) -> Result<Option<M>, FrameError> {
        let rest = &self.bytes[self.start..];
        let Some((prefix, rest)) = rest.split_first_chunk::<PREFIX_LEN>() else {
            self.release_if_empty();
            return Ok(None);
        };
        let len = u32::from_le_bytes(*prefix) as usize;
        if len > self.max_body {
            return Err(FrameError::TooLong { len, max: self.max_body });
        }
        let Some(body) = rest.get(..len) else { return Ok(None) };
        let message = decode_datagram(body)?;
        self.start += PREFIX_LEN + len;
        Ok(Some(message))
    }

    /// Reads until there is a complete message. Returns `None` if the stream has ended. An
    /// incomplete message at its end is lost.
    ///
    /// # Errors
    /// See read(2) and [`FrameError`].
    pub fn read_next<M: DeserializeOwned>(
        &mut self,
        stream: &mut impl io::Read,
    ) -> io::Result<Option<M>> {
        let mut bytes = [0; 16 << 10];
        loop {
            if let Some(message) = self.next().map_err(io::Error::other)? {
                return Ok(Some(message));
            }
            match stream.read(&mut bytes) {
                Ok(0) => return Ok(None),
                Ok(count) => self.push(&bytes[..count]),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// Releases the memory of a large message, because the peer may be idle for long after it.
    fn release_if_empty(&mut self) {
        if self.bytes.capacity() > MAX_IDLE_CAPACITY && self.pending() == 0 {
            *self = Self { max_body: self.max_body, ..Self::default() };
        }
    }

    /// Number of bytes that have been added and not yet returned as messages.
    pub fn pending(&self) -> usize {
        self.bytes.len() - self.start
    }

    /// The number of bytes that may be missing from the longest frame, after [`Decoder::next`] has
    /// returned `None`. A caller that adds no more bytes than that at once keeps little more than
    /// one frame in memory.
    pub fn max_missing(&self) -> usize {
        (PREFIX_LEN + self.max_body).saturating_sub(self.pending()).max(1)
    }
}

/// Encodes a message for a socket that preserves message boundaries. There is no length prefix.
///
/// # Errors
/// [`FrameError::TooLong`] if the body exceeds [`MAX_BODY`], [`FrameError::Malformed`] if the
/// message has a value that cannot be encoded.
pub fn encode_datagram<M: Serialize>(message: &M) -> Result<Vec<u8>, FrameError> {
    let body = postcard::to_stdvec(message).map_err(|_| FrameError::Malformed)?;
    match body.len() {
        len if len > MAX_BODY => Err(FrameError::TooLong { len, max: MAX_BODY }),
        _ => Ok(body),
    }
}

/// Decodes one complete body. Remaining bytes are an error.
///
/// # Errors
/// [`FrameError::Malformed`].
pub fn decode_datagram<M: DeserializeOwned>(body: &[u8]) -> Result<M, FrameError> {
    match postcard::take_from_bytes(body) {
        Ok((message, [])) => Ok(message),
        _ => Err(FrameError::Malformed),
    }
}

/// Encodes a message without a length prefix and without heap allocation.
///
/// # Errors
/// [`FrameError::TooLong`] if `out` is too short.
pub fn encode_slice<'o, M: Serialize>(
    message: &M,
    out: &'o mut [u8],
) -> Result<&'o [u8], FrameError> {
    let too_long = FrameError::TooLong { len: out.len() + 1, max: out.len() };
    postcard::to_slice(message, out).map(|used| &*used).map_err(|_| too_long)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::message::JobRequest;
    use crate::nodeset::{MAX_RANGES, NodeSet};
    use crate::server_message::ServerMessage;
    use proptest::prelude::*;
    use std::collections::VecDeque;

    /// A stream whose reads have these results. It ends after the last one.
    struct ScriptedStream(VecDeque<Result<Vec<u8>, io::ErrorKind>>);

    impl io::Read for ScriptedStream {
        fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
            match self.0.pop_front() {
                Some(Ok(bytes)) => {
                    buffer[..bytes.len()].copy_from_slice(&bytes);
                    Ok(bytes.len())
                }
                Some(Err(kind)) => Err(kind.into()),
                None => Ok(0),
            }
        }
    }

    #[test]
    fn an_interrupted_read_is_repeated_and_another_error_is_returned() {
        let mut frame = Vec::new();
        encode(&JobRequest::StdinEof, &mut frame).unwrap();
        let (interrupted, reset) = (io::ErrorKind::Interrupted, io::ErrorKind::ConnectionReset);
        let mut stream = ScriptedStream([Err(interrupted), Ok(frame), Err(reset)].into());
        let mut decoder = Decoder::default();
        assert_eq!(decoder.read_next(&mut stream).unwrap(), Some(JobRequest::StdinEof));
        let error = decoder.read_next::<JobRequest>(&mut stream).unwrap_err();
        assert_eq!(error.kind(), reset);
    }

    #[test]
    fn a_stream_is_read_up_to_its_end_and_a_message_that_is_cut_off_is_lost() {
        let mut bytes = Vec::new();
        for message in [JobRequest::Signal(2), JobRequest::StdinEof] {
            encode(&message, &mut bytes).unwrap();
        }
        let (mut decoder, mut stream) = (Decoder::default(), &bytes[..bytes.len() - 1]);
        assert_eq!(decoder.read_next(&mut stream).unwrap(), Some(JobRequest::Signal(2)));
        assert_eq!(decoder.read_next::<JobRequest>(&mut stream).unwrap(), None);
        let mut wrong = &[0xff; 64][..];
        assert!(Decoder::default().read_next::<JobRequest>(&mut wrong).is_err());
    }

    #[test]
    fn messages_survive_any_cutting_of_the_stream() {
        let sent =
            vec![JobRequest::Signal(2), JobRequest::Stdin(vec![7; 70_000]), JobRequest::StdinEof];
        let mut stream = Vec::new();
        for message in &sent {
            encode(message, &mut stream).unwrap();
        }
        for step in [1, 3, 4, 5, 1000, stream.len()] {
            let (mut decoder, mut received) = (Decoder::default(), Vec::new());
            for chunk in stream.chunks(step) {
                decoder.push(chunk);
                while let Some(message) = decoder.next::<JobRequest>().unwrap() {
                    received.push(message);
                }
            }
            assert_eq!(received, sent);
            assert_eq!(decoder.pending(), 0);
        }
    }

    #[test]
    fn an_announced_gigabyte_is_refused_before_it_is_received() {
        let mut decoder = Decoder::default();
        decoder.push(&(1u32 << 30).to_le_bytes());
        assert_eq!(
            decoder.next::<JobRequest>(),
            Err(FrameError::TooLong { len: 1 << 30, max: MAX_BODY })
        );
    }

    #[test]
    fn a_decoder_with_a_lower_bound_refuses_longer_frames_until_the_bound_is_raised() {
        let mut stream = Vec::new();
        encode(&JobRequest::Stdin(vec![7; 90]), &mut stream).unwrap();
        encode(&JobRequest::Stdin(vec![7; 200]), &mut stream).unwrap();
        let mut decoder = Decoder::default();
        decoder.set_max_body(100);
        assert_eq!(decoder.max_missing(), 104);
        decoder.push(&stream);
        assert!(decoder.next::<JobRequest>().unwrap().is_some());
        let error = decoder.next::<JobRequest>().unwrap_err();
        assert!(error.to_string().contains("exceeds the limit of 100"), "{error}");
        decoder.set_max_body(usize::MAX);
        assert!(decoder.next::<JobRequest>().unwrap().is_some());
    }

    #[test]
    fn a_decoder_frees_the_memory_of_a_large_message() {
        let mut stream = Vec::new();
        encode(&JobRequest::Stdin(vec![7; MAX_BODY - 100]), &mut stream).unwrap();
        let mut decoder = Decoder::default();
        let max_body = MAX_BODY - 50;
        decoder.set_max_body(max_body);
        stream.chunks(MAX_IDLE_CAPACITY).for_each(|chunk| decoder.push(chunk));
        assert!(decoder.next::<JobRequest>().unwrap().is_some());
        assert_eq!(decoder.next::<JobRequest>(), Ok(None));
        assert!(decoder.bytes.capacity() <= MAX_IDLE_CAPACITY);
        assert_eq!(decoder.max_missing(), PREFIX_LEN + max_body);
    }

    #[test]
    fn an_empty_decoder_keeps_the_memory_of_common_messages_and_uses_it_again() {
        let mut frame = Vec::new();
        encode(&JobRequest::Stdin(vec![7; 50]), &mut frame).unwrap();
        let bytes = Vec::with_capacity(MAX_IDLE_CAPACITY);
        let mut decoder = Decoder { bytes, ..Decoder::default() };
        decoder.push(&frame);
        assert!(decoder.next::<JobRequest>().unwrap().is_some());
        assert_eq!(decoder.next::<JobRequest>(), Ok(None));
        assert_eq!(decoder.bytes.capacity(), MAX_IDLE_CAPACITY);
        let mut decoder = Decoder::default();
        for _ in 0..1000 {
            decoder.push(&frame);
            assert!(decoder.next::<JobRequest>().unwrap().is_some());
        }
        assert!(decoder.bytes.capacity() < 1024, "{}", decoder.bytes.capacity());
    }

    #[test]
    fn memory_for_a_stream_of_small_frames_is_bounded() {
        let mut frame = Vec::new();
        encode(&JobRequest::Stdin(vec![7; 50]), &mut frame).unwrap();
        for frames_at_once in [1, 10] {
            let frames = frame.repeat(frames_at_once);
            let mut decoder = Decoder::default();
            decoder.set_max_body(100);
            // The decoder is never empty.
            decoder.push(&frames[..10]);
            for _ in 0..1000 {
                decoder.push(&frames[10..]);
                decoder.push(&frames[..10]);
                while decoder.next::<JobRequest>().unwrap().is_some() {}
            }
            let capacity = decoder.bytes.capacity();
            assert!(capacity < 1024 * frames_at_once, "{capacity}");
        }
    }

    #[test]
    fn a_message_above_the_limit_is_not_sent_and_does_not_damage_the_stream() {
        let mut stream = vec![1, 2, 3];
        let long = JobRequest::Stdin(vec![0; MAX_BODY + 1]);
        assert!(matches!(encode(&long, &mut stream), Err(FrameError::TooLong { .. })));
        assert_eq!(stream, [1, 2, 3]);
    }

    #[test]
    fn the_longest_message_is_carried_and_a_longer_one_is_refused() {
        let input = |len: usize| JobRequest::Stdin(vec![7; len]);
        let short_input = MAX_BODY / 2;
        let other_bytes = encode_datagram(&input(short_input)).unwrap().len() - short_input;
        let longest = input(MAX_BODY - other_bytes);
        let mut stream = Vec::new();
        encode(&longest, &mut stream).unwrap();
        assert_eq!(stream.len(), PREFIX_LEN + MAX_BODY);
        let mut decoder = Decoder::default();
        decoder.push(&stream);
        assert!(decoder.next::<JobRequest>().unwrap().as_ref() == Some(&longest));
        assert_eq!(encode_datagram(&longest).unwrap().len(), MAX_BODY);
        let longer = input(MAX_BODY - other_bytes + 1);
        let too_long = FrameError::TooLong { len: MAX_BODY + 1, max: MAX_BODY };
        assert_eq!(encode_datagram(&longer), Err(too_long));
        assert_eq!(encode(&longer, &mut stream), Err(too_long));
    }

    #[test]
    fn a_message_that_cannot_be_encoded_leaves_the_frames_before_it() {
        let mut stream = Vec::new();
        encode(&JobRequest::StdinEof, &mut stream).unwrap();
        let frames_before = stream.clone();
        let unencodable: NodeSet = (0..=MAX_RANGES as u32).map(|index| 2 * index).collect();
        assert_eq!(encode(&unencodable, &mut stream), Err(FrameError::Malformed));
        assert_eq!(stream, frames_before);
    }

    #[test]
    fn a_buffer_that_is_too_short_is_refused_with_its_length() {
        let (message, mut buffer) = ([7u8; 4], [0; 4]);
        let too_long = FrameError::TooLong { len: 4, max: 3 };
        assert_eq!(encode_slice(&message, &mut buffer[..3]), Err(too_long));
        assert_eq!(encode_slice(&message, &mut buffer), Ok(&message[..]));
    }

    proptest! {
        #[test]
        fn no_bytes_make_the_decoder_panic(
            bytes in proptest::collection::vec(any::<u8>(), 0..512)
        ) {
            let mut decoder = Decoder::default();
            decoder.push(&bytes);
            while let Ok(Some(_)) = decoder.next::<JobRequest>() {}
            let _ = decode_datagram::<ServerMessage>(&bytes);
        }
    }
}
