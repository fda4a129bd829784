//! Hostile input: expressions over hosts, the option `nodes`, and variables of batch systems.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| score_hosts::fuzz_expression(bytes));
