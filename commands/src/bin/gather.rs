//! `gather`: collects the nodes' standard inputs (manual, gather(6)).
#![forbid(unsafe_code)]

use std::process::ExitCode;

use score_commands::{gather, runner};

fn main() -> ExitCode {
    runner::run_command("gather", gather::USAGE, gather::run)
}
