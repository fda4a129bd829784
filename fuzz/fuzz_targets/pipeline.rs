//! Hostile input: the words of a job: pipes, redirects, sequences.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| scrun::fuzz_pipeline(bytes));
