//! One connection: a stream, and the link that encrypts and authenticates it.

use std::collections::VecDeque;
use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::os::fd::{AsFd, BorrowedFd};

use nix::poll::PollFlags;
use score_tools::merge::MonotonicTime;
use score_tree::key::Key;
use score_tree::link::{Link, LinkError, SendError};
use serde::{Serialize, de::DeserializeOwned};

use super::LINK_TIMEOUTS;

/// Maximum number of bytes that one call reads.
const READ_LEN: usize = 64 << 10;

/// Maximum number of messages that wait for free space in the link.
const MAX_WAITING: usize = 1 << 16;

/// A connection that sends messages of type `M`.
#[derive(Debug)]
pub struct Connection<M> {
    stream: TcpStream,
    link: Link,
    /// Messages for which the link has no free space.
    waiting: VecDeque<M>,
    is_open_reported: bool,
    failure: Option<String>,
}

impl<M: Serialize> Connection<M> {
    /// The end of a connection that connects.
    pub fn dial(stream: TcpStream, key: &Key, now: MonotonicTime) -> Result<Self, LinkError> {
        let link = Link::dial(key, LINK_TIMEOUTS, now)?;
        Self::new(stream, link).map_err(|error| LinkError::Noise(error.to_string()))
    }

    /// The end of a connection that accepts.
    pub fn accept(stream: TcpStream, key: &Key, now: MonotonicTime) -> io::Result<Self> {
        Self::new(stream, Link::accept(key, LINK_TIMEOUTS, now))
    }

    fn new(stream: TcpStream, link: Link) -> io::Result<Self> {
        stream.set_nonblocking(true)?;
        stream.set_nodelay(true)?;
        let (waiting, is_open_reported, failure) = (VecDeque::new(), false, None);
        Ok(Self { stream, link, waiting, is_open_reported, failure })
    }

    /// Returns true once, after the peer has proved that it holds the key.
    pub fn take_opened(&mut self) -> bool {
        let is_new = self.link.is_open() && !self.is_open_reported;
        self.is_open_reported |= is_new;
        is_new
    }

    /// Number of bytes that the peer has not yet received. A message that waits for the link counts
    /// as one byte, because the link is full in that case.
    pub fn waiting_bytes(&self) -> usize {
        self.link.queued() + self.waiting.len()
    }

    /// Queues a message, and sends it when the link has free space.
    pub fn send(&mut self, message: M, now: MonotonicTime) {
        if self.waiting.len() >= MAX_WAITING {
            self.failure.get_or_insert_with(|| "the peer does not read".to_owned());
            return;
        }
        self.waiting.push_back(message);
        self.fill(now);
        self.write();
    }

    /// Moves waiting messages into the link.
    fn fill(&mut self, now: MonotonicTime) {
        while let Some(message) = self.waiting.front() {
            match self.link.send(message, now) {
                Ok(()) => {
                    self.waiting.pop_front();
                }
                Err(SendError::Full) => return,
                Err(error) => {
                    self.failure.get_or_insert(error.to_string());
                    return;
                }
            }
        }
    }

    fn write(&mut self) {
        while !self.link.outgoing().is_empty() {
            match self.stream.write(self.link.outgoing()) {
                Ok(0) => return,
                Ok(written) => self.link.mark_written(written),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => (),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                Err(error) => {
                    self.failure.get_or_insert(error.to_string());
                    return;
                }
            }
        }
    }

    /// Moves bytes in both directions.
    ///
    /// # Errors
    /// The reason for which the connection has ended. Messages that arrived before can still be
    /// received.
    pub fn progress(&mut self, now: MonotonicTime) -> Result<(), String> {
        let mut buffer = [0; READ_LEN];
        match self.stream.read(&mut buffer) {
            Ok(0) => {
                let error = self.link.on_eof();
                self.failure.get_or_insert(error.to_string());
            }
            Ok(count) => {
                if let Err(error) = self.link.push(&buffer[..count], now) {
                    self.failure.get_or_insert(error.to_string());
                }
            }
            Err(error)
                if matches!(
                    error.kind(),
                    io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted
                ) => {}
            Err(error) => {
                self.failure.get_or_insert(error.to_string());
            }
        }
        if let Err(error) = self.link.tick(now) {
            self.failure.get_or_insert(error.to_string());
        }
        self.fill(now);
        self.write();
        self.failure.clone().map_or(Ok(()), Err)
    }

    /// The next message.
    ///
    /// # Errors
    /// If the connection has ended.
    pub fn receive<R: DeserializeOwned>(&mut self) -> Result<Option<R>, String> {
        self.link.next().map_err(|error| error.to_string())
    }

    /// Sends queued messages. Returns true if none is left, or if sending is no longer possible.
    pub fn flush(&mut self, now: MonotonicTime) -> bool {
        self.fill(now);
        self.write();
        self.failure.is_some() || self.waiting_bytes() == 0
    }

    /// The poll flags to wait for.
    pub fn interest(&self) -> PollFlags {
        match self.link.outgoing().is_empty() {
            true => PollFlags::POLLIN,
            false => PollFlags::POLLIN | PollFlags::POLLOUT,
        }
    }

    /// The time at which [`Connection::progress`] is due.
    pub fn deadline(&self) -> MonotonicTime {
        self.link.deadline()
    }
}

impl<M> AsFd for Connection<M> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }
}
