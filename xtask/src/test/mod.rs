//! `cargo xtask test`: sets up what is missing, then every check in order, each with its time.

pub mod machine;
mod sanitizers;
mod tally;

use std::process::Command;
use std::time::Instant;

use crate::{run, setup, tidy};
use tally::Tally;

/// One step: its heading and what it does.
type Step = (&'static str, fn(&mut Tally) -> Result<(), String>);

const STEPS: &[Step] = &[
    ("what this machine lacks", set_up),
    ("format", format),
    ("house rules", house_rules),
    ("clippy", clippy),
    ("release build of everything", release_build),
    ("tests of every package, C programs, corpora and whole-system scenarios", tests),
    ("loom: every interleaving of ring, doorbell and idle bell", loom),
    ("sanitizers on the unsafe parts", sanitizers::run),
    ("virtual machine with an RDMA device", machine::run),
    ("soak, a short one", soak),
];

/// Runs every step, or those whose heading begins with one of `args`.
///
/// # Errors
/// Something failed, or was skipped in CI without being listed.
pub fn run(args: &[String]) -> Result<(), String> {
    if let Some(option) = args.iter().find(|arg| arg.starts_with('-')) {
        return Err(format!("{option}: the only arguments are beginnings of step names"));
    }
    let begin = Instant::now();
    let mut tally = Tally::new()?;
    let wanted = |heading: &str| args.is_empty() || args.iter().any(|arg| heading.starts_with(arg));
    for (heading, step) in STEPS.iter().filter(|(heading, _)| wanted(heading)) {
        println!("\n=== {heading}");
        tally.begin();
        let start = Instant::now();
        let done = step(&mut tally);
        let seconds = start.elapsed().as_secs_f64();
        match done {
            Ok(()) => println!("=== {heading}: done in {seconds:.1} s"),
            Err(reason) => {
                println!("=== {heading}: FAILED after {seconds:.1} s: {reason}");
                tally.fail(heading, &reason);
            }
        }
    }
    tally.close(begin.elapsed())
}

/// `cargo xtask headers`: the header checks of the C ABI alone.
///
/// # Errors
/// A check failed.
pub fn headers(_args: &[String]) -> Result<(), String> {
    run::call(&mut run::cargo(&[
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

fn set_up(_: &mut Tally) -> Result<(), String> {
    setup::packages();
    setup::testbeds();
    setup::wishes();
    setup::components();
    Ok(())
}

fn format(_: &mut Tally) -> Result<(), String> {
    run::call(&mut run::cargo(&["fmt", "--all", "--check"]))
}

fn house_rules(tally: &mut Tally) -> Result<(), String> {
    tidy::run(&[])?;
    if !run::have("groff") {
        tally.skip("man pages render", "groff is not installed");
    }
    Ok(())
}

fn clippy(_: &mut Tally) -> Result<(), String> {
    run::call(&mut run::cargo(&["clippy", "--workspace", "--all-targets", "--", "-D", "warnings"]))
}

fn release_build(_: &mut Tally) -> Result<(), String> {
    run::build_release().map(drop)
}

fn tests(tally: &mut Tally) -> Result<(), String> {
    let release = run::target()?.join("release");
    let mut command = run::cargo(&["test", "--workspace", "--no-fail-fast"]);
    // The scenarios run the programs that a user gets; they need not be built again.
    command.env("HARNESS_BIN_DIR", release);
    tally.count(&mut command)
}

fn loom(tally: &mut Tally) -> Result<(), String> {
    let target = run::target()?.join("loom");
    let mut command = run::cargo(&["test", "-p", "score-pm", "-p", "score-proto", "--lib"]);
    // What only the real devices use is not compiled in, and the compiler would say so.
    command
        .env("RUSTFLAGS", "--cfg loom -Adead_code -Aunused_imports")
        .env("CARGO_TARGET_DIR", target);
    tally.count(&mut command)
}

fn soak(tally: &mut Tally) -> Result<(), String> {
    let program = run::target()?.join("release/score-soak");
    for kind in ["kill", "messages", "memory", "gang"] {
        run::call(Command::new(&program).args([kind, "-quick"]))?;
        tally.pass(1);
    }
    Ok(())
}
