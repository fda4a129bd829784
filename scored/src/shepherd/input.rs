//! scrun's standard input, on its way to node 0.

use std::collections::VecDeque;
use std::io::{self, IoSlice};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};

use mio::unix::SourceFd;
use mio::{Interest, Registry, Token};
use nix::errno::Errno;
use score_proto::job_control::Report;
use score_proto::message::STDIN_WINDOW;

use super::reports::ScoredLink;
use crate::sys::descriptor;

/// The write end of node 0's standard input, and what it has not taken yet.
#[derive(Debug, Default)]
pub struct Input {
    pipe: Option<OwnedFd>,
    /// Whether it has been opened or closed: before that nobody can tell what becomes of it.
    is_decided: bool,
    buffer: VecDeque<u8>,
    /// Bytes that scrun may still send.
    window_left: u64,
    is_eof: bool,
    is_writable: bool,
    closed_reported: bool,
}

impl Input {
    /// Takes the write end of the pipe and opens the window.
    ///
    /// # Errors
    /// As fcntl(2), epoll_ctl(2).
    pub fn open(
        &mut self,
        pipe: OwnedFd,
        reports: &mut ScoredLink,
        registry: &Registry,
        token: Token,
    ) -> io::Result<()> {
        descriptor::set_nonblocking(pipe.as_fd())?;
        registry.register(&mut SourceFd(&pipe.as_raw_fd()), token, Interest::WRITABLE)?;
        self.pipe = Some(pipe);
        self.is_decided = true;
        self.is_writable = true;
        self.window_left = STDIN_WINDOW;
        reports.add(Report::StdinWindow(STDIN_WINDOW));
        Ok(())
    }

    /// Bytes from scrun. False when it has sent more than it was granted.
    pub fn push(&mut self, bytes: &[u8]) -> bool {
        let count = bytes.len() as u64;
        if count > self.window_left {
            return self.closed_reported;
        }
        self.window_left -= count;
        if self.pipe.is_some() {
            self.buffer.extend(bytes);
        }
        true
    }

    /// No more will come.
    pub fn on_eof(&mut self) {
        self.is_eof = true;
    }

    /// mio has reported on the pipe: room, or the reader has gone.
    pub fn mark_writable(&mut self, reader_closed: bool) {
        self.is_writable = true;
        if reader_closed {
            self.pipe = None;
        }
    }

    /// Node 0 is on another host, which says what becomes of the input.
    pub fn disable(&mut self) {
        self.closed_reported = true;
    }

    /// Node 0 reads no more, or never did.
    pub fn close(&mut self) {
        self.pipe = None;
        self.is_decided = true;
    }

    /// Writes what the pipe takes and grants as much anew.
    pub fn pump(&mut self, reports: &mut ScoredLink) {
        if !self.is_decided {
            return;
        }
        let mut written = 0u64;
        while let Some(pipe) = &self.pipe {
            if self.buffer.is_empty() {
                if self.is_eof {
                    self.pipe = None;
                }
                break;
            }
            if !self.is_writable {
                break;
            }
            let (front, back) = self.buffer.as_slices();
            match nix::sys::uio::writev(pipe, &[IoSlice::new(front), IoSlice::new(back)]) {
                Ok(count) => {
                    self.buffer.drain(..count);
                    written += count as u64;
                }
                Err(Errno::EINTR) => {}
                Err(Errno::EAGAIN) => self.is_writable = false,
                Err(_) => self.pipe = None,
            }
        }
        if self.pipe.is_none() {
            self.buffer = VecDeque::new();
            if !self.closed_reported && !self.is_eof {
                reports.add(Report::StdinClosed);
            }
            self.closed_reported = true;
        } else if written > 0 && !self.is_eof {
            self.window_left += written;
            reports.add(Report::StdinWindow(written));
        }
    }
}
