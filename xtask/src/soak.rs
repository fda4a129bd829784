//! `cargo xtask soak`: builds, then runs the soak program, which shares the scenarios' harness
//! (tests/src/bin/score-soak/). Soaks that need an RDMA adapter run in the virtual machine, `cargo
//! xtask soak machines` in two.

use std::process::Command;

use crate::{run, test};

/// Runs the soak that `args` name.
///
/// # Errors
/// If the build failed, or the soak found an error.
pub fn run(args: &[String]) -> Result<(), String> {
    if args.first().is_some_and(|kind| kind == "machines") {
        return test::vm_tests::soak_on_two_machines();
    }
    if args.iter().any(|word| word == "-rdma") {
        return test::vm_tests::soak(args);
    }
    let bin = run::build_release()?;
    run::run_checked(Command::new(bin.join("score-soak")).args(args).env("HARNESS_BIN_DIR", &bin))
}
