//! Settings for a program between fork and exec: its parent-death signal and its signal mask.

// UNSAFETY: code that runs between fork and exec.
#![expect(unsafe_code)]

use std::io;
use std::os::unix::process::CommandExt;
use std::process::Command;

/// Makes the kernel send `signal` to the program when this process exits for any reason.
pub fn set_pdeathsig(command: &mut Command, signal: i32) {
    let parent = std::process::id();
    let set_death_signal = move || {
        // SAFETY: system calls with plain numbers, which a forked child may do.
        let parent_exited = unsafe {
            libc::prctl(libc::PR_SET_PDEATHSIG, signal, 0, 0, 0);
            libc::getppid().cast_unsigned() != parent
        };
        if parent_exited { Err(io::Error::from_raw_os_error(libc::ESRCH)) } else { Ok(()) }
    };
    // SAFETY: the closure allocates nothing and takes no lock.
    unsafe { command.pre_exec(set_death_signal) };
}

/// Makes the program start without blocked signals. This process blocks the signals that it reads
/// from a descriptor.
pub fn unblock_signals(command: &mut Command) {
    let unblock = || {
        let none = nix::sys::signal::SigSet::empty();
        let how = nix::sys::signal::SigmaskHow::SIG_SETMASK;
        nix::sys::signal::sigprocmask(how, Some(&none), None).map_err(io::Error::from)
    };
    // SAFETY: the closure makes one system call.
    unsafe { command.pre_exec(unblock) };
}
