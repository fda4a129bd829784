//! One link between two daemons: encrypted, authenticated by the cluster key, and kept alive. This
//! module does no I/O: the caller moves the bytes of the connection and passes the time. A time is
//! the duration since any fixed moment on a clock that does not jump.
//!
//! The calls of an event loop:
//!
//! - readable: read at most about 64 KiB and call [`Link::push`], then [`Link::next`] until it
//!   returns `None`; at the end of the stream, [`Link::on_eof`] returns the reason;
//! - writable: write from [`Link::outgoing`], then [`Link::mark_written`];
//! - at [`Link::deadline`], after all received bytes were pushed: call [`Link::tick`];
//! - at any error: try once to write the remaining bytes, log the error, close.
//!
//! The caller that accepts connections must also limit the number of concurrent handshakes. Each
//! handshake uses about 200 bytes until its first flight is complete, and ends after
//! [`LinkTimeouts::handshake_timeout`].

use std::time::Duration;

use score_proto::frame::{self, MAX_BODY};
use serde::{Serialize, de::DeserializeOwned};
use snow::TransportState;

mod error;
mod handshake;
mod record;

pub use error::{LinkError, SendError};
use handshake::Handshake;

use crate::key::Key;

/// A time on a clock that does not jump.
pub type MonotonicTime = Duration;

/// The largest number of bytes that may be queued for a peer that does not read.
pub const MAX_QUEUED: usize = 4 * MAX_BODY;
/// Buffers that have grown beyond this are freed when they are empty.
const MAX_RETAINED_CAPACITY: usize = 16 * 1024;
/// The factor by which a link with slow heartbeats extends its timeout, and the largest factor that
/// a peer may announce.
const SLOW_HEARTBEAT_FACTOR: u8 = 5;
const MAX_HEARTBEAT_FACTOR: u8 = 10;
/// The longest reason in a close record, in bytes.
const MAX_REASON_LEN: usize = 400;

/// The timeouts of a link.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LinkTimeouts {
    /// The longest duration of the handshake.
    pub handshake_timeout: Duration,
    /// A link on which nothing was received for this time is dead. A keepalive is sent after a
    /// third of it, or after a quarter if the event loop is awake anyway. So the keepalives of a
    /// daemon's links fall into few iterations of the loop. A peer's keepalive is answered in the
    /// iteration that it causes.
    pub silence_timeout: Duration,
}

/// One end of a link.
#[derive(Debug)]
pub struct Link {
    state: State,
    timeouts: LinkTimeouts,
    /// Received records. Bytes before `consumed` have been processed.
    received: Vec<u8>,
    consumed: usize,
    /// The fragments of an incomplete message.
    partial_message: Vec<u8>,
    out: Vec<u8>,
    written: usize,
    /// Messages that wait for the end of the handshake, and their number of bytes.
    queued_messages: Vec<Vec<u8>>,
    queued_bytes: usize,
    /// The time of the last received bytes. Before the link is open, the time of its start.
    last_received_at: MonotonicTime,
    /// The time of the last sent record.
    last_sent_at: MonotonicTime,
    /// The time of the event loop's last call.
    last_active_at: MonotonicTime,
    /// The factors by which the timeouts are longer than usual: the factor of this side, and the
    /// factor that the peer has announced.
    heartbeat_factor: u8,
    peer_heartbeat_factor: u8,
}

#[derive(Debug)]
enum State {
    Handshake(Box<Handshake>),
    Open(Box<TransportState>),
    Failed(LinkError),
}

impl Link {
    /// The end of a link that connects.
    ///
    /// # Errors
    /// [`LinkError::Noise`].
    pub fn dial(key: &Key, timeouts: LinkTimeouts, now: MonotonicTime) -> Result<Self, LinkError> {
        let mut out = Vec::new();
        let handshake = Handshake::dial(key, &mut out)?;
        Ok(Self { out, ..Self::new(handshake, timeouts, now) })
    }

    /// The end of a link that accepts the connection.
    pub fn accept(key: &Key, timeouts: LinkTimeouts, now: MonotonicTime) -> Self {
        Self::new(Handshake::accept(key), timeouts, now)
    }

    fn new(handshake: Handshake, timeouts: LinkTimeouts, now: MonotonicTime) -> Self {
        Self {
            state: State::Handshake(Box::new(handshake)),
            timeouts,
            received: Vec::new(),
            consumed: 0,
            partial_message: Vec::new(),
            out: Vec::new(),
            written: 0,
            queued_messages: Vec::new(),
            queued_bytes: 0,
            last_received_at: now,
            last_sent_at: now,
            last_active_at: now,
            heartbeat_factor: 1,
            peer_heartbeat_factor: 1,
        }
    }

