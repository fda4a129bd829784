//! Errors of a wire: errors that prevent opening it, and errors that are ordinary events.

#![forbid(unsafe_code)]

use nix::errno::Errno;
use std::{fmt, io};

/// The reason why a wire cannot be opened or an address cannot be used, in one line.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub struct WireError {
    /// The operation that failed, with the interface or address.
    pub what: String,
    /// The kernel's error, if there is one.
    pub errno: Option<Errno>,
}

impl WireError {
    pub(super) fn new(what: impl Into<String>) -> WireError {
        WireError { what: what.into(), errno: None }
    }

    /// Makes an error with the error of a system call.
    pub(super) fn with_cause(what: impl Into<String>, cause: impl Into<io::Error>) -> WireError {
        let errno = cause.into().raw_os_error().map(Errno::from_raw);
        WireError { what: what.into(), errno }
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

/// The error of a packet that could not be sent, or of the link.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WireFault(pub Errno);

impl WireFault {
    /// Whether the link or the route is down. Otherwise the error concerns only this packet.
    pub fn is_link_down(self) -> bool {
        use Errno::{EADDRNOTAVAIL, EHOSTDOWN, EHOSTUNREACH, ENETDOWN, ENETUNREACH, ENODEV, ENXIO};
        let down = [EADDRNOTAVAIL, EHOSTDOWN, EHOSTUNREACH, ENETDOWN, ENETUNREACH, ENODEV, ENXIO];
        down.contains(&self.0)
    }
}
