//! Starts programs, and determines the directories of the source tree and of its build results.

use std::env;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// The top directory of the source tree.
pub fn source_root() -> PathBuf {
    // Cargo sets the variable for `cargo run`. The compile-time value serves a binary that is
    // started by hand.
    let manifest = env::var_os("CARGO_MANIFEST_DIR").unwrap_or(env!("CARGO_MANIFEST_DIR").into());
    Path::new(&manifest).parent().expect("xtask/ has a parent").to_path_buf()
}

/// The directory for cargo's build results, which CARGO_TARGET_DIR or a configuration may change.
///
/// # Errors
/// Returns an error if `cargo metadata` fails.
pub fn target_dir() -> Result<PathBuf, String> {
    let output = cargo(&["metadata", "--format-version", "1", "--no-deps", "--offline"])
        .stderr(Stdio::inherit())
        .output()
        .map_err(|error| format!("cargo metadata: {error}"))?;
    let metadata: serde_json::Value = serde_json::from_slice(&output.stdout)
        .map_err(|error| format!("cargo metadata gave no JSON: {error}"))?;
    let directory = metadata["target_directory"].as_str();
    directory.map(PathBuf::from).ok_or_else(|| "cargo metadata names no target directory".into())
}

/// A cargo command at the top of the tree, run by the cargo that runs this program.
pub fn cargo(args: &[&str]) -> Command {
    let mut command = Command::new(env::var_os("CARGO").unwrap_or("cargo".into()));
    command.args(args).current_dir(source_root());
    if is_ci() {
        // Incremental compilation makes this build slower. Only a later build would be faster.
        command.env("CARGO_INCREMENTAL", "0");
    }
    for (name, _) in env::vars_os() {
        // Cargo's variables about xtask would make other crates rebuild, or mislead their tests.
        let name_text = name.to_string_lossy();
        if name_text.starts_with("CARGO_PKG_") || name_text.starts_with("CARGO_MANIFEST") {
            command.env_remove(&name);
        }
    }
    command
}

/// Whether this is CI: a fresh machine that runs every check once.
pub fn is_ci() -> bool {
    env::var("CI").is_ok_and(|value| value == "true")
}

/// The same command with low priority, so that it uses only spare processor time. Its streams are
/// not set.
pub fn with_low_priority(command: &Command) -> Command {
    let mut result = Command::new("nice");
    result.args(["-n", "19"]).arg(command.get_program()).args(command.get_args());
    if let Some(directory) = command.get_current_dir() {
        result.current_dir(directory);
    }
    for (name, value) in command.get_envs() {
        match value {
            Some(value) => result.env(name, value),
            None => result.env_remove(name),
        };
    }
    result
}

/// Runs a command to its end, on the same terminal.
///
/// # Errors
/// Returns an error if the command could not be started, or did not exit with 0.
pub fn run_checked(command: &mut Command) -> Result<(), String> {
    let status = command.status().map_err(|error| format!("{}: {error}", command_line(command)))?;
    if status.success() { Ok(()) } else { Err(format!("{}: {status}", command_line(command))) }
}

/// Whether PATH has this program.
pub fn is_installed(program: &str) -> bool {
    let path = env::var_os("PATH").unwrap_or_default();
    env::split_paths(&path).any(|directory| directory.join(program).is_file())
}

/// The command as a user would type it.
pub fn command_line(command: &Command) -> String {
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    words.map(|word| word.to_string_lossy()).collect::<Vec<_>>().join(" ")
}

/// Builds everything as a user's `cargo build --release` does. Returns the directory with the
/// results.
///
/// # Errors
/// Returns an error if the build failed.
pub fn build_release() -> Result<PathBuf, String> {
    run_checked(&mut cargo(&["build", "--release", "--workspace"]))?;
    Ok(target_dir()?.join("release"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_of_low_priority_keeps_its_words_its_variables_and_its_directory() {
        let mut command = Command::new("sh");
        command.args(["-c", "echo $(nice) $0 $GIVEN ${HOME-none}; pwd", "a word"]);
        command.env("GIVEN", "value").env_remove("HOME").current_dir("/");
        let output = with_low_priority(&command).output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let (nice, rest) = text.split_once(' ').unwrap();
        // The test itself may run with another priority.
        let own = Command::new("nice").output().unwrap();
        let own: i32 = String::from_utf8_lossy(&own.stdout).trim().parse().unwrap();
        assert_eq!(nice.parse::<i32>(), Ok((own + 19).min(19)));
        assert_eq!(rest, "a word value none\n/\n");
    }
}
