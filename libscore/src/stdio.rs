//! The program's standard output and error, as the C library buffers them.

// UNSAFETY: stdio is C's.
#![expect(unsafe_code)]

use std::ffi::c_int;
use std::io::Write;

// SAFETY: as stdio.h declares them.
unsafe extern "C" {
    static stdout: *mut libc::FILE;
    static stderr: *mut libc::FILE;
    fn ftrylockfile(stream: *mut libc::FILE) -> c_int;
    fn funlockfile(stream: *mut libc::FILE);
}

/// Prints a line on standard error, if that can be written: eprintln would panic.
pub(crate) fn print_line(line: std::fmt::Arguments<'_>) {
    let _ = writeln!(std::io::stderr(), "{line}");
}

/// Flushes both, waiting for other threads that print. Not fflush(NULL): that would wait for a
/// thread that reads standard input, too. A stream that cannot be written has no error to report.
pub(crate) fn flush() {
    let _ = std::io::stdout().flush();
    // SAFETY: both streams live as long as the program.
    unsafe {
        libc::fflush(stdout);
        libc::fflush(stderr);
    }
}

/// Flushes both if nobody is printing: for ends of the process, also within signal handlers.
pub(crate) fn try_flush() {
    // SAFETY: both streams live as long as the program.
    unsafe {
        for stream in [stdout, stderr] {
            if ftrylockfile(stream) == 0 {
                libc::fflush(stream);
                funlockfile(stream);
            }
        }
    }
}
