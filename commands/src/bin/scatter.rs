//! `scatter`: broadcasts scrun's standard input (manual, scatter(6)).
#![forbid(unsafe_code)]

use std::process::ExitCode;

use score_commands::{runner, scatter};

fn main() -> ExitCode {
    runner::run_command("scatter", scatter::USAGE, scatter::run)
}
