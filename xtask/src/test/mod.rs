//! `cargo xtask test`: installs what is missing, then runs every check in order, each with its
//! time.

mod sanitizers;
mod summary;
pub mod vm_tests;

use std::process::Command;
use std::time::Instant;

use crate::{run, setup, tidy};
use summary::TestSummary;

/// One step: its heading and its function.
type Step = (&'static str, fn(&mut TestSummary) -> Result<(), String>);

const STEPS: &[Step] = &[
    ("what this machine lacks", set_up),
    ("format", format),
    ("tidy", tidy_rules),
    ("clippy", clippy),
    ("release build of everything", release_build),
    ("tests of every package, C programs, corpora and whole-system scenarios", tests),
    ("loom: every interleaving of ring, doorbell and idle notification", loom),
    ("sanitizers on the unsafe parts", sanitizers::run),
    ("virtual machine with an RDMA device", vm_tests::run),
    ("soak, a short one", soak),
];

/// Runs every step, or those whose heading begins with one of `args`.
///
/// # Errors
/// If a step failed, or was skipped in CI without being listed.
pub fn run(args: &[String]) -> Result<(), String> {
    if let Some(option) = args.iter().find(|arg| arg.starts_with('-')) {
        return Err(format!("{option}: the only arguments are beginnings of step names"));
    }
    let begin = Instant::now();
    let mut summary = TestSummary::new()?;
    let is_selected =
        |heading: &str| args.is_empty() || args.iter().any(|arg| heading.starts_with(arg));
    for (heading, step) in STEPS.iter().filter(|(heading, _)| is_selected(heading)) {
        println!("\n=== {heading}");
        summary.begin_step();
        let start = Instant::now();
        let result = step(&mut summary);
        let seconds = start.elapsed().as_secs_f64();
        match result {
            Ok(()) => println!("=== {heading}: done in {seconds:.1} s"),
            Err(reason) => {
                println!("=== {heading}: FAILED after {seconds:.1} s: {reason}");
                summary.add_failure(heading, &reason);
            }
        }
    }
    summary.print_totals(begin.elapsed())
}

/// `cargo xtask headers`: the header checks of the C ABI alone.
///
/// # Errors
/// If a check failed.
pub fn headers(_args: &[String]) -> Result<(), String> {
    run::run_checked(&mut run::cargo(&[
        "test",
        "-p",
        "score-c-tests",
        "--test",
        "headers",
        "--test",
        "symbols",
        "--test",
        "layout",
    ]))
}

fn set_up(_: &mut TestSummary) -> Result<(), String> {
    setup::install_required_packages();
    setup::unpack_testbeds();
    setup::install_mpi_libraries();
    setup::install_optional_packages();
    setup::install_rust_components();
    Ok(())
}

fn format(_: &mut TestSummary) -> Result<(), String> {
    run::run_checked(&mut run::cargo(&["fmt", "--all", "--check"]))
}

fn tidy_rules(summary: &mut TestSummary) -> Result<(), String> {
    tidy::run(&[])?;
    if !run::is_installed("groff") {
        summary.add_skip("man pages render", "groff is not installed");
    }
    Ok(())
}

fn clippy(_: &mut TestSummary) -> Result<(), String> {
    run::run_checked(&mut run::cargo(&[
        "clippy",
        "--workspace",
        "--all-targets",
        "--",
        "-D",
        "warnings",
    ]))
}

fn release_build(_: &mut TestSummary) -> Result<(), String> {
    run::build_release().map(drop)
}

fn tests(summary: &mut TestSummary) -> Result<(), String> {
    let release = run::target_dir()?.join("release");
    let mut command = run::cargo(&["test", "--workspace", "--no-fail-fast"]);
    // The scenarios run the programs that users get; they need not be built again.
    command.env("HARNESS_BIN_DIR", release);
    summary.run_and_count(&mut command)
}

fn loom(summary: &mut TestSummary) -> Result<(), String> {
    let target = run::target_dir()?.join("loom");
    let mut command = run::cargo(&["test", "-p", "score-pm", "-p", "score-proto", "--lib"]);
    // Code that only the real devices use is not compiled in, so the compiler would warn about it.
    command
        .env("RUSTFLAGS", "--cfg loom -Adead_code -Aunused_imports")
        .env("CARGO_TARGET_DIR", target);
    summary.run_and_count(&mut command)
}

fn soak(summary: &mut TestSummary) -> Result<(), String> {
    let program = run::target_dir()?.join("release/score-soak");
    for kind in ["kill", "messages", "memory", "gang"] {
        run::run_checked(Command::new(&program).args([kind, "-quick"]))?;
        summary.add_passed(1);
    }
    Ok(())
}
