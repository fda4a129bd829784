//! `scorehosts`: which hosts an expression means (score_doc 7, scorehosts).
#![forbid(unsafe_code)]

use std::ffi::OsString;
use std::io::{ErrorKind, Write};
use std::process::ExitCode;

use score_commands::scorehosts::answer;
use score_hosts::source::{VARIABLE, disk};

/// The answer could not be written.
const UNWRITTEN: u8 = 74;

fn main() -> ExitCode {
    let words: Vec<OsString> = std::env::args_os().skip(1).collect();
    let answer = answer(&words, std::env::var_os(VARIABLE).as_deref(), &disk);
    for line in &answer.err {
        eprintln!("scorehosts: {line}");
    }
    let mut out = std::io::stdout().lock();
    match out.write_all(answer.out.as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => {
            eprintln!("scorehosts: standard output: {error}");
            ExitCode::from(UNWRITTEN)
        }
        _ => ExitCode::from(answer.code),
    }
}
