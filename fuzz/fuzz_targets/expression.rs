//! Hostile input: expressions over hosts, `nodes`, what batch systems put into the environment.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| score_hosts::fuzz_expression(bytes));
