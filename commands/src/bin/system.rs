//! `system`: runs a sequential program on every node (manual, system(6)).
fn main() {}
