//! Reads scrun's standard input in a separate thread, and only as many bytes as the daemon has
//! granted. The descriptor is shared with the user's shell, so it is never made non-blocking. The
//! thread starts with the first grant. For a job that reads no input it never starts.

use crossbeam_queue::ArrayQueue;
use mio::Waker;
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use score_proto::message::MAX_IO_CHUNK;
use std::io::{IsTerminal, Stdin};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{Builder, Thread};
use std::time::Duration;

/// Maximum number of chunks that wait to be sent. The thread waits if the queue is full.
const QUEUE_CAPACITY: usize = 64;

/// Interval at which a job in the background checks whether it is in the foreground.
const FOREGROUND_POLL_INTERVAL: Duration = Duration::from_millis(100);

/// A part of standard input.
pub enum StdinChunk {
    /// At most [`MAX_IO_CHUNK`] bytes.
    Bytes(Vec<u8>),
    /// The end of the input, or a reason why reading has failed.
    End(Option<String>),
}

struct ReaderState {
    chunks: ArrayQueue<StdinChunk>,
    /// Total number of bytes that may be read.
    granted: AtomicU64,
    stopped: AtomicBool,
}

/// Standard input.
pub struct StdinReader {
    state: Arc<ReaderState>,
    waker: Arc<Waker>,
    thread: Option<Thread>,
}

impl StdinReader {
    /// Standard input, without a grant.
    pub fn new(waker: Arc<Waker>) -> Self {
        let state = Arc::new(ReaderState {
            chunks: ArrayQueue::new(QUEUE_CAPACITY),
            granted: AtomicU64::new(0),
            stopped: AtomicBool::new(false),
        });
        Self { state, waker, thread: None }
    }

    /// Permits reading this number of further bytes.
    pub fn grant(&mut self, bytes: u64) {
        self.state.granted.fetch_add(bytes, Ordering::Release);
        if self.thread.is_none() {
            let (state, waker) = (self.state.clone(), self.waker.clone());
            match Builder::new().spawn(move || run_reader(&state, &waker)) {
                Ok(handle) => self.thread = Some(handle.thread().clone()),
                Err(error) => {
                    let reason = format!("no thread can be started to read it: {error}");
                    // The queue is empty: nothing has been read yet.
                    let _ = self.state.chunks.push(StdinChunk::End(Some(reason)));
                    let _ = self.waker.wake();
                }
            }
        }
        self.wake_reader();
    }

    /// Stops reading. Bytes that are still in a terminal or pipe stay there for other readers.
    pub fn stop(&self) {
        self.state.stopped.store(true, Ordering::Release);
        self.wake_reader();
    }

    /// Wakes the thread: the queue may have a free entry, or the job is in the foreground again.
    pub fn wake_reader(&self) {
        if let Some(thread) = &self.thread {
            thread.unpark();
        }
    }

    /// The next chunk, unless reading is stopped.
    pub fn pop(&self) -> Option<StdinChunk> {
        let chunk = self.state.chunks.pop()?;
        self.wake_reader();
        (!self.state.stopped.load(Ordering::Acquire)).then_some(chunk)
    }
}

fn run_reader(state: &ReaderState, waker: &Waker) {
    let stdin = std::io::stdin();
    let mut read_len = 0;
    while !state.stopped.load(Ordering::Acquire) {
        let allowed = state.granted.load(Ordering::Acquire) - read_len;
        if allowed == 0 || state.chunks.is_full() {
            std::thread::park();
            continue;
        }
        // A read that has begun continues when a debugger takes the foreground. It would take the
        // first line that the user types for the debugger, so wait first and check the foreground.
        if stdin.is_terminal() {
            wait_readable(&stdin);
            if in_background(&stdin) {
                std::thread::park_timeout(FOREGROUND_POLL_INTERVAL);
                continue;
            }
        }
        let mut bytes = vec![0; MAX_IO_CHUNK.min(allowed as usize)];
        let chunk = match nix::unistd::read(&stdin, &mut bytes) {
            Ok(0) => StdinChunk::End(None),
            Ok(n) => {
                bytes.truncate(n);
                read_len += n as u64;
                StdinChunk::Bytes(bytes)
            }
            Err(Errno::EINTR) => continue,
            Err(Errno::EAGAIN) => {
                wait_readable(&stdin);
                continue;
            }
            // SIGTTIN is blocked, so a read in the background fails. There is no notification when
            // the shell puts a running job into the foreground.
            Err(Errno::EIO) if in_background(&stdin) => {
                std::thread::park_timeout(FOREGROUND_POLL_INTERVAL);
                continue;
            }
            Err(errno) => StdinChunk::End(Some(errno.desc().into())),
        };
        let is_last = matches!(chunk, StdinChunk::End(_));
        // The queue has a free entry, because only this thread pushes.
        let _ = state.chunks.push(chunk);
        // wake() fails only if its counter is full, and then a wake-up is already pending.
        let _ = waker.wake();
        if is_last {
            return;
        }
    }
}

/// Waits for input. Needed for a terminal, and if another process has made the shared file
/// description non-blocking.
fn wait_readable(stdin: &Stdin) {
    let mut poll_fds = [PollFd::new(stdin.as_fd(), PollFlags::POLLIN)];
    // The result does not matter: the next read reports the error.
    let _ = poll(&mut poll_fds, PollTimeout::NONE);
}

fn in_background(stdin: &Stdin) -> bool {
    stdin.is_terminal()
        && nix::unistd::tcgetpgrp(stdin).is_ok_and(|group| group != nix::unistd::getpgrp())
}
