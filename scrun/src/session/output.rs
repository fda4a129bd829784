//! Writes one of scrun's output streams from a thread of its own, so that a stopped terminal or
//! a slow reader blocks nothing else. The descriptor is shared with other processes (the user's
//! shell): it is never made non-blocking.

use crossbeam_queue::ArrayQueue;
use mio::Waker;
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use score_proto::message::Stream;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicI32, AtomicU64, Ordering};
use std::thread::{Builder, Thread};

/// Pieces that may wait to be written. Their bytes are bounded by the window of the protocol.
const PIECES: usize = 1024;
/// Pieces are put together up to about this size for one write.
const TOGETHER: usize = 64 * 1024;

/// Bytes to write.
struct Piece {
    bytes: Vec<u8>,
    /// Whether the daemon waits for its acknowledgement (a line of scrun's own is not counted).
    counted: bool,
}

/// What both sides see.
struct Shared {
    pieces: ArrayQueue<Piece>,
    /// Counted bytes written or dropped so far.
    taken: AtomicU64,
    /// Pieces done with so far.
    done: AtomicU64,
    /// errno of the first failure, or 0.
    failed: AtomicI32,
}

/// One output stream.
pub struct Output {
    stream: Stream,
    shared: Arc<Shared>,
    waker: Arc<Waker>,
    thread: Option<Thread>,
    pushed: u64,
}

impl Output {
    /// A stream whose thread starts with the first bytes.
    pub fn new(stream: Stream, waker: Arc<Waker>) -> Self {
        let shared = Arc::new(Shared {
            pieces: ArrayQueue::new(PIECES),
            taken: AtomicU64::new(0),
            done: AtomicU64::new(0),
            failed: AtomicI32::new(0),
        });
        Self { stream, shared, waker, thread: None, pushed: 0 }
    }

    /// Room for one more message's worth of pieces.
    pub fn has_room(&self) -> bool {
        self.shared.pieces.len() + 8 <= PIECES
    }

    /// Queues bytes; the caller has looked at [`Self::has_room`].
    pub fn push(&mut self, bytes: Vec<u8>, counted: bool) {
        let piece = Piece { bytes, counted };
        if self.shared.pieces.push(piece).is_err() {
            return; // only lines of scrun's own can get here, never bytes of the job
        }
        self.pushed += 1;
        if self.thread.is_none() {
            let (stream, shared, waker) = (self.stream, self.shared.clone(), self.waker.clone());
            let body = move || write_out(stream, &shared, &waker);
            self.thread = Builder::new().spawn(body).ok().map(|handle| handle.thread().clone());
        }
        match &self.thread {
            Some(thread) => thread.unpark(),
            // No thread is to be had: better to wait for the reader here than to lose anything.
            None => drop(write_some(self.stream, &self.shared, &self.waker)),
        }
    }

    /// Counted bytes written or dropped so far.
    pub fn taken(&self) -> u64 {
        self.shared.taken.load(Ordering::Acquire)
    }

    /// errno of the first failure.
    pub fn failed(&self) -> Option<i32> {
        Some(self.shared.failed.load(Ordering::Acquire)).filter(|errno| *errno != 0)
    }

    /// Whether everything pushed has been written or dropped.
    pub fn is_drained(&self) -> bool {
        self.shared.done.load(Ordering::Acquire) == self.pushed
    }
}

fn write_out(stream: Stream, shared: &Shared, waker: &Waker) {
    loop {
        if !write_some(stream, shared, waker) {
            std::thread::park();
        }
    }
}

/// Writes the pieces that wait, put together; false when there are none.
fn write_some(stream: Stream, shared: &Shared, waker: &Waker) -> bool {
    let mut buffer = Vec::new();
    let (mut counted, mut pieces) = (0, 0);
    while buffer.len() < TOGETHER
        && let Some(piece) = shared.pieces.pop()
    {
        counted += if piece.counted { piece.bytes.len() as u64 } else { 0 };
        pieces += 1;
        if buffer.is_empty() {
            buffer = piece.bytes;
        } else {
            buffer.extend_from_slice(&piece.bytes);
        }
    }
    if pieces == 0 {
        return false;
    }
    if shared.failed.load(Ordering::Relaxed) == 0
        && let Err(errno) = write_all(stream, &buffer)
    {
        shared.failed.store(errno as i32, Ordering::Release);
    }
    shared.taken.fetch_add(counted, Ordering::Release);
    shared.done.fetch_add(pieces, Ordering::Release);
    // A wake that is lost would only come from a full counter, and then one is under way.
    let _ = waker.wake();
    true
}

fn write_all(stream: Stream, mut bytes: &[u8]) -> Result<(), Errno> {
    let (stdout, stderr) = (std::io::stdout(), std::io::stderr());
    let fd: BorrowedFd<'_> = match stream {
        Stream::Stdout => stdout.as_fd(),
        Stream::Stderr => stderr.as_fd(),
    };
    while !bytes.is_empty() {
        match nix::unistd::write(fd, bytes) {
            Ok(0) => return Err(Errno::EIO),
            Ok(n) => bytes = &bytes[n..],
            Err(Errno::EINTR) => {}
            // Somebody else made the shared description non-blocking.
            Err(Errno::EAGAIN) => {
                let mut wanted = [PollFd::new(fd, PollFlags::POLLOUT)];
                match poll(&mut wanted, PollTimeout::NONE) {
                    Ok(_) | Err(Errno::EINTR) => {}
                    Err(errno) => return Err(errno),
                }
            }
            Err(errno) => return Err(errno),
        }
    }
    Ok(())
}
