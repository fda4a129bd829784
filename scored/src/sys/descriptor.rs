//! Descriptors: inheritance, reserved numbers, and the properties of pipes.

// UNSAFETY: descriptor numbers from the command line, and ioctls without a safe wrapper.
#![expect(unsafe_code)]

use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};

use nix::fcntl::{FcntlArg, FdFlag, OFlag, fcntl};

/// Takes ownership of an inherited descriptor, whose number is from the command line. Makes it
/// close-on-exec.
///
/// # Errors
/// EBADF: there is no such descriptor. EINVAL: the descriptor is one of the standard descriptors.
pub fn inherited(fd: RawFd) -> io::Result<OwnedFd> {
    if fd <= 2 {
        return Err(io::Error::from_raw_os_error(libc::EINVAL));
    }
    // SAFETY: only borrowed for the check whether it is open at all.
    let borrowed = unsafe { BorrowedFd::borrow_raw(fd) };
    fcntl(borrowed, FcntlArg::F_SETFD(FdFlag::FD_CLOEXEC))?;
    // SAFETY: it is open, and the caller of this program handed it over to us by number.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Makes every descriptor from `first` on close-on-exec. Descriptors that the parent has left open
/// must not reach the user's processes.
pub fn close_on_exec_from(first: RawFd) {
    // SAFETY: changes flags only.
    unsafe {
        libc::syscall(libc::SYS_close_range, first, i32::MAX, libc::CLOSE_RANGE_CLOEXEC);
    }
}

/// Closes every descriptor except the standard ones and `kept_fds`, independently of ownership.
/// Used by a fork that does not continue its parent's work and never uses the owners again.
pub fn close_all_but(kept_fds: &[&OwnedFd]) {
    let mut kept_fds: Vec<RawFd> = kept_fds.iter().map(|fd| fd.as_raw_fd()).collect();
    kept_fds.sort_unstable();
    let mut first = 3;
    for last in kept_fds.into_iter().chain([RawFd::MAX]) {
        if first < last {
            // SAFETY: the owners of these descriptors are never used in this process again.
            unsafe { libc::syscall(libc::SYS_close_range, first, last - 1, 0) };
        }
        first = last.saturating_add(1);
    }
}

/// Ensures that descriptors 0 to 4 are in use, so that no later one can collide with the numbers
/// that [`super::spawn`] assigns in a child. Descriptor 0 becomes /dev/null.
///
/// # Errors
/// /dev/null cannot be opened.
pub fn reserve_low() -> io::Result<()> {
    let null = File::options().read(true).write(true).open("/dev/null")?;
    // SAFETY: replaces our own standard input; no value in this process owns descriptor 0.
    if unsafe { libc::dup2(null.as_raw_fd(), 0) } < 0 {
        return Err(io::Error::last_os_error());
    }
    for fd in 1..=4 {
        // SAFETY: plain query and duplication; a free number has no owner.
        unsafe {
            if libc::fcntl(fd, libc::F_GETFD) < 0 {
                libc::fcntl(null.as_raw_fd(), libc::F_DUPFD_CLOEXEC, fd);
            }
        }
    }
    if null.as_raw_fd() <= 4 {
        std::mem::forget(null);
    }
    Ok(())
}

/// Number of unread bytes in a pipe.
pub fn bytes_waiting(fd: BorrowedFd<'_>) -> usize {
    let mut count: libc::c_int = 0;
    // SAFETY: FIONREAD writes one int to the given address.
    let result = unsafe { libc::ioctl(fd.as_raw_fd(), libc::FIONREAD, &mut count) };
    if result == 0 { usize::try_from(count).unwrap_or(0) } else { 0 }
}

/// Whether a local socket contains no unread bytes, in either direction. False if the kernel does
/// not report it.
pub fn is_socket_empty(socket: BorrowedFd<'_>) -> bool {
    [libc::FIONREAD, libc::TIOCOUTQ].into_iter().all(|request| {
        let mut count: libc::c_int = -1;
        // SAFETY: both requests write one int to the given address (unix(7), SIOCOUTQ).
        let result = unsafe { libc::ioctl(socket.as_raw_fd(), request, &mut count) };
        result == 0 && count == 0
    })
}

/// The capacity of a pipe in bytes. The smallest possible capacity if the query fails.
pub fn pipe_capacity(fd: BorrowedFd<'_>) -> usize {
    match fcntl(fd, FcntlArg::F_GETPIPE_SZ) {
        Ok(bytes) => usize::try_from(bytes).unwrap_or(4096),
        Err(_) => 4096,
    }
}

/// Enlarges a pipe if the system allows it. Returns the capacity after that.
pub fn enlarge_pipe(fd: BorrowedFd<'_>, bytes: i32) -> usize {
    let _ = fcntl(fd, FcntlArg::F_SETPIPE_SZ(bytes));
    pipe_capacity(fd)
}

/// Makes the descriptor nonblocking: reads and writes return at once.
///
/// # Errors
/// The errors of fcntl(2).
pub fn set_nonblocking(fd: BorrowedFd<'_>) -> io::Result<()> {
    let flags = OFlag::from_bits_retain(fcntl(fd, FcntlArg::F_GETFL)?);
    fcntl(fd, FcntlArg::F_SETFL(flags | OFlag::O_NONBLOCK))?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};
    use std::os::fd::AsFd;
    use std::os::unix::net::UnixStream;

    #[test]
    fn a_socket_is_empty_when_both_ends_have_read_everything() {
        let (mut own, mut other) = UnixStream::pair().unwrap();
        assert!(is_socket_empty(own.as_fd()));
        own.write_all(b"answer").unwrap();
        assert!(!is_socket_empty(own.as_fd()), "the other end has not read it");
        let mut bytes = [0; 6];
        other.read_exact(&mut bytes).unwrap();
        assert!(is_socket_empty(own.as_fd()));
        other.write_all(b"question").unwrap();
        assert!(!is_socket_empty(own.as_fd()), "this end has not read it");
        let file = std::fs::File::open("/dev/null").unwrap();
        assert!(!is_socket_empty(file.as_fd()), "it is no socket");
    }
}
