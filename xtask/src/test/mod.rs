//! `cargo xtask test`: installs missing software, then runs every check and prints its time. Steps
//! that only compute run in the background of steps that leave a processor idle.

mod sanitizers;
mod summary;
pub mod vm_tests;

use std::path::PathBuf;
use std::process::Command;
use std::sync::OnceLock;
use std::time::Instant;

use crate::{run, setup, tidy};
use summary::TestSummary;

/// One step: its heading and its function.
type Step = (&'static str, fn(&mut TestSummary) -> Result<(), String>);

/// Steps that other steps need, or that end at once.
const FIRST_STEPS: &[Step] =
    &[("what this machine lacks", set_up), ("format", format), ("tidy", tidy_rules)];

/// Steps, and background steps that only compute and run with low priority at the same time.
struct Phase {
    steps: &'static [Step],
    beside: &'static [Step],
}

/// The phases, which run one after the other. No build runs during the scenarios and the tests of
/// packages, because some of these tests check timing and fail while a build runs.
const PHASES: &[Phase] = &[
    Phase {
        steps: &[("release build of everything", release_build)],
        beside: &[
            ("packages of the virtual machine", vm_tests::prepare),
            ("loom: every interleaving of ring, doorbell and idle notification", loom),
        ],
    },
    Phase {
        steps: &[
            ("whole-system scenarios", scenarios),
            ("build of the tests of every package", build_package_tests),
        ],
        beside: &[],
    },
    Phase {
        // These tests often wait for daemons and debuggers. The unit tests mostly compute.
        steps: &[("tests of every package, C programs and corpora", integration_tests)],
        beside: &[("unit tests and examples of every package", unit_tests)],
    },
    Phase {
        // The emulated processors leave one real processor to the background step.
        steps: &[("virtual machine with an RDMA device", vm_tests::run)],
        beside: &[("build of the sanitized tests", sanitizers::build)],
    },
    Phase {
        steps: &[("sanitizers on the unsafe parts", sanitizers::run), ("soak, a short one", soak)],
        // In the phase before, clippy would lock the directory of the tests that the machine runs.
        beside: &[("clippy", clippy)],
    },
];

/// Runs every step, or those whose heading begins with one of `args`.
///
/// # Errors
/// Returns an error if a step failed, or was skipped in CI without being listed.
pub fn run(args: &[String]) -> Result<(), String> {
    if let Some(option) = args.iter().find(|arg| arg.starts_with('-')) {
        return Err(format!(
            "{option}: unknown option; the arguments are beginnings of step names"
        ));
    }
    let begin = Instant::now();
    let mut summary = TestSummary::new()?;
    let mut summary_beside = TestSummary::in_background()?;
    run_steps(FIRST_STEPS, args, &mut summary)?;
    for phase in PHASES {
        std::thread::scope(|scope| {
            let beside = scope.spawn(|| run_steps(phase.beside, args, &mut summary_beside));
            let result = run_steps(phase.steps, args, &mut summary);
            result.and(beside.join().expect("a step does not panic"))
        })?;
    }
    summary.absorb(summary_beside);
    summary.print_totals(begin.elapsed())
}

/// Runs the steps whose heading begins with one of `args`, one after the other.
fn run_steps(steps: &[Step], args: &[String], summary: &mut TestSummary) -> Result<(), String> {
    let is_selected =
        |heading: &str| args.is_empty() || args.iter().any(|arg| heading.starts_with(arg));
    for (heading, step) in steps.iter().filter(|(heading, _)| is_selected(heading)) {
        if !summary.is_background() {
            println!("\n=== {heading}");
        }
        summary.begin_step()?;
        let start = Instant::now();
        let result = step(summary);
        let seconds = start.elapsed().as_secs_f64();
        let beginning = match summary.is_background() {
            true => format!("\n=== {heading} (in the background)\n"),
            false => String::new(),
        };
        let output = summary.background_output();
        match result {
            Ok(()) => println!("{beginning}{output}=== {heading}: done in {seconds:.1} s"),
            Err(reason) => {
                println!("{beginning}{output}=== {heading}: FAILED after {seconds:.1} s: {reason}");
                summary.add_failure(heading, &reason);
            }
        }
    }
    Ok(())
}

/// `cargo xtask headers`: the header checks of the C ABI alone.
///
/// # Errors
/// Returns an error if a check failed.
pub fn headers(_args: &[String]) -> Result<(), String> {
    run::run_checked(&mut run::cargo(&[
        "test",
        "-p",
        "score-c-tests",
        "--test",
        "c_abi",
        "--",
        "headers::",
        "symbols::",
        "layout::",
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

fn clippy(summary: &mut TestSummary) -> Result<(), String> {
    summary.run(&mut run::cargo(&[
        "clippy",
        "--workspace",
        "--all-targets",
        "--",
        "-D",
        "warnings",
    ]))
}

fn release_build(_: &mut TestSummary) -> Result<(), String> {
    // This build comes first, before a background step locks the directory of debug builds.
    let scenarios = scenarios_program();
    run::build_release()?;
    scenarios.map(drop)
}

/// Builds the program of the scenarios once, and returns its path.
fn scenarios_program() -> Result<PathBuf, String> {
    static PROGRAM: OnceLock<Result<PathBuf, String>> = OnceLock::new();
    PROGRAM.get_or_init(|| vm_tests::build_test(SCENARIOS_PACKAGE, "scenarios")).clone()
}

/// The variable with the number of scenarios that run at the same time. The number is one more than
/// there are processors, because many scenarios wait. More threads do not speed up package tests.
const TEST_THREADS_ENV: &str = "RUST_TEST_THREADS";

fn scenarios(summary: &mut TestSummary) -> Result<(), String> {
    let mut command = Command::new(scenarios_program()?);
    command.current_dir(run::source_root().join("tests"));
    // The scenarios run the programs that users get.
    command.env("HARNESS_BIN_DIR", run::target_dir()?.join("release"));
    let processors = std::thread::available_parallelism().map_or(1, usize::from);
    command.env(TEST_THREADS_ENV, (processors + 1).to_string());
    summary.run_and_count(&mut command)
}

const SCENARIOS_PACKAGE: &str = "score-tests";

/// A command that tests every package except the package of the scenarios. Options that select
/// targets do not change the features of the packages, so all these commands share one build.
fn package_tests(options: &[&str]) -> Result<Command, String> {
    let mut command = run::cargo(&["test", "--workspace", "--exclude", SCENARIOS_PACKAGE]);
    command.arg("--no-fail-fast").args(options);
    command.env("HARNESS_BIN_DIR", run::target_dir()?.join("release"));
    Ok(command)
}

fn build_package_tests(summary: &mut TestSummary) -> Result<(), String> {
    vm_tests::build_unit_tests(SCENARIOS_PACKAGE)?;
    summary.run(&mut package_tests(&["--no-run"])?)
}

fn integration_tests(summary: &mut TestSummary) -> Result<(), String> {
    summary.run_and_count(&mut package_tests(&["--test", "*"])?)
}

fn unit_tests(summary: &mut TestSummary) -> Result<(), String> {
    let mut harness = Command::new(vm_tests::build_unit_tests(SCENARIOS_PACKAGE)?);
    harness.current_dir(run::source_root().join("tests"));
    harness.env("HARNESS_BIN_DIR", run::target_dir()?.join("release"));
    let harness = summary.run_and_count(&mut harness);
    let units = summary.run_and_count(&mut package_tests(&["--lib", "--bins"])?);
    let examples = summary.run_and_count(&mut package_tests(&["--doc"])?);
    harness.and(units).and(examples)
}

fn loom(summary: &mut TestSummary) -> Result<(), String> {
    let target = run::target_dir()?.join("loom");
    let mut command = run::cargo(&["test", "-p", "score-pm", "-p", "score-proto", "--lib"]);
    // The devices are not compiled in, so the compiler would warn about code that only they use.
    command
        .env("RUSTFLAGS", "--cfg loom -Adead_code -Aunused_imports")
        .env("CARGO_TARGET_DIR", target);
    summary.run_and_count(&mut command)
}

fn soak(summary: &mut TestSummary) -> Result<(), String> {
    let program = run::target_dir()?.join("release/score-soak");
    for kind in ["kill", "messages", "memory", "gang", "tools"] {
        run::run_checked(Command::new(&program).args([kind, "-quick"]))?;
        summary.add_passed(1);
    }
    Ok(())
}
