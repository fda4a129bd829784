//! Whether this process is in a job of scrun, and of which MPI library it is.

use std::env;
use std::sync::atomic::{AtomicBool, Ordering};

/// The environment variable of libscore. Only processes of a job of scrun have it.
const CONTROL_FD_ENV: &str = "SCORE_CONTROL_FD";

/// An environment variable of processes of MPICH, which start by PMI.
const MPICH_ENV: &str = "PMI_FD";

/// Whether this process has joined its job.
static HAS_JOINED: AtomicBool = AtomicBool::new(false);

/// Whether this process is in a job of scrun. In other processes the provider offers nothing, so
/// that programs choose another provider.
pub(crate) fn is_available() -> bool {
    HAS_JOINED.load(Ordering::Relaxed) || env::var_os(CONTROL_FD_ENV).is_some()
}

/// Whether the MPI library of this process is MPICH.
pub(crate) fn is_of_mpich() -> bool {
    env::var_os(MPICH_ENV).is_some()
}

/// Notes that this process has joined its job.
pub(crate) fn note_joined() {
    HAS_JOINED.store(true, Ordering::Relaxed);
}
