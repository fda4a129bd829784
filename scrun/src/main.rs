//! scrun: runs a parallel job (manual, scrun(1)).
#![forbid(unsafe_code)]

use std::ffi::OsString;
use std::process::ExitCode;

fn main() -> ExitCode {
    let words: Vec<OsString> = std::env::args_os().skip(1).collect();
    let environment = std::env::var_os(score_proto::env::OPTIONS_ENV).unwrap_or_default();
    ExitCode::from(scrun::main(&words, &environment))
}
