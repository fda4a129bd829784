//! The state machine of one connection. It consumes bytes and produces responses, one after the
//! other. A client is disconnected if it takes too long to send the head of a request, to read a
//! response, or to send the next request.

use std::time::Duration;

use super::request::{self, AllowedHosts, HttpRequest, MAX_HEAD_LEN};
use super::response::Status;

/// The time since a fixed origin, which the caller chooses.
type ConnectionTime = Duration;

/// How long a client may take to send the head of a request.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(5);
/// How long a client may take to read a response.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(20);
/// How long a connection may be idle between two requests.
const KEEP_ALIVE_TIMEOUT: Duration = Duration::from_secs(30);
/// How long the connection stays open for input after the last response. If it were closed at once,
/// data that the client still sends could make the kernel discard the response.
const LINGER_TIMEOUT: Duration = Duration::from_secs(1);

/// The state of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// No byte of the next request has arrived.
    KeepAlive,
    /// The head of a request is incomplete.
    ReadingRequest,
    /// A response is being sent.
    WritingResponse,
    /// The last response has been sent. Further input is discarded.
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
    /// The connection ends after the response that is being sent.
    closes_after_answer: bool,
    /// The user of the last valid token in a request.
    pub uid: Option<u32>,
}

impl Connection {
    /// Creates a new connection.
    pub fn new(now: ConnectionTime) -> Self {
        Self {
            // A client sends a request as soon as it has connected, so the shorter time-out
            // applies.
            state: State::ReadingRequest,
            times_out_at: now + REQUEST_TIMEOUT,
            inbox: Vec::new(),
            outbox: Vec::new(),
            sent_len: 0,
            closes_after_answer: false,
            uid: None,
        }
    }

    /// The number of bytes that the connection accepts now.
    pub fn capacity(&self) -> usize {
        match self.state {
            State::KeepAlive | State::ReadingRequest => {
                MAX_HEAD_LEN - self.inbox.len().min(MAX_HEAD_LEN)
            }
            State::Lingering => MAX_HEAD_LEN,
            State::WritingResponse | State::Closed => 0,
        }
    }

    /// Adds received bytes, at most [`Connection::capacity`].
    pub fn push(&mut self, bytes: &[u8], now: ConnectionTime) {
        if self.state == State::Lingering {
            return;
        }
        if self.state == State::KeepAlive {
            self.enter(State::ReadingRequest, now + REQUEST_TIMEOUT);
        }
        self.inbox.extend_from_slice(bytes);
    }

    /// Records that the client has closed its sending side.
    pub fn on_peer_closed(&mut self) {
        match self.state {
            State::WritingResponse => self.closes_after_answer = true,
            _ => self.state = State::Closed,
        }
    }

    /// Returns the next request, or the status with which to refuse it. The caller must answer it
    /// before the next call.
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

    /// Sets the response to the last request.
    pub fn answer(&mut self, answer: Vec<u8>, closes: bool, now: ConnectionTime) {
        (self.outbox, self.sent_len, self.closes_after_answer) = (answer, 0, closes);
        self.enter(State::WritingResponse, now + RESPONSE_TIMEOUT);
    }

    /// The bytes to send.
    pub fn to_send(&self) -> &[u8] {
        &self.outbox[self.sent_len..]
    }

    /// Records that this many bytes have been sent. Returns true if these were the last bytes of
    /// the connection; the caller then has to shut down the sending side.
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

    /// Closes the connection if its time-out has passed.
    pub fn tick(&mut self, now: ConnectionTime) {
        if now >= self.times_out_at {
            self.state = State::Closed;
        }
    }

    /// Closes the connection after an error.
    pub fn fail(&mut self) {
        self.state = State::Closed;
    }

    /// The time of the next call of [`Connection::tick`].
    pub fn deadline(&self) -> ConnectionTime {
        self.times_out_at
    }

    /// Whether the connection is closed.
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
        // The second request waits until the first response has been sent.
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

    // Promise of `hostile_connections_hold_few_resources_and_block_no_other_client`.
    #[test]
    fn a_connection_to_a_slow_peer_is_closed() {
        // The client sends single bytes, with pauses.
        let mut slow_sender = Connection::new(at(0));
        for (second, byte) in (0..).zip(ASK) {
            slow_sender.push(&[*byte], at(second));
            slow_sender.tick(at(second));
            if slow_sender.is_closed() {
                break;
            }
        }
        assert!(slow_sender.is_closed() && slow_sender.deadline() == at(5));
        // The client hardly reads the response.
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
        // The client sends no further request.
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

    // Promise of `hostile_connections_hold_few_resources_and_block_no_other_client`.
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
