//! The client's end of a connection to a scored.

use std::io;
use std::net::Shutdown;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use mio::{Registry, Token};
use score_proto::PROTOCOL_VERSION;
use score_proto::client_session::JobMessage;
use score_proto::frame::FrameError;
use score_proto::ids::SessionJobId;
use score_proto::message::{Greeting, Level};
use score_proto::server_message::{ConversationAnswer, ServerMessage, SessionAnswer};
use serde::Serialize;

use crate::error::ConnectionError;
use crate::framed_socket::FramedSocket;
use crate::readiness::{Readiness, wait_until_ready};

/// The time within which scored must accept a message, if the client waits for the acceptance.
const SEND_TIMEOUT: Duration = Duration::from_secs(30);

/// A message to a client that expects the answers `A`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Received<A> {
    /// An answer to the client's request.
    Answer(A),
    /// A line for the user about the session, without newline.
    Notice {
        /// The level, for the filters `message=concise` and `message=quiet`.
        level: Level,
        /// The line.
        text: String,
    },
    /// The session and its jobs end. This is the last message.
    Refused {
        /// One line with the cause.
        reason: String,
        /// Exit code of the user's program.
        code: u8,
    },
}

/// A connection to a scored. It checks the version in scored's greeting.
///
/// A program with an event loop calls [`Connection::queue`], [`Connection::flush`] and
/// [`Connection::receive`], which never block. Other programs call [`Connection::send`],
/// [`Connection::wait`] and [`Connection::next`].
#[derive(Debug)]
pub struct Connection {
    socket: FramedSocket,
    /// The name of the scored in error messages.
    peer: String,
    /// Whether the greeting of scored has been received. Earlier messages have another form.
    is_greeted: bool,
}

impl AsFd for Connection {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl Connection {
    /// Takes over a connected socket. `peer` names the scored in error messages. The client must
    /// call [`Connection::greet`] before it sends a request.
    ///
    /// # Errors
    /// See fcntl(2).
    pub fn new(socket: impl Into<OwnedFd>, peer: impl Into<String>) -> io::Result<Self> {
        let socket = FramedSocket::new(socket.into())?;
        Ok(Self { socket, peer: peer.into(), is_greeted: false })
    }

    /// The name of the scored in error messages.
    pub fn peer(&self) -> &str {
        &self.peer
    }

    /// Queues the greeting, the first message of a client. It is sent with the first request.
    pub fn greet(&mut self) {
        self.socket.queue(&Greeting::Hello { version: PROTOCOL_VERSION });
    }

    /// Queues a request about a job of the session, or about the session itself
    /// ([`score_proto::client_session::SESSION_JOB`]).
    ///
    /// # Errors
    /// [`FrameError::TooLong`] if the request does not fit into a frame. It is then not queued.
    pub fn queue<M: Serialize>(
        &mut self,
        job: SessionJobId,
        message: &M,
    ) -> Result<(), FrameError> {
        self.socket.try_queue(&JobMessage { job, message })
    }

    /// Writes as much of the queue as the socket accepts. A receive detects that scored has closed
    /// the connection.
    pub fn flush(&mut self) {
        self.socket.flush();
    }

    /// Queues a request, and waits until the socket has accepted it.
    ///
    /// # Errors
    /// If the request does not fit into a frame, or if scored does not read.
    pub fn send<M: Serialize>(
        &mut self,
        job: SessionJobId,
        message: &M,
    ) -> Result<(), ConnectionError> {
        self.queue(job, message).map_err(|error| self.frame_error(error))?;
        self.flush_all()
    }

    /// Waits until the socket has accepted all queued messages.
    ///
    /// # Errors
    /// If scored does not read.
    pub fn flush_all(&mut self) -> Result<(), ConnectionError> {
        match self.socket.flush_within(SEND_TIMEOUT) {
            Ok(true) => Ok(()),
            Ok(false) => Err(self.silent(SEND_TIMEOUT)),
            Err(error) => Err(self.system_error(error)),
        }
    }

    /// The next message, if it has arrived. After mio has reported the socket, call
    /// [`Connection::mark_readable`] first.
    ///
    /// # Errors
    /// The connection is closed, or the message is not one that the client can handle. The
    /// connection cannot be used any more.
    pub fn receive<A: ConversationAnswer>(
        &mut self,
    ) -> Result<Option<Received<A>>, ConnectionError> {
        loop {
            let message = match self.is_greeted {
                true => self.socket.receive::<ServerMessage>(),
                false => self.socket.receive().map(|answer| answer.map(ServerMessage::Session)),
            };
            let Some(message) = message.map_err(|error| self.frame_error(error))? else {
                return match self.socket.is_closed() {
                    true => Err(ConnectionError::Closed(self.peer.clone())),
                    false => Ok(None),
                };
            };
            return Ok(Some(match message {
                ServerMessage::Session(SessionAnswer::Hello { version }) => {
                    if version != PROTOCOL_VERSION {
                        return Err(ConnectionError::OtherVersion(version));
                    }
                    self.is_greeted = true;
                    continue;
                }
                ServerMessage::Session(SessionAnswer::Notice { level, text }) => {
                    Received::Notice { level, text }
                }
                ServerMessage::Session(SessionAnswer::Refused { reason, code }) => {
                    Received::Refused { reason, code }
                }
                // A message of another conversation is malformed.
                other => match A::from_message(other) {
                    Some(answer) => Received::Answer(answer),
                    None => return Err(self.frame_error(FrameError::Malformed)),
                },
            }));
        }
    }

