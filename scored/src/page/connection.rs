//! One connection: bytes in, one answer after the other out. Whoever is slow is given up: with the
//! head of a request, with taking an answer, with asking again.

use std::time::Duration;

use super::request::{self, HEAD, Hosts, Request};
use super::response::Status;

/// What has passed since any fixed moment.
type Time = Duration;

/// How long the head of a request may take.
const ASKING: Duration = Duration::from_secs(5);
/// How long an answer may take to be read.
const TAKING: Duration = Duration::from_secs(20);
/// How long a connection may rest between two requests.
const RESTING: Duration = Duration::from_secs(30);
/// How long it is waited for the other end after the last answer: what it has still said must not
/// make the kernel throw that away.
const PARTING: Duration = Duration::from_secs(1);

/// Where it stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// Nothing of a request has come.
    Resting,
    /// Part of one has.
    Asking,
    /// An answer is on its way.
    Answering,
    /// The last answer has gone; what comes is thrown away.
    Parting,
    Over,
}

/// See the [module](self).
#[derive(Debug)]
pub struct Connection {
    stage: Stage,
    due: Time,
    inbox: Vec<u8>,
    outbox: Vec<u8>,
    sent: usize,
    /// The answer on its way is the last.
    last: bool,
    /// The user whose token it has shown last.
    pub uid: Option<u32>,
}

impl Connection {
    /// One that has just been made.
    pub fn new(now: Time) -> Self {
        Self {
            // Who connects has something to ask.
            stage: Stage::Asking,
            due: now + ASKING,
            inbox: Vec::new(),
            outbox: Vec::new(),
            sent: 0,
            last: false,
            uid: None,
        }
    }

    /// How many bytes it takes now.
    pub fn room(&self) -> usize {
        match self.stage {
            Stage::Resting | Stage::Asking => HEAD - self.inbox.len().min(HEAD),
            Stage::Parting => HEAD,
            Stage::Answering | Stage::Over => 0,
        }
    }

    /// Bytes have come, at most [`Connection::room`].
    pub fn push(&mut self, bytes: &[u8], now: Time) {
        if self.stage == Stage::Parting {
            return;
        }
        if self.stage == Stage::Resting {
            self.go(Stage::Asking, now + ASKING);
        }
        self.inbox.extend_from_slice(bytes);
    }

    /// The other end says nothing more.
    pub fn ended(&mut self) {
        match self.stage {
            Stage::Answering => self.last = true,
            _ => self.stage = Stage::Over,
        }
    }

    /// The next request, or why it is refused; to be answered before the one behind it.
    pub fn next_request(&mut self, hosts: &Hosts) -> Option<Result<Request, Status>> {
        if self.stage != Stage::Asking || self.inbox.is_empty() {
            return None;
        }
        match request::read(&self.inbox, hosts) {
            Ok(None) => None,
            Ok(Some((request, length))) => {
                self.inbox.drain(..length);
                Some(Ok(request))
            }
            Err(status) => {
                self.inbox.clear();
                Some(Err(status))
            }
        }
    }

    /// The answer to the last request.
    pub fn answer(&mut self, answer: Vec<u8>, last: bool, now: Time) {
        (self.outbox, self.sent, self.last) = (answer, 0, last);
        self.go(Stage::Answering, now + TAKING);
    }

    /// What is to be sent.
    pub fn to_send(&self) -> &[u8] {
        &self.outbox[self.sent..]
    }

    /// So many bytes have been sent; true when nothing more will be: the sending side is to be
    /// shut.
    pub fn sent(&mut self, bytes: usize, now: Time) -> bool {
        self.sent += bytes;
        if self.stage != Stage::Answering || self.sent < self.outbox.len() {
            return false;
        }
        (self.outbox, self.sent) = (Vec::new(), 0);
        if self.last {
            self.inbox = Vec::new();
            self.go(Stage::Parting, now + PARTING);
        } else if self.inbox.is_empty() {
            self.go(Stage::Resting, now + RESTING);
        } else {
            self.go(Stage::Asking, now + ASKING);
        }
        self.last
    }

