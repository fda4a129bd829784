//! The C functions of libscore. Each calls its Rust function. The headers are in `ffi-c/include/`.

// UNSAFETY: C symbols, and pointers that C programs pass.
#![expect(unsafe_code)]

use std::ffi::{CStr, OsStr, c_char, c_int, c_uchar, c_uint, c_void};
use std::io;
use std::os::fd::{IntoRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;

use nix::errno::Errno;
use score_proto::mpi_call::{MAX_RECORDED, MpiCallRecord};

use crate::{idle, sc};

/// `void score_initialize(void)`.
#[unsafe(no_mangle)]
pub extern "C" fn score_initialize() {
    crate::initialize();
}

/// `void score_initialize(int argc, char **argv)`. The header score.h maps a call with two
/// arguments to this function.
#[unsafe(no_mangle)]
pub extern "C" fn score_initialize_args(_argc: c_int, _argv: *const c_void) {
    crate::initialize();
}

/// `int score_request_nodes(int min, int max)`.
#[unsafe(no_mangle)]
pub extern "C" fn score_request_nodes(min: c_int, max: c_int) -> c_int {
    let is_accepted = match (u32::try_from(min), u32::try_from(max)) {
        (Ok(min), Ok(max)) => crate::request_nodes(min, max),
        _ => false,
    };
    if is_accepted { 0 } else { libc::EINVAL }
}

/// `void score_become_idle(void)`.
#[unsafe(no_mangle)]
pub extern "C" fn score_become_idle() {
    idle::become_idle();
}

/// `void score_become_idle_in_mpi_call(unsigned call, const unsigned arguments[4])`.
///
/// # Safety
/// `arguments` has [`MAX_RECORDED`] numbers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn score_become_idle_in_mpi_call(
    call: c_uint,
    arguments: *const [c_uint; MAX_RECORDED],
) {
    // SAFETY: guaranteed by the caller.
    let arguments = unsafe { *arguments };
    idle::become_idle_in_mpi_call(&MpiCallRecord { call, arguments });
}

/// `void score_become_busy(void)`.
#[unsafe(no_mangle)]
pub extern "C" fn score_become_busy() {
    idle::become_busy();
}

/// `char *score_get_opt(char *keyword)`.
///
/// # Safety
/// `keyword` is NULL or a C string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn score_get_opt(keyword: *const c_char) -> *const c_char {
    // SAFETY: guaranteed by the caller.
    let keyword = unsafe { text(keyword) };
    keyword.and_then(crate::option).map_or(std::ptr::null(), CStr::as_ptr)
}

/// `int score_ckpt_enter_uncheckpointable(void)`.
#[unsafe(no_mangle)]
pub extern "C" fn score_ckpt_enter_uncheckpointable() -> c_int {
    sc::enter_uncheckpointable();
    0
}

/// `int score_ckpt_leave_uncheckpointable(void)`.
#[unsafe(no_mangle)]
pub extern "C" fn score_ckpt_leave_uncheckpointable() -> c_int {
    code(sc::leave_uncheckpointable())
}

/// `int sc_barrier(void)`.
#[unsafe(no_mangle)]
pub extern "C" fn sc_barrier() -> c_int {
    code(sc::barrier())
}

/// `int sc_flush(void)`.
#[unsafe(no_mangle)]
pub extern "C" fn sc_flush() -> c_int {
    code(sc::flush())
}

/// `int sc_signal_bcast(int signal)`.
#[unsafe(no_mangle)]
pub extern "C" fn sc_signal_bcast(signal: c_int) -> c_int {
    code(sc::signal_broadcast(signal))
}

/// `int sc_exit(int exno)`. Does not return.
#[unsafe(no_mangle)]
pub extern "C" fn sc_exit(exno: c_int) -> c_int {
    sc::exit(exno)
}

/// `int sc_terminate(void)`: sc_exit(0), see docs/compatibility.md. Does not return.
#[unsafe(no_mangle)]
pub extern "C" fn sc_terminate() -> c_int {
    sc::exit(0)
}

