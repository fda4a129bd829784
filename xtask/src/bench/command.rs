//! Runs programs for a measurement, with a time limit.

use std::process::{Command, Stdio};
use std::time::Instant;

use crate::run;

/// The time limit in seconds of a single command. Only a command that hangs exceeds it.
const COMMAND_TIMEOUT_S: &str = "120";

/// Splits a command line at blanks.
pub fn split_words(line: &str) -> Vec<String> {
    line.split_whitespace().map(str::to_owned).collect()
}

fn command_with_timeout(words: &[String]) -> Command {
    let mut command = Command::new("timeout");
    command.arg(COMMAND_TIMEOUT_S).args(words).stdin(Stdio::null()).current_dir(run::source_root());
    // Cargo's value names its own directories, which contain the libraries of a debug build.
    command.env_remove("LD_LIBRARY_PATH");
    // Open MPI requires these variables if it runs as root (in containers).
    command.env("OMPI_ALLOW_RUN_AS_ROOT", "1").env("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1");
    command
}

/// Returns the standard output of a command that must succeed.
///
/// # Errors
/// The command line, with the last line of the command's error output.
pub fn command_stdout(words: &[String]) -> Result<String, String> {
    let output =
        command_with_timeout(words).output().map_err(|error| format!("timeout: {error}"))?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    let stderr = String::from_utf8_lossy(&output.stderr);
    let last = stderr.lines().rfind(|line| !line.trim().is_empty()).unwrap_or("");
    Err(format!("{}: {}: {last}", words.join(" "), output.status))
}

/// Returns the milliseconds of wall clock time that a command takes.
///
/// # Errors
/// Returns an error if the command failed.
pub fn run_time_ms(words: &[String]) -> Result<f64, String> {
    let start = Instant::now();
    let status = command_with_timeout(words).stdout(Stdio::null()).stderr(Stdio::null()).status();
    let elapsed = start.elapsed().as_secs_f64() * 1e3;
    match status {
        Ok(status) if status.success() => Ok(elapsed),
        Ok(status) => Err(format!("{}: {status}", words.join(" "))),
        Err(error) => Err(format!("timeout: {error}")),
    }
}
