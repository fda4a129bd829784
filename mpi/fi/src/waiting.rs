//! Waiting for messages without polling (`FI_WAIT_FD`, fi_cq(3)).

use std::ffi::{c_int, c_void};
use std::os::fd::RawFd;
use std::time::Instant;

use crate::abi::*;
use crate::core_state::CoreState;
use crate::failed;
use crate::serialized::Serialized;

/// Waits until a message arrives or another thread has made progress: at most `timeout` ms, or
/// without limit if `timeout` is negative. Returns at once if there is work to do.
pub(crate) fn wait(
    core: &Serialized<CoreState>,
    timeout: c_int,
    is_fulfilled: impl Fn(&mut CoreState) -> bool,
) {
    let descriptor = core.with(|core| {
        let (descriptor, _) = core.open_wait_descriptors()?;
        core.prepare_to_wait(is_fulfilled).then_some(descriptor)
    });
    if let Some(descriptor) = descriptor {
        let mut entry = libc::pollfd { fd: descriptor, events: libc::POLLIN, revents: 0 };
        // SAFETY: `entry` is one entry.
        unsafe { libc::poll(&mut entry, 1, timeout) };
    }
}

/// Stores the descriptor of an object (`FI_GETWAIT`).
///
/// # Safety
/// `argument` has room for a descriptor.
pub(crate) unsafe fn store_descriptor(
    descriptor: Option<RawFd>,
    command: c_int,
    argument: *mut c_void,
) -> c_int {
    match (command, descriptor) {
        (FI_GETWAIT, Some(descriptor)) => {
            // SAFETY: the caller promises it.
            unsafe { *argument.cast::<c_int>() = descriptor };
            0
        }
        _ => failed(libc::ENOSYS),
    }
}

/// The time left in ms, rounded up. Negative: no limit.
pub(crate) fn left_ms(deadline: Option<Instant>) -> c_int {
    let Some(deadline) = deadline else { return -1 };
    let left = deadline.saturating_duration_since(Instant::now());
    c_int::try_from(left.as_millis() + 1).unwrap_or(c_int::MAX)
}
