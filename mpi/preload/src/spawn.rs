//! Calls of MPI that start processes. A job under scrun has the processes with which it was
//! started, so these calls fail, on each rank and at once, with the class of errors that the
//! standard has for that (MPI 4.1, 11.8.2): programs go on without more processes by it.
//!
//! To refuse the request of the MPI library by PMI or PMIx is not enough, since none of them makes
//! that class of it: MPICH has MPI_ERR_OTHER. In Open MPI 4 the root of the call alone gets the
//! answer and returns, and the other ranks wait for a broadcast by it for ever. Open MPI 5
//! broadcasts the negated class, which is MPI_ERR_UNKNOWN.

#![allow(non_snake_case)]

use std::ffi::{CStr, c_char, c_int};

use crate::mpi_library::{self, Interface};

/// What MPI says about the error where it ends the program.
const REASON: &CStr = c"MPI_Comm_spawn: a job under scrun gets no more processes than it was \
    started with; start it with more nodes (scrun -nodes=N)";

/// What both calls have in common.
struct Request {
    comm: usize,
    root: c_int,
    /// So many numbers of processes, at the root.
    counts: *const c_int,
    program_count: c_int,
    /// Room for an error of each process, at the root. Null: MPI_ERRCODES_IGNORE.
    codes: *mut c_int,
}

impl Request {
    /// # Safety
    /// The pointers are what the fields say.
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

/// MPI_Comm_spawn. Handles are integers or pointers: machine words serve the binary interfaces of
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

/// Defines a call under the name that programs use. Fortran functions of Open MPI use the other.
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

/// The number of processes that were asked for.
///
/// # Safety
/// There are so many numbers at `counts`.
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
        // SAFETY: there are so many.
        let totals = [0, 1, 4, -1].map(|count| unsafe { total(counts.as_ptr(), count) });
        assert_eq!(totals, [0, 2, 5, 0]);
    }
}
