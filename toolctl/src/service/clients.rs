//! The connections of tools: who may connect, records in and out, and what a connection may cost. A
//! relayed tool has no socket: `relay.rs` brings its records. Nothing here waits.

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixListener;

use nix::errno::Errno;
use nix::poll::PollFlags;
use nix::sys::socket::sockopt::{PeerCredentials, SndBuf};
use nix::sys::socket::{MsgFlags, getsockopt, recv, send, setsockopt};
use score_tools::authority::ConnectionId;
use score_tools::wire::MAX_MESSAGE_LEN;

/// Connections at the same time. A further one is closed at once.
const MAX_CONNECTIONS: usize = 64;
/// Messages of a connection that are carried out at the same time. The next one stays in the
/// socket.
pub const MAX_IN_FLIGHT: usize = 16;
/// Bytes that a socket holds for its tool. A tool that reads much memory has several answers of 64
/// KiB there, so that this process goes on while the tool copies.
const SEND_BUFFER_LEN: usize = 1 << 20;
/// Bytes that wait for a tool that does not read. Messages of such a tool are not read, so that
/// only notices can be more; then it is disconnected.
const MAX_OUTBOX_BYTES: usize = 512 << 10;

/// Where the records of a tool come from, and go to.
#[derive(Debug)]
enum Channel {
    Socket(OwnedFd),
    /// The tool takes its records by [`Clients::take_records`].
    Relay,
}

/// A tool's connection.
#[derive(Debug)]
struct Client {
    channel: Channel,
    /// Records that the tool has not taken.
    outbox: VecDeque<Vec<u8>>,
    outbox_bytes: usize,
    /// Messages that were read and not answered.
    in_flight: usize,
    /// A message that waits until those before it are answered.
    deferred: Option<Vec<u8>>,
    /// It cannot be used any more.
    is_broken: bool,
}

/// What was read of a connection.
#[derive(Debug)]
pub enum Received {
    /// A message.
    Record(Vec<u8>),
    /// There is none now.
    Nothing,
    /// The tool has left.
    End,
}

/// All connections.
#[derive(Debug)]
pub struct Clients {
    listener: Option<UnixListener>,
    clients: BTreeMap<ConnectionId, Client>,
    last_id: u64,
    buffer: Vec<u8>,
}

impl Client {
    fn new(channel: Channel) -> Self {
        Self {
            channel,
            outbox: VecDeque::new(),
            outbox_bytes: 0,
            in_flight: 0,
            deferred: None,
            is_broken: false,
        }
    }

    fn is_readable(&self) -> bool {
        self.outbox.is_empty() && self.deferred.is_none() && self.in_flight < MAX_IN_FLIGHT
    }

    /// Sends a record. Whether the tool has taken it.
    fn send_now(&mut self, record: &[u8]) -> bool {
        let Channel::Socket(socket) = &self.channel else { return false };
        let flags = MsgFlags::MSG_DONTWAIT | MsgFlags::MSG_NOSIGNAL;
        match send(socket.as_raw_fd(), record, flags) {
            Ok(_) => true,
            Err(Errno::EAGAIN | Errno::EINTR | Errno::ENOBUFS) => false,
            Err(_) => {
                self.is_broken = true;
                true
            }
        }
    }

    fn flush(&mut self) {
        while let Some(record) = self.outbox.pop_front() {
            if !self.send_now(&record) {
                self.outbox.push_front(record);
                return;
            }
            self.outbox_bytes -= record.len();
        }
    }
}

impl Clients {
    /// With the listening socket of the shepherd, if it is one.
    pub fn new(listener: OwnedFd) -> Self {
        let is_socket = getsockopt(&listener, nix::sys::socket::sockopt::AcceptConn);
        let listener = is_socket.unwrap_or(false).then(|| UnixListener::from(listener));
        let buffer = vec![0; MAX_MESSAGE_LEN + 1];
        Self { listener, clients: BTreeMap::new(), last_id: 0, buffer }
    }

