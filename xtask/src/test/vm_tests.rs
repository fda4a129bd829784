//! Runs the tests that need an RDMA device, another kernel, or all cgroups in version 2, in the
//! virtual machine of `vm`. All of them run in one boot. Tests between two machines run in another
//! boot.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use super::summary::TestSummary;
use crate::{run, vm};

/// The program with most tests of pm, and other programs of pm that run in the machine.
const PM_PROGRAM: &str = "pm";
const OTHER_PM_PROGRAMS: &[&str] = &["pinning_single_threaded", "pinning"];
/// The modules of [`PM_PROGRAM`] that run in the machine, each in a process of its own. Emulated
/// processors are slow: no other test may run while a test waits for an event.
const PM_MODULES: &[&str] =
    &[ADAPTER_TESTS, "conformance::", "verbs_processes::", "verbs_remote::"];
const ONE_AT_A_TIME: &str = "--test-threads=1";
/// The whole-system scenarios that run in the machine, and the programs that they need: users'
/// commands, and programs of `tests/programs`.
const SCENARIO_FILTER: &str = "rdma_jobs::";
const USER_PROGRAMS: &[&str] =
    &["scored", "scored-toolctl", "scrun", "scdb", "scatter", "gather", "system", "pmtest"];
const TEST_PROGRAMS: &[&str] = &[
    "deadlock",
    "monitor_load",
    "pingpong",
    "regions",
    "remote",
    "traffic",
    "run_intervals",
    "two_networks",
];
/// The module whose test removes the adapter, and the module that runs again after it.
const ADAPTER_REMOVAL_TEST: &str = "verbs_removal::";
const ADAPTER_TESTS: &str = "verbs::";
const WAIT_FOR_REMOVAL: &str = "for i in $(seq 300); do [ -z \"$(ls /sys/class/infiniband)\" ] && exit; \
                       sleep 0.1; done; exit 1";
/// Environment variable with the number of seconds for which jobs take turns on two machines.
const SLICE_SECONDS_ENV: &str = "HARNESS_SLICES_SECONDS";
/// The scenarios, and the tests of pm, that run on two machines joined by wires.
const TWO_MACHINE_SCENARIOS: &str = "two_machines::";
/// The slow ones of these scenarios, which wait or measure. Only `cargo xtask soak machines` runs
/// them.
const SLOW_SCENARIOS: [&str; 2] = ["jobs_take_turns_on_both", "the_machine_that_is_lost"];
const TWO_MACHINE_PM_TESTS: &str = "verbs_machines::";
/// A test script: a service in the machine, and a user's job that exceeds its memorylimit.
const MEMORY_LIMIT: &str = include_str!("../vm/memory_limit.sh");
/// A test script: a user reads the stacks of a job under Yama, which is active on some hosts.
const YAMA: &str = include_str!("../vm/yama.sh");
/// Time limit of a run in seconds, on a busy machine.
const VM_TIMEOUT_S: &str = "900";
/// Time limit in seconds of a run that ends by itself.
const NO_TIMEOUT_S: &str = "86400";
/// MiB of memory. A test has contexts of 64 nodes in one process, and half of the memory is for
/// files.
const VM_MEMORY_MIB: &str = "1536";
/// The name under which this step is reported as skipped.
const STEP_NAME: &str = "virtual_machine";

/// Fetches and builds the parts of the machine. If this is not possible, [`run`] reports why.
///
/// # Errors
/// None.
pub fn prepare(_: &mut TestSummary) -> Result<(), String> {
    let _ = vm::prepare();
    Ok(())
}

/// Runs the tests, or records why this is not possible.
///
/// # Errors
/// Returns an error if a test could not be built, or failed.
pub fn run(summary: &mut TestSummary) -> Result<(), String> {
    if let Err(reason) = vm::prepare() {
        summary.add_skip(STEP_NAME, &reason);
        return Ok(());
    }
    let build_pm_test = |name: &&str| build_test("score-pm", name);
    let pm_program = build_pm_test(&PM_PROGRAM)?;
    let other_programs =
        OTHER_PM_PROGRAMS.iter().map(build_pm_test).collect::<Result<Vec<_>, _>>()?;
    let scenarios = build_test("score-tests", "scenarios")?;
    let files = payload_files(&scenarios)?;
    let xtask_path = std::env::current_exe().map_err(|error| error.to_string())?;
    let mut command = Command::new(xtask_path);
    command.args(["vm", "-limit", VM_TIMEOUT_S, "-memory", VM_MEMORY_MIB]);
    for file in &files {
        command.arg("-give").arg(file);
    }
    for program in &other_programs {
        command.arg(program).args([ONE_AT_A_TIME, "--"]);
    }
    for module in PM_MODULES {
        command.arg(&pm_program).args([*module, ONE_AT_A_TIME, "--"]);
    }
    let scenarios = vm::path_in_vm(&scenarios);
    command.args([
        "env",
        "HARNESS_BIN_DIR=/given",
        &scenarios,
        SCENARIO_FILTER,
        ONE_AT_A_TIME,
        "--",
    ]);
    command
        .args(["sh", "-c", MEMORY_LIMIT, "--", "sh", "-c", YAMA, "--"])
        .arg(&pm_program)
        .args([ADAPTER_REMOVAL_TEST, "--", "sh", "-c", WAIT_FOR_REMOVAL, "--"])
        .arg(&pm_program)
        .args([ADAPTER_TESTS, ONE_AT_A_TIME]);
    let mut two_machine_command = command_on_two_machines(&scenarios, &files)?;
    SLOW_SCENARIOS.iter().for_each(|name| _ = two_machine_command.args(["--skip", name]));
    two_machine_command.arg("--").arg(pm_program).args([TWO_MACHINE_PM_TESTS, ONE_AT_A_TIME]);
    summary.run_and_count(&mut command).and(summary.run_and_count(&mut two_machine_command))
}

