//! Tests that need an RDMA device or another kernel, and what needs all cgroups in version 2, in
//! the virtual machine of `vm`: all in one boot. What goes between two machines, in another one.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use super::tally::Tally;
use crate::{run, vm};

/// The tests of pm that run there. Emulated processors are slow: what waits for an event has to
/// have them to itself.
const TESTS: &[&str] =
    &["pinning_alone", "pinning", "verbs", "conformance", "verbs_processes", "verbs_remote"];
const ONE_AT_A_TIME: &str = "--test-threads=1";
/// The whole-system scenarios that run there, and what they run: a user's programs, and programs of
/// `tests/programs`.
const SCENARIOS: &str = "rdma_jobs::";
const USED: &[&str] = &["scored", "scrun", "scatter", "gather", "system", "pmtest"];
const PROGRAMS: &[&str] =
    &["deadlock", "figures", "pingpong", "regions", "remote", "traffic", "turns", "two_networks"];
/// After them the adapters are removed; and one that runs again then.
const REMOVAL: &str = "verbs_removal";
const REMOVED: &str = "for i in $(seq 300); do [ -z \"$(ls /sys/class/infiniband)\" ] && exit; \
                       sleep 0.1; done; exit 1";
const AGAIN: usize = 2;
/// For how long jobs take turns there.
const SLICES: &str = "HARNESS_SLICES_SECONDS";
/// What runs on two machines at a time, joined by wires: scenarios, and tests of pm.
const JOBS: &str = "two_machines::";
/// Of these the ones that wait for what takes its time, or measure it: `cargo xtask soak machines`.
const LONG: [&str; 2] = ["jobs_take_turns_on_both", "the_machine_that_is_lost"];
const MACHINES: &str = "verbs_machines";
/// A service there, and a job of a user that exceeds its memorylimit.
const MEMORY_LIMIT: &str = include_str!("../vm/memory_limit.sh");
/// Seconds that all of it may take, on a machine that has much else to do.
const LIMIT: &str = "900";
/// What ends by itself.
const A_DAY: &str = "86400";
/// MiB of memory: contexts of 64 nodes in one process; half of it is room for files.
const MEMORY: &str = "1536";
/// The names of this step, and of what needs a module of its own, where they cannot be had.
const NAME: &str = "virtual_machine";
const SOFT_IWARP: &str = "soft_iwarp";

/// Runs them, or says why not.
///
/// # Errors
/// They could not be built, or one failed.
pub fn run(tally: &mut Tally) -> Result<(), String> {
    match vm::prepare() {
        Ok(None) => {}
        Ok(Some(reason)) => tally.skip(SOFT_IWARP, &reason),
        Err(reason) => {
            tally.skip(NAME, &reason);
            return Ok(());
        }
    }
    let of_pm = |name: &&str| built("score-pm", name);
    let programs = TESTS.iter().map(of_pm).collect::<Result<Vec<_>, _>>()?;
    let scenarios = built("score-tests", "scenarios")?;
    let files = given(&scenarios)?;
    let me = std::env::current_exe().map_err(|error| error.to_string())?;
    let mut command = Command::new(me);
    command.args(["vm", "-limit", LIMIT, "-memory", MEMORY]);
    for file in &files {
        command.arg("-give").arg(file);
    }
    for program in &programs {
        command.arg(program).args([ONE_AT_A_TIME, "--"]);
    }
    let scenarios = vm::inside(&scenarios);
    command.args(["env", "HARNESS_BIN_DIR=/given", &scenarios, SCENARIOS, ONE_AT_A_TIME, "--"]);
    command.args(["sh", "-c", MEMORY_LIMIT, "--"]).arg(built("score-pm", REMOVAL)?);
    command.args(["--", "sh", "-c", REMOVED, "--"]);
    command.arg(&programs[AGAIN]).arg(ONE_AT_A_TIME);
    let mut two = two_machines(&scenarios, &files)?;
    LONG.iter().for_each(|name| _ = two.args(["--skip", name]));
    two.arg("--").arg(built("score-pm", MACHINES)?).arg(ONE_AT_A_TIME);
    tally.count(&mut command).and(tally.count(&mut two))
}

/// All that runs on two machines but the tests of pm: `cargo xtask soak machines`.
///
/// # Errors
/// They could not be had, or one failed.
pub fn soak_of_two() -> Result<(), String> {
    vm::prepare()?;
    let scenarios = built("score-tests", "scenarios")?;
    let files = given(&scenarios)?;
    run::call(two_machines(&vm::inside(&scenarios), &files)?.arg("--nocapture"))
}

/// The soak program with these arguments, on one machine, where it ends by its own limits: each of
/// its jobs has one.
///
/// # Errors
/// It could not be had, or has found something.
pub fn soak(args: &[String]) -> Result<(), String> {
    vm::prepare()?;
    let release = run::build_release()?;
    let soak = release.join("score-soak");
    let files = given(&soak)?;
    let me = std::env::current_exe().map_err(|error| error.to_string())?;
    let mut command = Command::new(me);
    command.args(["vm", "-limit", A_DAY, "-memory", MEMORY]);
    files.iter().for_each(|file| _ = command.arg("-give").arg(file));
    command.args(["env", "HARNESS_BIN_DIR=/given", &vm::inside(&soak)]).args(args);
    run::call(&mut command)
}

/// What scenarios or a soak need, and their program.
fn given(program: &Path) -> Result<Vec<PathBuf>, String> {
    let release = run::build_release()?;
    let mut files: Vec<PathBuf> = USED.iter().map(|name| release.join(name)).collect();
    files.extend(compiled(&release)?);
    files.push(program.to_path_buf());
    Ok(files)
}

/// Jobs over two machines.
fn two_machines(scenarios: &str, files: &[PathBuf]) -> Result<Command, String> {
    let me = std::env::current_exe().map_err(|error| error.to_string())?;
    let mut command = Command::new(me);
    command.args(["vm", "-machines", "2", "-limit", LIMIT, "-memory", MEMORY]);
    files.iter().for_each(|file| _ = command.arg("-give").arg(file));
    command.args(["env", "HARNESS_BIN_DIR=/given"]);
    if let Ok(seconds) = std::env::var(SLICES) {
        command.arg(format!("{SLICES}={seconds}"));
    }
    command.args([scenarios, JOBS, ONE_AT_A_TIME]);
    Ok(command)
}

/// The C programs of the scenarios: there is no compiler in the machine.
fn compiled(release: &Path) -> Result<Vec<PathBuf>, String> {
    let folder = release.join("test-programs");
    std::fs::create_dir_all(&folder).map_err(|error| format!("{}: {error}", folder.display()))?;
    let compile = |name: &&str| {
        let (program, source) =
            (folder.join(name), run::root().join(format!("tests/programs/{name}.c")));
        let mut command = Command::new(release.join("scorecc"));
        run::call(command.args(["-O1", "-o"]).arg(&program).arg(source))?;
        Ok(program)
    };
    PROGRAMS.iter().map(compile).collect()
}

/// The program of one test.
fn built(package: &str, name: &str) -> Result<PathBuf, String> {
    let args = ["test", "-q", "-p", package, "--test", name, "--no-run"];
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
        line["executable"].as_str().filter(|_| is_it).map(PathBuf::from)
    });
    programs.next().ok_or_else(|| format!("cargo built no program of the test {name}"))
}
