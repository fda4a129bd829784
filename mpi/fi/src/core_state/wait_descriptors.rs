//! The descriptors for waiting without polling (`FI_WAIT_FD`, fi_cq(3)). The descriptors of PM
//! (pmGetFd and pmBeforeSelect, manual 3.3) are added to an epoll descriptor, on which programs
//! wait.
//!
//! The epoll descriptor becomes readable when a message has arrived, and also when another thread
//! of the process has made progress. That thread may have received the message that the waiting
//! thread needs.

use std::ffi::c_int;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};

use super::CoreState;

/// The descriptors of the process.
pub(crate) struct WaitDescriptors {
    /// The descriptor that programs wait on. It contains the others.
    epoll: OwnedFd,
    /// Wakes a thread that waits.
    event: OwnedFd,
    /// The descriptors of PM that `epoll` contains.
    pm_fds: Vec<RawFd>,
}

/// Owns a new descriptor that a system call has returned.
fn owned(fd: c_int) -> Option<OwnedFd> {
    // SAFETY: the descriptor is new, so it has no other owner.
    (fd >= 0).then(|| unsafe { OwnedFd::from_raw_fd(fd) })
}

impl WaitDescriptors {
    fn open() -> Option<Self> {
        // SAFETY: the call only makes a descriptor.
        let epoll = owned(unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) })?;
        // SAFETY: as above.
        let event = owned(unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) })?;
        let opened = Self { epoll, event, pm_fds: Vec::new() };
        opened.contain(opened.event.as_raw_fd()).then_some(opened)
    }

    /// Adds a descriptor to the epoll descriptor.
    fn contain(&self, fd: RawFd) -> bool {
        let mut event = libc::epoll_event { events: libc::EPOLLIN as u32, u64: 0 };
        let epoll = self.epoll.as_raw_fd();
        // SAFETY: the arguments are descriptors and an event.
        unsafe { libc::epoll_ctl(epoll, libc::EPOLL_CTL_ADD, fd, &mut event) == 0 }
    }

    /// Replaces the descriptors of PM, which may have changed.
    fn update(&mut self, pm_fds: Vec<RawFd>) -> bool {
        let (epoll, old) = (self.epoll.as_raw_fd(), std::mem::take(&mut self.pm_fds));
        for fd in old.iter().filter(|fd| !pm_fds.contains(fd)) {
            // SAFETY: the arguments are descriptors. A closed descriptor was removed by the kernel.
            unsafe { libc::epoll_ctl(epoll, libc::EPOLL_CTL_DEL, *fd, std::ptr::null_mut()) };
        }
        let are_contained =
            pm_fds.iter().filter(|fd| !old.contains(fd)).all(|fd| self.contain(*fd));
        self.pm_fds = pm_fds;
        are_contained
    }

    fn wake(&self) {
        wake(self.event.as_raw_fd());
    }

    /// Clears the wake event.
    fn forget_wake(&self) {
        let mut value = 0_u64;
        // SAFETY: `value` has 8 bytes, and the descriptor does not block.
        unsafe { libc::read(self.event.as_raw_fd(), (&raw mut value).cast(), size_of::<u64>()) };
    }
}

/// Wakes a waiting thread. `event` is the second descriptor that
/// [`CoreState::open_wait_descriptors`] has returned.
pub(crate) fn wake(event: RawFd) {
    let one = 1_u64;
    // SAFETY: `one` has 8 bytes. The write can fail only if the thread is already woken.
    unsafe { libc::write(event, (&raw const one).cast(), size_of::<u64>()) };
}

impl CoreState {
    /// Returns the descriptor that programs wait on, and the descriptor that wakes them. Returns
    /// None if the process has too many descriptors.
    pub(crate) fn open_wait_descriptors(&mut self) -> Option<(RawFd, RawFd)> {
        if self.wait_descriptors.is_none() {
            self.wait_descriptors = WaitDescriptors::open();
        }
        let opened = self.wait_descriptors.as_ref()?;
        Some((opened.epoll.as_raw_fd(), opened.event.as_raw_fd()))
    }

    /// Prepares to wait. Returns false if there is work to do, or if `is_fulfilled` returns true.
    pub(crate) fn prepare_to_wait(&mut self, is_fulfilled: impl Fn(&mut Self) -> bool) -> bool {
        self.progress();
        let fds = self.network.wait_fds();
        let Some(opened) = &mut self.wait_descriptors else { return false };
        opened.forget_wake();
        if !opened.update(fds) {
            return false;
        }
        self.network.before_wait();
        self.is_woken_by_messages = true;
        // PM wakes the process only for messages that arrive after a receive has found none
        // (pmBeforeSelect).
        self.progress_endpoints();
        let may_wait = !self.network.has_messages()
            && !self.has_received
            && !self.endpoints.iter().any(|endpoint| endpoint.engine.has_pending_work())
            && !is_fulfilled(self);
        if !may_wait {
            self.end_wait();
        }
        may_wait
    }

    /// Wakes the waiting threads, because the calling thread makes progress and may receive their
    /// messages.
    #[cold]
    pub(crate) fn end_wait(&mut self) {
        if std::mem::take(&mut self.is_woken_by_messages) {
            self.network.after_wait();
            self.wait_descriptors.iter().for_each(WaitDescriptors::wake);
        }
    }

    /// Whether a queue has a completion.
    pub(crate) fn has_completion(&mut self, number: usize) -> bool {
        self.take_completion(number, |_, _| false).is_some()
    }
}
