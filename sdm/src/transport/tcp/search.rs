//! A child of a hop. The hop searches for it at one port after another, and then keeps the
//! connection.

use std::collections::VecDeque;
use std::io;
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use nix::errno::Errno;
use nix::poll::PollFlags;
use score_tools::merge::MonotonicTime;
use score_tree::key::Key;
use socket2::{Domain, Protocol, Socket, Type};

use super::connection::Connection;
use super::{PORT_ATTEMPTS, WireUp};
use crate::message::DownMessage;
use crate::transport::TransportEvent;

/// Number of rounds in which all ports are tried, because a server may not have started yet.
const ROUNDS: u32 = 10;

/// Time between two rounds.
const ROUND_INTERVAL: Duration = Duration::from_millis(300);

/// Time limit for a host to accept or refuse a connection.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(3);

/// Time limit for a program at a port to send its id.
const IDENTITY_TIMEOUT: Duration = Duration::from_secs(5);

/// A child of a hop.
#[derive(Debug)]
pub struct ChildSearch {
    id: u32,
    address: Option<IpAddr>,
    first_port: u16,
    attempt: u32,
    last_error: String,
    state: SearchState,
}

#[derive(Debug)]
enum SearchState {
    /// The next attempt is due at this time.
    Waiting(MonotonicTime),
    /// A connection is being established, until this time.
    Connecting(TcpStream, MonotonicTime),
    /// Both ends prove that they hold the key, and the peer sends its id, until this time.
    Identifying(Box<Connection<DownMessage>>, MonotonicTime),
    Connected(Box<Connection<DownMessage>>),
    Ended,
}

impl ChildSearch {
    /// Searches for a server on the host with this address.
    pub fn new(id: u32, address: Option<IpAddr>, first_port: u16, now: MonotonicTime) -> Self {
        let (attempt, last_error) = (0, "no program listens".to_owned());
        Self { id, address, first_port, attempt, last_error, state: SearchState::Waiting(now) }
    }

    /// The id of the child.
    pub fn id(&self) -> u32 {
        self.id
    }

    /// The descriptor and the poll flags to wait for.
    pub fn interest(&self, is_congested: bool) -> Option<(BorrowedFd<'_>, PollFlags)> {
        match &self.state {
            SearchState::Connecting(stream, _) => Some((stream.as_fd(), PollFlags::POLLOUT)),
            SearchState::Identifying(connection, _) => {
                Some((connection.as_fd(), connection.interest()))
            }
            // If there is nothing to send, do not wait at all: if the connection is closed, every
            // poll(2) would return at once.
            SearchState::Connected(connection) if is_congested => {
                let interest = connection.interest() - PollFlags::POLLIN;
                (!interest.is_empty()).then(|| (connection.as_fd(), interest))
            }
            SearchState::Connected(connection) => Some((connection.as_fd(), connection.interest())),
            SearchState::Waiting(_) | SearchState::Ended => None,
        }
    }

    /// The time at which [`ChildSearch::progress`] is due.
    pub fn deadline(&self) -> Option<MonotonicTime> {
        match &self.state {
            SearchState::Waiting(at) | SearchState::Connecting(_, at) => Some(*at),
            SearchState::Identifying(connection, at) => Some(connection.deadline().min(*at)),
            SearchState::Connected(connection) => Some(connection.deadline()),
            SearchState::Ended => None,
        }
    }

    /// Sends a message.
    pub fn send(&mut self, message: DownMessage, now: MonotonicTime) {
        if let SearchState::Connected(connection) = &mut self.state {
            connection.send(message, now);
        }
    }

    /// Sends queued messages. Returns true if none is left.
    pub fn flush(&mut self, now: MonotonicTime) -> bool {
        match &mut self.state {
            SearchState::Connected(connection) => connection.flush(now),
            _ => true,
        }
    }

    /// Does the work that is possible without waiting.
    pub fn progress(
        &mut self,
        key: &Key,
        now: MonotonicTime,
        is_congested: bool,
        events: &mut VecDeque<TransportEvent>,
    ) {
        self.state = match std::mem::replace(&mut self.state, SearchState::Ended) {
            SearchState::Waiting(at) if at <= now => self.try_port(now, events),
            SearchState::Connecting(stream, at) => self.on_connecting(stream, at, key, now),
            SearchState::Identifying(connection, at) => {
                self.on_identifying(connection, at, now, events)
            }
            // If the parent does not read, do not read from the children, so that they also wait.
            SearchState::Connected(mut connection) if is_congested => {
                connection.flush(now);
                SearchState::Connected(connection)
            }
            SearchState::Connected(connection) => self.on_connected(connection, now, events),
            other => other,
        };
    }

