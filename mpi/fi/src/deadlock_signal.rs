//! The signal of a deadlock requests a debugger (manual 2.4.4), as in MPICH-SCore: `sc_inspectme`
//! reports the node, the signal and the process, and the job ends. Fault signals have the handlers
//! of `score_faults`, which libscore-preload installs in all MPI programs.

use std::ffi::c_int;
use std::mem::MaybeUninit;
use std::ptr::{null, null_mut};
use std::sync::atomic::{AtomicI32, Ordering};

use crate::pm_h::sc_inspectme;

/// The process that has set the handlers.
static OWNER: AtomicI32 = AtomicI32::new(0);

/// Sets the handler, if the program has left the signal at its default action.
pub(crate) fn set_handler() {
    OWNER.store(std::process::id().cast_signed(), Ordering::Relaxed);
    if has_default_action(libc::SIGHUP) {
        set_action(libc::SIGHUP, inspect as *const () as usize);
    }
}

fn has_default_action(signal: c_int) -> bool {
    let mut action = MaybeUninit::<libc::sigaction>::uninit();
    // SAFETY: `action` has room for an action, and it is read only if sigaction has stored it.
    unsafe {
        libc::sigaction(signal, null(), action.as_mut_ptr()) == 0
            && action.assume_init().sa_sigaction == libc::SIG_DFL
    }
}

fn set_action(signal: c_int, action: usize) {
    // SAFETY: all zeros are an action without flags and with an empty mask.
    let mut new: libc::sigaction = unsafe { MaybeUninit::zeroed().assume_init() };
    new.sa_sigaction = action;
    // A program may have given its threads an alternate stack for handlers, because their own may
    // be full.
    new.sa_flags = libc::SA_ONSTACK;
    // SAFETY: the handler of the action takes a number and calls only async-signal-safe functions.
    unsafe { libc::sigaction(signal, &new, null_mut()) };
}

extern "C" fn inspect(signal: c_int) {
    // A forked child of the process is not a node of the job, so the signal kills it. The signal is
    // blocked while its handler runs, so it takes effect when the handler returns.
    // SAFETY: a handler may call these functions. sc_inspectme does not return.
    unsafe {
        if libc::getpid() == OWNER.load(Ordering::Relaxed) {
            sc_inspectme(null(), signal);
        }
        set_action(signal, libc::SIG_DFL);
        libc::raise(signal);
    }
}
