//! scrun
fn main() {}
