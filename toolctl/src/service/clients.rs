//! The connections of tools: accepting, receiving and sending of records, and limits. A relayed
//! tool has no socket; `relay.rs` delivers its records. This module does not block.

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixListener;
use std::rc::Rc;

use nix::errno::Errno;
use nix::poll::PollFlags;
use nix::sys::socket::sockopt::{PeerCredentials, SndBuf};
use nix::sys::socket::{MsgFlags, getsockopt, send, setsockopt};
use score_sys::fd_passing;
use score_toolctl::shared_memory::SharedMemory;
use score_tools::authority::ConnectionId;
use score_tools::wire::{Header, MAX_MESSAGE_LEN, ReturnCode, ServiceMessage, SharedLength};

/// The most connections. A further connection is closed at once.
const MAX_CONNECTIONS: usize = 64;
/// The most messages of a connection that are in progress. Further messages remain in the socket.
pub const MAX_IN_FLIGHT: usize = 16;
/// The size of a socket's send buffer, in bytes. It holds several answers of 64 KiB for a tool that
/// reads much memory, so that this process can continue while the tool copies them.
const SEND_BUFFER_LEN: usize = 1 << 20;
/// The most bytes that are queued for a tool that does not read. Beyond this limit the service
/// disconnects the tool. The service reads no messages of a tool with queued bytes. The answers to
/// the messages in progress, 64 KiB each, do not reach the limit, so only notices can exceed it.
const MAX_OUTBOX_BYTES: usize = MAX_IN_FLIGHT * (64 << 10) + (512 << 10);

/// The channel of a tool's records.
#[derive(Debug)]
enum Channel {
    Socket(OwnedFd),
    /// [`Clients::take_records`] returns the records for the tool.
    Relay,
}

/// A tool's connection.
#[derive(Debug)]
struct Client {
    channel: Channel,
    /// The records that the tool has not received.
    outbox: VecDeque<Vec<u8>>,
    outbox_bytes: usize,
    /// The number of messages that are read and not answered.
    in_flight: usize,
    /// A message that waits until earlier messages are answered.
    deferred: Option<Vec<u8>>,
    /// The memory that the tool shares with the service.
    memory: Option<Rc<SharedMemory>>,
    /// Whether the connection is unusable.
    is_broken: bool,
}

/// The descriptors of a message.
#[derive(Debug)]
pub enum SentDescriptors {
    /// None.
    None,
    /// One.
    One(OwnedFd),
    /// More than one. They are closed.
    Several,
}

