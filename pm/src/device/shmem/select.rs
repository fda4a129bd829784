//! Blocking receive (manual 3.3): the doorbell that a sleeping receiver waits for.

#![forbid(unsafe_code)]

use super::ShmemEndpoint;
use crate::device::SelectInterface;
use crate::doorbell::DoorbellReceiver;
use crate::error::{Error, PmResult};
use crate::membarrier;
use crate::receiver_state::SLEEPING;
use crate::sync::{Ordering, SingleWriterU64};
use std::os::fd::{AsRawFd, BorrowedFd, RawFd};
use std::sync::{Mutex, MutexGuard, PoisonError};

#[derive(Default)]
pub(super) struct ShmemSelectState {
    /// The doorbell, which is created at its first use.
    doorbell: Mutex<Option<DoorbellReceiver>>,
    /// Whether the context is between `before_select` and `after_select`.
    is_selecting: SingleWriterU64,
}

impl ShmemSelectState {
    fn lock_doorbell(&self) -> MutexGuard<'_, Option<DoorbellReceiver>> {
        self.doorbell.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Gives up the doorbell's name.
    pub(super) fn close_doorbell(&self) {
        self.lock_doorbell().take();
    }
}

impl SelectInterface for ShmemEndpoint {
    fn fd(&self) -> PmResult<RawFd> {
        let mut doorbell = self.select.lock_doorbell();
        if doorbell.is_none() {
            *doorbell = Some(DoorbellReceiver::new(self.segment.nonce(), self.self_node as usize)?);
        }
        Ok(doorbell.as_ref().map_or(-1, |doorbell| doorbell.fd().as_raw_fd()))
    }

    fn with_doorbell_fd<T>(
        &self,
        action: impl FnOnce(BorrowedFd<'_>) -> PmResult<T>,
    ) -> PmResult<T> {
        self.fd()?;
        action(self.select.lock_doorbell().as_ref().ok_or(Error::Io)?.fd())
    }

    fn before_select(&self) -> PmResult<()> {
        self.fd()?;
        self.select.is_selecting.set(1);
        self.record().receiver_state.0.set_sleeping(membarrier::issue);
        Ok(())
    }

    fn after_select(&self) {
        if self.is_selecting() {
            self.select.is_selecting.set(0);
            self.record().receiver_state.0.0.fetch_and(!SLEEPING, Ordering::AcqRel);
        }
    }

    #[inline(always)]
    fn is_selecting(&self) -> bool {
        self.select.is_selecting.get() != 0
    }

    fn rearm_and_rescan(&self) -> Option<u32> {
        if let Some(doorbell) = self.select.lock_doorbell().as_ref() {
            doorbell.drain();
        }
        if self.record().receiver_state.0.bits() & SLEEPING == 0 {
            self.record().receiver_state.0.set_sleeping(membarrier::issue);
        }
        self.find_in_all_rings()
    }
}
