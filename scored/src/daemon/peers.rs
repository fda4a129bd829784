//! Links to the daemons of other hosts: sockets around [`score_tree::link`].

use std::collections::{HashMap, VecDeque};
use std::io::{self, Read, Write};
use std::net::{self, IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use mio::net::{TcpListener, TcpStream};
use mio::{Interest, Registry, Token};
use score_job::jobs::{JobTag, LinkId};
use score_proto::frame;
use score_proto::job_control::{HopOrder, HopReport, JobReport, Report};
use score_proto::peer_message::{Hello, Incarnation, PeerMessage};
use score_sys::random::random_u64;
use score_tree::key::Key;
use score_tree::link::{Link, LinkTimeouts, SendError};

use super::event_sources::{EventSources, TokenOwner};
use crate::sys::tcp;

/// How long a peer may take to prove that it has the key, and how long a peer may be silent. A link
/// survives a network interruption of 5 s. TCP doubles its retransmission time-out, so the silence
/// may then last 10 s. The last message before the interruption may be one heartbeat interval
/// older.
pub const LINK_TIMEOUTS: LinkTimeouts = LinkTimeouts {
    handshake_timeout: Duration::from_secs(5),
    silence_timeout: Duration::from_secs(16),
};
/// Limit of the unauthenticated connections. If a further connection arrives, the daemon closes the
/// oldest connection of the address with the most unauthenticated connections. A peer that opens
/// many connections thus cannot lock out daemons.
const MAX_UNAUTHENTICATED: usize = 128;
/// The connections that are accepted in one turn of the loop.
const ACCEPTS_PER_TURN: usize = 32;
/// The delay before the next accept(2) after the process has run out of descriptors.
const ACCEPT_RETRY_INTERVAL: Duration = Duration::from_millis(100);
/// Limit of the messages that the link has not accepted yet. The windows of jobs normally keep the
/// number far below.
const MAX_QUEUED_MESSAGES: usize = 16 * 1024;
/// The bytes of one read, and the number of reads of a socket in one turn of the loop.
const READ_BUFFER_LEN: usize = 64 * 1024;
const READS_PER_TICK: usize = 4;
/// The maximum number of messages of one link that are handled in one turn of the loop.
const MESSAGES_PER_TURN: usize = 256;

/// A message of a peer, or the end of its link.
#[derive(Debug)]
pub enum PeerEvent {
    /// A message that arrived after the peer's `Hello`.
    Message(PeerMessage),
    /// The daemon that answered is not the daemon of the dialled host. The line names both hosts.
    /// The end of the link follows.
    WrongHost(String),
    /// The link is lost. Contains the peer's name, if it is known, and the reason.
    Lost(Option<String>, String),
}

/// The names that a dialled daemon may have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum DialledName {
    /// Only the name that was dialled. Otherwise an attacker could redirect a connection to another
    /// daemon of the cluster.
    MustMatch,
    /// Any name. This daemon has started the dialled daemon and uses the names that the user has
    /// given. The host may use another name for itself.
    MayDiffer,
}

#[derive(Debug)]
struct PeerConnection {
    stream: TcpStream,
    link: Link,
    /// The address of the peer.
    remote_ip: Option<IpAddr>,
    /// Whether the peer has opened the connection.
    is_inbound: bool,
    /// The name of the peer: the name of the dialled host, or the name in the peer's `Hello`.
    name: Option<String>,
    has_greeted: bool,
    /// The incarnation in the peer's `Hello`.
    incarnation: Incarnation,
    readable: bool,
    /// Received messages may wait for the next turn of the loop.
    has_unhandled: bool,
    /// Messages that the link has not accepted yet.
    send_queue: VecDeque<PeerMessage>,
    /// If set, the link has to be closed for this reason.
    close_reason: Option<String>,
}

/// Whether connections may wait to be accepted. mio reports each arrival once only.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum AcceptState {
    /// No connection waits.
    Idle,
    /// Connections may wait.
    Ready,
    /// Connections wait. The next attempt is at this time.
    RetryAt(Duration),
}

