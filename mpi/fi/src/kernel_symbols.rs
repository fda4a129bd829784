//! Hides /proc/kallsyms from libfabric while it starts. libfabric starts its own providers after
//! this one, and its verbs provider reads that list of the kernel's symbols. That takes long, and
//! serves nothing where `FI_PROVIDER` excludes verbs. `libscore-preload.so` hides the list
//! (`mpi/preload/src/kernel_symbols.rs`).

use std::env;
use std::ffi::{c_int, c_void};

use crate::library::PROVIDER_NAME;

type Hide = extern "C" fn(c_int);

/// libfabric is about to start its providers, in this thread.
pub(crate) fn hide() {
    let name = PROVIDER_NAME.to_bytes();
    if env::var_os("FI_PROVIDER").is_some_and(|names| names.as_encoded_bytes() == name) {
        set_hidden(1);
    }
}

/// libfabric has started them.
pub(crate) fn show() {
    set_hidden(0);
}

fn set_hidden(are_hidden: c_int) {
    // SAFETY: the argument is a C string.
    let function =
        unsafe { libc::dlsym(libc::RTLD_DEFAULT, c"score_hide_kernel_symbols".as_ptr()) };
    if !function.is_null() {
        // SAFETY: a function of this type, in the library that is built with this one.
        let hide = unsafe { std::mem::transmute::<*mut c_void, Hide>(function) };
        hide(are_hidden);
    }
}
