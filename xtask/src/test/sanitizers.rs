//! The unsafe parts under AddressSanitizer and ThreadSanitizer, where a nightly toolchain is
//! present. The standard library itself is not instrumented: that would need its sources.

use std::process::{Command, Stdio};

use super::tally::Tally;
use crate::run;

const HOST: &str = "x86_64-unknown-linux-gnu";

/// Runs pm's tests under both sanitizers, or says why not.
///
/// # Errors
/// A test failed, or a sanitizer found something.
pub fn run(tally: &mut Tally) -> Result<(), String> {
    if !cfg!(target_arch = "x86_64") {
        tally.skip("sanitizers", "only tried on x86_64");
        return Ok(());
    }
    if !nightly() {
        tally.skip("sanitizers", "no nightly toolchain (rustup toolchain install nightly)");
        return Ok(());
    }
    sanitize(tally, "address", "")?;
    // Without instrumented standard library the compiler asks for an explicit word.
    sanitize(tally, "thread", " -Cunsafe-allow-abi-mismatch=sanitizer")
}

fn nightly() -> bool {
    Command::new("rustup")
        .args(["run", "nightly", "cargo", "--version"])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .is_ok_and(|status| status.success())
}

fn sanitize(tally: &mut Tally, name: &str, more: &str) -> Result<(), String> {
    println!("--- {name}");
    let target = run::target()?.join(format!("sanitizer-{name}"));
    let mut command = Command::new("rustup");
    command
        .args(["run", "nightly", "cargo", "test", "-p", "score-pm", "--lib", "--tests"])
        .args(["--target", HOST])
        .current_dir(run::root())
        .env_remove("CARGO")
        .env_remove("RUSTUP_TOOLCHAIN")
        .env("CARGO_TARGET_DIR", target)
        .env("RUSTFLAGS", format!("-Zsanitizer={name} --cfg sanitized{more}"))
        .env("ASAN_OPTIONS", "detect_leaks=0")
        .env("TSAN_OPTIONS", format!("suppressions={}", run::root().join(".ci/tsan").display()));
    tally.count(&mut command)
}