/// The result of reading from a connection.
#[derive(Debug)]
pub enum Received {
    /// A message.
    Record(Vec<u8>, SentDescriptors),
    /// No message is available now.
    Nothing,
    /// The tool has closed the connection.
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
            memory: None,
            is_broken: false,
        }
    }

    fn is_readable(&self) -> bool {
        self.outbox.is_empty() && self.deferred.is_none() && self.in_flight < MAX_IN_FLIGHT
    }

    /// Sends a record. Returns true if the record has been sent, or can never be sent.
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
    /// Creates the state, with the listening socket of the shepherd if `listener` is such a socket.
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

    /// The poll events of each connection. poll(2) always reports the end of a connection.
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

    /// Reserves a connection number for a tool that is part of the service.
    pub fn reserve_id(&mut self) -> ConnectionId {
        self.last_id += 1;
        ConnectionId(self.last_id)
    }

    /// Accepts a connection. Returns its number, and the uid of the peer. The caller closes
    /// connections that it does not accept.
    ///
    /// # Errors
    /// Returns the errors of accept(2).
    pub fn accept(&mut self) -> io::Result<Option<(ConnectionId, u32)>> {
        let Some(listener) = &self.listener else { return Ok(None) };
        let socket: OwnedFd = match listener.accept() {
            Ok((socket, _)) => socket.into(),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(None),
            // The tool has already closed the connection.
            Err(error) if error.raw_os_error() == Some(libc::ECONNABORTED) => return Ok(None),
            Err(error) => return Err(error),
        };
        if self.clients.len() >= MAX_CONNECTIONS {
            return Ok(None);
        }
        let uid = getsockopt(&socket, PeerCredentials)?.uid();
        // If the size exceeds the permitted size, the kernel reduces the size.
        setsockopt(&socket, SndBuf, &SEND_BUFFER_LEN)?;
        let id = self.reserve_id();
        self.clients.insert(id, Client::new(Channel::Socket(socket)));
        Ok(Some((id, uid)))
    }

    /// Adds a tool whose records are relayed. Returns `None` if there are too many connections.
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

    /// Takes records for a relayed tool, in order. Takes at most `max_len` bytes, but at least one
    /// record if there is one.
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

    /// Reads the next message of a connection, if one may be read now. If `is_ended`, the tool has
    /// closed its end, so a message that cannot be read now is useless.
    pub fn receive(&mut self, id: ConnectionId, is_ended: bool) -> Received {
        let Some(client) = self.clients.get_mut(&id) else { return Received::Nothing };
        let Channel::Socket(socket) = &client.channel else { return Received::Nothing };
        if !client.is_readable() || client.is_broken {
            return if is_ended { Received::End } else { Received::Nothing };
        }
        match fd_passing::try_receive_into(socket, &mut self.buffer, 1) {
            // An empty record also means the end, because tools send no empty records.
            Ok(datagram) if datagram.len == 0 => Received::End,
            Ok(mut datagram) => {
                let record = self.buffer[..datagram.len].to_vec();
                let descriptors = match (datagram.is_complete, datagram.fds.pop()) {
                    (true, None) => SentDescriptors::None,
                    (true, Some(fd)) => SentDescriptors::One(fd),
                    // This includes a record that is too long, which is refused for its length.
                    (false, _) => SentDescriptors::Several,
                };
                Received::Record(record, descriptors)
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Received::Nothing,
            Err(_) => Received::End,
        }
    }

    /// Maps the memory that a tool shares with the service, and answers its message. Messages in
    /// progress keep the memory that they have.
    pub fn share_memory(&mut self, id: ConnectionId, request: &Header, memfd: OwnedFd) {
        let Header { job, rank, tool, sequence, .. } = *request;
        let mut header = Header::new(job, rank, tool, sequence);
        let length = match SharedMemory::of_tool(memfd) {
            Ok(memory) => {
                let len = memory.len() as u64;
                if let Some(client) = self.clients.get_mut(&id) {
                    client.memory = Some(Rc::new(memory));
                }
                len
            }
            Err(errno) => {
                header.return_code = ReturnCode::RequestFailed.number();
                header.error_code = (errno as i32).cast_unsigned();
                0
            }
        };
        let message = ServiceMessage::ShareMemoryAck(SharedLength { length });
        self.send(id, message.encode(&header));
    }

    /// The memory that a tool shares with the service.
    pub fn memory(&self, id: ConnectionId) -> Option<Rc<SharedMemory>> {
        self.clients.get(&id)?.memory.clone()
    }

    /// Keeps a message until earlier messages of its connection are answered.
    pub fn defer(&mut self, id: ConnectionId, record: Vec<u8>) {
        if let Some(client) = self.clients.get_mut(&id) {
            client.deferred = Some(record);
        }
    }

    /// Takes the messages that wait for earlier ones.
    pub fn take_deferred(&mut self) -> Vec<(ConnectionId, Vec<u8>)> {
        let clients = self.clients.iter_mut();
        clients.filter_map(|(id, client)| Some((*id, client.deferred.take()?))).collect()
    }

    /// Notes that a message is in progress.
    pub fn begin(&mut self, id: ConnectionId) {
        if let Some(client) = self.clients.get_mut(&id) {
            client.in_flight += 1;
        }
    }

    /// Notes that a message has been answered.
    pub fn end(&mut self, id: ConnectionId) {
        if let Some(client) = self.clients.get_mut(&id) {
            client.in_flight = client.in_flight.saturating_sub(1);
        }
    }

    /// Sends a record, or queues it until the tool reads.
    pub fn send(&mut self, id: ConnectionId, record: Vec<u8>) {
        let Some(client) = self.clients.get_mut(&id) else { return };
        if client.outbox.is_empty() && client.send_now(&record) {
            return;
        }
        client.outbox_bytes += record.len();
        client.outbox.push_back(record);
        client.is_broken |= client.outbox_bytes > MAX_OUTBOX_BYTES;
    }

    /// Sends queued records of a connection that is writable again.
    pub fn flush(&mut self, id: ConnectionId) {
        if let Some(client) = self.clients.get_mut(&id) {
            client.flush();
        }
    }

    /// The connections that are unusable.
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
        // A longer record is returned alone.
        assert_eq!([take(), take(), take(), take()], [vec![10, 20], vec![70], vec![5], vec![]]);
        assert!(!clients.has_records(id) && clients.broken().is_empty());
        // Only a tool that does not take its records reaches the limit.
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

    #[test]
    fn the_answers_to_all_messages_in_progress_disconnect_no_tool() {
        let mut clients = Clients::new(std::fs::File::open("/dev/null").unwrap().into());
        let id = clients.add_relay().unwrap();
        while clients.may_send(id) {
            clients.begin(id);
        }
        for _ in 0..MAX_IN_FLIGHT {
            clients.send(id, vec![0; MAX_MESSAGE_LEN]);
        }
        assert!(clients.broken().is_empty());
        let records = clients.take_records(id, usize::MAX);
        assert_eq!(records.iter().map(Vec::len).collect::<Vec<_>>(), [MAX_MESSAGE_LEN; 16]);
    }
}
