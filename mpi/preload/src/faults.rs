//! Installs handlers that read the stack of a rank that dies of a fault. They also work before
//! MPI_Init, and if the MPI library sends no messages over PM.

use std::ffi::CStr;

use score_faults::install;

/// The environment variable with the number of the control socket. `score_initialize` removes it.
const CONTROL_FD_ENV: &CStr = c"SCORE_CONTROL_FD";

/// Runs when the library is loaded.
#[used]
#[unsafe(link_section = ".init_array")]
static ON_LOAD: extern "C" fn() = install_handlers;

extern "C" fn install_handlers() {
    // SAFETY: the argument is a C string, and no other thread runs yet.
    let value = unsafe {
        let value = libc::getenv(CONTROL_FD_ENV.as_ptr());
        if value.is_null() {
            return;
        }
        CStr::from_ptr(value)
    };
    if let Some(fd) = value.to_str().ok().and_then(|text| text.parse().ok()) {
        install(fd);
    }
}
