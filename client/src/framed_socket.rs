//! A connection to another process of this host: frames over a stream socket that never blocks.
//! Both ends can be of this type.

use std::cell::RefCell;
use std::io::{self, Read, Write};
use std::net::Shutdown;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream as StdStream;
use std::time::{Duration, Instant};

use mio::net::UnixStream;
use mio::{Interest, Registry, Token};
use score_proto::frame::{self, Decoder, FrameError};
use serde::{Serialize, de::DeserializeOwned};

use crate::event_mask;
use crate::readiness::{Readiness, wait_until_ready};

/// Capacity that an empty queue of messages to send keeps.
const MAX_IDLE_CAPACITY: usize = 64 * 1024;

/// Bytes read from a socket or a pipe at once.
pub const READ_BUFFER_LEN: usize = 64 * 1024;

thread_local! {
    /// One buffer for all connections, because a daemon may have thousands. A shepherd reads all of
    /// its data into this buffer, because the shepherd inherits the buffer's pages from its daemon.
    static READ_BUFFER: RefCell<Vec<u8>> = RefCell::new(vec![0; READ_BUFFER_LEN]);
}

/// Calls `read` with a buffer of [`READ_BUFFER_LEN`] bytes. Calls must not be nested.
pub fn with_read_buffer<T>(read: impl FnOnce(&mut [u8]) -> T) -> T {
    READ_BUFFER.with_borrow_mut(|scratch| read(scratch))
}

/// One end of a connection, with the data that has not been decoded or sent yet.
#[derive(Debug)]
pub struct FramedSocket {
    stream: UnixStream,
    decoder: Decoder,
    out: Vec<u8>,
    sent_len: usize,
    /// The socket may hold unread data. The flag is needed because mio reports each arrival once
    /// only.
    readable: bool,
    /// The time of the first read attempt that found an incomplete frame.
    frame_begun_at: Option<Instant>,
    /// The peer has closed the connection, and this end has read everything that the peer had sent.
    closed: bool,
    /// The peer does not read any more. Data that it sent earlier may still be in the socket.
    write_failed: bool,
    /// The token of the socket's registration.
    token: Token,
    /// The owner has suspended reading.
    is_paused: bool,
    /// The events that mio reports for the socket. `None`: only the end of the connection.
    interest: Option<Interest>,
}

impl AsFd for FramedSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }
}

impl FramedSocket {
    /// Takes over a connected stream socket.
    ///
    /// # Errors
    /// See fcntl(2).
    pub fn new(fd: OwnedFd) -> io::Result<Self> {
        let stream = StdStream::from(fd);
        stream.set_nonblocking(true)?;
        Ok(Self {
            stream: UnixStream::from_std(stream),
            decoder: Decoder::default(),
            out: Vec::new(),
            sent_len: 0,
            readable: true,
            frame_begun_at: None,
            closed: false,
            write_failed: false,
            token: Token(0),
            is_paused: false,
            interest: Some(Interest::READABLE),
        })
    }

    /// Registers the socket with `registry`.
    ///
    /// # Errors
    /// See epoll_ctl(2).
    pub fn register(&mut self, registry: &Registry, token: Token) -> io::Result<()> {
        self.token = token;
        registry.register(&mut self.stream, token, Interest::READABLE)
    }

    /// Ends the registration with `registry`.
    ///
    /// # Errors
    /// See epoll_ctl(2).
    pub fn deregister(&mut self, registry: &Registry) -> io::Result<()> {
        registry.deregister(&mut self.stream)
    }

    /// Makes `registry` report only the events that the socket needs now. Call it before each wait.
    pub fn update_interest(&mut self, registry: &Registry) {
        let needed = self.needed_interest();
        if needed == self.interest {
            return;
        }
        let result = match needed {
            Some(interest) => registry.reregister(&mut self.stream, self.token, interest),
            None => event_mask::report_only_end(registry, self.stream.as_fd(), self.token),
        };
        if result.is_ok() {
            self.interest = needed;
        }
    }

