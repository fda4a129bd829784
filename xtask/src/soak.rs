//! `cargo xtask soak`: builds and runs the soak program (tests/src/bin/score-soak/), which shares
//! the harness of the scenarios. Soaks that need an RDMA adapter run in the virtual machine, and
//! `cargo xtask soak machines` runs in two. `cargo xtask soak mpi` first installs programs of MPI.
//! `cargo xtask soak mutants PACKAGE` runs cargo-mutants.

use std::process::Command;

use crate::{run, setup, test};

/// The number of seeds of each simulation for a mutant. The first seeds find most mutants.
const MUTANT_SEEDS: &str = "40";

/// Runs the soak that `args` name.
///
/// # Errors
/// Returns an error if the build failed, or the soak found an error.
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

/// Changes a package in each way that cargo-mutants offers, and runs its tests after each change.
/// Writes the list of changes that no test detects below the target directory.
fn mutants(package: &str, options: &[String]) -> Result<(), String> {
    if !run::is_installed("cargo-mutants") {
        return Err("soak mutants: no cargo-mutants; run cargo install cargo-mutants".into());
    }
    let results = run::target_dir()?;
    let mut command =
        run::cargo(&["mutants", "--package", package, "--profile", "mutants", "--output"]);
    command.arg(results).args(options).env("SCORE_SIM_SEEDS", MUTANT_SEEDS);
    run::run_checked(&mut command)
}
