//! `system`: runs a sequential program on every node (manual, system(6)). If a job names `system`
//! without a path, the shepherd starts the program itself. This binary is for jobs that name it by
//! its path. It also reports an error if it is run without scrun.
#![forbid(unsafe_code)]

use std::env;
use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::process::{Command, ExitCode};

use score_proto::exit_code::{EXIT_NOT_EXECUTABLE, EXIT_NOT_FOUND, EXIT_USAGE};

const USAGE: &str = "\
usage: scrun [-OPTIONS] system [-host] PROGRAM [ARGUMENT...]

Runs a sequential program on every node, in the job's directory.
  -host  run PROGRAM only in the first process of each host
";

fn main() -> ExitCode {
    let mut words: Vec<OsString> = env::args_os().skip(1).collect();
    if words.first().is_some_and(|word| word == "-help" || word == "--help") {
        print!("{USAGE}");
        return ExitCode::SUCCESS;
    }
    let Some(node) = env::var_os("SCORE_SELF_NODE") else {
        eprintln!("system: must be invoked by scrun, as in: scrun -nodes=4 system hostname");
        return ExitCode::from(EXIT_USAGE);
    };
    let is_first = node == "0";
    let per_host = words.first().is_some_and(|word| word == "-host");
    if per_host {
        words.remove(0);
    }
    let Some((program, args)) = words.split_first() else {
        return refuse(is_first, "no program is named");
    };
    if program.as_encoded_bytes().starts_with(b"-") {
        let reason = format!("{program:?}: unknown option (valid: -host, -help)");
        return refuse(is_first, &reason);
    }
    if per_host && env::var_os("SCORE_SELF_PROC").is_some_and(|process| process != "0") {
        return ExitCode::SUCCESS;
    }
    let mut command = Command::new(program);
    command.args(args);
    if let Some(directory) = env::var_os("SCORE_JOB_DIR") {
        command.current_dir(directory);
    }
    let error = command.exec();
    eprintln!("system: node {}: {}: {error}", node.display(), program.display());
    let is_missing = error.kind() == std::io::ErrorKind::NotFound;
    ExitCode::from(if is_missing { EXIT_NOT_FOUND } else { EXIT_NOT_EXECUTABLE })
}

/// All nodes have the same arguments. Node 0 reports for all of them.
fn refuse(is_first: bool, reason: &str) -> ExitCode {
    if is_first {
        eprint!("system: {reason}\n{USAGE}");
        return ExitCode::from(EXIT_USAGE);
    }
    ExitCode::SUCCESS
}