/// All links of this daemon.
#[derive(Debug)]
pub struct Peers {
    key: Key,
    hello: Hello,
    dialled_name: DialledName,
    listener: TcpListener,
    accept_state: AcceptState,
    /// The network interface of this daemon's address, if it is an IPv6 link-local address.
    scope_id: u32,
    connections: HashMap<LinkId, PeerConnection>,
    started_at: Instant,
    read_buffer: Vec<u8>,
}

impl Peers {
    /// Creates the links of a daemon in single-user mode. The daemon listens on any port of all
    /// addresses. A dialled daemon may have another name than the one that was dialled.
    ///
    /// # Errors
    /// See bind(2) and epoll_ctl(2).
    pub fn new(key: Key, name: String, registry: &Registry, token: Token) -> io::Result<Self> {
        let peers =
            Self::with_listener(tcp::listen_on_all_addresses()?, key, name, registry, token)?;
        Ok(Self { dialled_name: DialledName::MayDiffer, ..peers })
    }

    /// Creates the links of a daemon in multi-user mode. The daemon listens on this address. It
    /// refuses a dialled daemon that has another name than the one that was dialled.
    ///
    /// # Errors
    /// See bind(2) and epoll_ctl(2).
    pub fn bind(
        address: SocketAddr,
        key: Key,
        name: String,
        registry: &Registry,
        token: Token,
    ) -> io::Result<Self> {
        let peers = Self::with_listener(tcp::listen(address)?, key, name, registry, token)?;
        let scope_id = match address {
            SocketAddr::V6(address) => address.scope_id(),
            SocketAddr::V4(_) => 0,
        };
        Ok(Self { scope_id, ..peers })
    }

    fn with_listener(
        listener: net::TcpListener,
        key: Key,
        name: String,
        registry: &Registry,
        token: Token,
    ) -> io::Result<Self> {
        let mut listener = TcpListener::from_std(listener);
        registry.register(&mut listener, token, Interest::READABLE)?;
        let incarnation = Incarnation(random_u64());
        Ok(Self {
            key,
            hello: Hello { host: None, name, incarnation },
            dialled_name: DialledName::MustMatch,
            listener,
            accept_state: AcceptState::Idle,
            scope_id: 0,
            connections: HashMap::new(),
            started_at: Instant::now(),
            read_buffer: vec![0; READ_BUFFER_LEN],
        })
    }

    /// The port on which this daemon listens.
    ///
    /// # Errors
    /// See getsockname(2).
    pub fn port(&self) -> io::Result<u16> {
        Ok(self.listener.local_addr()?.port())
    }

    /// The name of this daemon's host.
    pub fn name(&self) -> &str {
        &self.hello.name
    }

    /// The number that distinguishes this daemon from all earlier daemons.
    pub fn incarnation(&self) -> Incarnation {
        self.hello.incarnation
    }

    fn now(&self) -> Duration {
        self.started_at.elapsed()
    }

    /// Records that mio has reported a connection.
    pub fn on_listener_ready(&mut self) {
        self.accept_state = AcceptState::Ready;
    }

    /// Accepts some of the waiting connections. The others wait for the next turn of the loop, so
    /// that a flood of connections does not delay it.
    pub fn accept_new(&mut self, sources: &mut EventSources) {
        match self.accept_state {
            AcceptState::RetryAt(due) if due > self.now() => return,
            AcceptState::Idle => return,
            AcceptState::Ready | AcceptState::RetryAt(_) => self.accept_state = AcceptState::Ready,
        }
        for _ in 0..ACCEPTS_PER_TURN {
            let Some(stream) = self.accept() else { return };
            let token = sources.allocate(TokenOwner::Peer);
            self.add_inbound(stream, sources.registry(), token);
        }
    }

    /// Accepts the next connection, if there is one.
    fn accept(&mut self) -> Option<TcpStream> {
        loop {
            match self.listener.accept() {
                Ok((stream, _)) => return Some(stream),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::ConnectionAborted => {}
                Err(error) => {
                    self.on_accept_error(&error);
                    return None;
                }
            }
        }
    }

