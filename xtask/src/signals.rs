//! Resets the signals that a parent process may have ignored. Tested programs must get the signals
//! of a terminal, as a user's programs do. xtask may run in the background of a script or under
//! nohup.

// UNSAFETY: changes signal dispositions.
#![expect(unsafe_code)]

use nix::sys::signal::{SigHandler, Signal, signal};

/// Sets the default disposition of these signals, which children inherit.
pub fn reset_ignored_signals() {
    for number in [Signal::SIGHUP, Signal::SIGINT, Signal::SIGQUIT] {
        // SAFETY: the default disposition runs no handler, so no code of this program must be
        // async-signal-safe.
        let _ = unsafe { signal(number, SigHandler::SigDfl) };
    }
}