    /// Gives up what takes too long.
    pub fn tick(&mut self, now: Time) {
        if now >= self.due {
            self.stage = Stage::Over;
        }
    }

    /// The connection cannot be used any more.
    pub fn fail(&mut self) {
        self.stage = Stage::Over;
    }

    /// When [`Connection::tick`] is wanted at the latest.
    pub fn deadline(&self) -> Time {
        self.due
    }

    /// Whether it is to be closed.
    pub fn is_over(&self) -> bool {
        self.stage == Stage::Over
    }

    fn go(&mut self, stage: Stage, due: Time) {
        (self.stage, self.due) = (stage, due);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::IpAddr;

    const ASK: &[u8] = b"GET /t/data HTTP/1.1\r\nHost: localhost\r\n\r\n";

    fn hosts() -> Hosts {
        Hosts { address: IpAddr::from([127, 0, 0, 1]), name: String::new() }
    }

    fn at(seconds: u64) -> Time {
        Duration::from_secs(seconds)
    }

    #[test]
    fn requests_are_answered_one_after_the_other() {
        let mut one = Connection::new(at(0));
        one.push(&[ASK, ASK].concat(), at(1));
        assert_eq!(one.next_request(&hosts()).unwrap().unwrap().path, "data");
        one.answer(b"first".to_vec(), false, at(1));
        // The second waits until the first has gone.
        assert!(one.next_request(&hosts()).is_none() && one.room() == 0);
        assert!(!one.sent(3, at(1)));
        assert_eq!(one.to_send(), b"st");
        assert!(!one.sent(2, at(1)));
        assert!(one.next_request(&hosts()).unwrap().is_ok());
        one.answer(b"second".to_vec(), true, at(2));
        assert!(one.sent(6, at(2)), "the last");
        one.push(ASK, at(2));
        assert!(one.next_request(&hosts()).is_none() && !one.is_over());
        one.ended();
        assert!(one.is_over());
    }

    #[test]
    fn whoever_is_slow_is_given_up() {
        // A byte now and then.
        let mut slow = Connection::new(at(0));
        for (second, byte) in (0..).zip(ASK) {
            slow.push(&[*byte], at(second));
            slow.tick(at(second));
            if slow.is_over() {
                break;
            }
        }
        assert!(slow.is_over() && slow.deadline() == at(5));
        // An answer that nobody takes.
        let mut deaf = Connection::new(at(0));
        deaf.push(ASK, at(0));
        assert!(deaf.next_request(&hosts()).is_some());
        deaf.answer(vec![0; 100], false, at(0));
        for second in 0..20 {
            deaf.sent(1, at(second));
            deaf.tick(at(second));
            assert!(!deaf.is_over(), "{second}");
        }
        deaf.tick(at(20));
        assert!(deaf.is_over());
        // Nothing more to ask.
        let mut idle = Connection::new(at(0));
        idle.push(ASK, at(0));
        assert!(idle.next_request(&hosts()).is_some());
        idle.answer(b"x".to_vec(), false, at(0));
        idle.sent(1, at(0));
        idle.tick(at(29));
        assert!(!idle.is_over());
        idle.tick(at(30));
        assert!(idle.is_over());
    }

    #[test]
    fn what_is_held_for_a_connection_is_bounded() {
        let mut large = Connection::new(at(0));
        let mut taken = 0;
        while large.room() > 0 {
            let some = large.room().min(1000);
            large.push(&vec![b'x'; some], at(0));
            taken += some;
        }
        assert_eq!(taken, HEAD);
        let refusal = large.next_request(&hosts()).unwrap().unwrap_err();
        assert!(matches!(refusal, Status::HeadTooLarge | Status::BadRequest), "{refusal:?}");
        assert!(large.inbox.is_empty());
    }
}
