//! Hostile input: messages from one process of an MPI program to another.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| score_p2p::fuzz(bytes));
