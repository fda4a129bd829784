//! The sockets of the status page, and the limits of what clients can consume in this daemon. A
//! client is anonymous until its token identifies a user.

use std::collections::BTreeMap;
use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr};
use std::time::Duration;

use mio::net::{TcpListener, TcpStream};
use mio::{Interest, Registry, Token};
use score_job::cluster::MonotonicTime;

use super::super::event_sources::{EventSources, TokenOwner};
use crate::http::request::MAX_HEAD_LEN;
use crate::http::response::Status;
use crate::http::{AllowedHosts, Connection, HttpRequest, response};
use crate::sys::tcp;

/// The maximum number of simultaneous connections. To accept a further connection, the daemon
/// closes the oldest connection without a valid token. If all connections have valid tokens, the
/// daemon closes the oldest connection of the user with the most connections.
const MAX_CONNECTIONS: usize = 128;
/// The delay before the next accept(2) after the process has run out of descriptors.
const ACCEPT_RETRY_INTERVAL: Duration = Duration::from_millis(100);
/// The maximum number of connections that are accepted in a turn of the loop.
const ACCEPTS_PER_TICK: usize = 32;

#[derive(Debug)]
struct HttpConnection {
    stream: TcpStream,
    connection: Connection,
    /// Whether the socket may hold unread data. mio reports each arrival once only.
    readable: bool,
}

/// The listening socket and all connections.
#[derive(Debug)]
pub struct HttpConnections {
    listener: TcpListener,
    /// The address at which the page listens.
    pub address: SocketAddr,
    allowed_hosts: AllowedHosts,
    /// The connections, in the order in which they were accepted.
    connections: BTreeMap<usize, HttpConnection>,
    may_accept: bool,
    fds_exhausted: bool,
}

impl HttpConnections {
    /// Listens at `address`. `name` is the name of the server's host.
    ///
    /// # Errors
    /// One line that names the address.
    pub fn open(
        address: SocketAddr,
        name: &str,
        registry: &Registry,
        token: Token,
    ) -> Result<Self, String> {
        let with_address = |error: io::Error| format!("-page {address}: {error}");
        let mut listener = TcpListener::from_std(tcp::listen(address).map_err(with_address)?);
        let address = listener.local_addr().map_err(with_address)?;
        registry.register(&mut listener, token, Interest::READABLE).map_err(with_address)?;
        let allowed_hosts = AllowedHosts { address: address.ip(), name: name.to_owned() };
        let connections = BTreeMap::new();
        Ok(Self {
            listener,
            address,
            allowed_hosts,
            connections,
            may_accept: true,
            fds_exhausted: false,
        })
    }

    /// Records that mio has reported a connection.
    pub fn on_listener_ready(&mut self) {
        self.may_accept = true;
    }

    /// Records that mio has reported an event of a connection.
    pub fn mark_readable(&mut self, connection_id: usize) {
        self.connections.get_mut(&connection_id).into_iter().for_each(|one| one.readable = true);
    }

