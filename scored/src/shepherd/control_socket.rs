//! The control socket of one process, which carries datagrams in both directions. Received data is
//! untrusted until it has been decoded.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use mio::unix::SourceFd;
use mio::{Interest, Registry, Token};
use nix::errno::Errno;
use nix::sys::socket::{MsgFlags, recv};
use score_proto::frame;
use score_proto::message::{Call, Reply};
use score_sys::fd_passing;

/// Length of the longest call in bytes: sc_inspectme with a display name.
pub const MAX_CALL_LEN: usize = 16 * 1024;
/// Number of replies that may wait for room in the socket of a process. The shepherd reports a
/// process that leaves more replies unread.
const MAX_UNREAD_REPLIES: usize = 64;
/// Number of calls that are read from one process before the next process is served.
const CALLS_PER_TICK: usize = 8;

/// The shepherd's end of a control socket.
#[derive(Debug)]
pub struct ControlSocket {
    socket: OwnedFd,
    unsent: VecDeque<(Vec<u8>, Vec<OwnedFd>)>,
    /// Whether the socket is queued to be read.
    pub is_queued: bool,
}

/// How a read of several calls ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReadResult {
    /// No more data is available now.
    WouldBlock,
    /// More data may be available.
    More,
    /// The process has closed its end, or has sent a malformed datagram.
    Closed,
}

impl ControlSocket {
    /// Registers the socket: `registry` reports `token` when the socket is readable or writable.
    ///
    /// # Errors
    /// The errors of epoll_ctl(2).
    pub fn new(socket: OwnedFd, registry: &Registry, token: Token) -> io::Result<Self> {
        let interest = Interest::READABLE | Interest::WRITABLE;
        registry.register(&mut SourceFd(&socket.as_raw_fd()), token, interest)?;
        Ok(Self { socket, unsent: VecDeque::new(), is_queued: false })
    }

    /// Receives some calls and passes each to `on_call`. A malformed datagram is passed as an
    /// error. `scratch`: buffer of [`MAX_CALL_LEN`] bytes.
    pub fn receive(
        &self,
        scratch: &mut [u8],
        mut on_call: impl FnMut(Result<Call, String>),
    ) -> ReadResult {
        for _ in 0..CALLS_PER_TICK {
            let flags = MsgFlags::MSG_DONTWAIT | MsgFlags::MSG_TRUNC;
            let count = match recv(self.socket.as_raw_fd(), scratch, flags) {
                Ok(0) => return ReadResult::Closed,
                Ok(count) => count,
                Err(Errno::EINTR) => continue,
                Err(Errno::EAGAIN) => return ReadResult::WouldBlock,
                Err(_) => return ReadResult::Closed,
            };
            let call = scratch.get(..count).map(frame::decode_datagram::<Call>);
            if let Some(Ok(call)) = call {
                on_call(Ok(call));
            } else {
                on_call(Err(format!("malformed call of {count} bytes on its control socket")));
                return ReadResult::Closed;
            }
        }
        ReadResult::More
    }

    /// Sends a reply with descriptors. Returns false if the process has left too many replies
    /// unread.
    pub fn answer(&mut self, reply: &Reply, descriptors: Vec<OwnedFd>) -> bool {
        let Ok(bytes) = frame::encode_datagram(reply) else { return false };
        self.unsent.push_back((bytes, descriptors));
        self.send_queued();
        self.unsent.len() <= MAX_UNREAD_REPLIES
    }

    /// Sends queued replies until the socket is full.
    pub fn send_queued(&mut self) {
        while let Some((bytes, descriptors)) = self.unsent.front() {
            let descriptors: Vec<BorrowedFd<'_>> = descriptors.iter().map(AsFd::as_fd).collect();
            match fd_passing::try_send(&self.socket, bytes, &descriptors) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                // The reply is sent, or the process has closed its end.
                _ => _ = self.unsent.pop_front(),
            }
        }
    }
}
