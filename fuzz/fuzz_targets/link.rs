//! Hostile input: links between daemons, from unauthenticated senders and from peers that violate
//! the protocol.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| score_tree::link::fuzz(bytes));