    fn on_accept_error(&mut self, error: &io::Error) {
        self.accept_state = match error.kind() {
            io::ErrorKind::WouldBlock => AcceptState::Idle,
            // Descriptors or memory have run out.
            _ => AcceptState::RetryAt(self.now() + ACCEPT_RETRY_INTERVAL),
        };
    }

    /// Adds a connection that a peer has opened.
    fn add_inbound(&mut self, stream: TcpStream, registry: &Registry, token: Token) {
        self.evict_unauthenticated();
        let link = Link::accept(&self.key, LINK_TIMEOUTS, self.now());
        self.add_connection(stream, link, None, registry, token);
        self.connections
            .entry(LinkId(token.0))
            .and_modify(|connection| connection.is_inbound = true);
    }

    /// Closes an unauthenticated connection if there are too many.
    fn evict_unauthenticated(&mut self) {
        let mut by_address: HashMap<Option<IpAddr>, Vec<LinkId>> = HashMap::new();
        for (link_id, connection) in &self.connections {
            if connection.is_inbound
                && connection.close_reason.is_none()
                && !connection.link.is_open()
            {
                by_address.entry(connection.remote_ip).or_default().push(*link_id);
            }
        }
        if by_address.values().map(Vec::len).sum::<usize>() < MAX_UNAUTHENTICATED {
            return;
        }
        // Numbers of links increase with time.
        let oldest = |link_ids: Vec<LinkId>| link_ids.into_iter().min();
        let oldest_of_busiest = by_address.into_values().max_by_key(Vec::len).and_then(oldest);
        if let Some(connection) =
            oldest_of_busiest.and_then(|link_id| self.connections.get_mut(&link_id))
        {
            connection.close_reason = Some("too many unauthenticated connections".to_owned());
        }
    }

    /// Connects to the daemon of a host. Messages to the daemon wait until it has answered.
    ///
    /// # Errors
    /// See connect(2).
    pub fn connect(
        &mut self,
        name: &str,
        address: SocketAddr,
        sources: &mut EventSources,
    ) -> io::Result<LinkId> {
        let token = sources.allocate(TokenOwner::Peer);
        let dialled = self.dial(address, Some(name.to_owned()), sources.registry(), token);
        if dialled.is_err() {
            sources.release(token);
        }
        dialled.map(|()| LinkId(token.0))
    }

    fn dial(
        &mut self,
        mut address: SocketAddr,
        name: Option<String>,
        registry: &Registry,
        token: Token,
    ) -> io::Result<()> {
        // An address that another host has sent has no scope, because scopes are interface numbers.
        if let SocketAddr::V6(address) = &mut address
            && address.ip().is_unicast_link_local()
        {
            address.set_scope_id(self.scope_id);
        }
        let stream = TcpStream::connect(address)?;
        let link = Link::dial(&self.key, LINK_TIMEOUTS, self.now()).map_err(io::Error::other)?;
        self.add_connection(stream, link, name, registry, token);
        Ok(())
    }

    /// Takes over a connection that this daemon has opened.
    ///
    /// # Errors
    /// See fcntl(2).
    pub fn adopt(
        &mut self,
        stream: net::TcpStream,
        registry: &Registry,
        token: Token,
    ) -> io::Result<()> {
        stream.set_nonblocking(true)?;
        let link = Link::dial(&self.key, LINK_TIMEOUTS, self.now()).map_err(io::Error::other)?;
        self.add_connection(TcpStream::from_std(stream), link, None, registry, token);
        Ok(())
    }

