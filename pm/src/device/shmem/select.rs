//! Blocking receive (manual 3.3): the bell that a sleeping receiver waits for.

#![forbid(unsafe_code)]

use super::Endpoint;
use crate::barrier;
use crate::door::ARMED;
use crate::doorbell::Bell;
use crate::error::{Error, Result};
use crate::sync::{Local, Ordering};
use std::os::fd::{AsRawFd, BorrowedFd, RawFd};
use std::sync::{Mutex, MutexGuard, PoisonError};

#[derive(Default)]
pub(super) struct Sleeper {
    /// Hung when it is first needed.
    bell: Mutex<Option<Bell>>,
    /// Between `before_select` and `after_select`.
    selecting: Local,
}

impl Sleeper {
    fn bell(&self) -> MutexGuard<'_, Option<Bell>> {
        self.bell.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Gives the bell's name up.
    pub(super) fn hang_up(&self) {
        self.bell().take();
    }
}

impl Endpoint {
    /// The descriptor that becomes readable; the same until the context goes.
    pub(crate) fn fd(&self) -> Result<RawFd> {
        let mut bell = self.select.bell();
        if bell.is_none() {
            *bell = Some(Bell::new(self.segment.nonce(), self.own as usize)?);
        }
        Ok(bell.as_ref().map_or(-1, |bell| bell.fd().as_raw_fd()))
    }

    /// Hands out the bell's descriptor.
    pub(crate) fn with_bell<T>(&self, f: impl FnOnce(BorrowedFd<'_>) -> Result<T>) -> Result<T> {
        self.fd()?;
        f(self.select.bell().as_ref().ok_or(Error::Io)?.fd())
    }

    pub(crate) fn before_select(&self) -> Result<()> {
        self.fd()?;
        self.select.selecting.set(1);
        self.record().door.0.arm(barrier::issue);
        Ok(())
    }

    pub(crate) fn after_select(&self) {
        if self.is_selecting() {
            self.select.selecting.set(0);
            self.record().door.0.0.fetch_and(!ARMED, Ordering::AcqRel);
        }
    }

    #[inline(always)]
    pub(crate) fn is_selecting(&self) -> bool {
        self.select.selecting.get() != 0
    }

    /// Figure 3.4 never reads its descriptors and arms once: so every poll that finds nothing
    /// silences the bell, arms again if somebody rang, and looks once more at every ring. If that
    /// finds nothing, whatever comes rings.
    pub(crate) fn look_again(&self) -> Option<u32> {
        if let Some(bell) = self.select.bell().as_ref() {
            bell.silence();
        }
        if self.record().door.0.bits() & ARMED == 0 {
            self.record().door.0.arm(barrier::issue);
        }
        self.find_anywhere()
    }
}
