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
const QUEUE_CAPACITY: usize = 1024;
/// Pieces are put together up to about this size for one write.
const COALESCE_LEN: usize = 64 * 1024;

/// A wait for room looks again after so many milliseconds.
const WRITABLE_POLL_INTERVAL_MS: u16 = 100;

/// Bytes to write.
struct OutputChunk {
    bytes: Vec<u8>,
    /// Bytes of the job in it, of which the daemon wants to hear; nothing of scrun's own counts.
    job_len: u64,
}

/// What both sides see.
struct WriterState {
    chunks: ArrayQueue<OutputChunk>,
    /// Counted bytes written or dropped so far.
    written_len: AtomicU64,
    /// Pieces done with so far.
    done_count: AtomicU64,
    /// errno of the first failure, or 0.
    first_errno: AtomicI32,
}

/// One output stream.
pub struct OutputWriter {
    stream: Stream,
    state: Arc<WriterState>,
    waker: Arc<Waker>,
    thread: Option<Thread>,
    pushed_count: u64,
}

impl OutputWriter {
    /// A stream whose thread starts with the first bytes.
    pub fn new(stream: Stream, waker: Arc<Waker>) -> Self {
        let state = Arc::new(WriterState {
            chunks: ArrayQueue::new(QUEUE_CAPACITY),
            written_len: AtomicU64::new(0),
            done_count: AtomicU64::new(0),
            first_errno: AtomicI32::new(0),
        });
        Self { stream, state, waker, thread: None, pushed_count: 0 }
    }

    /// Room for one more message's worth of pieces.
    pub fn has_capacity(&self) -> bool {
        self.state.chunks.len() + 8 <= QUEUE_CAPACITY
    }

    /// Queues bytes, so many of which are the job's; the caller has looked at [`Self::has_capacity`].
    pub fn push(&mut self, bytes: Vec<u8>, job_len: u64) {
        let chunk = OutputChunk { bytes, job_len };
        if self.state.chunks.push(chunk).is_err() {
            return; // only lines of scrun's own can get here, never bytes of the job
        }
        self.pushed_count += 1;
        if self.thread.is_none() {
            let (stream, state, waker) = (self.stream, self.state.clone(), self.waker.clone());
            let body = move || run_writer(stream, &state, &waker);
            self.thread = Builder::new().spawn(body).ok().map(|handle| handle.thread().clone());
        }
        match &self.thread {
            Some(thread) => thread.unpark(),
            // No thread is to be had: better to wait for the reader here than to lose anything.
            None => drop(write_chunks(self.stream, None, &self.state, &self.waker)),
        }
    }

    /// Counted bytes written or dropped so far.
    pub fn written_len(&self) -> u64 {
        self.state.written_len.load(Ordering::Acquire)
    }

    /// errno of the first failure.
    pub fn first_errno(&self) -> Option<i32> {
        Some(self.state.first_errno.load(Ordering::Acquire)).filter(|errno| *errno != 0)
    }

    /// Whether everything pushed has been written or dropped.
    pub fn is_drained(&self) -> bool {
        self.state.done_count.load(Ordering::Acquire) == self.pushed_count
    }
}

fn run_writer(stream: Stream, state: &WriterState, waker: &Waker) {
    let terminal = open_terminal(stream);
    loop {
        if !write_chunks(stream, terminal.as_ref(), state, waker) {
            std::thread::park();
        }
    }
}

/// The terminal behind a stream, opened for us alone and non-blocking; `None` if there is none or
/// we may not open it.
fn open_terminal(stream: Stream) -> Option<File> {
    let (is_terminal, path) = match stream {
        Stream::Stdout => (std::io::stdout().is_terminal(), "/proc/self/fd/1"),
        Stream::Stderr => (std::io::stderr().is_terminal(), "/proc/self/fd/2"),
    };
    let flags = libc::O_NONBLOCK | libc::O_NOCTTY;
    let open = || File::options().write(true).custom_flags(flags).open(path).ok();
    is_terminal.then(open).flatten()
}

/// Writes the pieces that wait, put together; false when there are none.
fn write_chunks(
    stream: Stream,
    terminal: Option<&File>,
    state: &WriterState,
    waker: &Waker,
) -> bool {
    let mut buffer = Vec::new();
    let (mut job_len, mut chunk_count) = (0, 0);
    while buffer.len() < COALESCE_LEN
        && let Some(chunk) = state.chunks.pop()
    {
        job_len += chunk.job_len;
        chunk_count += 1;
        if buffer.is_empty() {
            buffer = chunk.bytes;
        } else {
            buffer.extend_from_slice(&chunk.bytes);
        }
    }
    if chunk_count == 0 {
        return false;
    }
    if state.first_errno.load(Ordering::Relaxed) == 0
        && let Err(errno) = write_all(stream, terminal, &buffer)
    {
        state.first_errno.store(errno as i32, Ordering::Release);
    }
    state.written_len.fetch_add(job_len, Ordering::Release);
    state.done_count.fetch_add(chunk_count, Ordering::Release);
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
                let mut poll_fds = [PollFd::new(fd, PollFlags::POLLOUT)];
                match poll(&mut poll_fds, WRITABLE_POLL_INTERVAL_MS) {
                    Ok(_) | Err(Errno::EINTR) => {}
                    Err(errno) => return Err(errno),
                }
            }
            Err(errno) => return Err(errno),
        }
    }
    Ok(())
}