    fn add_connection(
        &mut self,
        mut stream: TcpStream,
        link: Link,
        name: Option<String>,
        registry: &Registry,
        token: Token,
    ) {
        // Without these options the link still works.
        let _ = tcp::configure_link(&stream, LINK_TIMEOUTS.silence_timeout);
        let interest = Interest::READABLE | Interest::WRITABLE;
        let registration_error = registry.register(&mut stream, token, interest).err();
        let close_reason = registration_error.map(|error| error.to_string());
        let send_queue = VecDeque::new();
        let remote_ip = stream.peer_addr().ok().map(|address| address.ip().to_canonical());
        let connection = PeerConnection {
            stream,
            link,
            remote_ip,
            is_inbound: false,
            name,
            has_greeted: false,
            incarnation: Incarnation(0),
            readable: true,
            has_unhandled: false,
            send_queue,
            close_reason,
        };
        let link_id = LinkId(token.0);
        self.connections.insert(link_id, connection);
        self.send(link_id, PeerMessage::Hello(self.hello.clone()));
    }

    /// Records that mio has reported an event of a link.
    pub fn mark_ready(&mut self, link_id: LinkId) {
        if let Some(connection) = self.connections.get_mut(&link_id) {
            connection.readable = true;
            if let Ok(Some(error)) | Err(error) = connection.stream.take_error() {
                connection.close_reason.get_or_insert(error.to_string());
            }
        }
    }

    /// The link to a host, if there is one.
    pub fn link_to(&self, name: &str) -> Option<LinkId> {
        let matches_name = |connection: &PeerConnection| {
            connection.close_reason.is_none() && connection.name.as_deref() == Some(name)
        };
        self.connections
            .iter()
            .find(|(_, connection)| matches_name(connection))
            .map(|(link_id, _)| *link_id)
    }

    /// The name of a link's peer, if it is known.
    pub fn name_of(&self, link_id: LinkId) -> Option<&str> {
        self.connections.get(&link_id)?.name.as_deref()
    }

    /// Sets a new incarnation. Call it after everything that this daemon ran has been ended.
    pub fn reset_incarnation(&mut self, incarnation: Incarnation) {
        self.hello.incarnation = incarnation;
    }

    /// Closes all links to a host.
    pub fn close_links_to(&mut self, name: &str, reason: &str) {
        for connection in self
            .connections
            .values_mut()
            .filter(|connection| connection.name.as_deref() == Some(name))
        {
            connection.close_reason.get_or_insert(reason.to_owned());
        }
    }

    /// The IP address of a link's peer.
    pub fn address(&self, link_id: LinkId) -> Option<IpAddr> {
        let address = self.connections.get(&link_id)?.stream.peer_addr().ok()?;
        Some(address.ip().to_canonical())
    }

    /// The IP address of this host that a link's peer has connected to.
    pub fn local_address(&self, link_id: LinkId) -> Option<IpAddr> {
        let address = self.connections.get(&link_id)?.stream.local_addr().ok()?;
        Some(address.ip().to_canonical())
    }

    /// Queues a message. Returns false if the message is too long to be sent.
    pub fn send(&mut self, link_id: LinkId, message: PeerMessage) -> bool {
        let now = self.now();
        let Some(connection) = self.connections.get_mut(&link_id) else { return true };
        if !connection.send_queue.is_empty() {
            connection.send_queue.push_back(message);
            if connection.send_queue.len() > MAX_QUEUED_MESSAGES {
                connection.close_reason.get_or_insert("it does not read".to_owned());
            }
            return true;
        }
        match connection.link.send(&message, now) {
            Err(SendError::TooLong) => return false,
            // The windows of the jobs limit the number of waiting messages.
            Err(SendError::Full) => connection.send_queue.push_back(message),
            Ok(()) | Err(SendError::Closed) => {}
        }
        true
    }

    /// Sends an order for a job. Returns false if the order is too long to be sent.
    pub fn send_order(&mut self, link_id: LinkId, tag: JobTag, order: &HopOrder) -> bool {
        frame::encode_datagram(order).is_ok_and(|body| {
            let (job, job_incarnation) = (tag.job, tag.incarnation);
            self.send(link_id, PeerMessage::Order { job, job_incarnation, body })
        })
    }

