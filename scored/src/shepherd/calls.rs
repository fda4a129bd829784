//! The control sockets: one for each process, datagrams both ways. What comes from there is
//! hostile until it has been decoded.

use std::collections::VecDeque;
use std::io::{self, IoSlice};
use std::os::fd::{AsRawFd, OwnedFd, RawFd};

use mio::unix::SourceFd;
use mio::{Interest, Registry, Token};
use nix::errno::Errno;
use nix::sys::socket::{ControlMessage, MsgFlags, recv, sendmsg};
use score_proto::frame;
use score_proto::message::{Call, Reply};

use super::work::At;

/// The longest call: sc_inspectme with a display name.
const LONGEST_CALL: usize = 16 * 1024;
/// Answers that a process may leave unread before it counts as hostile.
const MOST_UNREAD: usize = 64;
/// Calls of one process before it is the next one's turn.
const TURN: usize = 8;

#[derive(Debug)]
struct Control {
    at: At,
    socket: OwnedFd,
    unsent: VecDeque<(Vec<u8>, Vec<OwnedFd>)>,
    queued: bool,
}

/// What was found on a control socket.
#[derive(Debug)]
pub enum Heard {
    /// A call.
    Call(At, Call),
    /// Something else: the process is broken or hostile.
    Garbage(At, String),
}

/// The control sockets of the running stage, element by element, node by node.
#[derive(Debug, Default)]
pub struct Controls {
    all: Vec<Option<Control>>,
    /// This host's first node, and how many there are.
    first: u32,
    nodes: usize,
    ready: VecDeque<usize>,
    scratch: Vec<u8>,
}

impl Controls {
    /// Forgets the last stage's sockets and makes room for those of the next.
    pub fn reset(&mut self, elements: usize, first: u32, nodes: u32) {
        (self.first, self.nodes) = (first, nodes as usize);
        self.all.clear();
        self.all.resize_with(elements * self.nodes, || None);
        self.ready.clear();
        self.scratch.resize(LONGEST_CALL, 0);
    }

    fn number(&self, at: At) -> usize {
        at.element as usize * self.nodes + (at.node - self.first) as usize
    }

    /// Takes our end of a process's control socket.
    ///
    /// # Errors
    /// As epoll_ctl(2).
    pub fn add(
        &mut self,
        at: At,
        socket: OwnedFd,
        registry: &Registry,
        token: impl Fn(usize) -> Token,
    ) -> io::Result<()> {
        let number = self.number(at);
        registry.register(
            &mut SourceFd(&socket.as_raw_fd()),
            token(number),
            Interest::READABLE | Interest::WRITABLE,
        )?;
        if let Some(slot) = self.all.get_mut(number) {
            *slot = Some(Control { at, socket, unsent: VecDeque::new(), queued: false });
        }
        Ok(())
    }

    /// mio has reported on a socket.
    pub fn mark_ready(&mut self, number: usize) {
        if let Some(Some(control)) = self.all.get_mut(number) {
            control.send_queued();
            if !control.queued {
                control.queued = true;
                self.ready.push_back(number);
            }
        }
    }

    /// Has the socket of one process read next: it has ended, and what it said comes before that.
    pub fn mark_ended(&mut self, at: At) {
        let number = self.number(at);
        self.mark_ready(number);
    }

    /// Whether [`Controls::hear`] may find something.
    pub fn is_runnable(&self) -> bool {
        !self.ready.is_empty()
    }

    /// The next things that have come, from as many processes as are ready.
    pub fn hear(&mut self) -> Vec<Heard> {
        let mut heard = Vec::new();
        for _ in 0..self.ready.len() {
            let Some(number) = self.ready.pop_front() else { break };
            let Some(control) = &mut self.all[number] else { continue };
            control.queued = false;
            match control.hear(&mut self.scratch, &mut heard) {
                Next::Later => {}
                Next::More => self.mark_ready(number),
                Next::Gone => self.all[number] = None,
            }
        }
        heard
    }

    /// Forgets the socket of a process.
    pub fn remove(&mut self, at: At) {
        let number = self.number(at);
        if let Some(slot) = self.all.get_mut(number) {
            *slot = None;
        }
    }

    /// Answers a process, descriptors included. False when it has left too much unread.
    pub fn answer(&mut self, at: At, reply: &Reply, descriptors: Vec<OwnedFd>) -> bool {
        let number = self.number(at);
        let Some(Some(control)) = self.all.get_mut(number) else { return true };
        let Ok(bytes) = frame::encode_datagram(reply) else { return false };
        control.unsent.push_back((bytes, descriptors));
        control.send_queued();
        control.unsent.len() <= MOST_UNREAD
    }
}

enum Next {
    Later,
    More,
    Gone,
}

impl Control {
    fn hear(&mut self, scratch: &mut [u8], heard: &mut Vec<Heard>) -> Next {
        for _ in 0..TURN {
            let flags = MsgFlags::MSG_DONTWAIT | MsgFlags::MSG_TRUNC;
            let count = match recv(self.socket.as_raw_fd(), scratch, flags) {
                Ok(0) => return Next::Gone,
                Ok(count) => count,
                Err(Errno::EINTR) => continue,
                Err(Errno::EAGAIN) => return Next::Later,
                Err(_) => return Next::Gone,
            };
            let call = scratch.get(..count).map(frame::decode_datagram::<Call>);
            if let Some(Ok(call)) = call {
                heard.push(Heard::Call(self.at, call));
            } else {
                let what = format!("{count} bytes on its control socket are no call");
                heard.push(Heard::Garbage(self.at, what));
                return Next::Gone;
            }
        }
        Next::More
    }

    fn send_queued(&mut self) {
        while let Some((bytes, descriptors)) = self.unsent.front() {
            let raw: Vec<RawFd> = descriptors.iter().map(AsRawFd::as_raw_fd).collect();
            let rights = [ControlMessage::ScmRights(&raw)];
            let rights = if raw.is_empty() { &[][..] } else { &rights[..] };
            let flags = MsgFlags::MSG_DONTWAIT | MsgFlags::MSG_NOSIGNAL;
            let iov = [IoSlice::new(bytes)];
            match sendmsg::<()>(self.socket.as_raw_fd(), &iov, rights, flags, None) {
                Err(Errno::EAGAIN) => return,
                Err(Errno::EINTR) => {}
                // Sent, or nobody is there to read it.
                _ => {
                    self.unsent.pop_front();
                }
            }
        }
    }
}
