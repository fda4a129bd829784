//! `scatter`: broadcasts scrun's standard input (manual, scatter(6)).
#![forbid(unsafe_code)]

use std::process::ExitCode;

use score_commands::{scatter, station};

fn main() -> ExitCode {
    station::command("scatter", scatter::USAGE, scatter::run)
}
