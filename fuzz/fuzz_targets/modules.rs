//! Hostile input: executables and libraries of a process whose stacks are shown.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| score_stacks::fuzz(bytes));
