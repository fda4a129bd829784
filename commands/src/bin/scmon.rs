//! `scmon`: what the processes of a job are doing, on a terminal.
#![forbid(unsafe_code)]

use std::ffi::OsString;
use std::process::ExitCode;

use score_commands::scmon::{self, Options, USAGE, WRONG};

fn main() -> ExitCode {
    let words: Vec<OsString> = std::env::args_os().skip(1).collect();
    let options = match Options::parse(&words) {
        Ok(options) => options,
        Err(line) => {
            eprintln!("scmon: {line} (scmon -help)");
            return ExitCode::from(WRONG);
        }
    };
    if options.help {
        print!("{USAGE}");
        return ExitCode::SUCCESS;
    }
    match scmon::run(&options) {
        Ok(()) => ExitCode::SUCCESS,
        Err(line) => {
            eprintln!("scmon: {line}");
            ExitCode::FAILURE
        }
    }
}
