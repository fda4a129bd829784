//! What goes wrong on a wire: what stops it from being opened, and what is an ordinary event.

#![forbid(unsafe_code)]

use nix::errno::Errno;
use std::fmt;

/// Why a wire cannot be opened, or an address not be used: one line with the cause.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub struct WireError {
    /// What was tried, with the interface or address at fault.
    pub what: String,
    /// The kernel's answer, where it gave one.
    pub errno: Option<Errno>,
}

impl WireError {
    pub(super) fn new(what: impl Into<String>) -> WireError {
        WireError { what: what.into(), errno: None }
    }

    pub(super) fn with_errno(what: impl Into<String>, errno: Errno) -> WireError {
        WireError { what: what.into(), errno: Some(errno) }
    }

    /// With the errno of the system call that just failed.
    pub(super) fn last_os_error(what: impl Into<String>) -> WireError {
        WireError::with_errno(what, Errno::last())
    }
}

impl fmt::Display for WireError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.errno {
            Some(errno) => write!(f, "{}: {}", self.what, errno.desc()),
            None => f.write_str(&self.what),
        }
    }
}

/// A packet could not travel, or the link reported an error.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WireFault(pub Errno);

impl WireFault {
    /// Whether the link or the way is gone for now, rather than this one packet refused.
    pub fn is_link_down(self) -> bool {
        use Errno::{EADDRNOTAVAIL, EHOSTDOWN, EHOSTUNREACH, ENETDOWN, ENETUNREACH, ENODEV, ENXIO};
        let down = [EADDRNOTAVAIL, EHOSTDOWN, EHOSTUNREACH, ENETDOWN, ENETUNREACH, ENODEV, ENXIO];
        down.contains(&self.0)
    }
}
