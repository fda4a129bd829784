//! `libscore-mpi.so`: preloaded into the processes of MPI programs. It needs no other library of
//! ours, and costs nothing in a process that is no MPI program, such as a shell between scrun and
//! the program.
//!
//! | file | what is in it |
//! |---|---|
//! | `wrappers.rs` | functions that take the place of calls of MPI |
//! | `current_call.rs` | in which of them a thread is |
//! | `queries.rs` | what the provider of libfabric asks |
//!
//! A program that polls MPI_Test between computations polls the network in vain and yet does not
//! wait. So the provider asks here in which call a thread polls, before it says that the thread has
//! nothing to do (docs/time-sharing.md, "Deadlock").

// UNSAFETY: takes the place of functions of C libraries.
#![expect(unsafe_code)]

mod current_call;
mod queries;
mod wrappers;
