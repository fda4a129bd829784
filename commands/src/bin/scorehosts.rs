//! `scorehosts`: lists the hosts of an expression (score_doc 7, scorehosts).
#![forbid(unsafe_code)]

use std::ffi::OsString;
use std::io::{ErrorKind, Write};
use std::process::ExitCode;

use score_commands::scorehosts::execute;
use score_hosts::database_file::{DATABASE_ENV, read_from_disk};
use score_proto::exit_code::EXIT_IO_ERROR;

fn main() -> ExitCode {
    let args: Vec<OsString> = std::env::args_os().skip(1).collect();
    let output = execute(&args, std::env::var_os(DATABASE_ENV).as_deref(), &read_from_disk);
    for line in &output.stderr {
        eprintln!("scorehosts: {line}");
    }
    let mut out = std::io::stdout().lock();
    match out.write_all(output.stdout.as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => {
            eprintln!("scorehosts: standard output: {error}");
            ExitCode::from(EXIT_IO_ERROR)
        }
        _ => ExitCode::from(output.code),
    }
}
