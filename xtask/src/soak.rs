//! `cargo xtask soak`: builds, then hands over to the soak program, which shares the scenarios'
//! harness (tests/src/bin/score-soak/).

use std::process::Command;

use crate::run;

/// Runs the soak that `args` name.
///
/// # Errors
/// The build failed, or the soak found something.
pub fn run(args: &[String]) -> Result<(), String> {
    let bin = run::build_release()?;
    run::call(Command::new(bin.join("score-soak")).args(args).env("HARNESS_BIN_DIR", &bin))
}
