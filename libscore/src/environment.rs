//! Takes descriptors whose numbers are in the environment.

// UNSAFETY: takes over a descriptor by number; removes variables.
#![expect(unsafe_code)]

use std::os::fd::{BorrowedFd, FromRawFd, OwnedFd, RawFd};

use nix::fcntl::{FcntlArg, FdFlag, fcntl};

/// Takes the descriptor whose number `variable` holds. Hides the variable and the descriptor from
/// programs that this one starts.
///
/// # Errors
/// Returns one line that names the variable.
pub(crate) fn take_descriptor(variable: &str) -> Result<Option<OwnedFd>, String> {
    let Some(value) = std::env::var_os(variable) else { return Ok(None) };
    // SAFETY: score_initialize is called before there are other threads (manual 2.5).
    unsafe { std::env::remove_var(variable) };
    let error =
        |why: &str| format!("{variable}={} {why}; only scrun may set it", value.to_string_lossy());
    let fd: RawFd = value
        .to_str()
        .and_then(|text| text.parse().ok())
        .filter(|fd| *fd > 2)
        .ok_or_else(|| error("is not the number of a descriptor"))?;
    // SAFETY: borrowed for this call only; a number that is not open gives EBADF.
    let borrowed = unsafe { BorrowedFd::borrow_raw(fd) };
    fcntl(borrowed, FcntlArg::F_SETFD(FdFlag::FD_CLOEXEC))
        .map_err(|e| error(&format!("is not open: {e}")))?;
    // SAFETY: open, and passed to this process only to be taken here, once.
    Ok(Some(unsafe { OwnedFd::from_raw_fd(fd) }))
}
