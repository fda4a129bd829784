//! scrun's standard input, on its way to node 0.

use std::collections::VecDeque;
use std::io::{self, IoSlice};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};

use mio::unix::SourceFd;
use mio::{Interest, Registry, Token};
use nix::errno::Errno;
use score_proto::message::STDIN_WINDOW;
use score_proto::order::Report;

use super::reports::Reports;
use crate::sys::descriptor;

/// The write end of node 0's standard input, and what it has not taken yet.
#[derive(Debug, Default)]
pub struct Input {
    pipe: Option<OwnedFd>,
    /// Whether it has been opened or closed: before that nobody can tell what becomes of it.
    settled: bool,
    buffer: VecDeque<u8>,
    /// Bytes that scrun may still send.
    granted: u64,
    ended: bool,
    writable: bool,
    told_closed: bool,
}

impl Input {
    /// Takes the write end of the pipe and opens the window.
    ///
    /// # Errors
    /// As fcntl(2), epoll_ctl(2).
    pub fn open(
        &mut self,
        pipe: OwnedFd,
        reports: &mut Reports,
        registry: &Registry,
        token: Token,
    ) -> io::Result<()> {
        descriptor::set_nonblocking(pipe.as_fd())?;
        registry.register(&mut SourceFd(&pipe.as_raw_fd()), token, Interest::WRITABLE)?;
        self.pipe = Some(pipe);
        self.settled = true;
        self.writable = true;
        self.granted = STDIN_WINDOW;
        reports.add(Report::StdinWindow(STDIN_WINDOW));
        Ok(())
    }

    /// Bytes from scrun. False when it has sent more than it was granted.
    pub fn push(&mut self, bytes: &[u8]) -> bool {
        let count = bytes.len() as u64;
        if count > self.granted {
            return self.told_closed;
        }
        self.granted -= count;
        if self.pipe.is_some() {
            self.buffer.extend(bytes);
        }
        true
    }

    /// No more will come.
    pub fn end(&mut self) {
        self.ended = true;
    }

    /// mio has reported on the pipe: room, or the reader has gone.
    pub fn mark(&mut self, reader_gone: bool) {
        self.writable = true;
        if reader_gone {
            self.pipe = None;
        }
    }

    /// Node 0 is on another host, which says what becomes of the input.
    pub fn leave_to_others(&mut self) {
        self.told_closed = true;
    }

    /// Node 0 reads no more, or never did.
    pub fn close(&mut self) {
        self.pipe = None;
        self.settled = true;
    }

    /// Writes what the pipe takes and grants as much anew.
    pub fn pump(&mut self, reports: &mut Reports) {
        if !self.settled {
            return;
        }
        let mut written = 0u64;
        while let Some(pipe) = &self.pipe {
            if self.buffer.is_empty() {
                if self.ended {
                    self.pipe = None;
                }
                break;
            }
            if !self.writable {
                break;
            }
            let (front, back) = self.buffer.as_slices();
            match nix::sys::uio::writev(pipe, &[IoSlice::new(front), IoSlice::new(back)]) {
                Ok(count) => {
                    self.buffer.drain(..count);
                    written += count as u64;
                }
                Err(Errno::EINTR) => {}
                Err(Errno::EAGAIN) => self.writable = false,
                Err(_) => self.pipe = None,
            }
        }
        if self.pipe.is_none() {
            self.buffer = VecDeque::new();
            if !self.told_closed && !self.ended {
                reports.add(Report::StdinClosed);
            }
            self.told_closed = true;
        } else if written > 0 && !self.ended {
            self.granted += written;
            reports.add(Report::StdinWindow(written));
        }
    }
}
