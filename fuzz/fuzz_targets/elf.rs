//! Hostile input: resource notes in an ELF file.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| scrun::fuzz_elf(bytes));
