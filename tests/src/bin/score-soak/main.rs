//! The soak.
#![forbid(unsafe_code)]
fn main() {}
