//! Writes one of scrun's output streams from a thread of its own, so that a stopped terminal or
//! a slow reader blocks nothing else. The descriptor is shared with other processes (the user's
//! shell): it is never made non-blocking. A terminal is opened once more for that: when ^C makes
//! it drop what it holds, it does not always wake a writer that waits for room in it (seen on
//! pseudo terminals, about one time in thirty), so such a wait has to look again by itself.

use crossbeam_queue::ArrayQueue;
use mio::Waker;
use nix::errno::Errno;
use nix::libc;
use nix::poll::{PollFd, PollFlags, poll};
use score_proto::message::Stream;
use std::fs::File;
use std::io::IsTerminal;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicI32, AtomicU64, Ordering};
use std::thread::{Builder, Thread};

/// Pieces that may wait to be written. Their bytes are bounded by the window of the protocol.
const PIECES: usize = 1024;
/// Pieces are put together up to about this size for one write.
const TOGETHER: usize = 64 * 1024;

/// A wait for room looks again after so many milliseconds.
const LOOK_AGAIN_MS: u16 = 100;

/// Bytes to write.
struct Piece {
    bytes: Vec<u8>,
    /// Bytes of the job in it, of which the daemon wants to hear; nothing of scrun's own counts.
    counted: u64,
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

    /// Queues bytes, so many of which are the job's; the caller has looked at [`Self::has_room`].
    pub fn push(&mut self, bytes: Vec<u8>, counted: u64) {
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
            None => drop(write_some(self.stream, None, &self.shared, &self.waker)),
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
    let terminal = own_terminal(stream);
    loop {
        if !write_some(stream, terminal.as_ref(), shared, waker) {
            std::thread::park();
        }
    }
}

/// The terminal behind a stream, opened for us alone and non-blocking; `None` if there is none or
/// we may not open it.
fn own_terminal(stream: Stream) -> Option<File> {
    let (is_terminal, path) = match stream {
        Stream::Stdout => (std::io::stdout().is_terminal(), "/proc/self/fd/1"),
        Stream::Stderr => (std::io::stderr().is_terminal(), "/proc/self/fd/2"),
    };
    let flags = libc::O_NONBLOCK | libc::O_NOCTTY;
    let open = || File::options().write(true).custom_flags(flags).open(path).ok();
    is_terminal.then(open).flatten()
}

/// Writes the pieces that wait, put together; false when there are none.
fn write_some(stream: Stream, terminal: Option<&File>, shared: &Shared, waker: &Waker) -> bool {
    let mut buffer = Vec::new();
    let (mut counted, mut pieces) = (0, 0);
    while buffer.len() < TOGETHER
        && let Some(piece) = shared.pieces.pop()
    {
        counted += piece.counted;
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
        && let Err(errno) = write_all(stream, terminal, &buffer)
    {
        shared.failed.store(errno as i32, Ordering::Release);
    }
    shared.taken.fetch_add(counted, Ordering::Release);
    shared.done.fetch_add(pieces, Ordering::Release);
    // A wake that is lost would only come from a full counter, and then one is under way.
    let _ = waker.wake();
    true
}

fn write_all(stream: Stream, terminal: Option<&File>, mut bytes: &[u8]) -> Result<(), Errno> {
    let (stdout, stderr) = (std::io::stdout(), std::io::stderr());
    let fd: BorrowedFd<'_> = match (terminal, stream) {
        (Some(file), _) => file.as_fd(),
        (None, Stream::Stdout) => stdout.as_fd(),
        (None, Stream::Stderr) => stderr.as_fd(),
    };
    while !bytes.is_empty() {
        match nix::unistd::write(fd, bytes) {
            Ok(0) => return Err(Errno::EIO),
            Ok(n) => bytes = &bytes[n..],
            Err(Errno::EINTR) => {}
            // Our own terminal, or somebody else made the shared description non-blocking.
            Err(Errno::EAGAIN) => {
                let mut wanted = [PollFd::new(fd, PollFlags::POLLOUT)];
                match poll(&mut wanted, LOOK_AGAIN_MS) {
                    Ok(_) | Err(Errno::EINTR) => {}
                    Err(errno) => return Err(errno),
                }
            }
            Err(errno) => return Err(errno),
        }
    }
    Ok(())
}
