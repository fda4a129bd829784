//! The signals of scrun (manual, table 3.1), read from a descriptor.

use nix::sys::signal::{SigSet, Signal, raise};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use std::fs::File;
use std::io::Read;

/// Signals that scrun handles or forwards.
const HANDLED_SIGNALS: [Signal; 11] = [
    Signal::SIGHUP,
    Signal::SIGINT,
    Signal::SIGQUIT,
    Signal::SIGABRT,
    Signal::SIGUSR1,
    Signal::SIGUSR2,
    Signal::SIGTERM,
    Signal::SIGTSTP,
    Signal::SIGCONT,
    Signal::SIGURG,
    Signal::SIGWINCH,
];

/// Handled signals that stay ignored if they were ignored when scrun started. This is the case
/// under nohup, and in the background of a shell without job control.
const KEEP_IF_IGNORED: [Signal; 4] =
    [Signal::SIGHUP, Signal::SIGINT, Signal::SIGQUIT, Signal::SIGTSTP];

/// Blocks the signals for this and all later threads. Returns a descriptor to read them from.
///
/// SIGTTIN is also blocked. Reading a terminal in the background then fails instead of stopping
/// scrun (see the module `input`).
///
/// # Errors
/// The error of the system.
pub fn open_signalfd() -> nix::Result<SignalFd> {
    let ignored = ignored();
    let mut handled = SigSet::empty();
    for signal in HANDLED_SIGNALS {
        if !(KEEP_IF_IGNORED.contains(&signal) && ignored >> (signal as i32 - 1) & 1 == 1) {
            handled.add(signal);
        }
    }
    let mut blocked = handled;
    blocked.add(Signal::SIGTTIN);
    blocked.thread_block()?;
    SignalFd::with_flags(&handled, SfdFlags::SFD_NONBLOCK | SfdFlags::SFD_CLOEXEC)
}

/// Terminates this process by a blocked signal, with its default action.
pub fn reraise(signal: Signal) {
    // The signal is pending until it is unblocked. If either call fails, the exit code still names
    // the signal.
    let _ = raise(signal);
    let _ = SigSet::from(signal).thread_unblock();
}

/// The ignored signals of this process, one bit each; 0 if /proc cannot be read. One read is
/// enough, because the line is well within the first page.
fn ignored() -> u64 {
    let mut page = [0; 4096];
    let read = File::open("/proc/self/status").and_then(|mut file| file.read(&mut page));
    let status = String::from_utf8_lossy(&page[..read.unwrap_or(0)]);
    status
        .lines()
        .find_map(|line| line.strip_prefix("SigIgn:"))
        .and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok())
        .unwrap_or(0)
}
