//! scored: the cluster operating system, and its shepherd. See docs/launch.md and scored(8).

mod cluster;
mod console;
mod daemon;
mod deadlock;
mod gang;
mod job;
mod link;
mod options;
mod owner;
mod page;
mod raw;
mod shepherd;
mod start;
mod sys;

use std::process::ExitCode;

use options::Command;

fn main() -> ExitCode {
    let arguments: Vec<_> = std::env::args_os().skip(1).collect();
    let result = match options::parse(&arguments) {
        Ok(Command::Single(setting)) => daemon::run(setting),
        Ok(Command::Daemon(setting)) => daemon::run_host(setting),
        Ok(Command::Service(setting)) => daemon::service::run(&setting),
        Ok(Command::Console(setting)) => console::run(&setting).map_err(std::io::Error::other),
        Ok(Command::Shepherd(setting)) => {
            // A fork of a daemon has this from there.
            sys::process::default_and_block_signals().and_then(|()| shepherd::run(setting))
        }
        Ok(Command::Opener(opening)) => raw::run(opening),
        Ok(Command::Try(setting)) => start::trial::run(&setting).map_err(std::io::Error::other),
        Ok(Command::Greet(greeting)) => {
            start::trial::greet(&greeting).map_err(std::io::Error::other)
        }
        Ok(Command::MakeKey(path)) => score_tree::key::make(&path).map_err(std::io::Error::other),
        Ok(Command::Probe { json }) => {
            print!("{}", sys::probe::report(json));
            return ExitCode::SUCCESS;
        }
        Ok(Command::Help) => {
            print!("{}", options::HELP);
            return ExitCode::SUCCESS;
        }
        Err(reason) => {
            eprintln!("scored: {reason}");
            return ExitCode::from(2);
        }
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("scored: {error}");
            ExitCode::FAILURE
        }
    }
}
