//! `scored-toolctl`: the tool control service of a job on one host. The shepherd starts it for the
//! first tool that connects or sends a command. It runs as the job's user and in the job's PID
//! namespace. The shepherd ends it when it has had no tool for a while.
#![forbid(unsafe_code)]

#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
mod service;

use std::io;
use std::os::fd::{AsFd, OwnedFd};

/// The usage text, for a user who starts the program.
const USAGE: &str = "\
scored-toolctl reads and controls the processes of a job for tools. scored starts it; see
scored-toolctl(8).
";

fn main() {
    if let Some(argument) = std::env::args_os().nth(1) {
        match argument == "-help" {
            true => print!("{USAGE}"),
            false => eprint!("{USAGE}"),
        }
        std::process::exit(if argument == "-help" { 0 } else { 2 });
    }
    // The service continues while the job is stopped, so the user must not be able to trace the
    // service.
    let undumpable = nix::sys::prctl::set_dumpable(false).map_err(io::Error::from);
    if let Err(error) = undumpable.and_then(|()| serve()) {
        eprintln!("scored-toolctl: {error}");
        std::process::exit(1);
    }
}

/// Runs the service with the descriptors of the shepherd ([`score_proto::toolctl`]).
fn serve() -> io::Result<()> {
    let (input, output, errors) = (io::stdin(), io::stdout(), io::stderr());
    let copy = |fd: &dyn AsFd| -> io::Result<OwnedFd> { fd.as_fd().try_clone_to_owned() };
    service::Service::new([copy(&input)?, copy(&output)?, copy(&errors)?])?.run()
}
