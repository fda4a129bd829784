//! The client end of a tool control socket: connects, sends requests, and receives answers and
//! notices. [`score_tools::wire`] defines the messages.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::{
    AddressFamily, MsgFlags, SockFlag, SockType, UnixAddr, connect, recv, send, socket,
};
use score_tools::wire::{Header, MAX_MESSAGE_LEN, MessageType, ToolRequest};

/// A connection to the tool control service of a host.
#[derive(Debug)]
pub struct ToolConnection {
    socket: OwnedFd,
    job: u64,
    /// The number of this tool. 0 until the answer to the first Attach.
    tool: u32,
    last_sequence: u32,
    /// Notices that arrived before an awaited answer.
    notices: VecDeque<Vec<u8>>,
}

fn timed_out() -> io::Error {
    io::Error::new(io::ErrorKind::TimedOut, "the tool control service does not answer")
}

impl ToolConnection {
    /// Connects to a socket of `jobs/ID`. `tool` is the number that start_tool has assigned, or 0.
    ///
    /// # Errors
    /// Returns the errors of connect(2).
    pub fn connect(path: &Path, job: u64, tool: u32) -> io::Result<Self> {
        let flags = SockFlag::SOCK_CLOEXEC;
        let socket = socket(AddressFamily::Unix, SockType::SeqPacket, flags, None)?;
        connect(socket.as_raw_fd(), &UnixAddr::new(path)?)?;
        Ok(Self { socket, job, tool, last_sequence: 0, notices: VecDeque::new() })
    }

    /// The number of this tool.
    pub fn tool(&self) -> u32 {
        self.tool
    }

    /// Sends arbitrary bytes as one record.
    ///
    /// # Errors
    /// Returns the errors of send(2).
    pub fn send_record(&self, record: &[u8]) -> io::Result<()> {
        send(self.socket.as_raw_fd(), record, MsgFlags::MSG_NOSIGNAL)?;
        Ok(())
    }

    /// Receives the next record. It is empty if the service has closed the connection.
    ///
    /// # Errors
    /// Returns the errors of recv(2), or TimedOut.
    pub fn receive_record(&self, timeout: Duration) -> io::Result<Vec<u8>> {
        let mut buffer = vec![0; MAX_MESSAGE_LEN];
        let len = self.receive_into(&mut buffer, timeout)?;
        buffer.truncate(len);
        Ok(buffer)
    }

    /// Receives the next record into a buffer of [`MAX_MESSAGE_LEN`] bytes, and returns its length.
    /// Returns 0 if the service has closed the connection.
    ///
    /// # Errors
    /// Returns the errors of recv(2), or TimedOut.
    pub fn receive_into(&self, buffer: &mut [u8], timeout: Duration) -> io::Result<usize> {
        let deadline = Instant::now() + timeout;
        loop {
            match recv(self.socket.as_raw_fd(), buffer, MsgFlags::MSG_DONTWAIT) {
                Ok(len) => return Ok(len),
                // The service has closed the connection without reading all of this tool's
                // messages.
                Err(Errno::ECONNRESET) => return Ok(0),
                Err(Errno::EINTR) => continue,
                Err(Errno::EAGAIN) => {}
                Err(errno) => return Err(errno.into()),
            }
            let left = deadline.saturating_duration_since(Instant::now());
            let mut fds = [PollFd::new(self.socket.as_fd(), PollFlags::POLLIN)];
            match poll(&mut fds, PollTimeout::try_from(left).unwrap_or(PollTimeout::MAX)) {
                Ok(0) => return Err(timed_out()),
                Ok(_) | Err(Errno::EINTR) => {}
                Err(errno) => return Err(errno.into()),
            }
        }
    }

    /// Sends a request for a rank. Returns the sequence number, which the answer repeats.
    ///
    /// # Errors
    /// Returns the errors of send(2), or an error if the request does not fit into a message.
    pub fn send(&mut self, rank: u32, request: &ToolRequest<'_>) -> io::Result<u32> {
        self.last_sequence += 1;
        let header = Header::new(self.job, rank, self.tool, self.last_sequence);
        let record = request.encode(&header).map_err(io::Error::other)?;
        self.send_record(&record)?;
        Ok(self.last_sequence)
    }

    /// Sends a request for a rank, and waits for its answer. Keeps notices that arrive before it.
    ///
    /// # Errors
    /// Returns the errors of send(2) and recv(2), TimedOut, or UnexpectedEof if the service has
    /// closed the connection.
    pub fn ask(
        &mut self,
        rank: u32,
        request: &ToolRequest<'_>,
        timeout: Duration,
    ) -> io::Result<Vec<u8>> {
        let sequence = self.send(rank, request)?;
        loop {
            let record = self.receive_record(timeout)?;
            let Some(header) = header_of(&record) else {
                return Err(io::ErrorKind::UnexpectedEof.into());
            };
            if header.kind == MessageType::Notify.number() {
                self.notices.push_back(record);
            } else if header.sequence == sequence {
                if self.tool == 0 {
                    self.tool = header.tool;
                }
                return Ok(record);
            }
        }
    }

    /// Receives the next notice. Returns `None` if the service has closed the connection.
    ///
    /// # Errors
    /// Returns the errors of recv(2), or TimedOut.
    pub fn notice(&mut self, timeout: Duration) -> io::Result<Option<Vec<u8>>> {
        if let Some(record) = self.notices.pop_front() {
            return Ok(Some(record));
        }
        loop {
            let record = self.receive_record(timeout)?;
            match header_of(&record) {
                None => return Ok(None),
                Some(header) if header.kind == MessageType::Notify.number() => {
                    return Ok(Some(record));
                }
                // The answer to a request that the tool does not wait for any more.
                Some(_) => {}
            }
        }
    }
}

/// Readable if a record has arrived, or if the service has closed the connection.
impl AsFd for ToolConnection {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// The header of a record. `None`, if the record has no valid header.
fn header_of(record: &[u8]) -> Option<Header> {
    let (header, _) = score_tools::wire::ServiceMessage::decode(record).ok()?;
    Some(header)
}
