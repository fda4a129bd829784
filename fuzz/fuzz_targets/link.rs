//! Hostile input: links between daemons, from strangers and from peers that break the rules.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| score_tree::link::fuzz(bytes));
