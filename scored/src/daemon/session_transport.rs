//! The transport of a session's messages: a socket, or the links to the daemon of another host.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Instant;

use mio::{Registry, Token};
use score_client::FramedSocket;
use score_proto::client_session::JobMessage;
use score_proto::frame;
use score_proto::message::UserRequest;
use score_proto::server_message::ServerMessage;

/// See the [module](self).
#[derive(Debug)]
pub enum Transport {
    /// The client is connected by a socket.
    Local(FramedSocket),
    /// The client is a scrun on another host.
    Remote(RemoteClient),
}

/// The messages of a scrun on another host that wait in this daemon.
#[derive(Debug, Default)]
pub struct RemoteClient {
    /// Messages of scrun, each with its cost, which counts against the user's window.
    inbox: VecDeque<(JobMessage<UserRequest>, u64)>,
    inbox_cost: u64,
    /// The cost of the messages that were taken from the inbox but not credited yet.
    handled_cost: u64,
    /// Encoded messages for scrun.
    outbox: VecDeque<Vec<u8>>,
    outbox_bytes: usize,
    is_closed: bool,
}

impl Transport {
    /// Creates the transport over a socket.
    ///
    /// # Errors
    /// See fcntl(2) and epoll_ctl(2).
    pub fn local(socket: OwnedFd, registry: &Registry, token: Token) -> io::Result<Self> {
        let mut link = FramedSocket::new(socket)?;
        link.register(registry, token)?;
        Ok(Self::Local(link))
    }

    /// Creates the transport to a scrun on another host.
    pub fn remote() -> Self {
        Self::Remote(RemoteClient::default())
    }

    fn link(&self) -> Option<&FramedSocket> {
        match self {
            Self::Local(link) => Some(link),
            Self::Remote(_) => None,
        }
    }

    fn link_mut(&mut self) -> Option<&mut FramedSocket> {
        match self {
            Self::Local(link) => Some(link),
            Self::Remote(_) => None,
        }
    }

    /// The messages of the client, if the client is a scrun on another host.
    pub fn remote_mut(&mut self) -> Option<&mut RemoteClient> {
        match self {
            Self::Local(_) => None,
            Self::Remote(remote) => Some(remote),
        }
    }

    /// The socket of the client, if it is on this host.
    pub fn socket(&self) -> Option<BorrowedFd<'_>> {
        self.link().map(FramedSocket::as_fd)
    }

    /// Sets the limit of the length of received messages.
    pub fn set_max_message_len(&mut self, len: usize) {
        self.link_mut().into_iter().for_each(|link| link.set_max_message_len(len));
    }

    /// Records that mio has reported the socket as readable.
    pub fn mark_readable(&mut self) {
        self.link_mut().into_iter().for_each(FramedSocket::mark_readable);
    }

    /// Stops reading until mio reports that the socket is readable.
    pub fn wait_until_readable(&mut self) {
        self.link_mut().into_iter().for_each(FramedSocket::wait_until_readable);
    }

    /// Stops reading in this turn of the loop. The message that has arrived in part stays.
    pub fn pause_reading(&mut self) {
        self.link_mut().into_iter().for_each(FramedSocket::pause_reading);
    }

    /// Writes as much as the socket accepts.
    pub fn flush(&mut self) {
        self.link_mut().into_iter().for_each(FramedSocket::flush);
    }

    /// If bytes wait to be sent, makes `registry` report when the socket is writable.
    pub fn update_interest(&mut self, registry: &Registry) {
        self.link_mut().into_iter().for_each(|link| link.update_interest(registry));
    }

    /// Whether a message may have arrived.
    pub fn may_have_more(&self) -> bool {
        match self {
            Self::Local(link) => link.may_have_more(),
            Self::Remote(remote) => !remote.inbox.is_empty(),
        }
    }

    /// The time at which the first part of an incomplete message has arrived.
    pub fn frame_begun_at(&self) -> Option<Instant> {
        self.link()?.frame_begun_at()
    }

    /// The number of bytes that wait for the client.
    pub fn backlog(&self) -> usize {
        match self {
            Self::Local(link) => link.backlog(),
            Self::Remote(remote) => remote.outbox_bytes,
        }
    }

    /// The number of bytes of all messages that wait in this daemon.
    pub fn waiting_bytes(&self) -> usize {
        match self {
            Self::Local(link) => link.pending() + link.backlog(),
            Self::Remote(remote) => remote.inbox_cost as usize + remote.outbox_bytes,
        }
    }

    /// Whether messages wait for a link. A link reports no event when it accepts messages again,
    /// unlike a socket.
    pub fn has_outbox(&self) -> bool {
        matches!(self, Self::Remote(remote) if !remote.outbox.is_empty())
    }

    /// Whether the client has closed the connection.
    pub fn is_closed(&self) -> bool {
        match self {
            Self::Local(link) => link.is_closed(),
            Self::Remote(remote) => remote.is_closed,
        }
    }

    /// Queues a message for the client. `has_greeted` says whether the client has sent its
    /// greeting. Before the greeting, the client expects a
    /// [`score_proto::server_message::SessionAnswer`].
    pub fn queue(&mut self, message: &ServerMessage, has_greeted: bool) {
        match (self, message) {
            (Self::Local(link), ServerMessage::Session(answer)) if !has_greeted => {
                link.queue(answer);
            }
            (Self::Local(link), message) => link.queue(message),
            (Self::Remote(remote), message) => {
                // Encoding cannot fail, because no message of a server exceeds the limit of a
                // frame.
                if let Ok(body) = frame::encode_datagram(message) {
                    remote.outbox_bytes += body.len();
                    remote.outbox.push_back(body);
                }
            }
        }
    }
}

impl RemoteClient {
    /// Adds a message of scrun with its cost to the inbox.
    pub fn deliver(&mut self, message: JobMessage<UserRequest>, cost: u64) {
        self.inbox.push_back((message, cost));
        self.inbox_cost += cost;
    }

    /// Takes the next message of scrun.
    pub fn receive(&mut self) -> Option<JobMessage<UserRequest>> {
        let (message, cost) = self.inbox.pop_front()?;
        self.inbox_cost -= cost;
        self.handled_cost += cost;
        Some(message)
    }

    /// The cost of the messages that were handled since the last call.
    pub fn take_handled_cost(&mut self) -> u64 {
        std::mem::take(&mut self.handled_cost)
    }

    /// Takes the next encoded message for scrun.
    pub fn pop_outbox(&mut self) -> Option<Vec<u8>> {
        let body = self.outbox.pop_front()?;
        self.outbox_bytes -= body.len();
        Some(body)
    }

    /// Records that scrun has closed its connection.
    pub fn mark_closed(&mut self) {
        self.is_closed = true;
    }
}
