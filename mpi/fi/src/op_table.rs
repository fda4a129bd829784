//! Entries of tables of functions.

use std::ffi::c_int;

use crate::abi::{FiOps, Op};

/// A function as an entry of a table. C calls it with the types that the header declares.
macro_rules! op {
    ($function:expr) => {
        // SAFETY: a pointer to a function stays one; it is called with its real type.
        unsafe { std::mem::transmute::<*const (), crate::abi::Op>($function as *const ()) }
    };
}
pub(crate) use op;

/// The functions of an object that can only be closed.
pub(crate) const fn only_close(close: Op) -> FiOps {
    FiOps {
        size: size_of::<FiOps>(),
        close,
        bind: UNSUPPORTED,
        control: UNSUPPORTED,
        ops_open: UNSUPPORTED,
    }
}

/// What the provider does not have.
unsafe extern "C" fn unsupported() -> isize {
    -(libc::ENOSYS as isize)
}

/// What succeeds without doing anything.
unsafe extern "C" fn succeeds() -> c_int {
    0
}

/// The entry for what the provider does not have. All functions of libfabric's tables return an
/// integer; the caller removes the arguments.
pub(crate) const UNSUPPORTED: Op = op!(unsupported as unsafe extern "C" fn() -> isize);

/// The entry for what there is nothing to do for.
pub(crate) const SUCCEEDS: Op = op!(succeeds as unsafe extern "C" fn() -> c_int);
