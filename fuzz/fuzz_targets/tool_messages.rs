//! Hostile input: messages between a tool and the tool control service.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| score_tools::wire::fuzz(bytes));
