//! The client end of a tool control socket: connects, sends requests, and receives answers and
//! notices. [`score_tools::wire`] defines the messages.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::atomic::AtomicU8;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::{
    AddressFamily, MsgFlags, SockFlag, SockType, UnixAddr, connect, recv, send, socket,
};
use score_sys::fd_passing;
use score_tools::wire::{
    Command, CommandAnswer, CommandCode, CommandRequest, Header, MAX_MESSAGE_LEN, MemoryCopy,
    MessageType, ReturnCode, ServiceMessage, ToolRequest,
};

use crate::shared_memory::SharedMemory;

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
    /// The memory that this tool shares with the service, for [`Self::view_memory`] and
    /// [`Self::read_memory`].
    memory: Option<SharedMemory>,
}

/// The length of the shared memory: the most bytes that [`ToolConnection::view_memory`] reads.
pub const MAX_VIEW_LEN: usize = 1 << 20;
/// The part of the shared memory that [`ToolConnection::read_memory`] uses. It is small, so that
/// the bytes are still in the caches when the tool copies them out.
const COPY_LEN: usize = 512 << 10;
/// The most bytes that a message of `read_memory` copies. While the service copies the next part,
/// this tool copies the previous one out of the shared memory.
const PART_LEN: usize = COPY_LEN / 2;

