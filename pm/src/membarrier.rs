//! `membarrier`: a fence in all running threads of all registered processes.

// UNSAFETY: a system call that libc has no function for.
#![expect(unsafe_code)]

use std::sync::OnceLock;

// linux/membarrier.h
const GLOBAL_EXPEDITED: libc::c_int = 1 << 1;
const REGISTER_GLOBAL_EXPEDITED: libc::c_int = 1 << 2;

/// Registers this process, once. False: the kernel refuses the call.
pub(crate) fn register() -> bool {
    static REGISTERED: OnceLock<bool> = OnceLock::new();
    *REGISTERED.get_or_init(|| command(REGISTER_GLOBAL_EXPEDITED) && command(GLOBAL_EXPEDITED))
}

/// Issues the barrier. If the kernel refuses the call, this function has no effect. The receiver
/// states then require senders to fence.
pub(crate) fn issue() {
    command(GLOBAL_EXPEDITED);
}

fn command(command: libc::c_int) -> bool {
    // SAFETY: takes three integers and touches no memory.
    unsafe { libc::syscall(libc::SYS_membarrier, command, 0, 0) == 0 }
}
