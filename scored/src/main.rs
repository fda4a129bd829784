//! scored
fn main() {}
