//! Runs the unsafe parts under AddressSanitizer and ThreadSanitizer, if a nightly toolchain is
//! installed. The standard library is not instrumented, because this would need its sources.

use std::process::{Command, Stdio};

use super::summary::TestSummary;
use crate::run;

const HOST: &str = "x86_64-unknown-linux-gnu";

/// The names of the sanitizers, and the additional compiler flags that they need.
const SANITIZERS: &[(&str, &str)] = &[
    ("address", ""),
    // The compiler requires this flag if the standard library is not instrumented.
    ("thread", " -Cunsafe-allow-abi-mismatch=sanitizer"),
];

/// Runs pm's tests under both sanitizers, or records why this is not possible.
///
/// # Errors
/// Returns an error if a test failed, or a sanitizer found an error.
pub fn run(summary: &mut TestSummary) -> Result<(), String> {
    if let Some(reason) = missing_need() {
        summary.add_skip("sanitizers", reason);
        return Ok(());
    }
    SANITIZERS.iter().try_for_each(|(name, flags)| {
        println!("--- {name}");
        summary.run_and_count(&mut test_command(name, flags)?)
    })
}

/// Builds the tests that [`run`] runs, if a nightly toolchain is installed.
///
/// # Errors
/// Returns an error if the build failed.
pub fn build(summary: &mut TestSummary) -> Result<(), String> {
    if missing_need().is_some() {
        return Ok(());
    }
    SANITIZERS
        .iter()
        .try_for_each(|(name, flags)| summary.run(test_command(name, flags)?.arg("--no-run")))
}

fn missing_need() -> Option<&'static str> {
    if !cfg!(target_arch = "x86_64") {
        return Some("only tested on x86_64");
    }
    let has_nightly = Command::new("rustup")
        .args(["run", "nightly", "cargo", "--version"])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .is_ok_and(|status| status.success());
    (!has_nightly).then_some("no nightly toolchain (rustup toolchain install nightly)")
}

fn test_command(name: &str, extra_flags: &str) -> Result<Command, String> {
    let target = run::target_dir()?.join(format!("sanitizer-{name}"));
    let mut command = Command::new("rustup");
    command
        .args(["run", "nightly", "cargo", "test", "-p", "score-pm", "--lib", "--tests"])
        .args(["--target", HOST])
        .current_dir(run::source_root())
        .env_remove("CARGO")
        .env_remove("RUSTUP_TOOLCHAIN")
        .env("CARGO_TARGET_DIR", target)
        .env("RUSTFLAGS", format!("-Zsanitizer={name} --cfg sanitized{extra_flags}"))
        .env("ASAN_OPTIONS", "detect_leaks=0")
        .env(
            "TSAN_OPTIONS",
            format!("suppressions={}", run::source_root().join(".ci/tsan").display()),
        );
    Ok(command)
}
