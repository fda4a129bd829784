//! Errors of PM functions. There is one value per errno, so that the C ABI maps one to one.

use thiserror::Error;

/// The result of a PM function.
pub type PmResult<T> = std::result::Result<T, Error>;

/// Why a PM function failed. The manual page of each function lists its errors and their causes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Error)]
pub enum Error {
    /// EINVAL: an argument is out of range, or the context is not usable in this process.
    #[error("invalid argument")]
    Invalid,
    /// ENOBUFS: at the moment there is no message, or no room for one.
    #[error("no buffer is available")]
    NoBuffers,
    /// EBUSY: another thread holds the context, or an operation is not complete yet.
    #[error("context is busy")]
    Busy,
    /// EIO: the function was called out of order, or the link has an unrecoverable error.
    #[error("input/output error")]
    Io,
    /// EPIPE: the link was reset.
    #[error("link was reset")]
    Pipe,
    /// ENODEV: there is no such device, or this machine does not have it.
    #[error("no such device")]
    NoDevice,
    /// ENOSYS: this object does not offer the operation.
    #[error("operation not supported")]
    NoSys,
    /// ENOMEM: there is no memory.
    #[error("not enough memory")]
    NoMemory,
    /// ENOSPC: an array is too small, or a table is full.
    #[error("no space")]
    NoSpace,
    /// ENOENT: the object does not exist.
    #[error("no such entry")]
    NoEntry,
    /// EMFILE: no descriptor is left.
    #[error("too many open files")]
    TooManyFiles,
    /// EPERM: the function is reserved for SCore-D, or the kernel denies permission.
    #[error("operation not permitted")]
    Permission,
    /// EAGAIN: the caller should try again later.
    #[error("try again")]
    Again,
}

impl Error {
    /// The positive errno value of the C ABI.
    pub fn errno(self) -> i32 {
        match self {
            Error::Invalid => libc::EINVAL,
            Error::NoBuffers => libc::ENOBUFS,
            Error::Busy => libc::EBUSY,
            Error::Io => libc::EIO,
            Error::Pipe => libc::EPIPE,
            Error::NoDevice => libc::ENODEV,
            Error::NoSys => libc::ENOSYS,
            Error::NoMemory => libc::ENOMEM,
            Error::NoSpace => libc::ENOSPC,
            Error::NoEntry => libc::ENOENT,
            Error::TooManyFiles => libc::EMFILE,
            Error::Permission => libc::EPERM,
            Error::Again => libc::EAGAIN,
        }
    }
}

/// The PM error for the error of a system call.
#[cfg(not(loom))]
pub(crate) fn from_io(error: std::io::Error) -> Error {
    error.raw_os_error().map_or(Error::Io, |number| from_errno(nix::errno::Errno::from_raw(number)))
}

/// The PM error for a system call's errno.
#[cfg(not(loom))]
pub(crate) fn from_errno(errno: nix::errno::Errno) -> Error {
    use nix::errno::Errno;
    match errno {
        Errno::ENOMEM | Errno::ENOBUFS => Error::NoMemory,
        Errno::EMFILE | Errno::ENFILE => Error::TooManyFiles,
        Errno::EPERM | Errno::EACCES => Error::Permission,
        _ => Error::Io,
    }
}
