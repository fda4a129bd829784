//! `scdb`: shows what the processes of a running job do, holds them and continues them.
#![forbid(unsafe_code)]

use std::ffi::OsString;
use std::process::ExitCode;

use score_commands::scdb::{self, ScdbOptions};
use score_proto::exit_code::EXIT_USAGE;

fn main() -> ExitCode {
    let args: Vec<OsString> = std::env::args_os().skip(1).collect();
    match ScdbOptions::parse(&args) {
        Ok(options) => ExitCode::from(scdb::execute(options)),
        Err(message) => {
            eprintln!("scdb: {message} (scdb -help)");
            ExitCode::from(EXIT_USAGE)
        }
    }
}
