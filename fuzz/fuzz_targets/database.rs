//! Hostile input: a scorehosts.db.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| score_hosts::fuzz_database(bytes));
