//! One link between two daemons: encrypted, authenticated by the cluster key, kept alive. Bytes of
//! the connection go in and come out; no sockets and no clock here. A time is what has passed since
//! any fixed moment on a clock that does not jump.
//!
//! How a shell drives it:
//!
//! - readable: read at most some 64 KiB, [`Link::push`], then [`Link::next`] until there is none;
//!   at the end of the stream, [`Link::end`] gives the reason;
//! - writable: write from [`Link::outgoing`], then [`Link::wrote`];
//! - at [`Link::deadline`], after everything that has come was pushed: [`Link::tick`];
//! - at any fault: one attempt to write what is left, log the line, close.
//!
//! Whoever accepts connections also limits how many may be in the handshake at once; each costs
//! some 200 bytes here until its first flight is whole, and is over after [`Limits::handshake`].

use std::time::Duration;

use score_proto::frame::{self, MAX_BODY};
use serde::{Serialize, de::DeserializeOwned};
use snow::TransportState;

mod fault;
mod handshake;
mod record;

pub use fault::{Fault, SendError};
use handshake::Handshake;

use crate::key::Key;

/// Time on a clock that does not jump.
pub type Time = Duration;

/// Bytes that may wait for a peer that does not read.
pub const MAX_QUEUED: usize = 4 * MAX_BODY;
/// Buffers that grew beyond this are given back once they are empty.
const KEPT: usize = 16 * 1024;
/// How many times longer a link is silent that speaks rarely, and what a peer may claim at most.
const RARELY: u8 = 5;
const MOST_RARELY: u8 = 10;
/// Bytes of the reason of a leave at most.
const REASON: usize = 400;

/// How long a link may take and be silent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// For the handshake.
    pub handshake: Duration,
    /// A link that brought nothing for that long is dead. Something is sent after a third of it,
    /// and after a quarter when the shell is awake anyway: so the beats of a daemon's links fall
    /// into few turns, and that of a peer is answered in the turn that it wakes.
    pub silence: Duration,
}

/// One end of a link.
#[derive(Debug)]
pub struct Link {
    state: State,
    limits: Limits,
    /// Records as they came, from `start` on.
    came: Vec<u8>,
    start: usize,
    /// The pieces of a message that is not whole.
    message: Vec<u8>,
    out: Vec<u8>,
    wrote: usize,
    /// Messages that wait for the end of the handshake, and their bytes.
    waiting: Vec<Vec<u8>>,
    waiting_bytes: usize,
    /// When something came last; before the link is open, when it began.
    heard: Time,
    /// When something was sent last.
    spoke: Time,
    /// When the shell was here last.
    awake: Time,
    /// How many times longer than usual this side is silent, and the peer, as it has said.
    pace: u8,
    peer_pace: u8,
}

#[derive(Debug)]
enum State {
    Handshake(Box<Handshake>),
    Open(Box<TransportState>),
    Failed(Fault),
}

impl Link {
    /// The side that has dialled.
    ///
    /// # Errors
    /// [`Fault::Noise`].
    pub fn dial(key: &Key, limits: Limits, now: Time) -> Result<Self, Fault> {
        let mut out = Vec::new();
        let handshake = Handshake::dial(key, &mut out)?;
        Ok(Self { out, ..Self::new(handshake, limits, now) })
    }

    /// The side that was dialled.
    pub fn accept(key: &Key, limits: Limits, now: Time) -> Self {
        Self::new(Handshake::accept(key), limits, now)
    }

    fn new(handshake: Handshake, limits: Limits, now: Time) -> Self {
        Self {
            state: State::Handshake(Box::new(handshake)),
            limits,
            came: Vec::new(),
            start: 0,
            message: Vec::new(),
            out: Vec::new(),
            wrote: 0,
            waiting: Vec::new(),
            waiting_bytes: 0,
            heard: now,
            spoke: now,
            awake: now,
            pace: 1,
            peer_pace: 1,
        }
    }

