//! A network set (manual 2.1) for Rust programs. It implements figures 2.9, 2.10 and 3.4 of the
//! manual.

use std::io;
use std::os::fd::BorrowedFd;

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, ppoll};
use score_proto::carea::WaitingFor;

use crate::pm::Context;
use crate::pm_h::pmContext;
use crate::{Message, globals, idle, session};

/// Empty polls before [`Net::receive_blocking`] sleeps. On a host with more runnable processes than
/// processors, the function sleeps after one empty poll.
const POLLS_BEFORE_BLOCKING: usize = 1000;

/// One network set: a composite context that reaches every other node.
#[derive(Debug)]
pub struct Net {
    context: Context,
    descriptors: Vec<BorrowedFd<'static>>,
}

impl Net {
    /// Network set number `set`, counted from 0. `None`: there is no such set. A parallel process
    /// of one node has no set, and no process has one before [`crate::initialize`].
    pub fn open(set: usize) -> Option<Self> {
        let context = globals::context(set)?;
        Some(Self { context, descriptors: Vec::new() })
    }

    /// The context for C functions.
    pub fn as_ptr(&self) -> *mut pmContext {
        self.context.as_ptr()
    }

    /// Node number of this process.
    pub fn self_node(&self) -> usize {
        globals::self_node()
    }

    /// Nodes of this parallel process.
    pub fn num_node(&self) -> usize {
        globals::num_node()
    }

    /// The longest message that can be sent to `dest`.
    ///
    /// # Errors
    /// EINVAL: there is no such node.
    pub fn mtu(&self, dest: usize) -> io::Result<usize> {
        self.context.mtu(node(dest))
    }

    /// Sends a copy of `bytes` if there is space now. Returns false if there is no space.
    ///
    /// # Errors
    /// EINVAL: no such node, or a length of 0 or above the MTU.
    pub fn try_send(&self, dest: usize, bytes: &[u8]) -> io::Result<bool> {
        self.try_send_with(dest, bytes.len(), |buffer| buffer.copy_from_slice(bytes))
    }

    /// Lets `fill` write `len` bytes into the send buffer, and sends them, if there is space now.
    /// Returns false if there is no space.
    ///
    /// # Errors
    /// Those of [`Self::try_send`].
    pub fn try_send_with(
        &self,
        dest: usize,
        len: usize,
        fill: impl FnOnce(&mut [u8]),
    ) -> io::Result<bool> {
        let fill_all = |buffer: &mut [u8]| {
            fill(buffer);
            (buffer.len(), ())
        };
        Ok(ready_or_none(self.context.send_with(node(dest), len, fill_all))?.is_some())
    }

    /// Sends a copy of `bytes`. Waits for space.
    ///
    /// # Errors
    /// Those of [`Self::try_send`].
    pub fn send(&self, dest: usize, bytes: &[u8]) -> io::Result<()> {
        self.send_with(dest, bytes.len(), |buffer| {
            buffer.copy_from_slice(bytes);
            (buffer.len(), ())
        })
    }

    /// Waits for space for `len` bytes and lets `fill` write them into the send buffer. `fill`
    /// returns the number of bytes to send and any value for the caller. A buffer cannot be
    /// returned unused (manual 2.5). Therefore a number out of range sends all bytes.
    ///
    /// # Errors
    /// EINVAL: no such node, or a length of 0 or above the MTU.
    pub fn send_with<T>(
        &self,
        dest: usize,
        len: usize,
        fill: impl FnOnce(&mut [u8]) -> (usize, T),
    ) -> io::Result<T> {
        let mut fill = Some(fill);
        let mut attempt = || {
            let fill_once = |buffer: &mut [u8]| match fill.take() {
                Some(fill) => {
                    idle::become_busy();
                    let (used, result) = fill(buffer);
                    (used, Some(result))
                }
                None => (buffer.len(), None),
            };
            ready_or_none(self.context.send_with(node(dest), len, fill_once))
        };
        let mut sent = attempt()?;
        if sent.is_none() {
            idle::wait_idle(WaitingFor::SendBuffer);
            while sent.is_none() {
                sent = attempt().inspect_err(|_| idle::become_busy())?;
            }
        }
        // `fill` runs exactly once, in the attempt that found space.
        sent.flatten().ok_or_else(|| io::ErrorKind::Other.into())
    }