    /// The next message, if it arrives within `timeout`. Returns `None` after this time, and after
    /// a signal.
    ///
    /// # Errors
    /// See [`Connection::receive`].
    pub fn wait<A: ConversationAnswer>(
        &mut self,
        timeout: Duration,
    ) -> Result<Option<Received<A>>, ConnectionError> {
        let started_at = Instant::now();
        loop {
            self.socket.flush();
            if let Some(message) = self.receive()? {
                return Ok(Some(message));
            }
            let readiness = match self.socket.backlog() {
                0 => Readiness::Readable,
                _ => Readiness::Any,
            };
            let left = timeout.saturating_sub(started_at.elapsed());
            if !wait_until_ready(self.as_fd(), readiness, left)
                .map_err(|error| self.system_error(error))?
            {
                return Ok(None);
            }
            self.socket.mark_readable();
        }
    }

    /// Waits for the next message.
    ///
    /// # Errors
    /// See [`Connection::receive`]. Also if no message arrives within `timeout`.
    pub fn next<A: ConversationAnswer>(
        &mut self,
        timeout: Duration,
    ) -> Result<Received<A>, ConnectionError> {
        let started_at = Instant::now();
        loop {
            let left = timeout.saturating_sub(started_at.elapsed());
            match self.wait(left)? {
                Some(message) => return Ok(message),
                None if started_at.elapsed() >= timeout => return Err(self.silent(timeout)),
                // A signal has arrived.
                None => {}
            }
        }
    }

    /// Registers the socket with `registry`.
    ///
    /// # Errors
    /// See epoll_ctl(2).
    pub fn register(&mut self, registry: &Registry, token: Token) -> io::Result<()> {
        self.socket.register(registry, token)
    }

    /// Makes `registry` report only the events that the socket needs now. Call it before each wait.
    pub fn update_interest(&mut self, registry: &Registry) {
        self.socket.update_interest(registry);
    }

    /// Records that the socket has been reported as readable.
    pub fn mark_readable(&mut self) {
        self.socket.mark_readable();
    }

    /// Closes the connection in this direction or in both, for all copies of the descriptor.
    ///
    /// # Errors
    /// See shutdown(2).
    pub fn shutdown(&self, how: Shutdown) -> io::Result<()> {
        self.socket.shutdown(how)
    }

    /// The error that scored has not answered for this time.
    pub fn silent(&self, waited: Duration) -> ConnectionError {
        ConnectionError::Silent { peer: self.peer.clone(), waited }
    }

    fn frame_error(&self, error: FrameError) -> ConnectionError {
        ConnectionError::Frame { peer: self.peer.clone(), error }
    }