    /// Whether the peer has proved that it holds the key.
    pub fn is_open(&self) -> bool {
        matches!(self.state, State::Open(_))
    }

    /// Adds received bytes.
    ///
    /// # Errors
    /// The link has ended.
    pub fn push(&mut self, mut bytes: &[u8], now: MonotonicTime) -> Result<(), LinkError> {
        self.last_active_at = now;
        if let State::Handshake(handshake) = &mut self.state {
            match handshake.push(&mut bytes, &mut self.out) {
                Ok(None) => return Ok(()),
                Ok(Some(keys)) => self.on_handshake_done(keys, now)?,
                Err(error) => return Err(self.fail(error)),
            }
        }
        if let State::Failed(error) = &self.state {
            return Err(error.clone());
        }
        self.last_received_at = now;
        self.received.drain(..std::mem::take(&mut self.consumed));
        self.received.extend_from_slice(bytes);
        Ok(())
    }

    fn on_handshake_done(
        &mut self,
        mut keys: Box<TransportState>,
        now: MonotonicTime,
    ) -> Result<(), LinkError> {
        let mut sealed = Ok(());
        for body in std::mem::take(&mut self.queued_messages) {
            sealed = sealed.and_then(|()| seal_message(&mut keys, &body, &mut self.out));
        }
        self.queued_bytes = 0;
        (self.last_received_at, self.last_sent_at) = (now, now);
        self.state = State::Open(keys);
        sealed.map_err(|error| self.fail(error))
    }

    /// Returns the next whole message, or `None` until more bytes have been added.
    ///
    /// # Errors
    /// The link has ended. All earlier messages have been returned.
    #[expect(clippy::should_implement_trait, reason = "generic over the message")]
    pub fn next<M: DeserializeOwned>(&mut self) -> Result<Option<M>, LinkError> {
        loop {
            let keys = match &mut self.state {
                State::Open(keys) => keys,
                State::Handshake(_) => return Ok(None),
                State::Failed(error) => return Err(error.clone()),
            };
            let rest = &self.received[self.consumed..];
            let Some(length_prefix) = rest.first_chunk::<2>() else { break };
            let length = usize::from(u16::from_le_bytes(*length_prefix));
            if length < record::MIN_CIPHERTEXT_LEN {
                return Err(self.fail(LinkError::BadRecord));
            }
            let Some(sealed) = rest.get(2..2 + length) else { break };
            let decrypted = record::open(keys, sealed);
            self.consumed += 2 + length;
            match decrypted.and_then(|plain| self.on_record(&plain)) {
                Ok(Some(message)) => return Ok(Some(message)),
                Ok(None) => {}
                Err(error) => return Err(self.fail(error)),
            }
        }
        recycle_buffer(&mut self.received, &mut self.consumed);
        Ok(None)
    }

    fn on_record<M: DeserializeOwned>(&mut self, plain: &[u8]) -> Result<Option<M>, LinkError> {
        let Some((kind, content)) = plain.split_first() else { return Err(LinkError::BadRecord) };
        let decode = |body: &[u8]| frame::decode_datagram(body).map_err(|_| LinkError::Malformed);
        match *kind {
            record::KEEPALIVE => match content {
                [] => Ok(self.set_peer_heartbeat_factor(1)),
                [factor @ 1..=MAX_HEARTBEAT_FACTOR] => Ok(self.set_peer_heartbeat_factor(*factor)),
                _ => Err(LinkError::BadRecord),
            },
            record::CLOSE => {
                let reason = String::from_utf8_lossy(&content[..content.len().min(MAX_REASON_LEN)]);
                Err(LinkError::PeerClosed(reason.chars().filter(|c| !c.is_control()).collect()))
            }
            record::FRAGMENT | record::LAST_FRAGMENT
                if self.partial_message.len() + content.len() > MAX_BODY =>
            {
                Err(LinkError::TooLong)
            }
            record::FRAGMENT => {
                self.partial_message.extend_from_slice(content);
                Ok(None)
            }
            record::LAST_FRAGMENT if self.partial_message.is_empty() => decode(content).map(Some),
            record::LAST_FRAGMENT => {
                let mut whole = std::mem::take(&mut self.partial_message);
                whole.extend_from_slice(content);
                decode(&whole).map(Some)
            }
            _ => Err(LinkError::BadRecord),
        }
    }

    fn set_peer_heartbeat_factor<M>(&mut self, factor: u8) -> Option<M> {
        self.peer_heartbeat_factor = factor;
        None
    }

