//! Hostile input: packets of PM/Ethernet.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| score_pm_reliability::packet_header::fuzz(bytes));
