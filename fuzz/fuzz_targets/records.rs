//! Hostile input: records of a daemon for its keeper, and vouchers.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| score_keeper::record::fuzz(bytes));