    /// Whether the peer has proved that it holds the key.
    pub fn is_open(&self) -> bool {
        matches!(self.state, State::Open(_))
    }

    /// Takes bytes as they came.
    ///
    /// # Errors
    /// The link is at its end.
    pub fn push(&mut self, mut bytes: &[u8], now: Time) -> Result<(), Fault> {
        self.awake = now;
        if let State::Handshake(handshake) = &mut self.state {
            match handshake.push(&mut bytes, &mut self.out) {
                Ok(None) => return Ok(()),
                Ok(Some(keys)) => self.opened(keys, now)?,
                Err(fault) => return Err(self.fail(fault)),
            }
        }
        if let State::Failed(fault) = &self.state {
            return Err(fault.clone());
        }
        self.heard = now;
        if self.start > 0 {
            self.came.drain(..self.start);
            self.start = 0;
        }
        self.came.extend_from_slice(bytes);
        Ok(())
    }

    fn opened(&mut self, mut keys: Box<TransportState>, now: Time) -> Result<(), Fault> {
        let mut sealed = Ok(());
        for body in std::mem::take(&mut self.waiting) {
            sealed = sealed.and_then(|()| seal_message(&mut keys, &body, &mut self.out));
        }
        self.waiting_bytes = 0;
        (self.heard, self.spoke) = (now, now);
        self.state = State::Open(keys);
        sealed.map_err(|fault| self.fail(fault))
    }

    /// The next whole message, or `None` until more bytes have come.
    ///
    /// # Errors
    /// The link is at its end; every message before was handed out.
    #[expect(clippy::should_implement_trait, reason = "generic over the message")]
    pub fn next<M: DeserializeOwned>(&mut self) -> Result<Option<M>, Fault> {
        loop {
            let keys = match &mut self.state {
                State::Open(keys) => keys,
                State::Handshake(_) => return Ok(None),
                State::Failed(fault) => return Err(fault.clone()),
            };
            let rest = &self.came[self.start..];
            let Some(head) = rest.first_chunk::<2>() else { break };
            let length = usize::from(u16::from_le_bytes(*head));
            if length < record::SHORTEST {
                return Err(self.fail(Fault::Record));
            }
            let Some(sealed) = rest.get(2..2 + length) else { break };
            let opened = record::open(keys, sealed);
            self.start += 2 + length;
            match opened.and_then(|plain| self.take(&plain)) {
                Ok(Some(message)) => return Ok(Some(message)),
                Ok(None) => {}
                Err(fault) => return Err(self.fail(fault)),
            }
        }
        give_back(&mut self.came, &mut self.start);
        Ok(None)
    }

    fn take<M: DeserializeOwned>(&mut self, plain: &[u8]) -> Result<Option<M>, Fault> {
        let Some((kind, content)) = plain.split_first() else { return Err(Fault::Record) };
        let decode = |body: &[u8]| frame::decode_datagram(body).map_err(|_| Fault::Malformed);
        match *kind {
            record::ALIVE => match content {
                [] => Ok(self.paced(1)),
                [pace @ 1..=MOST_RARELY] => Ok(self.paced(*pace)),
                _ => Err(Fault::Record),
            },
            record::LEAVE => {
                let reason = String::from_utf8_lossy(&content[..content.len().min(REASON)]);
                Err(Fault::Left(reason.chars().filter(|c| !c.is_control()).collect()))
            }
            record::PIECE | record::LAST if self.message.len() + content.len() > MAX_BODY => {
                Err(Fault::TooLong)
            }
            record::PIECE => {
                self.message.extend_from_slice(content);
                Ok(None)
            }
            record::LAST if self.message.is_empty() => decode(content).map(Some),
            record::LAST => {
                let mut whole = std::mem::take(&mut self.message);
                whole.extend_from_slice(content);
                decode(&whole).map(Some)
            }
            _ => Err(Fault::Record),
        }
    }

    fn paced<M>(&mut self, pace: u8) -> Option<M> {
        self.peer_pace = pace;
        None
    }