    /// The next message, if there is one.
    ///
    /// # Errors
    /// EIO: an error of the network.
    pub fn try_receive(&self) -> io::Result<Option<Message<'_>>> {
        let bytes = ready_or_none(self.context.receive())?;
        Ok(bytes.map(|bytes| Message::new(self.context, bytes)))
    }

    /// Waits for the next message without releasing the processor (manual, figure 2.9).
    ///
    /// # Errors
    /// EIO: an error of the network.
    pub fn receive_spin(&self) -> io::Result<Message<'_>> {
        if let Some(message) = self.try_receive()? {
            idle::become_busy();
            return Ok(message);
        }
        idle::become_idle();
        let result = loop {
            match self.try_receive().transpose() {
                Some(result) => break result,
                None => std::hint::spin_loop(),
            }
        };
        idle::become_busy();
        result
    }

    /// Waits for the next message. Polls for a short time, then sleeps (manual, figure 3.4).
    ///
    /// # Errors
    /// EIO: an error of the network; ENOMEM, EMFILE: no descriptor to sleep on.
    pub fn receive_blocking(&mut self) -> io::Result<Message<'_>> {
        let is_oversubscribed = session::get().is_some_and(|session| session.oversubscribed);
        let max_polls = if is_oversubscribed { 1 } else { POLLS_BEFORE_BLOCKING };
        if self.descriptors.is_empty() {
            self.descriptors = self.context.descriptors()?;
        }
        idle::wait_idle(WaitingFor::Select);
        let received = self.poll_then_sleep(max_polls);
        idle::become_busy();
        Ok(Message::new(self.context, received?))
    }

    /// The descriptors to wait on between [`Self::before_select`] and [`Self::after_select`]. The
    /// caller may wait on other descriptors at the same time.
    ///
    /// # Errors
    /// ENOMEM, EMFILE: no descriptor is available.
    pub fn descriptors(&self) -> io::Result<Vec<BorrowedFd<'static>>> {
        self.context.descriptors()
    }

    /// Makes arriving messages wake the process. The process may sleep only after
    /// [`Self::try_receive`] has then found no message (manual 3.3).
    ///
    /// # Errors
    /// ENOMEM, EMFILE: no descriptor to sleep on.
    pub fn before_select(&self) -> io::Result<()> {
        self.context.before_select()
    }

    /// Undoes [`Self::before_select`].
    ///
    /// # Errors
    /// EIO: an error of the network.
    pub fn after_select(&self) -> io::Result<()> {
        self.context.after_select()
    }

    fn poll_then_sleep<'m>(&self, max_polls: usize) -> io::Result<&'m [u8]> {
        for _ in 0..max_polls {
            if let Some(bytes) = ready_or_none(self.context.receive())? {
                return Ok(bytes);
            }
        }
        self.context.before_select()?;
        let received = loop {
            match ready_or_none(self.context.receive()).transpose() {
                Some(received) => break received,
                None => {
                    if let Err(e) = self.sleep() {
                        break Err(e);
                    }
                }
            }
        };
        self.context.after_select()?;
        received
    }

    /// Sleeps until a descriptor may be ready; a wake-up without a message is normal.
    fn sleep(&self) -> io::Result<()> {
        let mut poll_fds: Vec<PollFd<'_>> =
            self.descriptors.iter().map(|fd| PollFd::new(*fd, PollFlags::POLLIN)).collect();
        // This is not poll(): if the job is stopped during poll(), the kernel can no longer report
        // the wait.
        match ppoll(&mut poll_fds, None, None) {
            Ok(_) | Err(Errno::EINTR) => Ok(()),
            Err(e) => Err(e.into()),
        }
    }
}

/// Converts a node number for PM. A number above u32::MAX becomes a number that PM refuses.
fn node(dest: usize) -> u32 {
    u32::try_from(dest).unwrap_or(u32::MAX)
}

/// `None`: there is no message or no space now, or another thread is in the call.
fn ready_or_none<T>(result: io::Result<T>) -> io::Result<Option<T>> {
    match result {
        Ok(value) => Ok(Some(value)),
        Err(e) => match e.raw_os_error().map(Errno::from_raw) {
            Some(Errno::ENOBUFS | Errno::EBUSY) => Ok(None),
            _ => Err(e),
        },
    }
}
