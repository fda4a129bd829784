//! Connections by TCP. A routing table gives the hosts.
//!
//! Each server listens at the port that all servers were given, or at the next free port. A parent
//! searches for its child from that port on. Other servers and other programs may listen at these
//! ports. Therefore both ends prove that they hold the key of the job (`score_tree::link`), and
//! then the server sends its id. If it is not the expected id, the parent tries the next port.

use std::collections::VecDeque;
use std::io;
use std::net::{Ipv6Addr, SocketAddr, TcpListener};
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

use nix::poll::PollFlags;
use score_tools::merge::MonotonicTime;
use score_tree::key::Key;
use score_tree::link::LinkTimeouts;
use serde::{Deserialize, Serialize};

use super::{Transport, TransportEvent, wait_until_ready};
use crate::message::{DownMessage, RoutingTable, UpMessage};
use crate::start_error::StartError;

mod connection;
mod search;

pub(crate) use connection::Connection;
use search::ChildSearch;

/// Number of ports at which a server tries to listen, and which its parent tries.
pub const PORT_ATTEMPTS: u32 = 64;

/// Maximum number of attempts of the master to connect to the front end.
const FRONT_END_ATTEMPTS: u32 = 20;

/// Time between two attempts of the master.
const FRONT_END_INTERVAL: Duration = Duration::from_millis(250);

/// Maximum number of connections whose peers have not yet proved that they hold the key. Further
/// peers wait.
const MAX_UNPROVED: usize = 64;

/// If more bytes than this wait for the parent, the hop stops reading from its children.
const MAX_PARENT_BACKLOG: usize = 1 << 20;

/// Time limit for a hop that ends to send the remaining bytes.
const FINISH_TIMEOUT: Duration = Duration::from_secs(1);

/// Time limit for the connection of the parent. Without a parent, the server is not needed.
const PARENT_TIMEOUT: Duration = Duration::from_secs(300);

/// Timeouts of connections inside a job.
pub(crate) const LINK_TIMEOUTS: LinkTimeouts = LinkTimeouts {
    handshake_timeout: Duration::from_secs(3),
    silence_timeout: Duration::from_secs(30),
};

/// A message from a server to its parent.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) enum WireUp {
    /// The first message: the id of the server.
    Identity(u32),
    /// Every later message.
    Message(UpMessage),
}

/// Connections of one hop by TCP.
#[derive(Debug)]
pub struct TcpTransport {
    key: Key,
    started_at: Instant,
    /// `None` for the master, and for a server whose parent is known.
    listener: Option<TcpListener>,
    port: u16,
    /// The id that is sent to a parent. `None` for the master.
    id: Option<u32>,
    /// Accepted connections. The first one on which a message arrives becomes the connection to the
    /// parent.
    unproved: Vec<Connection<WireUp>>,
    parent: Option<Connection<WireUp>>,
    children: Vec<ChildSearch>,
    events: VecDeque<TransportEvent>,
}

impl TcpTransport {
    /// A server that listens at `port` or at the next free port.
    ///
    /// # Errors
    /// See [`StartError`].
    pub fn server(id: u32, port: u16, key: &Key) -> Result<Self, StartError> {
        let mut attempts = 0;
        let listener = loop {
            let candidate = u32::from(port) + attempts;
            attempts += 1;
            let bound = match u16::try_from(candidate) {
                Ok(port) => TcpListener::bind((Ipv6Addr::UNSPECIFIED, port))
                    .or_else(|_| TcpListener::bind(("0.0.0.0", port))),
                Err(_) => Err(io::Error::from(io::ErrorKind::AddrInUse)),
            };
            match bound {
                Ok(listener) => break listener,
                Err(error) if attempts >= PORT_ATTEMPTS => {
                    return Err(StartError::NoPort(port, attempts, error));
                }
                Err(_) => (),
            }
        };
        listener.set_nonblocking(true)?;
        let port = listener.local_addr()?.port();
        Ok(Self { id: Some(id), listener: Some(listener), port, ..Self::new(key) })
    }

    /// A master. Connects to the front end in a limited number of attempts.
    ///
    /// # Errors
    /// See [`StartError`].
    pub fn master(front_end: SocketAddr, key: &Key) -> Result<Self, StartError> {
        let mut transport = Self::new(key);
        let mut attempts = 0;
        let stream = loop {
            attempts += 1;
            match std::net::TcpStream::connect_timeout(&front_end, LINK_TIMEOUTS.handshake_timeout)
            {
                Ok(stream) => break stream,
                Err(error) if attempts >= FRONT_END_ATTEMPTS => {
                    return Err(StartError::FrontEnd(front_end, attempts, error));
                }
                Err(_) => std::thread::sleep(FRONT_END_INTERVAL),
            }
        };
        let now = transport.now();
        transport.parent = Some(Connection::dial(stream, key, now)?);
        Ok(transport)
    }

    fn new(key: &Key) -> Self {
        Self {
            key: key.clone(),
            started_at: Instant::now(),
            listener: None,
            port: 0,
            id: None,
            unproved: Vec::new(),
            parent: None,
            children: Vec::new(),
            events: VecDeque::new(),
        }
    }

    /// The port at which the server listens.
    pub fn port(&self) -> u16 {
        self.port
    }

    fn backlog_bytes(&self) -> usize {
        self.parent.as_ref().map_or(0, Connection::waiting_bytes)
    }

