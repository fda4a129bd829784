//! Writes one of scrun's output streams in a separate thread, so that a stopped terminal or a slow
//! reader does not block scrun's event loop.
//!
//! The descriptor is shared with other processes, such as the user's shell, so it is never made
//! non-blocking. Instead, a terminal is opened a second time as non-blocking. When ^C flushes a
//! terminal's buffer, the kernel does not always wake a writer that waits for space in it. The wait
//! is therefore repeated at intervals.

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

/// Maximum number of chunks that wait to be written. The protocol's window bounds their bytes.
const QUEUE_CAPACITY: usize = 1024;
/// Number of bytes up to which chunks are combined for one write.
const COALESCE_LEN: usize = 64 * 1024;

/// Interval at which a wait for space in the terminal is repeated.
const WRITABLE_POLL_INTERVAL_MS: u16 = 100;

/// Bytes to write.
struct OutputChunk {
    bytes: Vec<u8>,
    /// The number of the job's bytes in the chunk, which scrun acknowledges. scrun's own bytes do
    /// not count.
    job_len: u64,
}

/// State that the event loop and the writer thread share.
struct WriterState {
    chunks: ArrayQueue<OutputChunk>,
    /// Bytes of the job that were written or dropped so far.
    written_len: AtomicU64,
    /// Chunks written or dropped so far.
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

    /// Whether the queue has space for the chunks of one more message.
    pub fn has_capacity(&self) -> bool {
        self.state.chunks.len() + 8 <= QUEUE_CAPACITY
    }

    /// Queues bytes, of which `job_len` are bytes of the job. The caller must have checked
    /// [`Self::has_capacity`].
    pub fn push(&mut self, bytes: Vec<u8>, job_len: u64) {
        let chunk = OutputChunk { bytes, job_len };
        if self.state.chunks.push(chunk).is_err() {
            return; // only scrun's own lines can be dropped here, never bytes of the job
        }
        self.pushed_count += 1;
        if self.thread.is_none() {
            let (stream, state, waker) = (self.stream, self.state.clone(), self.waker.clone());
            let body = move || run_writer(stream, &state, &waker);
            self.thread = Builder::new().spawn(body).ok().map(|handle| handle.thread().clone());
        }
        match &self.thread {
            Some(thread) => thread.unpark(),
            // If no thread can be started, the write blocks here, and no output is lost.
            None => drop(write_chunks(self.stream, None, &self.state, &self.waker)),
        }
    }

    /// Bytes of the job that were written or dropped so far.
    pub fn written_len(&self) -> u64 {
        self.state.written_len.load(Ordering::Acquire)
    }

    /// errno of the first failure.
    pub fn first_errno(&self) -> Option<i32> {
        Some(self.state.first_errno.load(Ordering::Acquire)).filter(|errno| *errno != 0)
    }

    /// Whether all queued bytes have been written or dropped.
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

/// Opens the terminal of a stream as non-blocking, for this process alone. Returns `None` if the
/// stream is not a terminal or the terminal cannot be opened.
fn open_terminal(stream: Stream) -> Option<File> {
    let (is_terminal, path) = match stream {
        Stream::Stdout => (std::io::stdout().is_terminal(), "/proc/self/fd/1"),
        Stream::Stderr => (std::io::stderr().is_terminal(), "/proc/self/fd/2"),
    };
    let flags = libc::O_NONBLOCK | libc::O_NOCTTY;
    let open = || File::options().write(true).custom_flags(flags).open(path).ok();
    is_terminal.then(open).flatten()
}

/// Writes the queued chunks, combined. Returns false if there are none.
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
    // wake() fails only if its counter is full, and then a wake-up is already pending.
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
            // Either this is scrun's own description of the terminal, or another process has made
            // the shared description non-blocking.
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