/// `int sc_getpid(int *scpid)`.
///
/// # Safety
/// `scpid` is NULL or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sc_getpid(scpid: *mut c_int) -> c_int {
    if scpid.is_null() {
        return libc::EINVAL;
    }
    // SAFETY: guaranteed by the caller.
    unsafe { scpid.write(sc::job()) };
    0
}

/// `void sc_set_monitor(int which, unsigned char value)`.
#[unsafe(no_mangle)]
pub extern "C" fn sc_set_monitor(which: c_int, value: c_uchar) {
    sc::set_monitor(which != 0, value);
}

/// `int sc_inspectme(char *display, int signal)`. Does not return.
///
/// # Safety
/// `display` is NULL or a C string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sc_inspectme(display: *const c_char, signal: c_int) -> c_int {
    let display = if display.is_null() {
        // SAFETY: a C string; getenv does not use the heap.
        unsafe { libc::getenv(c"DISPLAY".as_ptr()) }
    } else {
        display
    };
    // SAFETY: guaranteed by the caller; or the value of a variable.
    sc::inspect_me(unsafe { text(display) }, signal)
}

/// `int sc_create_temporary_file(char *filename, int *fd)`.
///
/// # Safety
/// `filename` is NULL or a C string, `fd` is NULL or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sc_create_temporary_file(
    filename: *const c_char,
    fd: *mut c_int,
) -> c_int {
    // SAFETY: guaranteed by the caller.
    unsafe { file(filename, fd, sc::create_temporary_file) }
}

/// `int sc_open_temporary_file(char *filename, int *fd)`.
///
/// # Safety
/// `filename` is NULL or a C string, `fd` is NULL or writable.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sc_open_temporary_file(filename: *const c_char, fd: *mut c_int) -> c_int {
    // SAFETY: guaranteed by the caller.
    unsafe { file(filename, fd, sc::open_temporary_file) }
}

/// `int sc_unlink_temporary_file(char *filename)`.
///
/// # Safety
/// `filename` is NULL or a C string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sc_unlink_temporary_file(filename: *const c_char) -> c_int {
    // SAFETY: guaranteed by the caller.
    let Some(name) = (unsafe { text(filename) }) else { return libc::EINVAL };
    match sc::unlink_temporary_file(OsStr::from_bytes(name.to_bytes())) {
        Ok(()) => 0,
        Err(e) => e as c_int,
    }
}

/// `int sc_sleep(int sec)`.
#[unsafe(no_mangle)]
pub extern "C" fn sc_sleep(sec: c_int) -> c_int {
    u32::try_from(sec).map_or(libc::EINVAL, |seconds| code(sc::sleep(seconds)))
}

/// `int sc_yield(void)`.
#[unsafe(no_mangle)]
pub extern "C" fn sc_yield() -> c_int {
    code(sc::yield_slice())
}

/// `int sc_checkpoint(void)`.
#[unsafe(no_mangle)]
pub extern "C" fn sc_checkpoint() -> c_int {
    libc::ENOSYS
}

/// 0, or the errno value.
fn code(result: io::Result<()>) -> c_int {
    match result {
        Ok(()) => 0,
        Err(e) => e.raw_os_error().unwrap_or(libc::EIO),
    }
}

/// # Safety
/// `pointer` is NULL or a C string that outlives the result.
unsafe fn text<'t>(pointer: *const c_char) -> Option<&'t CStr> {
    // SAFETY: guaranteed by the caller.
    (!pointer.is_null()).then(|| unsafe { CStr::from_ptr(pointer) })
}

/// # Safety
/// `name` is NULL or a C string, `fd` is NULL or writable.
unsafe fn file(
    name: *const c_char,
    fd: *mut c_int,
    open: fn(&OsStr) -> Result<OwnedFd, Errno>,
) -> c_int {
    // SAFETY: guaranteed by the caller.
    let Some(name) = (unsafe { text(name) }) else { return libc::EINVAL };
    if fd.is_null() {
        return libc::EINVAL;
    }
    match open(OsStr::from_bytes(name.to_bytes())) {
        Ok(opened) => {
            // SAFETY: guaranteed by the caller.
            unsafe { fd.write(opened.into_raw_fd()) };
            0
        }
        Err(e) => e as c_int,
    }
}