    /// Accepts the next connection, if there is one.
    fn accept(&mut self) -> Option<TcpStream> {
        if !self.may_accept {
            return None;
        }
        loop {
            match self.listener.accept() {
                Ok((stream, _)) => {
                    self.fds_exhausted = false;
                    return Some(stream);
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::ConnectionAborted => {}
                Err(error) => {
                    self.may_accept = error.kind() != io::ErrorKind::WouldBlock;
                    self.fds_exhausted = self.may_accept;
                    return None;
                }
            }
        }
    }

    /// Accepts new connections. Returns the connections that were closed to make room.
    pub fn accept_new(&mut self, sources: &mut EventSources, now: MonotonicTime) -> Vec<usize> {
        let mut closed = Vec::new();
        for _ in 0..ACCEPTS_PER_TICK {
            let Some(mut stream) = self.accept() else { break };
            if self.connections.len() >= MAX_CONNECTIONS {
                closed.extend(self.evict());
            }
            let token = sources.allocate(TokenOwner::HttpConnection);
            let interest = Interest::READABLE | Interest::WRITABLE;
            if sources.registry().register(&mut stream, token, interest).is_err() {
                closed.push(token.0);
                continue;
            }
            // Requests and responses are small, and each is written at once.
            let _ = stream.set_nodelay(true);
            let connection = Connection::new(now);
            self.connections.insert(token.0, HttpConnection { stream, connection, readable: true });
        }
        closed
    }

    fn evict(&mut self) -> Option<usize> {
        let mut counts_by_uid: BTreeMap<u32, usize> = BTreeMap::new();
        for uid in self.connections.values().filter_map(|one| one.connection.uid) {
            *counts_by_uid.entry(uid).or_default() += 1;
        }
        let busiest_uid =
            counts_by_uid.into_iter().max_by_key(|(_, count)| *count).map(|(uid, _)| uid);
        let oldest_of = |uid: Option<u32>| {
            let all = self.connections.iter();
            all.filter(|(_, one)| one.connection.uid == uid)
                .map(|(connection_id, _)| *connection_id)
                .next()
        };
        let connection_id = oldest_of(None).or_else(|| oldest_of(busiest_uid))?;
        self.connections.remove(&connection_id);
        Some(connection_id)
    }

    /// Returns the requests that have arrived, at most one of each connection. A connection whose
    /// user has no processor time left waits.
    pub fn next_requests(
        &mut self,
        now: MonotonicTime,
        has_time: impl Fn(u32) -> bool,
    ) -> Vec<(usize, Result<HttpRequest, Status>)> {
        let mut requests = Vec::new();
        for (connection_id, one) in &mut self.connections {
            one.read(now);
            if one.connection.uid.is_some_and(|uid| !has_time(uid)) {
                continue;
            }
            if let Some(request) = one.connection.next_request(&self.allowed_hosts) {
                requests.push((*connection_id, request));
            }
        }
        requests
    }

    /// Queues a response for a user.
    pub fn answer(
        &mut self,
        connection_id: usize,
        response: Vec<u8>,
        should_close: bool,
        uid: u32,
        now: MonotonicTime,
    ) {
        let Some(one) = self.connections.get_mut(&connection_id) else { return };
        one.connection.uid = Some(uid);
        one.connection.answer(response, should_close, now);
    }

    /// Queues an error response. The connection is closed after it.
    pub fn refuse(&mut self, connection_id: usize, status: Status, now: MonotonicTime) {
        let Some(one) = self.connections.get_mut(&connection_id) else { return };
        one.connection.answer(response::refusal(status), true, now);
    }

    /// Writes as much as the sockets accept. Returns the connections that have been closed.
    pub fn flush(&mut self, now: MonotonicTime) -> Vec<usize> {
        for one in self.connections.values_mut() {
            one.write(now);
            one.connection.tick(now);
        }
        let closed_id = |(connection_id, one): (&usize, &HttpConnection)| {
            one.connection.is_closed().then_some(*connection_id)
        };
        let closed: Vec<usize> = self.connections.iter().filter_map(closed_id).collect();
        closed.iter().for_each(|connection_id| _ = self.connections.remove(connection_id));
        closed
    }

    /// The time until the connections have to be served without a further report of mio.
    pub fn deadline(&self, now: MonotonicTime) -> Option<Duration> {
        let can_read = |one: &HttpConnection| one.readable && one.connection.capacity() > 0;
        if (self.may_accept && !self.fds_exhausted) || self.connections.values().any(can_read) {
            return Some(Duration::ZERO);
        }
        let due =
            self.connections.values().map(|one| one.connection.deadline().saturating_sub(now));
        due.chain(self.fds_exhausted.then_some(ACCEPT_RETRY_INTERVAL)).min()
    }
}

impl HttpConnection {
    fn read(&mut self, now: MonotonicTime) {
        let mut buffer = [0; MAX_HEAD_LEN];
        while self.readable && self.connection.capacity() > 0 {
            let capacity = self.connection.capacity().min(buffer.len());
            match self.stream.read(&mut buffer[..capacity]) {
                Ok(0) => {
                    self.readable = false;
                    self.connection.on_peer_closed();
                }
                Ok(count) => {
                    self.connection.push(&buffer[..count], now);
                    // One read per turn and client, so that the other clients are also served.
                    break;
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => self.readable = false,
                Err(_) => self.connection.fail(),
            }
            if self.connection.is_closed() {
                break;
            }
        }
    }

    fn write(&mut self, now: MonotonicTime) {
        while !self.connection.to_send().is_empty() {
            match self.stream.write(self.connection.to_send()) {
                Ok(count) => {
                    if self.connection.on_sent(count, now) {
                        let _ = self.stream.shutdown(Shutdown::Write);
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                Err(_) => return self.connection.fail(),
            }
        }
    }
}