    /// The descriptors to wait for. If the parent does not read, the hop does not read from its
    /// children.
    fn descriptors(&self) -> Vec<(BorrowedFd<'_>, PollFlags)> {
        let mut all = Vec::new();
        if let Some(listener) =
            self.listener.as_ref().filter(|_| self.unproved.len() < MAX_UNPROVED)
        {
            all.push((listener.as_fd(), PollFlags::POLLIN));
        }
        let connections = self.unproved.iter().chain(&self.parent);
        all.extend(connections.map(|connection| (connection.as_fd(), connection.interest())));
        let is_congested = self.is_congested();
        all.extend(self.children.iter().filter_map(|child| child.interest(is_congested)));
        all
    }

    /// The time at which a link or a search is due.
    fn deadline(&self) -> Option<MonotonicTime> {
        let links = self.unproved.iter().chain(&self.parent).map(Connection::deadline);
        let parent = self.listener.as_ref().map(|_| PARENT_TIMEOUT);
        links.chain(self.children.iter().filter_map(ChildSearch::deadline)).chain(parent).min()
    }

    /// Moves bytes on all connections.
    fn progress(&mut self) {
        let now = self.now();
        self.accept(now);
        self.progress_unproved(now);
        if self.listener.is_some() && now >= PARENT_TIMEOUT {
            (self.listener, self.unproved) = (None, Vec::new());
            let reason = format!("no parent has connected within {PARENT_TIMEOUT:?}");
            self.events.push_back(TransportEvent::ParentLost(reason));
        }
        self.progress_parent(now);
        let is_congested = self.is_congested();
        for child in &mut self.children {
            child.progress(&self.key, now, is_congested, &mut self.events);
        }
    }

    fn accept(&mut self, now: MonotonicTime) {
        while self.unproved.len() < MAX_UNPROVED {
            let Some(listener) = &self.listener else { return };
            let Ok((stream, _)) = listener.accept() else { return };
            let Ok(connection) = Connection::accept(stream, &self.key, now) else { continue };
            self.unproved.push(connection);
        }
    }

    /// Sends the id to each peer that has proved that it holds the key. The first peer that then
    /// sends a message is the parent. A hop that searched for another server closes its connection
    /// instead.
    fn progress_unproved(&mut self, now: MonotonicTime) {
        let mut index = 0;
        while let Some(connection) = self.unproved.get_mut(index) {
            if connection.progress(now).is_err() {
                self.unproved.swap_remove(index);
                continue;
            }
            if let (true, Some(id)) = (connection.take_opened(), self.id) {
                connection.send(WireUp::Identity(id), now);
            }
            match connection.receive::<DownMessage>() {
                Ok(Some(message)) => {
                    self.parent = Some(self.unproved.swap_remove(index));
                    self.events.push_back(TransportEvent::FromParent(message));
                    (self.listener, self.unproved) = (None, Vec::new());
                    return;
                }
                Ok(None) => index += 1,
                Err(_) => {
                    self.unproved.swap_remove(index);
                }
            }
        }
    }

    fn progress_parent(&mut self, now: MonotonicTime) {
        let Some(parent) = &mut self.parent else { return };
        let ended = parent.progress(now).err();
        let ended = loop {
            match parent.receive() {
                Ok(Some(message)) => self.events.push_back(TransportEvent::FromParent(message)),
                Ok(None) => break ended,
                Err(reason) => break ended.or(Some(reason)),
            }
        };
        if let Some(reason) = ended {
            self.parent = None;
            self.events.push_back(TransportEvent::ParentLost(reason));
        }
    }
}

impl Transport for TcpTransport {
    fn connect_children(&mut self, children: &[u32], table: &RoutingTable) {
        let now = self.now();
        for &child in children {
            let search = ChildSearch::new(child, table.address_of(child), table.port, now);
            self.children.push(search);
        }
    }

    fn send_to_child(&mut self, child: u32, message: DownMessage) {
        let now = self.now();
        if let Some(child) = self.children.iter_mut().find(|known| known.id() == child) {
            child.send(message, now);
        }
    }

    fn send_to_parent(&mut self, message: UpMessage) {
        let now = self.now();
        if let Some(parent) = &mut self.parent {
            parent.send(WireUp::Message(message), now);
        }
    }

    fn receive(&mut self) -> Option<TransportEvent> {
        if self.events.is_empty() {
            self.progress();
        }
        self.events.pop_front()
    }

    fn now(&self) -> MonotonicTime {
        self.started_at.elapsed()
    }

    fn wait(&mut self, until: MonotonicTime, others: &[BorrowedFd<'_>]) -> io::Result<()> {
        if !self.events.is_empty() {
            return Ok(());
        }
        let until = self.deadline().map_or(until, |deadline| deadline.min(until));
        wait_until_ready(self.descriptors(), others, until.saturating_sub(self.now()))
    }

    fn is_congested(&self) -> bool {
        self.backlog_bytes() > MAX_PARENT_BACKLOG
    }

    fn finish(&mut self) {
        let deadline = self.now() + FINISH_TIMEOUT;
        loop {
            let now = self.now();
            let parent = self.parent.iter_mut().map(|parent| parent.flush(now));
            let children = self.children.iter_mut().map(|child| child.flush(now));
            let blocked = parent.chain(children).filter(|done| !done).count();
            if blocked == 0 || now >= deadline {
                return;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}
