//! Forwards scrun's standard input to node 0.

use std::collections::VecDeque;
use std::io::{self, IoSlice};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};

use mio::unix::SourceFd;
use mio::{Interest, Registry, Token};
use nix::errno::Errno;
use score_proto::job_control::JobReport;
use score_proto::message::STDIN_WINDOW;

use super::reports::ScoredLink;
use crate::sys::descriptor;

/// The write end of node 0's standard input, and the data that the pipe has not taken yet.
#[derive(Debug, Default)]
pub struct Input {
    pipe: Option<OwnedFd>,
    /// Whether the input has been opened or closed. Before that, it is undecided whether node 0
    /// reads it.
    is_decided: bool,
    buffer: VecDeque<u8>,
    /// Number of bytes that scrun may still send.
    window_left: u64,
    is_eof: bool,
    is_writable: bool,
    closed_reported: bool,
}

impl Input {
    /// Takes the write end of the pipe and opens the window.
    ///
    /// # Errors
    /// The errors of fcntl(2) and epoll_ctl(2).
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
        reports.add(JobReport::StdinWindow(STDIN_WINDOW));
        Ok(())
    }

    /// Takes bytes from scrun. Returns false if they exceed the window, unless the shepherd has
    /// reported that the input is closed.
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

    /// Handles the end of scrun's input.
    pub fn on_eof(&mut self) {
        self.is_eof = true;
    }

    /// Records that mio has reported that the pipe has room, or that the reader has closed it.
    pub fn mark_writable(&mut self, reader_closed: bool) {
        self.is_writable = true;
        if reader_closed {
            self.pipe = None;
        }
    }

    /// Ignores the input: node 0 is on another host, whose shepherd reports about the input.
    pub fn disable(&mut self) {
        self.closed_reported = true;
    }

    /// Closes the input: node 0 does not read it, or no longer reads it.
    pub fn close(&mut self) {
        self.pipe = None;
        self.is_decided = true;
    }

    /// Writes as many bytes as the pipe accepts, and enlarges the window by the same number.
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
                reports.add(JobReport::StdinClosed);
            }
            self.closed_reported = true;
        } else if written > 0 && !self.is_eof {
            self.window_left += written;
            reports.add(JobReport::StdinWindow(written));
        }
    }
}
