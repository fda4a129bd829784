//! MPI calls that start processes. A job under scrun cannot get further processes. Therefore these
//! calls fail at once on each rank, with the error class that the standard defines for this case
//! (MPI 4.1, 11.8.2). Programs use this class to continue without more processes.
//!
//! A refusal of the MPI library's request by PMI or PMIx would not be enough, because no library
//! translates it to that class. MPICH returns MPI_ERR_OTHER. In Open MPI 4 only the root of the
//! call gets the answer and returns, and the other ranks wait for its broadcast forever. Open MPI 5
//! broadcasts the negated class, which is MPI_ERR_UNKNOWN.

#![allow(non_snake_case)]

use std::ffi::{CStr, c_char, c_int};

use crate::mpi_library::{self, Interface};

/// The text that MPI prints if the error ends the program.
const REASON: &CStr = c"MPI_Comm_spawn: a job under scrun cannot get more processes than it was \
    started with; start it with more nodes (scrun -nodes=N)";

/// The common arguments of both calls.
struct Request {
    comm: usize,
    root: c_int,
    /// The number of processes of each program; valid at the root.
    counts: *const c_int,
    program_count: c_int,
    /// Room for an error code of each process; valid at the root. NULL: MPI_ERRCODES_IGNORE.
    codes: *mut c_int,
}

impl Request {
    /// # Safety
    /// The pointers are as the fields describe.
    unsafe fn refuse(self) -> c_int {
        let class = Interface::of_process().spawn_class();
        mpi_library::call_error_handler(self.comm, class, REASON);
        if !self.codes.is_null() && mpi_library::rank(self.comm) == Some(self.root) {
            // SAFETY: the caller promises it.
            let count = unsafe { total(self.counts, self.program_count) };
            for index in 0..count {
                // SAFETY: the caller promises it.
                unsafe { self.codes.add(index).write(class) };
            }
        }
        class
    }
}

/// MPI_Comm_spawn. Handles are integers or pointers. Machine words serve the binary interfaces of
/// MPICH, of Open MPI and of MPI 5.0.
///
/// # Safety
/// The requirements of that call.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn PMPI_Comm_spawn(
    _command: *const c_char,
    _argv: usize,
    maxprocs: c_int,
    _info: usize,
    root: c_int,
    comm: usize,
    _intercomm: usize,
    array_of_errcodes: *mut c_int,
) -> c_int {
    let request =
        Request { comm, root, counts: &maxprocs, program_count: 1, codes: array_of_errcodes };
    // SAFETY: the caller promises it.
    unsafe { request.refuse() }
}

/// MPI_Comm_spawn_multiple.
///
/// # Safety
/// The requirements of that call.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn PMPI_Comm_spawn_multiple(
    count: c_int,
    _array_of_commands: usize,
    _array_of_argv: usize,
    array_of_maxprocs: *const c_int,
    _array_of_info: usize,
    root: c_int,
    comm: usize,
    _intercomm: usize,
    array_of_errcodes: *mut c_int,
) -> c_int {
    let (counts, program_count, codes) = (array_of_maxprocs, count, array_of_errcodes);
    // SAFETY: the caller promises it.
    unsafe { Request { comm, root, counts, program_count, codes }.refuse() }
}

/// Defines a call under the MPI name, which programs use. The Fortran functions of Open MPI use the
/// PMPI name.
macro_rules! define_alias {
    ($name:ident $profiling_name:ident($($argument:ident: $kind:ty),*)) => {
        #[doc = concat!(stringify!($profiling_name), ".")]
        ///
        /// # Safety
        /// The requirements of that call.
        #[unsafe(no_mangle)]
        pub unsafe extern "C-unwind" fn $name($($argument: $kind),*) -> c_int {
            // SAFETY: the caller promises it.
            unsafe { $profiling_name($($argument),*) }
        }
    };
}

define_alias!(MPI_Comm_spawn PMPI_Comm_spawn(
    command: *const c_char, argv: usize, maxprocs: c_int, info: usize, root: c_int, comm: usize,
    intercomm: usize, array_of_errcodes: *mut c_int
));
define_alias!(MPI_Comm_spawn_multiple PMPI_Comm_spawn_multiple(
    count: c_int, commands: usize, argv: usize, maxprocs: *const c_int, info: usize, root: c_int,
    comm: usize, intercomm: usize, array_of_errcodes: *mut c_int
));

/// The number of requested processes.
///
/// # Safety
/// `counts` has `count` numbers.
unsafe fn total(counts: *const c_int, count: c_int) -> usize {
    let positive = |number: c_int| usize::try_from(number).unwrap_or(0);
    // SAFETY: the caller promises it.
    (0..positive(count)).map(|index| positive(unsafe { counts.add(index).read() })).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processes_of_several_programs_are_added() {
        let counts = [2, 0, -1, 3];
        // SAFETY: `counts` has at least that many numbers.
        let totals = [0, 1, 4, -1].map(|count| unsafe { total(counts.as_ptr(), count) });
        assert_eq!(totals, [0, 2, 5, 0]);
    }
}
