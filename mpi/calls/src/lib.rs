//! `libscore-mpi.so`, which is preloaded into the processes of MPI programs. It depends on no other
//! library of SCore. It has no cost in processes that do not use MPI, such as a shell that starts
//! the program.
//!
//! | file | contents |
//! |---|---|
//! | `wrappers.rs` | wrappers of the functions of MPI |
//! | `current_call.rs` | the current MPI call of each thread |
//! | `queries.rs` | the queries of the libfabric provider |
//!
//! A program that calls MPI_Test between computations polls the network without success, but does
//! not wait. Therefore the provider gets the current MPI call of a thread from this library before
//! it marks the thread idle (docs/dev/deadlock.md).

// UNSAFETY: replaces functions of C libraries.
#![expect(unsafe_code)]

mod current_call;
mod queries;
mod wrappers;