    /// Sends a report about a job. Metrics are dropped if the link is slow, because newer ones
    /// follow.
    pub fn send_report(&mut self, link_id: LinkId, tag: JobTag, report: &HopReport) {
        let is_metrics = matches!(report, HopReport::Tree(Report::Job(JobReport::Metrics(_))));
        if is_metrics && self.is_slow(link_id) {
            return;
        }
        if let Ok(body) = frame::encode_datagram(report) {
            let (job, job_incarnation) = (tag.job, tag.incarnation);
            self.send(link_id, PeerMessage::Report { job, job_incarnation, body });
        }
    }

    /// Whether messages wait for the link to a host.
    pub fn is_slow_to(&self, name: &str) -> bool {
        self.link_to(name).is_some_and(|link_id| self.is_slow(link_id))
    }

    /// Whether messages wait because the link does not accept them now.
    pub fn is_slow(&self, link_id: LinkId) -> bool {
        self.connections.get(&link_id).is_some_and(|connection| !connection.send_queue.is_empty())
    }

    /// Whether connections may wait, or a link may hold more data, without a further report of mio.
    pub fn may_have_more(&self) -> bool {
        let has_more = |peer: &PeerConnection| peer.readable || peer.has_unhandled;
        self.accept_state == AcceptState::Ready || self.connections.values().any(has_more)
    }

    /// Takes the events of all links, at most `MESSAGES_PER_TURN` of each open link.
    pub fn receive_events(&mut self) -> Vec<(LinkId, PeerEvent)> {
        let now = self.now();
        let (mut events, mut new_peers) = (Vec::new(), Vec::new());
        for (link_id, connection) in &mut self.connections {
            if connection.readable && !connection.has_unhandled {
                connection.read(&mut self.read_buffer, now);
            }
            connection.has_unhandled = true;
            // A tick before its deadline does no harm, and may save a separate wake-up at the
            // deadline.
            if let Err(error) = connection.link.tick(now) {
                connection.close_reason.get_or_insert(error.to_string());
            }
            // Messages that a peer has sent before it closed the link are delivered.
            let is_open = connection.close_reason.is_none();
            let max_messages = if is_open { MESSAGES_PER_TURN } else { usize::MAX };
            for _ in 0..max_messages {
                match connection.link.next::<PeerMessage>() {
                    Ok(Some(PeerMessage::Hello(hello))) if !connection.has_greeted => {
                        if let Some(reason) = connection.refusal(self.dialled_name, &hello.name) {
                            events.push((*link_id, PeerEvent::WrongHost(reason.clone())));
                            connection.close_reason.get_or_insert(reason);
                            break;
                        }
                        connection.has_greeted = true;
                        connection.incarnation = hello.incarnation;
                        let name = connection.name.get_or_insert(hello.name);
                        new_peers.push((*link_id, name.clone(), hello.incarnation));
                    }
                    Ok(Some(message)) if connection.has_greeted => {
                        events.push((*link_id, PeerEvent::Message(message)));
                    }
                    Ok(None) => {
                        connection.has_unhandled = false;
                        break;
                    }
                    Ok(Some(_)) => {
                        connection
                            .close_reason
                            .get_or_insert("it has sent no Hello message".to_owned());
                        break;
                    }
                    Err(error) => {
                        connection.close_reason.get_or_insert(error.to_string());
                        break;
                    }
                }
            }
        }
        for (link_id, name, incarnation) in new_peers {
            let other_connections =
                self.connections.iter_mut().filter(|(other_id, _)| **other_id != link_id);
            for (_, other) in other_connections.filter(|(_, other)| other.has_greeted) {
                if other.name.as_ref() == Some(&name) && other.incarnation != incarnation {
                    other.close_reason.get_or_insert("its scored was restarted".to_owned());
                }
            }
        }
        let closed_links: Vec<LinkId> = self
            .connections
            .iter()
            .filter(|(_, connection)| connection.close_reason.is_some())
            .map(|(link_id, _)| *link_id)
            .collect();
        for link_id in closed_links {
            if let Some(mut connection) = self.connections.remove(&link_id) {
                // A peer that uses another version must receive the version of this daemon.
                connection.write(now);
                let mut reason = connection.close_reason.unwrap_or_default();
                if connection.name.is_none() {
                    let remote_ip = connection
                        .remote_ip
                        .map_or("an unknown address".to_owned(), |remote_ip| remote_ip.to_string());
                    reason = format!("a connection from {remote_ip} was dropped: {reason}");
                }
                events.push((link_id, PeerEvent::Lost(connection.name, reason)));
            }
        }
        events
    }

