//! `cargo xtask soak`: builds, then runs the soak program, which shares the scenarios' harness
//! (tests/src/bin/score-soak/). Soaks that need an RDMA adapter run in the virtual machine, `cargo
//! xtask soak machines` in two. `cargo xtask soak mpi` installs programs of MPI first. `cargo xtask
//! soak mutants PACKAGE` runs cargo-mutants.

use std::process::Command;

use crate::{run, setup, test};

/// Seeds of each simulation for a mutant: most that are found are found by the first ones.
const MUTANT_SEEDS: &str = "20";

/// Runs the soak that `args` name.
///
/// # Errors
/// If the build failed, or the soak found an error.
pub fn run(args: &[String]) -> Result<(), String> {
    if args.first().is_some_and(|kind| kind == "machines") {
        return test::vm_tests::soak_on_two_machines();
    }
    if let [kind, package, options @ ..] = args
        && kind == "mutants"
    {
        return mutants(package, options);
    }
    if args.iter().any(|word| word == "-rdma") {
        return test::vm_tests::soak(args);
    }
    if args.first().is_some_and(|kind| kind == "mpi") && !args.iter().any(|arg| arg == "-help") {
        setup::install_mpi_libraries();
        setup::install_mpi_programs();
    }
    let bin = run::build_release()?;
    run::run_checked(Command::new(bin.join("score-soak")).args(args).env("HARNESS_BIN_DIR", &bin))
}

/// Changes a package in each way that cargo-mutants knows, and runs its tests each time: which
/// changes do they not notice? The list is below the target folder.
fn mutants(package: &str, options: &[String]) -> Result<(), String> {
    if !run::is_installed("cargo-mutants") {
        return Err("soak mutants: cargo-mutants is missing: cargo install cargo-mutants".into());
    }
    let results = run::target_dir()?;
    let mut command =
        run::cargo(&["mutants", "--package", package, "--profile", "mutants", "--output"]);
    command.arg(results).args(options).env("SCORE_SIM_SEEDS", MUTANT_SEEDS);
    run::run_checked(&mut command)
}