    /// Says rarely, or as usual again, that this side lives; the peer is told at once how long it
    /// may have to wait. For a link that others stand in for. Nothing happens before it is open.
    ///
    /// # Errors
    /// The link is at its end.
    pub fn speak_rarely(&mut self, rarely: bool, now: Time) -> Result<(), Fault> {
        let pace = if rarely { RARELY } else { 1 };
        match &mut self.state {
            State::Open(keys) if self.pace != pace => {
                (self.pace, self.spoke) = (pace, now);
                let sealed = record::seal(keys, record::ALIVE, &[pace], &mut self.out);
                sealed.map_err(|fault| self.fail(fault))
            }
            _ => Ok(()),
        }
    }

    /// Queues a message; before the link is open, until it is.
    ///
    /// # Errors
    /// The message was not taken, and the link is as before.
    pub fn send<M: Serialize>(&mut self, message: &M, now: Time) -> Result<(), SendError> {
        let body = frame::encode_datagram(message).map_err(|_| SendError::TooLong)?;
        if self.queued() + body.len() > MAX_QUEUED {
            return Err(SendError::Full);
        }
        self.awake = now;
        match &mut self.state {
            State::Handshake(_) => {
                self.waiting_bytes += body.len();
                self.waiting.push(body);
            }
            State::Open(keys) => {
                if let Err(fault) = seal_message(keys, &body, &mut self.out) {
                    self.fail(fault);
                    return Err(SendError::Closed);
                }
                self.spoke = now;
            }
            State::Failed(_) => return Err(SendError::Closed),
        }
        Ok(())
    }

    /// Tells the peer that this side goes, and why; nothing can be sent after it.
    pub fn leave(&mut self, reason: &str) {
        if let State::Open(keys) = &mut self.state {
            let mut end = reason.len().min(REASON);
            while !reason.is_char_boundary(end) {
                end -= 1;
            }
            let content = &reason.as_bytes()[..end];
            // A failure here means that the peer sees the connection closed without a reason.
            let _ = record::seal(keys, record::LEAVE, content, &mut self.out);
        }
        self.state = State::Failed(Fault::Closed);
    }

    /// What shall be written to the connection.
    pub fn outgoing(&self) -> &[u8] {
        &self.out[self.wrote..]
    }

    /// That many bytes of [`Link::outgoing`] have been written.
    pub fn wrote(&mut self, bytes: usize) {
        self.wrote = (self.wrote + bytes).min(self.out.len());
        if self.wrote > MAX_BODY {
            self.out.drain(..self.wrote);
            self.wrote = 0;
        }
        give_back(&mut self.out, &mut self.wrote);
    }

    /// Bytes that wait: what back-pressure goes by.
    pub fn queued(&self) -> usize {
        self.outgoing().len() + self.waiting_bytes
    }

    /// How long this side may be silent before its peer takes it for dead, as it has been told.
    fn pause(&self) -> Time {
        self.limits.silence * u32::from(self.pace)
    }

    /// How long the peer may be silent.
    fn patience(&self) -> Time {
        self.limits.silence * u32::from(self.peer_pace)
    }

    /// When [`Link::tick`] is due.
    pub fn deadline(&self) -> Time {
        match self.state {
            State::Handshake(_) => self.heard + self.limits.handshake,
            State::Open(_) => (self.spoke + self.pause() / 3).min(self.heard + self.patience()),
            State::Failed(_) => Time::MAX,
        }
    }

