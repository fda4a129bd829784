//! Tests of pm that need an RDMA device or another kernel, and what needs all cgroups in version 2,
//! in the virtual machine of `vm`.

use std::process::{Command, Stdio};

use super::tally::Tally;
use crate::{run, vm};

/// The tests of pm that run there. Emulated processors are slow: what waits for an event has to
/// have them to itself.
const TESTS: &[&str] =
    &["pinning_alone", "pinning", "verbs", "conformance", "verbs_processes", "verbs_remote"];
const ONE_AT_A_TIME: &str = "--test-threads=1";
/// What is done after them, and which of them runs again then.
const TAKE_AWAY: &[&str] = &["rdma", "link", "delete", "rxe0"];
const AGAIN: usize = 2;
/// A service there, and a job of a user that exceeds its memorylimit.
const MEMORY_LIMIT: &str = include_str!("../vm/memory_limit.sh");
/// Seconds that all of it may take, on a machine that has much else to do.
const LIMIT: &str = "600";
/// MiB of memory: contexts of 64 nodes in one process.
const MEMORY: &str = "1024";
/// The name of this step where it cannot be had.
const NAME: &str = "virtual_machine";

/// Runs them, or says why not.
///
/// # Errors
/// They could not be built, or one failed.
pub fn run(tally: &mut Tally) -> Result<(), String> {
    if let Err(reason) = vm::prepare() {
        tally.skip(NAME, &reason);
        return Ok(());
    }
    let programs = TESTS.iter().map(|name| build(name)).collect::<Result<Vec<_>, String>>()?;
    let me = std::env::current_exe().map_err(|error| error.to_string())?;
    let mut command = Command::new(me);
    // All in one boot.
    command.args(["vm", "-limit", LIMIT, "-memory", MEMORY]);
    for program in &programs {
        command.args([program, ONE_AT_A_TIME, "--"]);
    }
    command.args(TAKE_AWAY).args(["--", &programs[AGAIN], ONE_AT_A_TIME]);
    let passed = tally.count(&mut command);
    passed.and(memory_limit(tally))
}

/// What needs all cgroups in version 2, in a boot of its own.
fn memory_limit(tally: &mut Tally) -> Result<(), String> {
    let release = run::build_release()?;
    let me = std::env::current_exe().map_err(|error| error.to_string())?;
    let mut command = Command::new(me);
    command.args(["vm", "-limit", LIMIT, "-memory", MEMORY]);
    // Each is called once, so that it is there.
    command.arg(release.join("scored")).args(["-makekey", "/tmp/key", "--"]);
    command.arg(release.join("scrun")).args(["-version", "--", "sh", "-c", MEMORY_LIMIT]);
    tally.count(&mut command)
}

/// The program of one test.
fn build(name: &str) -> Result<String, String> {
    let args = ["test", "-q", "-p", "score-pm", "--test", name, "--no-run"];
    let mut command = run::cargo(&args);
    let output = command
        .args(["--message-format", "json"])
        .stderr(Stdio::inherit())
        .output()
        .map_err(|error| format!("cargo test: {error}"))?;
    let text = String::from_utf8_lossy(&output.stdout);
    let lines = text.lines().filter_map(|line| serde_json::from_str(line).ok());
    let mut programs = lines.filter_map(|line: serde_json::Value| {
        let is_it = line["target"]["name"] == name;
        line["executable"].as_str().filter(|_| is_it).map(String::from)
    });
    programs.next().ok_or_else(|| format!("cargo built no program of the test {name}"))
}
