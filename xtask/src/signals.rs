//! Programs that are tested see the signals of a terminal as a user's would, also where xtask was
//! started with some of them ignored (in the background of a script, or under nohup).

// UNSAFETY: changes signal dispositions.
#![expect(unsafe_code)]

use nix::sys::signal::{SigHandler, Signal, signal};

/// Resets what a parent may have set to "ignored"; children inherit that.
pub fn reset_ignored_signals() {
    for number in [Signal::SIGHUP, Signal::SIGINT, Signal::SIGQUIT] {
        // SAFETY: the default disposition runs no code of ours.
        let _ = unsafe { signal(number, SigHandler::SigDfl) };
    }
}
