//! `libscore-preload.so`: preloaded into the processes of MPI programs. It needs no other library
//! of ours, and costs nothing in a process that is no MPI program, such as a shell between scrun
//! and the program.
//!
//! | file | what is in it |
//! |---|---|
//! | `yielding.rs` | sched_yield(2), which some processes need not call |
//! | `kernel_symbols.rs` | fopen(3), by which libfabric reads more than it needs |
//! | `spawn.rs` | calls of MPI that start processes, which a job cannot |
//! | `ports.rs` | calls of MPI that connect programs by a port, which Open MPI cannot here |
//! | `faults.rs` | handlers of faults, which let the stack of a rank be read |
//! | `mpi_library.rs` | the functions of the MPI library that they need |

// UNSAFETY: takes the place of functions of C libraries.
#![expect(unsafe_code)]

mod faults;
mod kernel_symbols;
mod mpi_library;
mod ports;
mod spawn;
mod yielding;