    /// Writes as much as the sockets accept.
    pub fn flush(&mut self) {
        let now = self.now();
        self.connections.values_mut().for_each(|connection| connection.write(now));
    }

    /// The numbers of all links.
    pub fn link_ids(&self) -> Vec<LinkId> {
        self.connections.keys().copied().collect()
    }

    /// Sets whether this side sends fewer heartbeats, because other links detect a loss.
    pub fn set_sparse_heartbeats(&mut self, link_id: LinkId, is_sparse: bool) {
        let now = self.now();
        if let Some(connection) = self.connections.get_mut(&link_id)
            && let Err(error) = connection.link.set_slow_heartbeat(is_sparse, now)
        {
            connection.close_reason.get_or_insert(error.to_string());
        }
    }

    /// The time until the next required call of [`Peers::receive_events`] or [`Peers::accept_new`],
    /// even if nothing is received.
    pub fn deadline(&self, now: Instant) -> Option<Duration> {
        let now = now.saturating_duration_since(self.started_at);
        let links = self.connections.values().map(|connection| connection.link.deadline());
        let accept_retry = match self.accept_state {
            AcceptState::RetryAt(due) => Some(due),
            AcceptState::Idle | AcceptState::Ready => None,
        };
        Some(links.chain(accept_retry).min()?.saturating_sub(now))
    }

    /// Notifies all peers that this daemon closes its links.
    pub fn send_goodbyes(&mut self, reason: &str) {
        for connection in self.connections.values_mut() {
            connection.link.close(reason);
        }
        self.flush();
    }
}

impl PeerConnection {
    /// The reason why the daemon with this name must not answer for the dialled host, if there is
    /// one.
    fn refusal(&self, dialled_name: DialledName, name: &str) -> Option<String> {
        let meant = self.name.as_deref().filter(|meant| *meant != name)?;
        match dialled_name {
            DialledName::MayDiffer => None,
            DialledName::MustMatch => Some(format!(
                "host {meant} was dialled, and the daemon of host {name} has answered"
            )),
        }
    }

    fn read(&mut self, read_buffer: &mut [u8], now: Duration) {
        for _ in 0..READS_PER_TICK {
            match self.stream.read(read_buffer) {
                Ok(0) => {
                    self.readable = false;
                    let close_reason = self.link.on_eof().to_string();
                    self.close_reason.get_or_insert(close_reason);
                    return;
                }
                Ok(count) => {
                    if let Err(link_error) = self.link.push(&read_buffer[..count], now) {
                        self.close_reason.get_or_insert(link_error.to_string());
                        return;
                    }
                    if count < read_buffer.len() {
                        self.readable = false;
                        return;
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => {
                    self.readable = false;
                    if !is_would_block(&error) {
                        self.close_reason.get_or_insert(error.to_string());
                    }
                    return;
                }
            }
        }
    }

    fn write(&mut self, now: Duration) {
        loop {
            while let Some(message) = self.send_queue.pop_front() {
                if self.link.send(&message, now) == Err(SendError::Full) {
                    self.send_queue.push_front(message);
                    break;
                }
            }
            let outgoing = self.link.outgoing();
            if outgoing.is_empty() {
                return;
            }
            match self.stream.write(outgoing) {
                Ok(count) => self.link.mark_written(count),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => {
                    if !is_would_block(&error) {
                        self.close_reason.get_or_insert(error.to_string());
                    }
                    return;
                }
            }
        }
    }
}

/// Whether the error is temporary: not yet connected, nothing to read, or no space to write.
fn is_would_block(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::NotConnected)
}

#[cfg(test)]
#[path = "peers_tests.rs"]
mod tests;
