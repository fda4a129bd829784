//! The control socket to the shepherd. Any number of threads may make calls at the same time. Every
//! call has its own number, and one of the waiting threads reads the replies for all.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

use nix::errno::Errno;
use nix::sys::socket::{MsgFlags, recv, send};
use score_proto::frame;
use score_proto::message::{Call, Reply};

use crate::sync::{AtomicU32, Ordering};

/// The longest reply to a call.
const MAX_REPLY_LEN: usize = 4096;

/// The socket and the pending calls.
pub(crate) struct Control {
    socket: OwnedFd,
    next_id: AtomicU32,
    inbox: Mutex<Inbox>,
    reply_received: Condvar,
}

#[derive(Default)]
struct Inbox {
    /// Whether a thread is in recv().
    is_reading: bool,
    /// The pending calls and their replies: number and error.
    pending_calls: Vec<(u32, Option<i32>)>,
}

impl Control {
    pub(crate) fn new(socket: OwnedFd) -> Self {
        let inbox = Mutex::default();
        Self { socket, next_id: AtomicU32::new(1), inbox, reply_received: Condvar::new() }
    }

    /// The socket, for the first messages. This module does not send them.
    pub(crate) fn socket(&self) -> &OwnedFd {
        &self.socket
    }

    /// Makes the call that `call` builds from its number, and waits for the reply.
    ///
    /// # Errors
    /// The error in the shepherd's reply. If the shepherd has ended, the process ends.
    pub(crate) fn call(&self, call: impl FnOnce(u32) -> Call) -> io::Result<()> {
        let id = self.next_id.fetch_add(1, Ordering::Relaxed);
        self.lock().pending_calls.push((id, None));
        match frame::encode_datagram(&call(id)) {
            Ok(bytes) => self.send(&bytes),
            Err(e) => exit_with_reason(&format!("cannot send a call: {e}")),
        }
        match self.wait_for_reply(id) {
            0 => Ok(()),
            error => Err(io::Error::from_raw_os_error(error)),
        }
    }

    /// Makes a call that has no reply.
    pub(crate) fn send_call(&self, call: &Call) {
        match frame::encode_datagram(call) {
            Ok(bytes) => self.send(&bytes),
            Err(e) => exit_with_reason(&format!("cannot send a call: {e}")),
        }
    }

    /// Sends one datagram, or ends the process. Uses no heap and no lock.
    pub(crate) fn send(&self, bytes: &[u8]) {
        loop {
            match send(self.socket.as_raw_fd(), bytes, MsgFlags::MSG_NOSIGNAL) {
                Ok(_) => return,
                Err(Errno::EINTR) => {}
                Err(_) => exit_with_reason("lost the connection to SCore-D"),
            }
        }
    }

    /// Waits until the shepherd ends this process.
    pub(crate) fn wait_until_ended(&self) -> ! {
        let mut byte = [0; 1];
        // Replies to other threads that are lost here are no longer needed.
        while matches!(
            recv(self.socket.as_raw_fd(), &mut byte, MsgFlags::empty()),
            Ok(1..) | Err(Errno::EINTR)
        ) {}
        exit_with_reason("lost the connection to SCore-D")
    }

    fn wait_for_reply(&self, id: u32) -> i32 {
        let mut inbox = self.lock();
        loop {
            if let Some(index) = inbox.pending_calls.iter().position(|c| c.0 == id && c.1.is_some())
            {
                return inbox.pending_calls.swap_remove(index).1.unwrap_or(0);
            }
            if inbox.is_reading {
                inbox = self.reply_received.wait(inbox).unwrap_or_else(PoisonError::into_inner);
                continue;
            }
            inbox.is_reading = true;
            drop(inbox);
            let reply = self.read_reply();
            inbox = self.lock();
            inbox.is_reading = false;
            if let Some(call) = inbox.pending_calls.iter_mut().find(|call| call.0 == reply.0) {
                call.1 = Some(reply.1);
            }
            self.reply_received.notify_all();
        }
    }

    /// Reads the next reply. After score_initialize the shepherd sends no other messages.
    fn read_reply(&self) -> (u32, i32) {
        let mut bytes = [0; MAX_REPLY_LEN];
        let len = loop {
            match recv(self.socket.as_raw_fd(), &mut bytes, MsgFlags::MSG_TRUNC) {
                // A stop and continue of the whole job interrupts the call, but it must not
                // affect the program.
                Err(Errno::EINTR) => {}
                Ok(0) | Err(_) => exit_with_reason("lost the connection to SCore-D"),
                Ok(len) => break len,
            }
        };
        match bytes.get(..len).map(frame::decode_datagram) {
            Some(Ok(Reply::Done { id, error })) => (id, error),
            Some(Ok(Reply::Refused(reason))) => exit_with_reason(&reason),
            _ => exit_with_reason("SCore-D sent a message that is not a reply to a call"),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Inbox> {
        self.inbox.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Ends the process, which can no longer be a node and would wait for ever. Exit handlers do not
/// run, because they may call SCore-D again.
fn exit_with_reason(reason: &str) -> ! {
    let node = crate::self_node();
    crate::stdio::print_line(format_args!("score: node {node}: {reason}; the process ends"));
    crate::exit::exit_immediately(1)
}