    /// Time has passed. Everything that has come must have been pushed before.
    ///
    /// # Errors
    /// The peer was silent for too long.
    pub fn tick(&mut self, now: Time) -> Result<(), Fault> {
        let asleep = now.saturating_sub(std::mem::replace(&mut self.awake, now));
        let silent = now.saturating_sub(self.heard);
        let (pause, patience) = (self.pause(), self.patience());
        match &mut self.state {
            State::Failed(fault) => return Err(fault.clone()),
            State::Handshake(_) if silent >= self.limits.handshake => {
                return Err(self.fail(Fault::Late(self.limits.handshake)));
            }
            State::Handshake(_) => {}
            // It was this side that did not run: the peer gets its time anew.
            State::Open(_) if asleep > pause * 2 / 3 => self.heard = now,
            State::Open(_) if silent >= patience => return Err(self.fail(Fault::Silent(patience))),
            State::Open(_) => {}
        }
        if now.saturating_sub(self.spoke) >= pause / 4 {
            self.spoke = now;
            let content = if self.pace > 1 { &[self.pace][..] } else { &[] };
            // What waits already says as much.
            if let (State::Open(keys), true) = (&mut self.state, self.wrote == self.out.len()) {
                let sealed = record::seal(keys, record::ALIVE, content, &mut self.out);
                return sealed.map_err(|fault| self.fail(fault));
            }
        }
        Ok(())
    }

    /// The stream has ended: why, as far as it is known.
    pub fn end(&mut self) -> Fault {
        let fault = match &self.state {
            State::Handshake(handshake) if handshake.dialled() => Fault::Unfinished,
            State::Failed(fault) => fault.clone(),
            _ => Fault::Closed,
        };
        self.fail(fault)
    }

    fn fail(&mut self, fault: Fault) -> Fault {
        self.state = State::Failed(fault.clone());
        (self.came, self.start, self.message) = (Vec::new(), 0, Vec::new());
        (self.waiting, self.waiting_bytes) = (Vec::new(), 0);
        fault
    }
}

fn seal_message(keys: &mut TransportState, body: &[u8], out: &mut Vec<u8>) -> Result<(), Fault> {
    let mut rest = body;
    while rest.len() > record::CONTENT {
        let (piece, more) = rest.split_at(record::CONTENT);
        record::seal(keys, record::PIECE, piece, out)?;
        rest = more;
    }
    record::seal(keys, record::LAST, rest, out)
}

/// Empties a buffer that was used up, and frees it when it was large.
fn give_back(buffer: &mut Vec<u8>, start: &mut usize) {
    if *start == buffer.len() {
        *start = 0;
        if buffer.capacity() > KEPT { *buffer = Vec::new() } else { buffer.clear() }
    }
}

/// Fuzzing entry: any bytes, as a stranger may send them to either side, and as a peer that holds
/// the key may send them inside records.
///
/// # Panics
/// When a stranger makes a link buffer more than its first flight.
pub fn fuzz(bytes: &[u8]) {
    type Message = score_proto::message::Down;
    let key = Key::from_bytes([7; 32]);
    let limits = Limits { handshake: Time::from_secs(1), silence: Time::from_secs(3) };
    let dial = || Link::dial(&key, limits, Time::ZERO).expect("random numbers");
    let accept = || Link::accept(&key, limits, Time::ZERO);
    for mut link in [accept(), dial()] {
        for piece in bytes.chunks(bytes.len() / 3 + 1) {
            let _ = link.push(piece, Time::ZERO);
            let _ = link.next::<Message>();
        }
        assert!(link.came.capacity() == 0 && link.out.len() <= 2 * handshake::FIRST);
    }
    let (mut dialled, mut accepted) = (dial(), accept());
    for _ in 0..3 {
        let _ = accepted.push(&std::mem::take(&mut dialled.out), Time::ZERO);
        let _ = dialled.push(&std::mem::take(&mut accepted.out), Time::ZERO);
    }
    let State::Open(keys) = &mut dialled.state else { panic!("two sides with one key") };
    let mut stream = Vec::new();
    for plain in bytes.split(|byte| *byte == b'\n') {
        let (kind, content) = plain.split_first().unwrap_or((&0, &[]));
        let _ =
            record::seal(keys, *kind, &content[..content.len().min(record::CONTENT)], &mut stream);
    }
    stream.extend_from_slice(bytes);
    let _ = accepted.push(&stream, Time::ZERO);
    while let Ok(Some(_)) = accepted.next::<Message>() {}
    assert!(accepted.message.len() <= MAX_BODY);
}

#[cfg(test)]
mod tests;
