//! Blocking receive (manual 3.3). While a receiver sleeps, the progress thread watches the network.
//! A thread that delivers a message wakes the receiver by the event descriptor.

#![forbid(unsafe_code)]

use super::{NetworkDevice, NetworkEndpoint};
use crate::device::{ReceiveInterface, SelectInterface};
use crate::error::{Error, PmResult, from_errno};
use crate::sync::SingleWriterU64;
use nix::sys::eventfd::{EfdFlags, EventFd};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::sync::OnceLock;

#[derive(Default)]
pub(crate) struct NetworkSelectState {
    /// The event descriptor, which is created when it is first needed.
    event_fd: OnceLock<EventFd>,
    /// The word is not 0 between `before_select` and `after_select`.
    selecting: SingleWriterU64,
}

impl NetworkSelectState {
    /// Wakes the sleeping receiver.
    pub(crate) fn notify(&self) {
        if let Some(event) = self.event_fd.get() {
            // The write fails if the counter is full, but a full counter also wakes the receiver.
            let _ = event.write(1);
        }
    }
}

impl<N: NetworkDevice> SelectInterface for NetworkEndpoint<N> {
    fn fd(&self) -> PmResult<RawFd> {
        Ok(self.event_fd()?.as_fd().as_raw_fd())
    }

    fn with_doorbell_fd<T>(
        &self,
        action: impl FnOnce(BorrowedFd<'_>) -> PmResult<T>,
    ) -> PmResult<T> {
        action(self.event_fd()?.as_fd())
    }

    fn before_select(&self) -> PmResult<()> {
        self.event_fd()?;
        self.select.selecting.set(1);
        self.queues.wakeup_flag.set_sleeping();
        N::arm_wakeup(self);
        Ok(())
    }

    fn after_select(&self) {
        if self.is_selecting() {
            self.select.selecting.set(0);
            self.queues.wakeup_flag.clear_sleeping();
        }
    }

    #[inline(always)]
    fn is_selecting(&self) -> bool {
        self.select.selecting.get() != 0
    }

    fn rearm_and_rescan(&self) -> Option<u32> {
        if let Ok(event) = self.event_fd() {
            let _ = event.read();
        }
        self.queues.wakeup_flag.set_sleeping();
        N::arm_wakeup(self);
        self.find()
    }
}

impl<N: NetworkDevice> NetworkEndpoint<N> {
    fn event_fd(&self) -> PmResult<&EventFd> {
        if let Some(event) = self.select.event_fd.get() {
            return Ok(event);
        }
        let flags = EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK;
        let event_fd = EventFd::from_flags(flags).map_err(from_errno)?;
        let _ = self.select.event_fd.set(event_fd);
        self.select.event_fd.get().ok_or(Error::Io)
    }
}
