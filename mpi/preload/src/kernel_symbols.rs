//! libfabric starts all of its providers when it is first used, also those that FI_PROVIDER
//! excludes. From version 1.17 on, the one of verbs then reads /proc/kallsyms, twice, to see
//! whether the kernel registers the memory of GPUs. The kernel writes a line for each of its
//! symbols, which takes 40 to 80 ms of a processor in each process of a job.
//!
//! While libfabric starts its providers, and verbs is excluded, that file cannot be opened in the
//! thread that does it. The provider of PM, which libfabric starts before its own, says when.

use std::cell::Cell;
use std::ffi::{CStr, c_char, c_int, c_void};
use std::ptr::null_mut;

use score_next_function::NextFunction;

const KERNEL_SYMBOLS: &CStr = c"/proc/kallsyms";

thread_local! {
    static ARE_HIDDEN: Cell<bool> = const { Cell::new(false) };
}

/// Whether the calling thread cannot open the list of the kernel's symbols. Called by the provider
/// (`mpi/fi/src/kernel_symbols.rs`).
#[unsafe(no_mangle)]
pub extern "C" fn score_hide_kernel_symbols(are_hidden: c_int) {
    ARE_HIDDEN.set(are_hidden != 0);
}

/// # Safety
/// A C string, or null.
unsafe fn is_hidden(path: *const c_char) -> bool {
    // SAFETY: the caller promises it.
    ARE_HIDDEN.get() && !path.is_null() && unsafe { CStr::from_ptr(path) } == KERNEL_SYMBOLS
}

/// Defines a function that opens a file.
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
                    // SAFETY: this thread's error number.
                    unsafe { *libc::__errno_location() = libc::ENOENT };
                    return null_mut();
                }
                let address = NEXT.address($name as Function as *const c_void);
                // SAFETY: a function of this type, in the C library.
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
            // SAFETY: a file that was opened, and is not used any more.
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
