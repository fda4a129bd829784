//! scrun: runs a parallel job (manual, scrun(1)).
#![forbid(unsafe_code)]

use std::ffi::OsString;
use std::process::ExitCode;

use scrun::session::terminal_debugger;

fn main() -> ExitCode {
    let words: Vec<OsString> = std::env::args_os().skip(1).collect();
    if let [role, rest @ ..] = &words[..]
        && role == terminal_debugger::ROLE
        && let Err(line) = terminal_debugger::become_debugger(rest)
    {
        eprintln!("scrun: {line}");
        return ExitCode::FAILURE;
    }
    let environment = std::env::var_os(score_proto::env::OPTIONS_ENV).unwrap_or_default();
    ExitCode::from(scrun::main(&words, &environment))
}
