//! Reads scrun's standard input from a thread of its own, only as far as the daemon has asked for
//! it. The descriptor is shared with the user's shell: it is never made non-blocking. The thread
//! starts with the first grant; a job that reads nothing never has it.

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

/// Pieces that may wait to be sent; the thread waits when there are more.
const QUEUE_CAPACITY: usize = 64;

/// How often a job in the background looks whether the terminal has become its own.
const FOREGROUND_POLL_INTERVAL: Duration = Duration::from_millis(100);

/// What was read.
pub enum StdinChunk {
    /// At most [`CHUNK`] bytes.
    Bytes(Vec<u8>),
    /// Nothing more comes; with a reason if it was not the end of the input.
    End(Option<String>),
}

struct ReaderState {
    chunks: ArrayQueue<StdinChunk>,
    /// Bytes that may be read in all.
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
    /// Nothing is read yet.
    pub fn new(waker: Arc<Waker>) -> Self {
        let state = Arc::new(ReaderState {
            chunks: ArrayQueue::new(QUEUE_CAPACITY),
            granted: AtomicU64::new(0),
            stopped: AtomicBool::new(false),
        });
        Self { state, waker, thread: None }
    }

    /// So many more bytes may be read.
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

    /// No more is wanted. What a terminal or pipe still holds stays there for others.
    pub fn stop(&self) {
        self.state.stopped.store(true, Ordering::Release);
        self.wake_reader();
    }

    /// Wakes the thread: there may be room, or the terminal is ours again.
    pub fn wake_reader(&self) {
        if let Some(thread) = &self.thread {
            thread.unpark();
        }
    }

    /// The next piece, unless no more is wanted.
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
            // SIGTTIN is blocked, so a read in the background fails. Nothing tells when the shell
            // puts a job that runs into the foreground.
            Err(Errno::EIO) if in_background(&stdin) => {
                std::thread::park_timeout(FOREGROUND_POLL_INTERVAL);
                continue;
            }
            Err(errno) => StdinChunk::End(Some(errno.desc().into())),
        };
        let is_last = matches!(chunk, StdinChunk::End(_));
        // There is room: this thread alone pushes.
        let _ = state.chunks.push(chunk);
        // A wake that is lost would only come from a full counter, and then one is under way.
        let _ = waker.wake();
        if is_last {
            return;
        }
    }
}

/// Somebody else made the shared description non-blocking.
fn wait_readable(stdin: &Stdin) {
    let mut poll_fds = [PollFd::new(stdin.as_fd(), PollFlags::POLLIN)];
    // Whatever it says, the next read tells more.
    let _ = poll(&mut poll_fds, PollTimeout::NONE);
}

fn in_background(stdin: &Stdin) -> bool {
    stdin.is_terminal()
        && nix::unistd::tcgetpgrp(stdin).is_ok_and(|group| group != nix::unistd::getpgrp())
}
