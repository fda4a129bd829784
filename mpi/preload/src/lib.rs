//! `libscore-preload.so`, which is preloaded into the processes of MPI programs. It depends on no
//! other library of SCore. In processes that do not use MPI, such as a shell that starts the
//! program, it only installs the fault handlers.
//!
//! | file | contents |
//! |---|---|
//! | `yielding.rs` | sched_yield(2), which some processes need not call |
//! | `kernel_symbols.rs` | fopen(3), by which libfabric reads a file that it does not need |
//! | `spawn.rs` | MPI calls that start processes, which a job cannot do |
//! | `ports.rs` | MPI calls that connect programs by a port, which Open MPI cannot do here |
//! | `faults.rs` | fault handlers that read the stack of a rank |
//! | `mpi_library.rs` | the functions of the MPI library that the others need |

// UNSAFETY: replaces functions of C libraries.
#![expect(unsafe_code)]

mod faults;
mod kernel_symbols;
mod mpi_library;
mod ports;
mod spawn;
mod yielding;
