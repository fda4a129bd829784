//! `scmon`: shows the activity of a job's processes on a terminal.
#![forbid(unsafe_code)]

use std::ffi::OsString;
use std::process::ExitCode;

use score_commands::scmon::{self, ScmonOptions, USAGE};
use score_proto::exit_code::EXIT_USAGE;

fn main() -> ExitCode {
    let args: Vec<OsString> = std::env::args_os().skip(1).collect();
    let options = match ScmonOptions::parse(&args) {
        Ok(options) => options,
        Err(message) => {
            eprintln!("scmon: {message} (scmon -help)");
            return ExitCode::from(EXIT_USAGE);
        }
    };
    if options.help {
        print!("{USAGE}");
        return ExitCode::SUCCESS;
    }
    match scmon::run(&options) {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            eprintln!("scmon: {message}");
            ExitCode::FAILURE
        }
    }
}
