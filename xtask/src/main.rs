//! `cargo xtask`: every developer command in one place. `cargo xtask` alone lists them.
mod bench;
mod demo;
mod install;
mod run;
mod setup;
mod signals;
mod soak;
mod test;
mod tidy;
mod vm;

use std::process::ExitCode;

const USAGE: &str = "\
usage: cargo xtask COMMAND

  demo                     builds, then runs the main job on real input (under a minute once built)
  test                     installs missing software, then runs every check (.ci/run does the same)
  bench [OPTIONS]          measures speed, also of other libraries if they are installed
  soak [KIND] [OPTIONS]    runs long tests with random faults (cargo xtask soak -help)
  vm PROGRAM [ARG...]      runs a program in a virtual machine with an RDMA device
  tidy                     checks the rules that no compiler checks
  matrix                   writes docs/dev/test-matrix.md from comments at the tests
  headers                  compares the C headers with the exports of the libraries
  install -prefix DIR      copies commands, libraries, headers and man pages below DIR
";

fn main() -> ExitCode {
    signals::reset_ignored_signals();
    let mut args = std::env::args().skip(1);
    let command = args.next().unwrap_or_default();
    let rest: Vec<String> = args.collect();
    let result = match command.as_str() {
        "demo" => demo::run(&rest),
        "test" => test::run(&rest),
        "bench" => bench::run(&rest),
        "soak" => soak::run(&rest),
        "vm" => vm::run(&rest),
        "tidy" => tidy::run(&rest),
        "matrix" => tidy::write_matrix(&rest),
        "headers" => test::headers(&rest),
        "install" => install::run(&rest),
        "" | "help" | "-help" | "--help" | "-h" => {
            print!("{USAGE}");
            return ExitCode::SUCCESS;
        }
        other => {
            eprint!("xtask: unknown command {other:?}\n{USAGE}");
            return ExitCode::from(2);
        }
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(reason) => {
            eprintln!("xtask {command}: {reason}");
            ExitCode::FAILURE
        }
    }
}
