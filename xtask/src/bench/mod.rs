//! `cargo xtask bench`: processes measured beside their peers.

/// Runs the measurements that `args` name.
///
/// # Errors
/// One line that says what is missing.
pub fn run(_args: &[String]) -> Result<(), String> {
    Err("the measurements are not built yet".into())
}