    /// Begins to connect to the next port.
    fn try_port(
        &mut self,
        now: MonotonicTime,
        events: &mut VecDeque<TransportEvent>,
    ) -> SearchState {
        let Some(address) = self.address else {
            return self.give_up("the routing table has no host for this server", events);
        };
        if self.attempt >= PORT_ATTEMPTS * ROUNDS {
            let (first, last) = (self.first_port, u32::from(self.first_port) + PORT_ATTEMPTS - 1);
            let text = format!(
                "not found at any of the ports {first} to {last} of {address}: {}",
                self.last_error
            );
            return self.give_up(&text, events);
        }
        let port = u32::from(self.first_port) + self.attempt % PORT_ATTEMPTS;
        self.attempt += 1;
        let Ok(port) = u16::try_from(port) else { return self.next_attempt(now) };
        match begin_to_connect(SocketAddr::new(address, port)) {
            Ok(stream) => SearchState::Connecting(stream, now + CONNECT_TIMEOUT),
            Err(error) => {
                self.last_error = error.to_string();
                self.next_attempt(now)
            }
        }
    }

    /// Tries the next port at once, and begins the next round after an interval.
    fn next_attempt(&self, now: MonotonicTime) -> SearchState {
        match self.attempt % PORT_ATTEMPTS {
            0 => SearchState::Waiting(now + ROUND_INTERVAL),
            _ => SearchState::Waiting(now),
        }
    }

    fn give_up(&self, reason: &str, events: &mut VecDeque<TransportEvent>) -> SearchState {
        events.push_back(TransportEvent::ChildLost(self.id, reason.to_owned()));
        SearchState::Ended
    }

    fn on_connecting(
        &mut self,
        stream: TcpStream,
        deadline: MonotonicTime,
        key: &Key,
        now: MonotonicTime,
    ) -> SearchState {
        let error = match (stream.take_error(), stream.peer_addr()) {
            (Ok(None), Ok(_)) => match Connection::dial(stream, key, now) {
                Ok(connection) => {
                    return SearchState::Identifying(Box::new(connection), now + IDENTITY_TIMEOUT);
                }
                Err(error) => error.to_string(),
            },
            (Ok(None), Err(_)) if now < deadline => {
                return SearchState::Connecting(stream, deadline);
            }
            (Ok(Some(error)) | Err(error), _) => error.to_string(),
            (Ok(None), Err(_)) => "the host does not answer".to_owned(),
        };
        self.last_error = error;
        self.next_attempt(now)
    }

    fn on_identifying(
        &mut self,
        mut connection: Box<Connection<DownMessage>>,
        deadline: MonotonicTime,
        now: MonotonicTime,
        events: &mut VecDeque<TransportEvent>,
    ) -> SearchState {
        let progress = connection.progress(now);
        let error = match (connection.receive(), progress) {
            (Ok(Some(WireUp::Identity(id))), _) if id == self.id => {
                events.push_back(TransportEvent::ChildConnected(id));
                return SearchState::Connected(connection);
            }
            (Ok(Some(WireUp::Identity(id))), _) => format!("server {id} listens"),
            (Ok(Some(WireUp::Message(_))), _) => "a server did not send its id".to_owned(),
            (Ok(None), Ok(())) if now < deadline => {
                return SearchState::Identifying(connection, deadline);
            }
            (Ok(None), Ok(())) => "the program at the port has sent no id".to_owned(),
            (Err(error), _) | (_, Err(error)) => error,
        };
        self.last_error = error;
        self.next_attempt(now)
    }

    fn on_connected(
        &mut self,
        mut connection: Box<Connection<DownMessage>>,
        now: MonotonicTime,
        events: &mut VecDeque<TransportEvent>,
    ) -> SearchState {
        let ended = connection.progress(now).err();
        let ended = loop {
            match connection.receive() {
                Ok(Some(WireUp::Message(message))) => {
                    events.push_back(TransportEvent::FromChild(self.id, message));
                }
                Ok(Some(WireUp::Identity(_))) => {
                    break Some("the server has sent its id twice".to_owned());
                }
                Ok(None) => break ended,
                Err(reason) => break ended.or(Some(reason)),
            }
        };
        match ended {
            Some(reason) => self.give_up(&reason, events),
            None => SearchState::Connected(connection),
        }
    }
}

/// A socket that connects in the background.
fn begin_to_connect(address: SocketAddr) -> io::Result<TcpStream> {
    let kind = Type::STREAM.nonblocking();
    let socket = Socket::new(Domain::for_address(address), kind, Some(Protocol::TCP))?;
    match socket.connect(&address.into()) {
        Err(error) if error.raw_os_error() != Some(Errno::EINPROGRESS as i32) => Err(error),
        _ => Ok(socket.into()),
    }
}