/// Why memory of a process cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum ReadMemoryError {
    /// The connection failed, or this tool has no memory to share.
    #[error("{0}")]
    Io(#[from] io::Error),
    /// The service refused a message.
    #[error("the service refuses the message: code {}, error {}", .0.return_code, .0.error_code)]
    Refused(Header),
    /// The service did not copy the memory. The number is one of [`CommandCode`].
    #[error("the service does not copy the memory: code {0}")]
    Command(u32),
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
        Ok(Self { socket, job, tool, last_sequence: 0, notices: VecDeque::new(), memory: None })
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
        self.record_before(Instant::now() + timeout)
    }

    fn record_before(&self, deadline: Instant) -> io::Result<Vec<u8>> {
        let mut buffer = vec![0; MAX_MESSAGE_LEN];
        let len = self.receive_before(&mut buffer, deadline)?;
        buffer.truncate(len);
        Ok(buffer)
    }

    /// Receives the next record into a buffer of [`MAX_MESSAGE_LEN`] bytes, and returns its length.
    /// Returns 0 if the service has closed the connection.
    ///
    /// # Errors
    /// Returns the errors of recv(2), or TimedOut.
    pub fn receive_into(&self, buffer: &mut [u8], timeout: Duration) -> io::Result<usize> {
        self.receive_before(buffer, Instant::now() + timeout)
    }

    /// Also returns a record that has arrived before the call, if the deadline has passed.
    fn receive_before(&self, buffer: &mut [u8], deadline: Instant) -> io::Result<usize> {
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
        self.answer_to(sequence, timeout)
    }

    /// Waits for the answer to the request with this number. Keeps notices that arrive before it.
    fn answer_to(&mut self, sequence: u32, timeout: Duration) -> io::Result<Vec<u8>> {
        let deadline = Instant::now() + timeout;
        loop {
            let record = self.record_before(deadline)?;
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
            if Instant::now() >= deadline {
                return Err(timed_out());
            }
        }
    }

    /// Shares memory with the service, once.
    fn share_memory(&mut self, timeout: Duration) -> Result<(), ReadMemoryError> {
        if self.memory.is_some() {
            return Ok(());
        }
        let (memory, memfd) = SharedMemory::create(MAX_VIEW_LEN)?;
        self.last_sequence += 1;
        let header = Header::new(self.job, 0, self.tool, self.last_sequence);
        let record = ToolRequest::ShareMemory.encode(&header).map_err(io::Error::other)?;
        fd_passing::send(&self.socket, &record, &[memfd.as_fd()])?;
        let answer = self.answer_to(self.last_sequence, timeout)?;
        match header_of(&answer).ok_or(io::ErrorKind::UnexpectedEof).map_err(io::Error::from)? {
            header if header.code() == Some(ReturnCode::Success) => {
                self.memory = Some(memory);
                Ok(())
            }
            header => Err(ReadMemoryError::Refused(header)),
        }
    }

    /// Reads memory of a rank to which this tool is attached, by Copy Memory. Returns the bytes in
    /// the memory that this tool shares with the service, without a further copy. Reads all bytes
    /// or fails. Keeps notices that arrive meanwhile.
    ///
    /// # Errors
    /// See [`ReadMemoryError`]. InvalidInput: `len` is 0 or above [`MAX_VIEW_LEN`]. `timeout` is
    /// the time limit for the answer.
    pub fn view_memory(
        &mut self,
        rank: u32,
        address: u64,
        len: usize,
        timeout: Duration,
    ) -> Result<&[AtomicU8], ReadMemoryError> {
        if !(1..=MAX_VIEW_LEN).contains(&len) {
            return Err(io::Error::from(io::ErrorKind::InvalidInput).into());
        }
        self.copy_to_shared_memory(timeout, |tool| {
            let copy = MemoryCopy { address, length: len as u32, offset: 0 };
            let sequence = tool.request_copy(rank, copy)?;
            tool.await_copy(sequence, len, timeout)
        })?;
        Ok(self.memory.as_ref().map_or(&[], |memory| memory.view(0..len)))
    }

    /// Reads memory of a rank to which this tool is attached, by Copy Memory, into a buffer of any
    /// length. Reads all bytes or fails. Keeps notices that arrive meanwhile. `view_memory` is
    /// faster, because it does not copy the bytes a second time.
    ///
    /// # Errors
    /// See [`ReadMemoryError`]. `timeout` is the time limit for each answer.
    pub fn read_memory(
        &mut self,
        rank: u32,
        address: u64,
        bytes: &mut [u8],
        timeout: Duration,
    ) -> Result<(), ReadMemoryError> {
        self.copy_to_shared_memory(timeout, |tool| tool.copy_parts(rank, address, bytes, timeout))
    }

    /// Shares memory with the service, and calls `copy`.
    fn copy_to_shared_memory(
        &mut self,
        timeout: Duration,
        copy: impl FnOnce(&mut Self) -> Result<(), ReadMemoryError>,
    ) -> Result<(), ReadMemoryError> {
        self.share_memory(timeout)?;
        let result = copy(self);
        if matches!(result, Err(ReadMemoryError::Io(_))) {
            // The service may still write to this memory, so the next call needs other memory.
            self.memory = None;
        }
        result
    }

    /// Sends a Query of one Copy Memory. Returns its sequence number.
    fn request_copy(&mut self, rank: u32, copy: MemoryCopy) -> io::Result<u32> {
        let query = [Command { thread: 0, request: CommandRequest::CopyMemory(copy) }];
        self.send(rank, &ToolRequest::Query(&query))
    }

    /// Waits for the answer to a Query of one Copy Memory, which must have copied `len` bytes.
    fn await_copy(
        &mut self,
        sequence: u32,
        len: usize,
        timeout: Duration,
    ) -> Result<(), ReadMemoryError> {
        match copied_len(&self.answer_to(sequence, timeout)?)? == len {
            true => Ok(()),
            false => Err(ReadMemoryError::Command(CommandCode::AddressError.number())),
        }
    }

    fn copy_parts(
        &mut self,
        rank: u32,
        address: u64,
        bytes: &mut [u8],
        timeout: Duration,
    ) -> Result<(), ReadMemoryError> {
        let (mut sent, mut result) = (0, Ok(()));
        let mut pending = VecDeque::new();
        let len = bytes.len();
        loop {
            while sent < len && pending.len() < COPY_LEN / PART_LEN && result.is_ok() {
                let part = sent..len.min(sent + PART_LEN);
                sent = part.end;
                let copy = MemoryCopy {
                    address: address.wrapping_add(part.start as u64),
                    length: part.len() as u32,
                    // Parts that are in progress at the same time have different places.
                    offset: (part.start % COPY_LEN) as u32,
                };
                pending.push_back((self.request_copy(rank, copy)?, part));
            }
            // After an error, the answers to the other messages must also be received.
            let Some((sequence, part)) = pending.pop_front() else { return result };
            let copied = match self.await_copy(sequence, part.len(), timeout) {
                Err(ReadMemoryError::Io(error)) => return Err(error.into()),
                copied => copied,
            };
            if let (Ok(()), Some(memory)) = (&copied, &self.memory) {
                memory.read(part.start % COPY_LEN, &mut bytes[part]);
            }
            result = result.and(copied);
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
        let deadline = Instant::now() + timeout;
        loop {
            let record = self.record_before(deadline)?;
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

/// The number of bytes that a Query of one Copy Memory has copied.
fn copied_len(record: &[u8]) -> Result<usize, ReadMemoryError> {
    let (header, message) = ServiceMessage::decode(record).map_err(io::Error::other)?;
    let results = match message {
        _ if header.code() != Some(ReturnCode::Success) => {
            return Err(ReadMemoryError::Refused(header));
        }
        ServiceMessage::QueryAck(results) => results,
        _ => Vec::new(),
    };
    match results.first().map(|result| (result.return_code, &result.answer)) {
        Some((0, Some(CommandAnswer::CopyMemory(copy)))) => Ok(copy.length as usize),
        Some((code, _)) if code != 0 => Err(ReadMemoryError::Command(code)),
        _ => Err(io::Error::other("the answer does not belong to the request").into()),
    }
}

/// The header of a record. `None` if the record is not a message of the service.
fn header_of(record: &[u8]) -> Option<Header> {
    let (header, _) = ServiceMessage::decode(record).ok()?;
    Some(header)
}

#[cfg(test)]
mod tests {
    use nix::sys::socket::socketpair;
    use score_tools::wire::{Detach, ExitNotice, Notice, ProcessSelect};

    use super::*;

    #[test]
    fn the_time_limit_for_an_answer_includes_the_notices_before_it() {
        let (own, peer) =
            socketpair(AddressFamily::Unix, SockType::SeqPacket, None, SockFlag::SOCK_CLOEXEC)
                .unwrap();
        let mut tool = ToolConnection {
            socket: own,
            job: 1,
            tool: 2,
            last_sequence: 0,
            notices: VecDeque::new(),
            memory: None,
        };
        let service = std::thread::spawn(move || {
            let say = |message: ServiceMessage<'_>, sequence| {
                let record = message.encode(&Header::new(1, 0, 2, sequence));
                send(peer.as_raw_fd(), &record, MsgFlags::MSG_NOSIGNAL).is_ok()
            };
            // It notifies the tool for three seconds, and answers then.
            let notice = || ServiceMessage::Notify(Notice::Exit(ExitNotice { status: 0 }));
            for _ in 0..300 {
                if !say(notice(), 0) {
                    return;
                }
                std::thread::sleep(Duration::from_millis(10));
            }
            say(ServiceMessage::DetachAck(Vec::new()), 1);
        });
        let detach = ToolRequest::Detach(Detach { select: ProcessSelect::RanksInNode });
        let failure = tool.ask(0, &detach, Duration::from_millis(200)).unwrap_err();
        assert_eq!(failure.kind(), io::ErrorKind::TimedOut);
        assert!(tool.notice(Duration::ZERO).unwrap().is_some(), "the notices are kept");
        drop(tool);
        service.join().unwrap();
    }
}
