//! Hides /proc/kallsyms from libfabric during its start. libfabric starts its own providers after
//! this one, and its verbs provider reads that file, which is slow. The read is useless if
//! `FI_PROVIDER` excludes verbs. `libscore-preload.so` implements the hiding
//! (`mpi/preload/src/kernel_symbols.rs`).

use std::env;
use std::ffi::{c_int, c_void};

use crate::properties::PROVIDER_NAME;

type Hide = extern "C" fn(c_int);

/// Hides the file, if verbs is excluded. Called before libfabric starts its providers in this
/// thread.
pub(crate) fn hide() {
    let name = PROVIDER_NAME.to_bytes();
    if env::var_os("FI_PROVIDER").is_some_and(|names| names.as_encoded_bytes() == name) {
        set_hidden(1);
    }
}

/// Shows the file again. Called after libfabric has started its providers.
pub(crate) fn show() {
    set_hidden(0);
}

fn set_hidden(are_hidden: c_int) {
    // SAFETY: the argument is a C string.
    let function =
        unsafe { libc::dlsym(libc::RTLD_DEFAULT, c"score_hide_kernel_symbols".as_ptr()) };
    if !function.is_null() {
        // SAFETY: the function has this type; its library is built with this one.
        let hide = unsafe { std::mem::transmute::<*mut c_void, Hide>(function) };
        hide(are_hidden);
    }
}
