//! Hostile input: messages of MPI processes to their launcher, and entries of a fence.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| score_pmi::fuzz(bytes));
