//! One connection: bytes in, one answer after the other out. Whoever is slow is given up: with the
//! head of a request, with taking an answer, with asking again.

use std::time::Duration;

use super::request::{self, AllowedHosts, HttpRequest, MAX_HEAD_LEN};
use super::response::Status;

/// What has passed since any fixed moment.
type ConnectionTime = Duration;

/// How long the head of a request may take.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(5);
/// How long an answer may take to be read.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(20);
/// How long a connection may rest between two requests.
const KEEP_ALIVE_TIMEOUT: Duration = Duration::from_secs(30);
/// How long it is waited for the other end after the last answer: what it has still said must not
/// make the kernel throw that away.
const LINGER_TIMEOUT: Duration = Duration::from_secs(1);

/// Where it stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// Nothing of a request has come.
    KeepAlive,
    /// Part of one has.
    ReadingRequest,
    /// An answer is on its way.
    WritingResponse,
    /// The last answer has gone; what comes is thrown away.
    Lingering,
    Closed,
}

/// See the [module](self).
#[derive(Debug)]
pub struct Connection {
    state: State,
    times_out_at: ConnectionTime,
    inbox: Vec<u8>,
    outbox: Vec<u8>,
    sent_len: usize,
    /// The answer on its way is the last.
    closes_after_answer: bool,
    /// The user whose token it has shown last.
    pub uid: Option<u32>,
}

impl Connection {
    /// One that has just been made.
    pub fn new(now: ConnectionTime) -> Self {
        Self {
            // Who connects has something to ask.
            state: State::ReadingRequest,
            times_out_at: now + REQUEST_TIMEOUT,
            inbox: Vec::new(),
            outbox: Vec::new(),
            sent_len: 0,
            closes_after_answer: false,
            uid: None,
        }
    }

    /// How many bytes it takes now.
    pub fn capacity(&self) -> usize {
        match self.state {
            State::KeepAlive | State::ReadingRequest => {
                MAX_HEAD_LEN - self.inbox.len().min(MAX_HEAD_LEN)
            }
            State::Lingering => MAX_HEAD_LEN,
            State::WritingResponse | State::Closed => 0,
        }
    }

    /// Bytes have come, at most [`Connection::capacity`].
    pub fn push(&mut self, bytes: &[u8], now: ConnectionTime) {
        if self.state == State::Lingering {
            return;
        }
        if self.state == State::KeepAlive {
            self.enter(State::ReadingRequest, now + REQUEST_TIMEOUT);
        }
        self.inbox.extend_from_slice(bytes);
    }

    /// The other end says nothing more.
    pub fn on_peer_closed(&mut self) {
        match self.state {
            State::WritingResponse => self.closes_after_answer = true,
            _ => self.state = State::Closed,
        }
    }

    /// The next request, or why it is refused; to be answered before the one behind it.
    pub fn next_request(&mut self, hosts: &AllowedHosts) -> Option<Result<HttpRequest, Status>> {
        if self.state != State::ReadingRequest || self.inbox.is_empty() {
            return None;
        }
        match request::read(&self.inbox, hosts) {
            Ok(None) => None,
            Ok(Some((request, head_len))) => {
                self.inbox.drain(..head_len);
                Some(Ok(request))
            }
            Err(status) => {
                self.inbox.clear();
                Some(Err(status))
            }
        }
    }

    /// The answer to the last request.
    pub fn answer(&mut self, answer: Vec<u8>, closes: bool, now: ConnectionTime) {
        (self.outbox, self.sent_len, self.closes_after_answer) = (answer, 0, closes);
        self.enter(State::WritingResponse, now + RESPONSE_TIMEOUT);
    }

    /// What is to be sent.
    pub fn to_send(&self) -> &[u8] {
        &self.outbox[self.sent_len..]
    }

    /// So many bytes have been sent; true when nothing more will be: the sending side is to be
    /// shut.
    pub fn on_sent(&mut self, bytes: usize, now: ConnectionTime) -> bool {
        self.sent_len += bytes;
        if self.state != State::WritingResponse || self.sent_len < self.outbox.len() {
            return false;
        }
        (self.outbox, self.sent_len) = (Vec::new(), 0);
        if self.closes_after_answer {
            self.inbox = Vec::new();
            self.enter(State::Lingering, now + LINGER_TIMEOUT);
        } else if self.inbox.is_empty() {
            self.enter(State::KeepAlive, now + KEEP_ALIVE_TIMEOUT);
        } else {
            self.enter(State::ReadingRequest, now + REQUEST_TIMEOUT);
        }
        self.closes_after_answer
    }

