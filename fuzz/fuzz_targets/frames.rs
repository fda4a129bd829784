//! Hostile input: control messages, from a stream and as datagrams.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| score_proto::all_messages::fuzz(bytes));
