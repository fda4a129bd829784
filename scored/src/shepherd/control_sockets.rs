//! The control sockets: one for each process, datagrams both ways. Received data is untrusted
//! until it has been decoded.

use std::collections::VecDeque;
use std::io::{self, IoSlice};
use std::os::fd::{AsRawFd, OwnedFd, RawFd};

use mio::unix::SourceFd;
use mio::{Interest, Registry, Token};
use nix::errno::Errno;
use nix::sys::socket::{ControlMessage, MsgFlags, recv, sendmsg};
use score_proto::frame;
use score_proto::message::{Call, Reply};

use super::job_info::ProcessKey;

/// The longest call: sc_inspectme with a display name.
const MAX_CALL_LEN: usize = 16 * 1024;
/// Replies that a process may leave unread before it counts as hostile.
const MAX_UNREAD_REPLIES: usize = 64;
/// Calls that are read from one process before the next process is served.
const CALLS_PER_TICK: usize = 8;

#[derive(Debug)]
struct ControlSocket {
    key: ProcessKey,
    socket: OwnedFd,
    unsent: VecDeque<(Vec<u8>, Vec<OwnedFd>)>,
    is_queued: bool,
}

/// What was received on a control socket.
#[derive(Debug)]
pub enum ControlEvent {
    /// A call.
    Call(ProcessKey, Call),
    /// Not a call: the process is faulty or hostile.
    Malformed(ProcessKey, String),
}

/// The control sockets of the running stage, element by element, node by node.
#[derive(Debug, Default)]
pub struct ControlSockets {
    sockets: Vec<Option<ControlSocket>>,
    /// This host's first node.
    first_node: u32,
    /// Number of this host's nodes.
    node_count: usize,
    ready: VecDeque<usize>,
    scratch: Vec<u8>,
}

impl ControlSockets {
    /// Drops the sockets of the last stage and allocates entries for the next stage.
    pub fn reset(&mut self, element_count: usize, first_node: u32, node_count: u32) {
        (self.first_node, self.node_count) = (first_node, node_count as usize);
        self.sockets.clear();
        self.sockets.resize_with(element_count * self.node_count, || None);
        self.ready.clear();
        self.scratch.resize(MAX_CALL_LEN, 0);
    }

    fn index(&self, key: ProcessKey) -> usize {
        key.element as usize * self.node_count + (key.node - self.first_node) as usize
    }

    /// Takes the shepherd's end of a process's control socket.
    ///
    /// # Errors
    /// As epoll_ctl(2).
    pub fn add(
        &mut self,
        key: ProcessKey,
        socket: OwnedFd,
        registry: &Registry,
        token: impl Fn(usize) -> Token,
    ) -> io::Result<()> {
        let index = self.index(key);
        registry.register(
            &mut SourceFd(&socket.as_raw_fd()),
            token(index),
            Interest::READABLE | Interest::WRITABLE,
        )?;
        if let Some(entry) = self.sockets.get_mut(index) {
            *entry = Some(ControlSocket { key, socket, unsent: VecDeque::new(), is_queued: false });
        }
        Ok(())
    }

    /// mio has reported on a socket.
    pub fn mark_ready(&mut self, index: usize) {
        if let Some(Some(control)) = self.sockets.get_mut(index) {
            control.send_queued();
            if !control.is_queued {
                control.is_queued = true;
                self.ready.push_back(index);
            }
        }
    }

    /// Queues the socket of a process that has exited, so that its last calls are handled before
    /// its exit.
    pub fn mark_exited(&mut self, key: ProcessKey) {
        let index = self.index(key);
        self.mark_ready(index);
    }

    /// Whether [`ControlSockets::receive_events`] may return events.
    pub fn is_runnable(&self) -> bool {
        !self.ready.is_empty()
    }

    /// Receives the next events of all processes whose sockets are ready.
    pub fn receive_events(&mut self) -> Vec<ControlEvent> {
        let mut events = Vec::new();
        for _ in 0..self.ready.len() {
            let Some(index) = self.ready.pop_front() else { break };
            let Some(control) = &mut self.sockets[index] else { continue };
            control.is_queued = false;
            match control.receive(&mut self.scratch, &mut events) {
                ReadResult::WouldBlock => {}
                ReadResult::More => self.mark_ready(index),
                ReadResult::Closed => self.sockets[index] = None,
            }
        }
        events
    }

    /// Drops the socket of a process.
    pub fn remove(&mut self, key: ProcessKey) {
        let index = self.index(key);
        if let Some(entry) = self.sockets.get_mut(index) {
            *entry = None;
        }
    }

    /// Sends a reply with descriptors to a process. False if the process has left too many replies
    /// unread.
    pub fn answer(&mut self, key: ProcessKey, reply: &Reply, descriptors: Vec<OwnedFd>) -> bool {
        let index = self.index(key);
        let Some(Some(control)) = self.sockets.get_mut(index) else { return true };
        let Ok(bytes) = frame::encode_datagram(reply) else { return false };
        control.unsent.push_back((bytes, descriptors));
        control.send_queued();
        control.unsent.len() <= MAX_UNREAD_REPLIES
    }
}

enum ReadResult {
    WouldBlock,
    More,
    Closed,
}

impl ControlSocket {
    fn receive(&mut self, scratch: &mut [u8], events: &mut Vec<ControlEvent>) -> ReadResult {
        for _ in 0..CALLS_PER_TICK {
            let flags = MsgFlags::MSG_DONTWAIT | MsgFlags::MSG_TRUNC;
            let count = match recv(self.socket.as_raw_fd(), scratch, flags) {
                Ok(0) => return ReadResult::Closed,
                Ok(count) => count,
                Err(Errno::EINTR) => continue,
                Err(Errno::EAGAIN) => return ReadResult::WouldBlock,
                Err(_) => return ReadResult::Closed,
            };
            let call = scratch.get(..count).map(frame::decode_datagram::<Call>);
            if let Some(Ok(call)) = call {
                events.push(ControlEvent::Call(self.key, call));
            } else {
                let violation = format!("{count} bytes on its control socket are no call");
                events.push(ControlEvent::Malformed(self.key, violation));
                return ReadResult::Closed;
            }
        }
        ReadResult::More
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
                // Sent, or the process has closed its end.
                _ => {
                    self.unsent.pop_front();
                }
            }
        }
    }
}
