//! Wrappers of the functions of MPI.
//!
//! All arguments are machine words and are passed on unchanged. Therefore one build serves the
//! binary interfaces of MPICH, of Open MPI and of MPI 5.0. The Fortran functions of MPICH call the
//! C functions by the names that are wrapped here. A tool that wraps MPI itself (MPI 4.1, 15.2) is
//! called by these functions, or calls the PMPI functions, which are not wrapped.

#![allow(non_snake_case)]

use std::ffi::c_int;

use score_next_function::NextFunction;
use score_proto::for_each_mpi_call;
use score_proto::mpi_call::MpiCall;

use crate::current_call::{self, CallKind};
use crate::queries;

/// The type of an argument.
macro_rules! word {
    ($argument:ident) => {
        usize
    };
}

/// Defines a function that calls the next function of its name. `$run` takes that call as a
/// closure.
macro_rules! define {
    ($name:ident($($argument:ident)*), $run:expr) => {
        /// The MPI call of this name.
        ///
        /// # Safety
        /// The requirements of that call.
        #[unsafe(no_mangle)]
        pub unsafe extern "C-unwind" fn $name($($argument: usize),*) -> c_int {
            static NEXT: NextFunction = match std::ffi::CStr::from_bytes_with_nul(
                concat!(stringify!($name), "\0").as_bytes(),
            ) {
                Ok(name) => NextFunction::new(name),
                Err(_) => panic!("a name without a zero"),
            };
            type Function = unsafe extern "C-unwind" fn($(word!($argument)),*) -> c_int;
            let address = NEXT.address();
            // SAFETY: the function has this name, and takes as many words.
            let function: Function = unsafe { std::mem::transmute(address) };
            // SAFETY: the caller promises it.
            $run(|| unsafe { function($($argument),*) })
        }
    };
}

/// Defines the calls that wait.
macro_rules! define_waiting {
    ($($name:ident($($argument:ident)*) [$($meaning:ident $value:ident),*];)*) => {
        $(define!($name($($argument)*), |function| {
            current_call::run(CallKind::waits(MpiCall::$name, [$($value),*]), function)
        });)*
    };
}
for_each_mpi_call!(define_waiting);

/// Defines the calls that make progress and return.
macro_rules! define_returning {
    ($($name:ident($($argument:ident)*);)*) => {
        $(define!($name($($argument)*), |function| {
            current_call::run(CallKind::Returns, function)
        });)*
    };
}

define_returning! {
    MPI_Test(request flag status);
    MPI_Testall(count array_of_requests flag array_of_statuses);
    MPI_Testany(count array_of_requests indx flag status);
    MPI_Testsome(incount array_of_requests outcount array_of_indices array_of_statuses);
    MPI_Request_get_status(request flag status);
    MPI_Request_get_status_all(count array_of_requests flag array_of_statuses);
    MPI_Request_get_status_any(count array_of_requests indx flag status);
    MPI_Request_get_status_some(
        incount array_of_requests outcount array_of_indices array_of_statuses
    );
    MPI_Iprobe(source tag comm flag status);
    MPI_Improbe(source tag comm flag message status);
    MPI_Parrived(request partition flag);
    MPI_Cancel(request);
    MPI_Win_test(win flag);
    MPI_Win_sync(win);
}

/// Defines the calls that may register functions for attributes. Afterwards MPI may run such a
/// function of the program in a call that handles attributes.
macro_rules! define_keyvals {
    ($($name:ident($($argument:ident)*);)*) => {
        $(define!($name($($argument)*), |function: _| {
            queries::note_keyval();
            current_call::run(CallKind::Returns, function)
        });)*
    };
}

define_keyvals! {
    MPI_Keyval_create(copy_fn delete_fn keyval extra_state);
    MPI_Comm_create_keyval(copy_fn delete_fn keyval extra_state);
    MPI_Win_create_keyval(copy_fn delete_fn keyval extra_state);
}

/// Defines the calls after which a waiting call may end without a message of the job. These calls
/// register functions of the program that MPI may run in any call, start asynchronous input and
/// output, connect to other jobs, or change how MPI waits.
macro_rules! define_other_sources {
    ($($name:ident($($argument:ident)*);)*) => {
        $(define!($name($($argument)*), |function: _| {
            queries::note_other_source();
            current_call::run(CallKind::Returns, function)
        });)*
    };
}

define_other_sources! {
    MPI_Errhandler_create(function_of_program errhandler);
    MPI_Comm_create_errhandler(function_of_program errhandler);
    MPI_Win_create_errhandler(function_of_program errhandler);
    MPI_File_create_errhandler(function_of_program errhandler);
    MPI_Session_create_errhandler(function_of_program errhandler);
    MPIX_Comm_create_errhandler_x(function_of_program free_fn extra_state errhandler);
    MPIX_Win_create_errhandler_x(function_of_program free_fn extra_state errhandler);
    MPIX_File_create_errhandler_x(function_of_program free_fn extra_state errhandler);
    MPIX_Session_create_errhandler_x(function_of_program free_fn extra_state errhandler);
    MPI_Grequest_start(query_fn free_fn cancel_fn extra_state request);
    MPIX_Grequest_start(query_fn free_fn cancel_fn poll_fn wait_fn extra_state request);
    MPIX_Grequest_class_allocate(greq_class extra_state request);
    MPIX_Async_start(poll_fn extra_state stream);
    MPIX_Start_progress_thread(stream);
    MPIX_Stream_create(info stream);
    MPIX_Threadcomm_init(comm num_threads newthreadcomm);
    MPI_Register_datarep(
        datarep read_conversion_fn write_conversion_fn dtype_file_extent_fn extra_state
    );
    MPI_T_cvar_write(handle buf);
    MPI_Comm_accept(port_name info root comm newcomm);
    MPI_Comm_connect(port_name info root comm newcomm);
    MPI_Comm_join(fd intercomm);
    MPI_File_iread(fh buf count datatype request);
    MPI_File_iread_all(fh buf count datatype request);
    MPI_File_iread_at(fh offset buf count datatype request);
    MPI_File_iread_at_all(fh offset buf count datatype request);
    MPI_File_iread_shared(fh buf count datatype request);
    MPI_File_iwrite(fh buf count datatype request);
    MPI_File_iwrite_all(fh buf count datatype request);
    MPI_File_iwrite_at(fh offset buf count datatype request);
    MPI_File_iwrite_at_all(fh offset buf count datatype request);
    MPI_File_iwrite_shared(fh buf count datatype request);
    MPI_File_iread_c(fh buf count datatype request);
    MPI_File_iread_all_c(fh buf count datatype request);
    MPI_File_iread_at_c(fh offset buf count datatype request);
    MPI_File_iread_at_all_c(fh offset buf count datatype request);
    MPI_File_iread_shared_c(fh buf count datatype request);
    MPI_File_iwrite_c(fh buf count datatype request);
    MPI_File_iwrite_all_c(fh buf count datatype request);
    MPI_File_iwrite_at_c(fh offset buf count datatype request);
    MPI_File_iwrite_at_all_c(fh offset buf count datatype request);
    MPI_File_iwrite_shared_c(fh buf count datatype request);
    MPI_Register_datarep_c(
        datarep read_conversion_fn write_conversion_fn dtype_file_extent_fn extra_state
    );
}
