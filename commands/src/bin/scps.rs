//! `scps`: lists the jobs of the cluster, or prints the address of its page.
#![forbid(unsafe_code)]

use std::ffi::OsString;
use std::io::{ErrorKind, Write};
use std::process::ExitCode;

use score_commands::scps::{self, ScpsOptions};
use score_proto::exit_code::{EXIT_IO_ERROR, EXIT_USAGE};

fn main() -> ExitCode {
    let args: Vec<OsString> = std::env::args_os().skip(1).collect();
    let options = match ScpsOptions::parse(&args) {
        Ok(options) => options,
        Err(message) => {
            eprintln!("scps: {message} (scps -help)");
            return ExitCode::from(EXIT_USAGE);
        }
    };
    let text = match scps::execute(options) {
        Ok(text) => text,
        Err(message) => {
            eprintln!("scps: {message}");
            return ExitCode::FAILURE;
        }
    };
    let mut out = std::io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => {
            eprintln!("scps: standard output: {error}");
            ExitCode::from(EXIT_IO_ERROR)
        }
        _ => ExitCode::SUCCESS,
    }
}
