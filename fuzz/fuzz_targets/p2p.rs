//! Hostile input: messages of a process of an MPI program for another one.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| score_p2p::fuzz(bytes));
