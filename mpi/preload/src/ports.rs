//! MPI calls that connect programs by a port. For these calls, Open MPI needs a launcher that
//! publishes names (PMIx), which scrun does not do. The refusal would reach only the root of the
//! call; the other ranks of its communicator would wait for its broadcast forever. Therefore the
//! calls of Open MPI fail here at once on each rank. The error is that of a port that does not
//! exist (MPI 4.1, 11.9.2). The calls of MPICH need no launcher.

#![allow(non_snake_case)]

use std::ffi::{CStr, c_char, c_int, c_void};
use std::mem::transmute;

use score_next_function::NextFunction;

use crate::mpi_library::{self, Interface};

/// The value of MPI_ERR_PORT in Open MPI.
const OPEN_MPI_ERR_PORT: c_int = 43;

/// The text that MPI prints if the error ends the program.
const REASON: &CStr = c"MPI_Comm_accept, MPI_Comm_connect: not supported for Open MPI, \
    because scrun does not publish names; use MPICH, or start one job with all processes";

type Call = unsafe extern "C-unwind" fn(*const c_char, usize, c_int, usize, usize) -> c_int;

/// Defines a call. The Fortran functions of Open MPI use the PMPI names.
macro_rules! define_call {
    ($name:ident $symbol:literal) => {
        #[doc = concat!(stringify!($name), ". Handles are machine words.")]
        ///
        /// # Safety
        /// The requirements of that call.
        #[unsafe(no_mangle)]
        pub unsafe extern "C-unwind" fn $name(
            port_name: *const c_char,
            info: usize,
            root: c_int,
            comm: usize,
            newcomm: usize,
        ) -> c_int {
            static NEXT: NextFunction = NextFunction::new($symbol);
            if Interface::of_process() == Interface::OpenMpi {
                mpi_library::call_error_handler(comm, OPEN_MPI_ERR_PORT, REASON);
                return OPEN_MPI_ERR_PORT;
            }
            let address = NEXT.address();
            // SAFETY: MPI declares the function of this name in this way.
            let next = unsafe { transmute::<*mut c_void, Call>(address) };
            // SAFETY: the caller promises it.
            unsafe { next(port_name, info, root, comm, newcomm) }
        }
    };
}

define_call!(MPI_Comm_accept c"MPI_Comm_accept");
define_call!(PMPI_Comm_accept c"PMPI_Comm_accept");
define_call!(MPI_Comm_connect c"MPI_Comm_connect");
define_call!(PMPI_Comm_connect c"PMPI_Comm_connect");
