//! Reads scrun's standard input from a thread of its own, only as far as the daemon has asked for
//! it. The descriptor is shared with the user's shell: it is never made non-blocking. The thread
//! starts with the first grant; a job that reads nothing never has it.

use crossbeam_queue::ArrayQueue;
use mio::Waker;
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use score_proto::message::CHUNK;
use std::io::{IsTerminal, Stdin};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{Builder, Thread};
use std::time::Duration;

/// Pieces that may wait to be sent; the thread waits when there are more.
const PIECES: usize = 64;

/// How often a job in the background looks whether the terminal has become its own.
const BACKGROUND: Duration = Duration::from_millis(100);

/// What was read.
pub enum Piece {
    /// At most [`CHUNK`] bytes.
    Bytes(Vec<u8>),
    /// Nothing more comes; with a reason if it was not the end of the input.
    End(Option<String>),
}

struct Shared {
    pieces: ArrayQueue<Piece>,
    /// Bytes that may be read in all.
    granted: AtomicU64,
    stopped: AtomicBool,
}

/// Standard input.
pub struct Input {
    shared: Arc<Shared>,
    waker: Arc<Waker>,
    thread: Option<Thread>,
}

impl Input {
    /// Nothing is read yet.
    pub fn new(waker: Arc<Waker>) -> Self {
        let shared = Arc::new(Shared {
            pieces: ArrayQueue::new(PIECES),
            granted: AtomicU64::new(0),
            stopped: AtomicBool::new(false),
        });
        Self { shared, waker, thread: None }
    }

    /// So many more bytes may be read.
    pub fn grant(&mut self, bytes: u64) {
        self.shared.granted.fetch_add(bytes, Ordering::Release);
        if self.thread.is_none() {
            let (shared, waker) = (self.shared.clone(), self.waker.clone());
            match Builder::new().spawn(move || read_in(&shared, &waker)) {
                Ok(handle) => self.thread = Some(handle.thread().clone()),
                Err(error) => {
                    let why = format!("no thread can be started to read it: {error}");
                    // The queue is empty: nothing has been read yet.
                    let _ = self.shared.pieces.push(Piece::End(Some(why)));
                    let _ = self.waker.wake();
                }
            }
        }
        self.look_again();
    }

    /// No more is wanted. What a terminal or pipe still holds stays there for others.
    pub fn stop(&self) {
        self.shared.stopped.store(true, Ordering::Release);
        self.look_again();
    }

    /// Wakes the thread: there may be room, or the terminal is ours again.
    pub fn look_again(&self) {
        if let Some(thread) = &self.thread {
            thread.unpark();
        }
    }

    /// The next piece, unless no more is wanted.
    pub fn pop(&self) -> Option<Piece> {
        let piece = self.shared.pieces.pop()?;
        self.look_again();
        (!self.shared.stopped.load(Ordering::Acquire)).then_some(piece)
    }
}

fn read_in(shared: &Shared, waker: &Waker) {
    let stdin = std::io::stdin();
    let mut read = 0;
    while !shared.stopped.load(Ordering::Acquire) {
        let room = shared.granted.load(Ordering::Acquire) - read;
        if room == 0 || shared.pieces.is_full() {
            std::thread::park();
            continue;
        }
        let mut bytes = vec![0; CHUNK.min(room as usize)];
        let piece = match nix::unistd::read(&stdin, &mut bytes) {
            Ok(0) => Piece::End(None),
            Ok(n) => {
                bytes.truncate(n);
                read += n as u64;
                Piece::Bytes(bytes)
            }
            Err(Errno::EINTR) => continue,
            Err(Errno::EAGAIN) => {
                wait_readable(&stdin);
                continue;
            }
            // SIGTTIN is blocked, so a read in the background fails. Nothing tells when the shell
            // puts a job that runs into the foreground.
            Err(Errno::EIO) if in_background(&stdin) => {
                std::thread::park_timeout(BACKGROUND);
                continue;
            }
            Err(errno) => Piece::End(Some(errno.desc().into())),
        };
        let last = matches!(piece, Piece::End(_));
        // There is room: this thread alone pushes.
        let _ = shared.pieces.push(piece);
        // A wake that is lost would only come from a full counter, and then one is under way.
        let _ = waker.wake();
        if last {
            return;
        }
    }
}

/// Somebody else made the shared description non-blocking.
fn wait_readable(stdin: &Stdin) {
    let mut wanted = [PollFd::new(stdin.as_fd(), PollFlags::POLLIN)];
    // Whatever it says, the next read tells more.
    let _ = poll(&mut wanted, PollTimeout::NONE);
}

fn in_background(stdin: &Stdin) -> bool {
    stdin.is_terminal()
        && nix::unistd::tcgetpgrp(stdin).is_ok_and(|group| group != nix::unistd::getpgrp())
}
