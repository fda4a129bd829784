//! The stack of a rank that dies of a fault is read before it dies, also before MPI_Init, and where
//! its library sends no message over PM.

use std::ffi::CStr;

use score_faults::install;

/// The number of the control socket, until `score_initialize` takes it.
const CONTROL_FD_ENV: &CStr = c"SCORE_CONTROL_FD";

/// Runs when the library is loaded.
#[used]
#[unsafe(link_section = ".init_array")]
static ON_LOAD: extern "C" fn() = install_handlers;

extern "C" fn install_handlers() {
    // SAFETY: a string. No other thread runs yet.
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
