//! The program's standard output and error, as buffered by the C library.

// UNSAFETY: stdio belongs to C.
#![expect(unsafe_code)]

use std::ffi::c_int;
use std::io::Write;

// SAFETY: as declared in stdio.h.
unsafe extern "C" {
    static stdout: *mut libc::FILE;
    static stderr: *mut libc::FILE;
    fn ftrylockfile(stream: *mut libc::FILE) -> c_int;
    fn funlockfile(stream: *mut libc::FILE);
}

/// Prints a line on standard error. Ignores errors. eprintln is not used, because it would panic.
pub(crate) fn print_line(line: std::fmt::Arguments<'_>) {
    let _ = writeln!(std::io::stderr(), "{line}");
}

/// Flushes standard output and standard error. Waits for other threads that print, but not for a
/// thread that reads standard input, for which fflush(NULL) would wait. Ignores errors.
pub(crate) fn flush() {
    let _ = std::io::stdout().flush();
    // SAFETY: both streams exist as long as the program.
    unsafe {
        libc::fflush(stdout);
        libc::fflush(stderr);
    }
}

/// Flushes standard output and standard error, each only if no other thread is printing to it.
/// Called at the end of the process, also by signal handlers.
pub(crate) fn try_flush() {
    // SAFETY: both streams exist as long as the program.
    unsafe {
        for stream in [stdout, stderr] {
            if ftrylockfile(stream) == 0 {
                libc::fflush(stream);
                funlockfile(stream);
            }
        }
    }
}