    fn needed_interest(&self) -> Option<Interest> {
        // While reading is suspended and the socket holds data, a report of each further arrival
        // would only wake the owner.
        let reads = !(self.is_paused && self.readable);
        // Without a backlog, a report of each message that the peer reads would only wake the
        // owner.
        match (reads, self.backlog() > 0) {
            (true, true) => Some(Interest::READABLE | Interest::WRITABLE),
            (true, false) => Some(Interest::READABLE),
            (false, true) => Some(Interest::WRITABLE),
            (false, false) => None,
        }
    }

    /// Records that mio has reported the socket as readable.
    pub fn mark_readable(&mut self) {
        self.readable = true;
    }

    /// Stops reading until mio reports that the socket is readable.
    pub fn wait_until_readable(&mut self) {
        self.readable = false;
    }

    /// Whether [`FramedSocket::receive`] may find another message without a further report of mio.
    pub fn may_have_more(&self) -> bool {
        self.readable && !self.closed
    }

    /// Whether the peer has closed the connection. Messages that arrived earlier can still be
    /// received.
    pub fn is_closed(&self) -> bool {
        self.closed
    }

    /// Sets the length in bytes of the longest message that is accepted.
    pub fn set_max_message_len(&mut self, len: usize) {
        self.decoder.set_max_body(len);
    }

    /// The time since which a message is incomplete. `None`: all data that has been read forms
    /// complete messages.
    pub fn frame_begun_at(&self) -> Option<Instant> {
        self.frame_begun_at
    }

    /// Suspends reading until the next receive. The time-out of an incomplete message starts again,
    /// because the peer may not be able to send the rest of the message.
    pub fn pause_reading(&mut self) {
        self.is_paused = true;
        if self.frame_begun_at.is_some() {
            self.frame_begun_at = Some(Instant::now());
        }
    }

    /// Bytes that have been received and not returned as messages.
    pub fn pending(&self) -> usize {
        self.decoder.pending()
    }

    /// Bytes that are queued and not yet accepted by the socket.
    pub fn backlog(&self) -> usize {
        self.out.len() - self.sent_len
    }

    /// Closes the connection in this direction or in both, for all copies of the descriptor.
    ///
    /// # Errors
    /// See shutdown(2).
    pub fn shutdown(&self, how: Shutdown) -> io::Result<()> {
        self.stream.shutdown(how)
    }

    /// Queues one message. A message that does not fit into a frame is dropped; no peer can cause
    /// such a message.
    pub fn queue<M: Serialize>(&mut self, message: &M) {
        let queued = self.try_queue(message);
        debug_assert!(queued.is_ok(), "message too long for a frame");
    }

    /// Queues one message.
    ///
    /// # Errors
    /// [`FrameError::TooLong`] if the message does not fit into a frame. It is then not queued.
    pub fn try_queue<M: Serialize>(&mut self, message: &M) -> Result<(), FrameError> {
        if self.sent_len > 0 && self.sent_len == self.out.len() {
            self.out.clear();
            self.sent_len = 0;
        } else if self.sent_len >= 1 << 20 {
            self.out.drain(..self.sent_len);
            self.sent_len = 0;
        }
        frame::encode(message, &mut self.out)
    }

    /// Writes as much of the queue as the socket accepts.
    pub fn flush(&mut self) {
        while self.sent_len < self.out.len() && !self.write_failed {
            match self.stream.write(&self.out[self.sent_len..]) {
                Ok(written) => self.sent_len += written,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                Err(_) => {
                    self.write_failed = true;
                    self.readable = true;
                }
            }
        }
        if self.write_failed || self.sent_len == self.out.len() {
            self.out.clear();
            self.sent_len = 0;
            if self.out.capacity() > MAX_IDLE_CAPACITY {
                self.out = Vec::new();
            }
        }
    }

    /// Writes the queue, and waits for at most `timeout` until the socket has accepted it. Returns
    /// true if the socket has accepted the queue, or if the peer does not read any more.
    ///
    /// # Errors
    /// See ppoll(2).
    pub fn flush_within(&mut self, timeout: Duration) -> io::Result<bool> {
        let started_at = Instant::now();
        loop {
            self.flush();
            if self.backlog() == 0 {
                return Ok(true);
            }
            let left = timeout.saturating_sub(started_at.elapsed());
            if left.is_zero() {
                return Ok(false);
            }
            wait_until_ready(self.stream.as_fd(), Readiness::Writable, left)?;
        }
    }

