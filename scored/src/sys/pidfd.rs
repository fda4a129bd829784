//! Signals to a process through a descriptor. A process id can be assigned to another process at
//! any time. A descriptor always refers to the process for which it was opened.

// UNSAFETY: pidfd_open(2) and pidfd_send_signal(2) have no safe wrapper.
#![expect(unsafe_code)]

use std::fs;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

/// A process, running or exited.
#[derive(Debug)]
pub struct PidFd(OwnedFd);

impl PidFd {
    /// Opens the process that has this id now.
    ///
    /// # Errors
    /// The errors of pidfd_open(2): ENOSYS before Linux 5.3.
    pub fn open(pid: i32) -> io::Result<Self> {
        // SAFETY: no memory is passed.
        let fd = unsafe { libc::syscall(libc::SYS_pidfd_open, pid, 0) };
        match i32::try_from(fd) {
            // SAFETY: the kernel has just made this descriptor for us.
            Ok(fd) if fd >= 0 => Ok(Self(unsafe { OwnedFd::from_raw_fd(fd) })),
            _ => Err(io::Error::last_os_error()),
        }
    }

    /// The id of the process in the PID namespace of this /proc. None: the process has no id there,
    /// or has been reaped.
    pub fn pid_in(&self, proc_dir: BorrowedFd<'_>) -> Option<i32> {
        let [proc_fd, pid_fd] = [proc_dir.as_raw_fd(), self.0.as_raw_fd()];
        let info = fs::read_to_string(format!("/proc/self/fd/{proc_fd}/self/fdinfo/{pid_fd}"));
        let info = info.ok()?;
        let pid = info.lines().find_map(|line| line.strip_prefix("Pid:"))?.trim().parse().ok()?;
        (pid > 0).then_some(pid)
    }

    /// Waits until the process has exited, at most for `timeout`. Returns whether it has exited.
    pub fn wait_for_exit(&self, timeout: Duration) -> bool {
        let deadline = Instant::now() + timeout;
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            let mut polled = [PollFd::new(self.0.as_fd(), PollFlags::POLLIN)];
            match poll(&mut polled, PollTimeout::try_from(left).unwrap_or(PollTimeout::MAX)) {
                Ok(0) if left < Duration::from_millis(1) => return false,
                Ok(1..) => return true,
                // A signal, or a time-out that was rounded down.
                Ok(_) | Err(_) => {}
            }
        }
    }

    /// Sends a signal to the process.
    ///
    /// # Errors
    /// The errors of pidfd_send_signal(2): ESRCH if the process has exited.
    pub fn send_signal(&self, signal: i32) -> io::Result<()> {
        let no_info = std::ptr::null::<libc::siginfo_t>();
        // SAFETY: without an info the kernel reads no memory of ours.
        let result = unsafe {
            libc::syscall(libc::SYS_pidfd_send_signal, self.0.as_raw_fd(), signal, no_info, 0)
        };
        if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_exited_process_gets_no_signal() {
        let mut child = std::process::Command::new("/bin/sleep").arg("1000").spawn().unwrap();
        let pid_fd = PidFd::open(child.id() as i32).unwrap();
        assert!(!pid_fd.wait_for_exit(Duration::from_millis(10)));
        pid_fd.send_signal(libc::SIGKILL).unwrap();
        assert!(pid_fd.wait_for_exit(Duration::from_secs(20)));
        child.wait().unwrap();
        let error = pid_fd.send_signal(libc::SIGKILL).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::ESRCH));
        assert!(PidFd::open(child.id() as i32).is_err());
    }
}
