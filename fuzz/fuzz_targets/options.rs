//! Hostile input: scrun's option words and SCORE_OPTIONS.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| scrun::fuzz_options(bytes));