    /// Switches to slow heartbeats, or back, and notifies the peer at once. Slow heartbeats are for
    /// a link that has an alternative. The call has no effect before the link is open.
    ///
    /// # Errors
    /// The link has ended.
    pub fn set_slow_heartbeat(
        &mut self,
        is_slow: bool,
        now: MonotonicTime,
    ) -> Result<(), LinkError> {
        let factor = if is_slow { SLOW_HEARTBEAT_FACTOR } else { 1 };
        match &mut self.state {
            State::Open(keys) if self.heartbeat_factor != factor => {
                (self.heartbeat_factor, self.last_sent_at) = (factor, now);
                let sealed = record::seal(keys, record::KEEPALIVE, &[factor], &mut self.out);
                sealed.map_err(|error| self.fail(error))
            }
            _ => Ok(()),
        }
    }

    /// Queues a message. Before the link is open, the message waits until it opens.
    ///
    /// # Errors
    /// The message was not queued. The link is unchanged.
    pub fn send<M: Serialize>(&mut self, message: &M, now: MonotonicTime) -> Result<(), SendError> {
        let body = frame::encode_datagram(message).map_err(|_| SendError::TooLong)?;
        if self.queued() + body.len() > MAX_QUEUED {
            return Err(SendError::Full);
        }
        self.last_active_at = now;
        match &mut self.state {
            State::Handshake(_) => {
                self.queued_bytes += body.len();
                self.queued_messages.push(body);
            }
            State::Open(keys) => {
                if let Err(error) = seal_message(keys, &body, &mut self.out) {
                    self.fail(error);
                    return Err(SendError::Closed);
                }
                self.last_sent_at = now;
            }
            State::Failed(_) => return Err(SendError::Closed),
        }
        Ok(())
    }

    /// Closes this side and sends the reason to the peer. Nothing can be sent after it.
    pub fn close(&mut self, reason: &str) {
        if let State::Open(keys) = &mut self.state {
            let mut end = reason.len().min(MAX_REASON_LEN);
            while !reason.is_char_boundary(end) {
                end -= 1;
            }
            let content = &reason.as_bytes()[..end];
            // If this fails, the connection closes without a reason for the peer.
            let _ = record::seal(keys, record::CLOSE, content, &mut self.out);
        }
        self.state = State::Failed(LinkError::Closed);
    }

    /// The bytes to write to the connection.
    pub fn outgoing(&self) -> &[u8] {
        &self.out[self.written..]
    }

    /// Records that this many bytes of [`Link::outgoing`] were written.
    pub fn mark_written(&mut self, bytes: usize) {
        self.written = (self.written + bytes).min(self.out.len());
        if self.written > MAX_BODY {
            self.out.drain(..self.written);
            self.written = 0;
        }
        recycle_buffer(&mut self.out, &mut self.written);
    }

    /// The number of queued bytes, for back-pressure.
    pub fn queued(&self) -> usize {
        self.outgoing().len() + self.queued_bytes
    }

    /// How long this side may be silent before the peer considers it dead, as announced to the
    /// peer.
    fn local_timeout(&self) -> MonotonicTime {
        self.timeouts.silence_timeout * u32::from(self.heartbeat_factor)
    }

    /// How long the peer may be silent.
    fn peer_timeout(&self) -> MonotonicTime {
        self.timeouts.silence_timeout * u32::from(self.peer_heartbeat_factor)
    }

    /// The time at which [`Link::tick`] must be called.
    pub fn deadline(&self) -> MonotonicTime {
        match self.state {
            State::Handshake(_) => self.last_received_at + self.timeouts.handshake_timeout,
            State::Open(_) => (self.last_sent_at + self.local_timeout() / 3)
                .min(self.last_received_at + self.peer_timeout()),
            State::Failed(_) => MonotonicTime::MAX,
        }
    }

