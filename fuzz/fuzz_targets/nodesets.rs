//! Hostile input: sets of nodes.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| score_proto::nodeset::fuzz(bytes));