    /// Gives up what takes too long.
    pub fn tick(&mut self, now: ConnectionTime) {
        if now >= self.times_out_at {
            self.state = State::Closed;
        }
    }

    /// The connection cannot be used any more.
    pub fn fail(&mut self) {
        self.state = State::Closed;
    }

    /// When [`Connection::tick`] is wanted at the latest.
    pub fn deadline(&self) -> ConnectionTime {
        self.times_out_at
    }

    /// Whether it is to be closed.
    pub fn is_closed(&self) -> bool {
        self.state == State::Closed
    }

    fn enter(&mut self, state: State, times_out_at: ConnectionTime) {
        (self.state, self.times_out_at) = (state, times_out_at);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::IpAddr;

    const ASK: &[u8] = b"GET /t/data HTTP/1.1\r\nHost: localhost\r\n\r\n";

    fn hosts() -> AllowedHosts {
        AllowedHosts { address: IpAddr::from([127, 0, 0, 1]), name: String::new() }
    }

    fn at(seconds: u64) -> ConnectionTime {
        Duration::from_secs(seconds)
    }

    #[test]
    fn requests_are_answered_one_after_the_other() {
        let mut one = Connection::new(at(0));
        one.push(&[ASK, ASK].concat(), at(1));
        assert_eq!(one.next_request(&hosts()).unwrap().unwrap().path, "data");
        one.answer(b"first".to_vec(), false, at(1));
        // The second waits until the first has gone.
        assert!(one.next_request(&hosts()).is_none() && one.capacity() == 0);
        assert!(!one.on_sent(3, at(1)));
        assert_eq!(one.to_send(), b"st");
        assert!(!one.on_sent(2, at(1)));
        assert!(one.next_request(&hosts()).unwrap().is_ok());
        one.answer(b"second".to_vec(), true, at(2));
        assert!(one.on_sent(6, at(2)), "the last");
        one.push(ASK, at(2));
        assert!(one.next_request(&hosts()).is_none() && !one.is_closed());
        one.on_peer_closed();
        assert!(one.is_closed());
    }

    #[test]
    fn a_slow_peer_is_given_up() {
        // A byte now and then.
        let mut slow_sender = Connection::new(at(0));
        for (second, byte) in (0..).zip(ASK) {
            slow_sender.push(&[*byte], at(second));
            slow_sender.tick(at(second));
            if slow_sender.is_closed() {
                break;
            }
        }
        assert!(slow_sender.is_closed() && slow_sender.deadline() == at(5));
        // An answer that nobody takes.
        let mut slow_reader = Connection::new(at(0));
        slow_reader.push(ASK, at(0));
        assert!(slow_reader.next_request(&hosts()).is_some());
        slow_reader.answer(vec![0; 100], false, at(0));
        for second in 0..20 {
            slow_reader.on_sent(1, at(second));
            slow_reader.tick(at(second));
            assert!(!slow_reader.is_closed(), "{second}");
        }
        slow_reader.tick(at(20));
        assert!(slow_reader.is_closed());
        // Nothing more to ask.
        let mut idle = Connection::new(at(0));
        idle.push(ASK, at(0));
        assert!(idle.next_request(&hosts()).is_some());
        idle.answer(b"x".to_vec(), false, at(0));
        idle.on_sent(1, at(0));
        idle.tick(at(29));
        assert!(!idle.is_closed());
        idle.tick(at(30));
        assert!(idle.is_closed());
    }

    #[test]
    fn buffered_input_of_a_connection_is_bounded() {
        let mut large = Connection::new(at(0));
        let mut taken = 0;
        while large.capacity() > 0 {
            let chunk_len = large.capacity().min(1000);
            large.push(&vec![b'x'; chunk_len], at(0));
            taken += chunk_len;
        }
        assert_eq!(taken, MAX_HEAD_LEN);
        let refusal = large.next_request(&hosts()).unwrap().unwrap_err();
        assert!(matches!(refusal, Status::HeadTooLarge | Status::BadRequest), "{refusal:?}");
        assert!(large.inbox.is_empty());
    }
}
