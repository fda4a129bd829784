//! `scps`: the jobs of the cluster, and where its page is.
#![forbid(unsafe_code)]

use std::ffi::OsString;
use std::io::{ErrorKind, Write};
use std::process::ExitCode;

use score_commands::scps::{self, Options, UNWRITTEN};

fn main() -> ExitCode {
    let words: Vec<OsString> = std::env::args_os().skip(1).collect();
    let options = match Options::parse(&words) {
        Ok(options) => options,
        Err(line) => {
            eprintln!("scps: {line} (scps -help)");
            return ExitCode::from(2);
        }
    };
    let text = match scps::answer(options) {
        Ok(text) => text,
        Err(line) => {
            eprintln!("scps: {line}");
            return ExitCode::FAILURE;
        }
    };
    let mut out = std::io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => {
            eprintln!("scps: standard output: {error}");
            ExitCode::from(UNWRITTEN)
        }
        _ => ExitCode::SUCCESS,
    }
}