    fn system_error(&self, error: io::Error) -> ConnectionError {
        ConnectionError::System { peer: self.peer.clone(), error }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::os::unix::net::UnixStream;

    use score_proto::client_session::SESSION_JOB;
    use score_proto::frame::{self, Decoder};
    use score_proto::message::{ConsoleRequest, UserRequest};
    use score_proto::server_message::{
        ConsoleAnswer, ConsoleReply, JobAnswer, ListAnswer, PageAddress, ScoutAnswer, ScoutHosts,
    };

    use super::*;

    /// Longer than any test takes.
    const TEST_TIMEOUT: Duration = Duration::from_secs(60);

    const HELLO: SessionAnswer = SessionAnswer::Hello { version: PROTOCOL_VERSION };

    /// A client, and scored's end of the socket.
    fn connect() -> (Connection, UnixStream) {
        let (client, scored) = UnixStream::pair().unwrap();
        (Connection::new(client, "scored").unwrap(), scored)
    }

    fn encode<M: Serialize>(message: &M) -> Vec<u8> {
        let mut bytes = Vec::new();
        frame::encode(message, &mut bytes).unwrap();
        bytes
    }

    #[test]
    fn messages_arrive_in_order_however_the_stream_is_cut() {
        let refused = SessionAnswer::Refused { reason: "no".to_owned(), code: 2 };
        let notice = |job| ServerMessage::notice(job, Level::Info, "job 3".to_owned());
        let mut stream = [encode(&refused), encode(&HELLO)].concat();
        for job in [SESSION_JOB, SessionJobId(3)] {
            stream.extend(encode(&notice(job)));
        }
        for step in [1, 7, stream.len()] {
            let (mut connection, mut scored) = connect();
            let mut received = Vec::new();
            for chunk in stream.chunks(step) {
                scored.write_all(chunk).unwrap();
                connection.mark_readable();
                while let Some(message) = connection.receive::<JobMessage<JobAnswer>>().unwrap() {
                    received.push(message);
                }
            }
            let message = JobAnswer::Notice { level: Level::Info, text: "job 3".to_owned() };
            let expected = [
                Received::Refused { reason: "no".to_owned(), code: 2 },
                Received::Notice { level: Level::Info, text: "job 3".to_owned() },
                Received::Answer(JobMessage { job: SessionJobId(3), message }),
            ];
            assert_eq!(received, expected);
        }
    }

    #[test]
    fn another_version_of_scored_is_refused_with_both_versions() {
        let (mut connection, mut scored) = connect();
        scored.write_all(&encode(&SessionAnswer::Hello { version: 99 })).unwrap();
        let error = connection.next::<ScoutHosts>(TEST_TIMEOUT).unwrap_err().to_string();
        assert!(error.contains("99") && error.contains(&PROTOCOL_VERSION.to_string()), "{error}");
    }

    #[test]
    fn a_message_for_another_kind_of_connection_is_malformed() {
        fn accepts<A: ConversationAnswer>(message: &ServerMessage) -> bool {
            let (mut connection, mut scored) = connect();
            scored.write_all(&[encode(&HELLO), encode(message)].concat()).unwrap();
            connection.receive::<A>().is_ok()
        }
        let accepted = |message| {
            [
                accepts::<JobMessage<JobAnswer>>(message),
                accepts::<ConsoleReply<ListAnswer>>(message),
                accepts::<ConsoleReply<PageAddress>>(message),
                accepts::<ScoutAnswer>(message),
                accepts::<ScoutHosts>(message),
            ]
        };
        let finished = ServerMessage::Console(ConsoleAnswer::Finished { code: 0 });
        assert_eq!(accepted(&finished), [false, true, true, false, false]);
        let page = PageAddress { host: "a".to_owned(), url: "u".to_owned() };
        let page = ServerMessage::Console(ConsoleAnswer::Page(page));
        assert_eq!(accepted(&page), [false, false, true, false, false]);
        let unknown = ServerMessage::job_answer(SessionJobId(3), JobAnswer::UnknownJob);
        assert_eq!(accepted(&unknown), [true, false, false, false, false]);
        let opened = ServerMessage::Scout(ScoutAnswer::Opened { socket: "/s".to_owned() });
        assert_eq!(accepted(&opened), [false, false, false, true, false]);
        let hosts = ServerMessage::ScoutHosts(ScoutHosts(Vec::new()));
        assert_eq!(accepted(&hosts), [false, false, false, false, true]);
    }

    #[test]
    fn the_last_messages_of_a_scored_that_has_closed_the_connection_are_received() {
        let (mut connection, mut scored) = connect();
        connection.greet();
        let refused = SessionAnswer::Refused { reason: "full".to_owned(), code: 1 };
        scored.write_all(&encode(&refused)).unwrap();
        drop(scored);
        // The peer does not read this message.
        connection.send(SESSION_JOB, &UserRequest::Console(ConsoleRequest::List)).unwrap();
        let received = connection.next::<ConsoleReply<ListAnswer>>(TEST_TIMEOUT).unwrap();
        assert_eq!(received, Received::Refused { reason: "full".to_owned(), code: 1 });
        let error = connection.next::<ConsoleReply<ListAnswer>>(TEST_TIMEOUT).unwrap_err();
        assert!(matches!(error, ConnectionError::Closed(_)), "{error}");
        assert_eq!(error.to_string(), "scored has closed the connection");
    }

    #[test]
    fn a_long_request_is_sent_in_parts_and_a_request_beyond_the_limit_is_refused() {
        let (mut connection, mut scored) = connect();
        let reader = std::thread::spawn(move || {
            let mut decoder = Decoder::default();
            decoder.read_next::<JobMessage<Vec<u8>>>(&mut scored).unwrap()
        });
        connection.send(SessionJobId(1), &vec![7_u8; frame::MAX_BODY - 100]).unwrap();
        let message = reader.join().unwrap().unwrap().message;
        assert_eq!(message.len(), frame::MAX_BODY - 100);
        let too_long = connection.queue(SessionJobId(1), &vec![7_u8; frame::MAX_BODY + 1]);
        assert!(matches!(too_long, Err(FrameError::TooLong { .. })), "{too_long:?}");
    }

    #[test]
    fn a_silent_scored_is_named() {
        let (mut connection, _scored) = connect();
        let timeout = Duration::from_millis(10);
        assert!(connection.wait::<ScoutHosts>(timeout).unwrap().is_none());
        let error = connection.next::<ScoutHosts>(timeout).unwrap_err();
        assert_eq!(error.to_string(), "scored has not answered for 10ms");
    }
}
