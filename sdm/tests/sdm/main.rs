//! Tests of the debug manager: a simulated network, real gdbs, and invalid input.

mod connection_strings;
mod corpus;
mod gdb_over_tcp;
mod simulation;
