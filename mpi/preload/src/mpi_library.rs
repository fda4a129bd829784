//! The functions of the MPI library that are needed to report an error. They are called by their
//! PMPI names, which tools do not wrap (MPI 4.1, 15.2).

use std::ffi::{CStr, c_char, c_int, c_void};
use std::mem::transmute;

use score_next_function::NextFunction;

/// The longest description of an MPI library: MPI_MAX_LIBRARY_VERSION_STRING of MPICH.
const MAX_VERSION_LEN: usize = 8192;

/// The binary interface of an MPI library.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Interface {
    OpenMpi,
    /// MPICH and the libraries with its binary interface.
    Mpich,
    /// The binary interface of MPI 5.0.
    Mpi50,
}

impl Interface {
    /// The interface of the MPI library of this process.
    pub(crate) fn of_process() -> Self {
        static VERSION: NextFunction = NextFunction::new(c"PMPI_Get_library_version");
        let mut text = [0u8; MAX_VERSION_LEN + 1];
        get_library_version(text.as_mut_ptr().cast(), &mut 0);
        Self::new(&library_path(VERSION.address()), &text)
    }

    /// The interface of a library with this file path and description.
    fn new(path: &[u8], description: &[u8]) -> Self {
        let name = path.rsplit(|byte| *byte == b'/').next();
        if name.is_some_and(|name| name.starts_with(b"libmpi_abi.so")) {
            Self::Mpi50
        } else if description.starts_with(b"Open MPI") {
            Self::OpenMpi
        } else {
            Self::Mpich
        }
    }

    /// The value of MPI_ERR_SPAWN.
    pub(crate) fn spawn_class(self) -> c_int {
        match self {
            Self::OpenMpi => 50,
            Self::Mpich => 42,
            Self::Mpi50 => 53,
        }
    }
}

/// Defines a function of the library. If the process has no such function, it prints an error and
/// ends.
macro_rules! library_function {
    ($name:ident $symbol:literal: fn($($argument:ident: $kind:ty),*)) => {
        fn $name($($argument: $kind),*) -> c_int {
            static NEXT: NextFunction = NextFunction::new($symbol);
            let address = NEXT.address();
            type Function = unsafe extern "C-unwind" fn($($kind),*) -> c_int;
            // SAFETY: MPI declares the function of this name in this way.
            let function = unsafe { transmute::<*mut c_void, Function>(address) };
            // SAFETY: the arguments are values, or point to objects that live during the call. A
            // handle was passed by the program, and MPI checks it like in any call.
            unsafe { function($($argument),*) }
        }
    };
}

library_function!(comm_call_errhandler c"PMPI_Comm_call_errhandler": fn(comm: usize, code: c_int));
library_function!(comm_rank c"PMPI_Comm_rank": fn(comm: usize, rank: &mut c_int));
library_function!(add_error_code c"PMPI_Add_error_code": fn(class: c_int, code: &mut c_int));
library_function!(
    add_error_string c"PMPI_Add_error_string": fn(code: c_int, text: *const c_char)
);
library_function!(
    get_library_version c"PMPI_Get_library_version": fn(text: *mut c_char, len: &mut c_int)
);

/// Calls the error handler of a communicator with an error of this class. If the handler returns,
/// the caller returns the class, which is also a valid error code.
pub(crate) fn call_error_handler(comm: usize, class: c_int, text: &CStr) {
    let (mut code, success) = (class, 0);
    // A new error code, so that it can have its own text.
    if add_error_code(class, &mut code) != success
        || add_error_string(code, text.as_ptr()) != success
    {
        code = class;
    }
    comm_call_errhandler(comm, code);
}

/// The rank of this process in a communicator.
pub(crate) fn rank(comm: usize) -> Option<c_int> {
    let mut rank = -1;
    (comm_rank(comm, &mut rank) == 0).then_some(rank)
}

/// The file that contains a function. Empty: unknown.
fn library_path(function: *mut c_void) -> Vec<u8> {
    // SAFETY: all zeros are an empty record.
    let mut info: libc::Dl_info = unsafe { std::mem::zeroed() };
    // SAFETY: dladdr accepts any address.
    let is_found = unsafe { libc::dladdr(function, &mut info) != 0 };
    if !is_found || info.dli_fname.is_null() {
        return Vec::new();
    }
    // SAFETY: the file name is a C string.
    unsafe { CStr::from_ptr(info.dli_fname) }.to_bytes().to_vec()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_interface_follows_from_the_file_and_the_description_of_the_library() {
        for (path, description, interface) in [
            ("/usr/lib/libmpi_abi.so.1", "Open MPI v6.0.0", Interface::Mpi50),
            ("/usr/lib/libmpi.so.40", "Open MPI v4.1.4, package: Debian", Interface::OpenMpi),
            ("/opt/libmpi_abi.so/libmpi.so.12", "MPICH Version:      5.0.2", Interface::Mpich),
            ("libmpi.so.12", "Intel(R) MPI Library", Interface::Mpich),
        ] {
            let found = Interface::new(path.as_bytes(), description.as_bytes());
            assert_eq!(found, interface, "{path}");
        }
    }
}
