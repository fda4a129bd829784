//! Hides /proc/kallsyms from libfabric. When libfabric is first used, it starts all of its
//! providers, including those that FI_PROVIDER excludes. From version 1.17 on, the verbs provider
//! then reads /proc/kallsyms twice, to find out whether the kernel can register GPU memory. The
//! kernel generates a line for each symbol, which takes tens of milliseconds of CPU time in each
//! process of a job.
//!
//! While libfabric starts its providers and verbs is excluded, the starting thread cannot open that
//! file. The provider of PM, which libfabric starts before its own providers, switches the hiding
//! on and off.

use std::cell::Cell;
use std::ffi::{CStr, c_char, c_int, c_void};
use std::ptr::null_mut;

use score_next_function::NextFunction;

const KERNEL_SYMBOLS: &CStr = c"/proc/kallsyms";

thread_local! {
    static ARE_HIDDEN: Cell<bool> = const { Cell::new(false) };
}

/// Sets whether the calling thread is prevented from opening /proc/kallsyms. Called by the provider
/// (`mpi/fi/src/kernel_symbols.rs`).
#[unsafe(no_mangle)]
pub extern "C" fn score_hide_kernel_symbols(are_hidden: c_int) {
    ARE_HIDDEN.set(are_hidden != 0);
}

/// # Safety
/// `path` is NULL or a C string.
unsafe fn is_hidden(path: *const c_char) -> bool {
    // SAFETY: the caller promises it.
    ARE_HIDDEN.get() && !path.is_null() && unsafe { CStr::from_ptr(path) } == KERNEL_SYMBOLS
}

/// Defines a wrapper of a function that opens a file.
macro_rules! define {
    ($($name:ident $symbol:literal;)*) => {
        $(
            /// fopen(3).
            ///
            /// # Safety
            /// See fopen(3).
            #[unsafe(no_mangle)]
            pub unsafe extern "C" fn $name(path: *const c_char, mode: *const c_char) -> *mut c_void {
                static NEXT: NextFunction = NextFunction::new($symbol);
                type Function = unsafe extern "C" fn(*const c_char, *const c_char) -> *mut c_void;
                // SAFETY: the caller promises it.
                if unsafe { is_hidden(path) } {
                    // SAFETY: the address is that of this thread's errno.
                    unsafe { *libc::__errno_location() = libc::ENOENT };
                    return null_mut();
                }
                let address = NEXT.address();
                // SAFETY: the C library's function has this type.
                let function: Function = unsafe { std::mem::transmute(address) };
                // SAFETY: the caller promises it.
                unsafe { function(path, mode) }
            }
        )*
    };
}

define! {
    fopen c"fopen";
    fopen64 c"fopen64";
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_kernels_symbols_are_hidden_and_only_while_libfabric_starts() {
        let can_open = |path: &CStr| {
            // SAFETY: the arguments are C strings.
            let file = unsafe { fopen(path.as_ptr(), c"r".as_ptr()) };
            if file.is_null() {
                return false;
            }
            // SAFETY: the file was opened above, and is not used any more.
            unsafe { libc::fclose(file.cast()) };
            true
        };
        assert!(can_open(KERNEL_SYMBOLS), "they are not hidden yet");
        score_hide_kernel_symbols(1);
        assert!(!can_open(KERNEL_SYMBOLS));
        assert_eq!(std::io::Error::last_os_error().raw_os_error(), Some(libc::ENOENT));
        assert!(can_open(c"/proc/self/status"));
        let in_other_thread =
            std::thread::scope(|scope| scope.spawn(|| can_open(KERNEL_SYMBOLS)).join());
        assert!(in_other_thread.unwrap());
        score_hide_kernel_symbols(0);
        assert!(can_open(KERNEL_SYMBOLS));
    }
}
