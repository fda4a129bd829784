//! Entries of tables of functions.

use std::ffi::c_int;

use crate::abi::{FiOps, Op};

/// Makes a function an entry of a table. C calls it with the types that the header declares.
macro_rules! op {
    ($function:expr) => {
        // SAFETY: the pointer remains a pointer to a function, and C calls it with its real type.
        unsafe { std::mem::transmute::<*const (), crate::abi::Op>($function as *const ()) }
    };
}
pub(crate) use op;

/// The function table of an object that can only be closed.
pub(crate) const fn only_close(close: Op) -> FiOps {
    FiOps {
        size: size_of::<FiOps>(),
        close,
        bind: UNSUPPORTED,
        control: UNSUPPORTED,
        ops_open: UNSUPPORTED,
    }
}

/// The function for operations that the provider does not support.
unsafe extern "C" fn unsupported() -> isize {
    -(libc::ENOSYS as isize)
}

/// The function for operations that need no action.
unsafe extern "C" fn succeeds() -> c_int {
    0
}

/// The entry for operations that the provider does not support. It fits all functions that return
/// an integer, because the caller removes the arguments from the stack.
pub(crate) const UNSUPPORTED: Op = op!(unsupported as unsafe extern "C" fn() -> isize);

/// The entry for operations that need no action.
pub(crate) const SUCCEEDS: Op = op!(succeeds as unsafe extern "C" fn() -> c_int);