    /// Whether there are no connections.
    pub fn is_empty(&self) -> bool {
        self.clients.is_empty()
    }

    /// The listening socket.
    pub fn listener(&self) -> Option<BorrowedFd<'_>> {
        self.listener.as_ref().map(AsFd::as_fd)
    }

    /// What each connection waits for. Its end is always reported.
    pub fn interests(&self) -> Vec<(ConnectionId, BorrowedFd<'_>, PollFlags)> {
        let interest = |client: &Client| {
            let mut flags = PollFlags::empty();
            flags.set(PollFlags::POLLIN, client.is_readable());
            flags.set(PollFlags::POLLOUT, !client.outbox.is_empty());
            flags
        };
        let clients = self.clients.iter();
        clients
            .filter_map(|(id, client)| match &client.channel {
                Channel::Socket(socket) => Some((*id, socket.as_fd(), interest(client))),
                Channel::Relay => None,
            })
            .collect()
    }

    /// A number for a tool that is part of the service.
    pub fn reserve_id(&mut self) -> ConnectionId {
        self.last_id += 1;
        ConnectionId(self.last_id)
    }

    /// Takes connections: number, and the user at the other end. The caller closes those that it
    /// does not want.
    ///
    /// # Errors
    /// As accept(2).
    pub fn accept(&mut self) -> io::Result<Option<(ConnectionId, u32)>> {
        let Some(listener) = &self.listener else { return Ok(None) };
        let socket: OwnedFd = match listener.accept() {
            Ok((socket, _)) => socket.into(),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(None),
            // It has left already.
            Err(error) if error.raw_os_error() == Some(libc::ECONNABORTED) => return Ok(None),
            Err(error) => return Err(error),
        };
        if self.clients.len() >= MAX_CONNECTIONS {
            return Ok(None);
        }
        let uid = getsockopt(&socket, PeerCredentials)?.uid();
        // The kernel takes less if this is more than it permits.
        setsockopt(&socket, SndBuf, &SEND_BUFFER_LEN)?;
        let id = self.reserve_id();
        self.clients.insert(id, Client::new(Channel::Socket(socket)));
        Ok(Some((id, uid)))
    }

    /// A tool whose records are relayed. `None`: there are too many connections.
    pub fn add_relay(&mut self) -> Option<ConnectionId> {
        if self.clients.len() >= MAX_CONNECTIONS {
            return None;
        }
        let id = self.reserve_id();
        self.clients.insert(id, Client::new(Channel::Relay));
        Some(id)
    }

    /// Whether a relayed tool may send a message now.
    pub fn may_send(&self, id: ConnectionId) -> bool {
        let may = |it: &Client| it.deferred.is_none() && it.in_flight < MAX_IN_FLIGHT;
        self.clients.get(&id).is_some_and(may)
    }

    /// Whether there are records for a relayed tool.
    pub fn has_records(&self, id: ConnectionId) -> bool {
        self.clients.get(&id).is_some_and(|client| !client.outbox.is_empty())
    }

    /// Records for a relayed tool, in order: at least one, if there are any, and no more than
    /// `max_len` bytes of them.
    pub fn take_records(&mut self, id: ConnectionId, max_len: usize) -> Vec<Vec<u8>> {
        let Some(client) = self.clients.get_mut(&id) else { return Vec::new() };
        let (mut records, mut len) = (Vec::new(), 0);
        while let Some(record) = client.outbox.pop_front() {
            len += record.len();
            if len > max_len && !records.is_empty() {
                client.outbox.push_front(record);
                break;
            }
            client.outbox_bytes -= record.len();
            records.push(record);
        }
        records
    }

    /// Reads the next message of a connection, if one may be read now. `is_ended`: the tool has
    /// closed its end, so that what cannot be read now is of no use.
    pub fn receive(&mut self, id: ConnectionId, is_ended: bool) -> Received {
        let Some(client) = self.clients.get_mut(&id) else { return Received::Nothing };
        let Channel::Socket(socket) = &client.channel else { return Received::Nothing };
        if !client.is_readable() || client.is_broken {
            return if is_ended { Received::End } else { Received::Nothing };
        }
        let flags = MsgFlags::MSG_DONTWAIT;
        match recv(socket.as_raw_fd(), &mut self.buffer, flags) {
            // A record without a byte is the end, too: no tool sends one.
            Ok(0) => Received::End,
            Ok(len) => Received::Record(self.buffer[..len].to_vec()),
            Err(Errno::EAGAIN | Errno::EINTR) => Received::Nothing,
            Err(_) => Received::End,
        }
    }

    /// A message waits until the earlier ones of its connection are answered.
    pub fn defer(&mut self, id: ConnectionId, record: Vec<u8>) {
        if let Some(client) = self.clients.get_mut(&id) {
            client.deferred = Some(record);
        }
    }

    /// The messages that wait for earlier ones.
    pub fn take_deferred(&mut self) -> Vec<(ConnectionId, Vec<u8>)> {
        let clients = self.clients.iter_mut();
        clients.filter_map(|(id, client)| Some((*id, client.deferred.take()?))).collect()
    }

    /// A message is carried out from now on.
    pub fn begin(&mut self, id: ConnectionId) {
        if let Some(client) = self.clients.get_mut(&id) {
            client.in_flight += 1;
        }
    }

    /// A message has been answered.
    pub fn end(&mut self, id: ConnectionId) {
        if let Some(client) = self.clients.get_mut(&id) {
            client.in_flight = client.in_flight.saturating_sub(1);
        }
    }

    /// Sends a record, now or when the tool reads.
    pub fn send(&mut self, id: ConnectionId, record: Vec<u8>) {
        let Some(client) = self.clients.get_mut(&id) else { return };
        if client.outbox.is_empty() && client.send_now(&record) {
            return;
        }
        client.outbox_bytes += record.len();
        client.outbox.push_back(record);
        client.is_broken |= client.outbox_bytes > MAX_OUTBOX_BYTES;
    }

    /// A connection takes data again.
    pub fn flush(&mut self, id: ConnectionId) {
        if let Some(client) = self.clients.get_mut(&id) {
            client.flush();
        }
    }

    /// Connections that cannot be used any more.
    pub fn broken(&self) -> Vec<ConnectionId> {
        let broken = self.clients.iter().filter(|(_, client)| client.is_broken);
        broken.map(|(id, _)| *id).collect()
    }

    /// Closes a connection.
    pub fn close(&mut self, id: ConnectionId) {
        self.clients.remove(&id);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_of_a_relayed_tool_wait_in_order_and_are_bounded() {
        let mut clients = Clients::new(std::fs::File::open("/dev/null").unwrap().into());
        let id = clients.add_relay().unwrap();
        for len in [10, 20, 70, 5] {
            clients.send(id, vec![0; len]);
        }
        let mut take =
            || -> Vec<usize> { clients.take_records(id, 30).iter().map(Vec::len).collect() };
        // One that is longer comes alone.
        assert_eq!([take(), take(), take(), take()], [vec![10, 20], vec![70], vec![5], vec![]]);
        assert!(!clients.has_records(id) && clients.broken().is_empty());
        // Only a tool that does not take its records has so many.
        clients.send(id, vec![0; MAX_OUTBOX_BYTES]);
        assert!(clients.broken().is_empty());
        clients.send(id, vec![0]);
        assert_eq!(clients.broken(), [id]);
        for _ in 0..MAX_IN_FLIGHT {
            assert!(clients.may_send(id));
            clients.begin(id);
        }
        assert!(!clients.may_send(id));
        let more = (1..MAX_CONNECTIONS).map(|_| clients.add_relay());
        assert!(more.collect::<Vec<_>>().iter().all(Option::is_some));
        assert!(clients.add_relay().is_none());
    }
}
