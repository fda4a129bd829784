//! The unsafe parts under AddressSanitizer and ThreadSanitizer, if a nightly toolchain is present.
//! The standard library itself is not instrumented: that would need its sources.

use std::process::{Command, Stdio};

use super::summary::TestSummary;
use crate::run;

const HOST: &str = "x86_64-unknown-linux-gnu";

/// Runs pm's tests under both sanitizers, or records why not.
///
/// # Errors
/// If a test failed, or a sanitizer found an error.
pub fn run(summary: &mut TestSummary) -> Result<(), String> {
    if !cfg!(target_arch = "x86_64") {
        summary.add_skip("sanitizers", "only tested on x86_64");
        return Ok(());
    }
    if !has_nightly_toolchain() {
        summary.add_skip("sanitizers", "no nightly toolchain (rustup toolchain install nightly)");
        return Ok(());
    }
    sanitize(summary, "address", "")?;
    // Without an instrumented standard library the compiler requires this flag.
    sanitize(summary, "thread", " -Cunsafe-allow-abi-mismatch=sanitizer")
}

fn has_nightly_toolchain() -> bool {
    Command::new("rustup")
        .args(["run", "nightly", "cargo", "--version"])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .is_ok_and(|status| status.success())
}

fn sanitize(summary: &mut TestSummary, name: &str, extra_flags: &str) -> Result<(), String> {
    println!("--- {name}");
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
    summary.run_and_count(&mut command)
}
