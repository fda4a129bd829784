//! The error of calls that start processes. MPICH makes it MPI_ERR_OTHER when the launcher refuses;
//! the standard has MPI_ERR_SPAWN for that (MPI 4.1, 11.8.2), by which programs go on without.

use std::ffi::{CStr, c_int};
use std::mem::transmute;
use std::ptr::null;

use crate::next_function;

/// Classes of errors, which differ between binary interfaces.
struct ErrorClasses {
    other: c_int,
    spawn: c_int,
}

const MPICH: ErrorClasses = ErrorClasses { other: 15, spawn: 42 };
const MPI_5_0: ErrorClasses = ErrorClasses { other: 16, spawn: 53 };

type ErrorClass = unsafe extern "C" fn(c_int, *mut c_int) -> c_int;

/// The code that the program gets for the one of the library. 0: no error.
pub(crate) fn of_code(code: c_int) -> c_int {
    if code == 0 {
        return 0;
    }
    let Some(function) = next_function::find(c"MPI_Error_class", null()) else { return code };
    let classes = classes_of(function);
    // SAFETY: a function of this type, if it is MPI's.
    let error_class: ErrorClass = unsafe { transmute(function) };
    let mut class = 0;
    // SAFETY: there is room for a class.
    let result = unsafe { error_class(code, &mut class) };
    // A class is a code, too.
    if result == 0 && class == classes.other { classes.spawn } else { code }
}

/// The classes of the library that has this function.
fn classes_of(function: *mut std::ffi::c_void) -> ErrorClasses {
    // SAFETY: all zeros are an empty record.
    let mut info: libc::Dl_info = unsafe { std::mem::zeroed() };
    // SAFETY: any address may be asked for; the file's name is a C string if it is found.
    let is_standard = unsafe {
        libc::dladdr(function, &mut info) != 0
            && !info.dli_fname.is_null()
            && is_standard_library(CStr::from_ptr(info.dli_fname))
    };
    if is_standard { MPI_5_0 } else { MPICH }
}

/// Whether a library has the binary interface of MPI 5.0.
fn is_standard_library(path: &CStr) -> bool {
    let name = path.to_bytes().rsplit(|byte| *byte == b'/').next();
    name.is_some_and(|name| name.starts_with(b"libmpi_abi.so"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_binary_interface_follows_from_the_name_of_the_library() {
        assert!(is_standard_library(c"/usr/lib/libmpi_abi.so.1"));
        assert!(!is_standard_library(c"/opt/libmpi_abi.so/libmpi.so.12"));
        assert!(!is_standard_library(c"libmpi.so.12"));
    }
}
