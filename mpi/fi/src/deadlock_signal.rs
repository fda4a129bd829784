//! The signal that tells of a deadlock asks for a debugger (manual 2.4.4), as in MPICH-SCore:
//! `sc_inspectme` names the node, the signal and the process, and the job ends. Faults have the
//! handlers of `score_faults`, which all MPI programs get from libscore-preload.

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
    // SAFETY: there is room for an action, and it is read only if it was stored.
    unsafe {
        libc::sigaction(signal, null(), action.as_mut_ptr()) == 0
            && action.assume_init().sa_sigaction == libc::SIG_DFL
    }
}

fn set_action(signal: c_int, action: usize) {
    // SAFETY: all zeros are an action without flags and with an empty mask.
    let mut new: libc::sigaction = unsafe { MaybeUninit::zeroed().assume_init() };
    new.sa_sigaction = action;
    // A program may have given its threads a stack for handlers, because theirs may be full.
    new.sa_flags = libc::SA_ONSTACK;
    // SAFETY: an action, whose handler takes a number and calls only what a handler may call.
    unsafe { libc::sigaction(signal, &new, null_mut()) };
}

extern "C" fn inspect(signal: c_int) {
    // A child of the process, which is no node of the job, dies of the signal. As its handler runs,
    // the signal is blocked until it returns.
    // SAFETY: these functions may be called by a handler; sc_inspectme does not return.
    unsafe {
        if libc::getpid() == OWNER.load(Ordering::Relaxed) {
            sc_inspectme(null(), signal);
        }
        set_action(signal, libc::SIG_DFL);
        libc::raise(signal);
    }
}