    /// Checks timeouts and sends a keepalive if one is due. All received bytes must have been
    /// pushed before.
    ///
    /// # Errors
    /// The peer was silent for too long.
    pub fn tick(&mut self, now: MonotonicTime) -> Result<(), LinkError> {
        let inactive = now.saturating_sub(std::mem::replace(&mut self.last_active_at, now));
        let peer_silence = now.saturating_sub(self.last_received_at);
        let (local_timeout, peer_timeout) = (self.local_timeout(), self.peer_timeout());
        match &mut self.state {
            State::Failed(error) => return Err(error.clone()),
            State::Handshake(_) if peer_silence >= self.timeouts.handshake_timeout => {
                return Err(self.fail(LinkError::HandshakeTimeout(self.timeouts.handshake_timeout)));
            }
            State::Handshake(_) => {}
            // This process itself did not run, so the peer gets its full timeout again.
            State::Open(_) if inactive > local_timeout * 2 / 3 => self.last_received_at = now,
            State::Open(_) if peer_silence >= peer_timeout => {
                return Err(self.fail(LinkError::IdleTimeout(peer_timeout)));
            }
            State::Open(_) => {}
        }
        if now.saturating_sub(self.last_sent_at) >= local_timeout / 4 {
            self.last_sent_at = now;
            let content =
                if self.heartbeat_factor > 1 { &[self.heartbeat_factor][..] } else { &[] };
            // The queued records already serve as a keepalive.
            if let (State::Open(keys), true) = (&mut self.state, self.written == self.out.len()) {
                let sealed = record::seal(keys, record::KEEPALIVE, content, &mut self.out);
                return sealed.map_err(|error| self.fail(error));
            }
        }
        Ok(())
    }

    /// The stream has ended. Returns the reason, if it is known.
    pub fn on_eof(&mut self) -> LinkError {
        let error = match &self.state {
            State::Handshake(handshake) if handshake.is_initiator() => LinkError::HandshakeEof,
            State::Failed(error) => error.clone(),
            _ => LinkError::Closed,
        };
        self.fail(error)
    }

    fn fail(&mut self, error: LinkError) -> LinkError {
        self.state = State::Failed(error.clone());
        (self.received, self.consumed, self.partial_message) = (Vec::new(), 0, Vec::new());
        (self.queued_messages, self.queued_bytes) = (Vec::new(), 0);
        error
    }
}

fn seal_message(
    keys: &mut TransportState,
    body: &[u8],
    out: &mut Vec<u8>,
) -> Result<(), LinkError> {
    let mut rest = body;
    while rest.len() > record::MAX_CONTENT_LEN {
        let (fragment, more) = rest.split_at(record::MAX_CONTENT_LEN);
        record::seal(keys, record::FRAGMENT, fragment, out)?;
        rest = more;
    }
    record::seal(keys, record::LAST_FRAGMENT, rest, out)
}

/// Empties a consumed buffer, and frees it if it was large.
fn recycle_buffer(buffer: &mut Vec<u8>, consumed: &mut usize) {
    if *consumed == buffer.len() {
        *consumed = 0;
        if buffer.capacity() > MAX_RETAINED_CAPACITY {
            *buffer = Vec::new()
        } else {
            buffer.clear()
        }
    }
}

/// Fuzzing entry. The bytes are used as input from an unauthenticated sender on either side, and as
/// input inside records from a peer that holds the key.
///
/// # Panics
/// If an unauthenticated sender makes a link buffer more than its first flight.
pub fn fuzz(bytes: &[u8]) {
    type Message = score_proto::message::JobRequest;
    let key = Key::from_bytes([7; 32]);
    let timeouts = LinkTimeouts {
        handshake_timeout: MonotonicTime::from_secs(1),
        silence_timeout: MonotonicTime::from_secs(3),
    };
    let dial = || Link::dial(&key, timeouts, MonotonicTime::ZERO).expect("random numbers");
    let accept = || Link::accept(&key, timeouts, MonotonicTime::ZERO);
    for mut link in [accept(), dial()] {
        for chunk in bytes.chunks(bytes.len() / 3 + 1) {
            let _ = link.push(chunk, MonotonicTime::ZERO);
            let _ = link.next::<Message>();
        }
        assert!(link.received.capacity() == 0 && link.out.len() <= 2 * handshake::FIRST_FLIGHT_LEN);
    }
    let (mut dialled, mut accepted) = (dial(), accept());
    for _ in 0..3 {
        let _ = accepted.push(&std::mem::take(&mut dialled.out), MonotonicTime::ZERO);
        let _ = dialled.push(&std::mem::take(&mut accepted.out), MonotonicTime::ZERO);
    }
    let State::Open(keys) = &mut dialled.state else { panic!("two sides with one key") };
    let mut stream = Vec::new();
    for plain in bytes.split(|byte| *byte == b'\n') {
        let (kind, content) = plain.split_first().unwrap_or((&0, &[]));
        let _ = record::seal(
            keys,
            *kind,
            &content[..content.len().min(record::MAX_CONTENT_LEN)],
            &mut stream,
        );
    }
    stream.extend_from_slice(bytes);
    let _ = accepted.push(&stream, MonotonicTime::ZERO);
    while let Ok(Some(_)) = accepted.next::<Message>() {}
    assert!(accepted.partial_message.len() <= MAX_BODY);
}

#[cfg(test)]
mod tests;