/// Runs all scenarios that need two machines: `cargo xtask soak machines`.
///
/// # Errors
/// Returns an error if the machines are not available, or a test failed.
pub fn soak_on_two_machines() -> Result<(), String> {
    vm::prepare()?;
    let scenarios = build_test("score-tests", "scenarios")?;
    let files = payload_files(&scenarios)?;
    run::run_checked(
        command_on_two_machines(&vm::path_in_vm(&scenarios), &files)?.arg("--nocapture"),
    )
}

/// Runs the soak program with these arguments on one machine. The soak limits its own time, because
/// each of its jobs has a limit.
///
/// # Errors
/// Returns an error if the machine is not available, or the soak found an error.
pub fn soak(args: &[String]) -> Result<(), String> {
    vm::prepare()?;
    let release = run::build_release()?;
    let soak = release.join("score-soak");
    let files = payload_files(&soak)?;
    let xtask_path = std::env::current_exe().map_err(|error| error.to_string())?;
    let mut command = Command::new(xtask_path);
    command.args(["vm", "-limit", NO_TIMEOUT_S, "-memory", VM_MEMORY_MIB]);
    files.iter().for_each(|file| _ = command.arg("-give").arg(file));
    command.args(["env", "HARNESS_BIN_DIR=/given", &vm::path_in_vm(&soak)]).args(args);
    run::run_checked(&mut command)
}

/// The programs that scenarios or a soak need, and the program of the test itself.
fn payload_files(program: &Path) -> Result<Vec<PathBuf>, String> {
    let release = run::build_release()?;
    let mut files: Vec<PathBuf> = USER_PROGRAMS.iter().map(|name| release.join(name)).collect();
    files.extend(compile_test_programs(&release)?);
    files.push(program.to_path_buf());
    Ok(files)
}

/// The command for scenarios with jobs over two machines.
fn command_on_two_machines(scenarios: &str, files: &[PathBuf]) -> Result<Command, String> {
    let xtask_path = std::env::current_exe().map_err(|error| error.to_string())?;
    let mut command = Command::new(xtask_path);
    command.args(["vm", "-machines", "2", "-limit", VM_TIMEOUT_S, "-memory", VM_MEMORY_MIB]);
    files.iter().for_each(|file| _ = command.arg("-give").arg(file));
    command.args(["env", "HARNESS_BIN_DIR=/given"]);
    if let Ok(seconds) = std::env::var(SLICE_SECONDS_ENV) {
        command.arg(format!("{SLICE_SECONDS_ENV}={seconds}"));
    }
    command.args([scenarios, TWO_MACHINE_SCENARIOS, ONE_AT_A_TIME]);
    Ok(command)
}

/// Compiles the C programs of the scenarios, because the machine has no compiler.
fn compile_test_programs(release: &Path) -> Result<Vec<PathBuf>, String> {
    let folder = release.join("test-programs");
    std::fs::create_dir_all(&folder).map_err(|error| format!("{}: {error}", folder.display()))?;
    let compile = |name: &&str| {
        let (program, source) =
            (folder.join(name), run::source_root().join(format!("tests/programs/{name}.c")));
        let mut command = Command::new(release.join("scorecc"));
        run::run_checked(command.args(["-O1", "-o"]).arg(&program).arg(source))?;
        Ok(program)
    };
    TEST_PROGRAMS.iter().map(compile).collect()
}

/// Builds one test, and returns the path of its program.
///
/// # Errors
/// Returns an error if the build failed.
pub fn build_test(package: &str, name: &str) -> Result<PathBuf, String> {
    build_test_program(package, &["--test", name])
}

/// Builds the unit tests of a package's library, and returns the path of their program.
///
/// # Errors
/// Returns an error if the build failed.
pub fn build_unit_tests(package: &str) -> Result<PathBuf, String> {
    build_test_program(package, &["--lib"])
}

/// Builds the test program of `package` that the options `target` of cargo select.
fn build_test_program(package: &str, target: &[&str]) -> Result<PathBuf, String> {
    // Cargo unites the features that the selected packages request of a package. With `-p package`
    // some packages would have fewer features than in the other steps, and cargo would compile
    // them, and all packages that use them, once more.
    let mut command = run::cargo(&["test", "-q", "--workspace", "--no-run"]);
    let output = command
        .args(target)
        .args(["--message-format", "json"])
        .stderr(Stdio::inherit())
        .output()
        .map_err(|error| format!("cargo test: {error}"))?;
    let text = String::from_utf8_lossy(&output.stdout);
    let lines = text.lines().filter_map(|line| serde_json::from_str(line).ok());
    let mut programs = lines.filter_map(|line: serde_json::Value| {
        let id = line["package_id"].as_str()?;
        let is_test = line["profile"]["test"] == true;
        // The name of a package precedes its version if it is not the name of its directory.
        let is_of_package =
            id.contains(&format!("#{package}@")) || id.contains(&format!("/{package}#"));
        line["executable"].as_str().filter(|_| is_test && is_of_package).map(PathBuf::from)
    });
    programs.next().ok_or_else(|| format!("{package}: cargo built no test {}", target.join(" ")))
}
