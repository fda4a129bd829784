//! Blocking receive (manual 3.3): while a receiver sleeps, a thread hears what comes, and rings
//! when it delivers a message.

#![forbid(unsafe_code)]

use super::{Endpoint, Network};
use crate::error::{Error, Result};
use crate::segment::from_errno;
use crate::sync::Local;
use nix::sys::eventfd::{EfdFlags, EventFd};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::sync::OnceLock;

#[derive(Default)]
pub(crate) struct Sleeper {
    /// Made when it is first needed.
    event: OnceLock<EventFd>,
    /// Between `before_select` and `after_select`.
    selecting: Local,
}

impl Sleeper {
    /// Wakes who selects.
    pub(crate) fn ring(&self) {
        if let Some(event) = self.event.get() {
            // A full counter is as good as a ring.
            let _ = event.write(1);
        }
    }
}

impl<N: Network> Endpoint<N> {
    fn event(&self) -> Result<&EventFd> {
        if let Some(event) = self.select.event.get() {
            return Ok(event);
        }
        let flags = EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK;
        let event = EventFd::from_flags(flags).map_err(from_errno)?;
        let _ = self.select.event.set(event);
        self.select.event.get().ok_or(Error::Io)
    }

    /// The descriptor that becomes readable; the same until the context goes.
    pub(crate) fn fd(&self) -> Result<RawFd> {
        Ok(self.event()?.as_fd().as_raw_fd())
    }

    /// Hands out the bell's descriptor.
    pub(crate) fn with_bell<T>(&self, f: impl FnOnce(BorrowedFd<'_>) -> Result<T>) -> Result<T> {
        f(self.event()?.as_fd())
    }

    pub(crate) fn before_select(&self) -> Result<()> {
        self.event()?;
        self.select.selecting.set(1);
        self.lanes.bell.arm();
        N::watch(self);
        Ok(())
    }

    pub(crate) fn after_select(&self) {
        if self.is_selecting() {
            self.select.selecting.set(0);
            self.lanes.bell.disarm();
        }
    }

    #[inline(always)]
    pub(crate) fn is_selecting(&self) -> bool {
        self.select.selecting.get() != 0
    }

    /// Figure 3.4 never reads its descriptors and arms once: so every poll that finds nothing
    /// silences the bell, arms again, and looks once more. If that finds nothing, whatever comes
    /// rings.
    pub(crate) fn look_again(&self) -> Option<u32> {
        if let Ok(event) = self.event() {
            let _ = event.read();
        }
        self.lanes.bell.arm();
        N::watch(self);
        self.find()
    }
}
