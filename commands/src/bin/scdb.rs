//! `scdb`: looks into the processes of a running job.
#![forbid(unsafe_code)]

use std::ffi::OsString;
use std::io::{ErrorKind, Write};
use std::process::ExitCode;

use score_commands::scdb::{self, ScdbOptions};
use score_proto::exit_code::{EXIT_IO_ERROR, EXIT_USAGE};

fn main() -> ExitCode {
    let args: Vec<OsString> = std::env::args_os().skip(1).collect();
    let options = match ScdbOptions::parse(&args) {
        Ok(options) => options,
        Err(message) => {
            eprintln!("scdb: {message} (scdb -help)");
            return ExitCode::from(EXIT_USAGE);
        }
    };
    let outcome = match scdb::execute(options) {
        Ok(outcome) => outcome,
        Err(message) => {
            eprintln!("scdb: {message}");
            return ExitCode::FAILURE;
        }
    };
    let mut out = std::io::stdout().lock();
    match out.write_all(outcome.text.as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => {
            eprintln!("scdb: standard output: {error}");
            return ExitCode::from(EXIT_IO_ERROR);
        }
        _ => {}
    }
    for problem in &outcome.problems {
        eprintln!("scdb: {problem}");
    }
    if outcome.problems.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