    /// Returns the next complete message.
    ///
    /// # Errors
    /// The peer violates the protocol. The connection cannot be used any more.
    pub fn receive<M: DeserializeOwned>(&mut self) -> Result<Option<M>, FrameError> {
        self.receive_within(usize::MAX)
    }

    /// Like [`FramedSocket::receive`], but reads from the socket at most `max_reads` times.
    /// Otherwise a peer that writes single bytes could keep the caller busy for ever. If the result
    /// is `None`, the socket may hold more data.
    ///
    /// # Errors
    /// See [`FramedSocket::receive`].
    pub fn receive_within<M: DeserializeOwned>(
        &mut self,
        max_reads: usize,
    ) -> Result<Option<M>, FrameError> {
        self.is_paused = false;
        let mut reads = 0;
        loop {
            if let Some(message) = self.decoder.next()? {
                self.frame_begun_at = None;
                return Ok(Some(message));
            }
            if !self.may_have_more() || reads == max_reads {
                self.update_frame_begun_at();
                return Ok(None);
            }
            reads += 1;
            let (stream, decoder) = (&mut self.stream, &mut self.decoder);
            let read = with_read_buffer(|scratch| {
                // Data after the longest permitted frame stays in the socket. The limit on a frame
                // is thus also a limit on memory.
                let len = scratch.len().min(decoder.max_missing());
                let count = stream.read(&mut scratch[..len])?;
                decoder.push(&scratch[..count]);
                Ok::<usize, io::Error>(count)
            });
            match read {
                Ok(0) => self.closed = true,
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => self.readable = false,
                Err(_) => self.closed = true,
            }
        }
    }

    fn update_frame_begun_at(&mut self) {
        if self.decoder.pending() == 0 {
            self.frame_begun_at = None;
        } else if self.frame_begun_at.is_none() {
            self.frame_begun_at = Some(Instant::now());
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use mio::{Events, Poll};
    use nix::sys::resource::{UsageWho, getrusage};

    use super::*;

    #[test]
    fn a_long_message_is_read_in_as_many_calls_as_the_bound_requires() {
        let message = vec![7_u8; 3 * READ_BUFFER_LEN];
        let mut bytes = Vec::new();
        frame::encode(&message, &mut bytes).unwrap();
        let (mut peer, socket) = StdStream::pair().unwrap();
        let mut socket = FramedSocket::new(socket.into()).unwrap();
        let writer = std::thread::spawn(move || peer.write_all(&bytes).map(|()| peer));
        let mut calls = 0;
        let received = loop {
            calls += 1;
            socket.mark_readable();
            if let Some(received) = socket.receive_within::<Vec<u8>>(1).unwrap() {
                break received;
            }
            assert!(socket.frame_begun_at().is_some() || socket.pending() == 0);
        };
        assert_eq!(received, message);
        assert!(calls > 3, "a call reads a buffer at most");
        let _peer = writer.join().unwrap().unwrap();
    }

    #[test]
    fn a_paused_socket_causes_no_wake_up_before_the_connection_ends() {
        /// The socket has room for this many messages, even though the kernel accounts a buffer for
        /// each.
        const ARRIVALS: usize = 200;
        let (mut peer, socket) = StdStream::pair().unwrap();
        let (mut poll, mut events) = (Poll::new().unwrap(), Events::with_capacity(4));
        let mut socket = FramedSocket::new(socket.into()).unwrap();
        socket.register(poll.registry(), Token(7)).unwrap();
        socket.mark_readable();
        socket.pause_reading();
        socket.update_interest(poll.registry());
        let writer = std::thread::spawn(move || {
            for _ in 0..ARRIVALS {
                peer.write_all(&[0]).unwrap();
                std::thread::sleep(Duration::from_micros(100));
            }
        });
        let waits = || getrusage(UsageWho::RUSAGE_THREAD).unwrap().voluntary_context_switches();
        let waits_before = waits();
        poll.poll(&mut events, Some(Duration::from_secs(60))).unwrap();
        let waits = waits() - waits_before;
        writer.join().unwrap();
        assert!(events.iter().any(|event| event.token() == Token(7) && event.is_read_closed()));
        assert!(waits < ARRIVALS as i64 / 10, "{waits} waits");
    }
}
