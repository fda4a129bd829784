//! `cargo xtask test`: every check in order, each with its time.

use crate::run;

/// Runs it.
///
/// # Errors
/// One line that says what is missing.
pub fn run(_args: &[String]) -> Result<(), String> {
    crate::setup::packages();
    crate::setup::components();
    run::build_release()?;
    run::call(&mut run::cargo(&["test", "--workspace"]))
}

/// `cargo xtask headers`: the header checks of the C ABI alone.
///
/// # Errors
/// A check failed.
pub fn headers(_args: &[String]) -> Result<(), String> {
    run::call(&mut run::cargo(&["test", "-p", "pm-c", "-p", "score-c"]))
}
