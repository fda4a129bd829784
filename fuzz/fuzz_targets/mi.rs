//! Hostile input: lines of gdb (GDB/MI).
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| score_sdm::gdb::mi::fuzz(bytes));
