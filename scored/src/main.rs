//! scored, the cluster operating system: one program for the daemon, the keeper, the shepherd and
//! their helpers. The first option selects the mode ([`options::Command`]). See
//! docs/ARCHITECTURE.md and scored(8).

mod console;
mod daemon;
mod http;
mod keeper;
mod launch;
mod options;
mod owner_arg;
mod raw_socket;
mod shepherd;
mod sys;
mod tool_supervisor;

use std::process::ExitCode;

use score_proto::exit_code::EXIT_USAGE;

use options::Command;

fn main() -> ExitCode {
    let arguments: Vec<_> = std::env::args_os().skip(1).collect();
    let result = match options::parse(&arguments) {
        Ok(Command::Single(options)) => daemon::run(options),
        Ok(Command::Daemon(options)) => daemon::run_host(options),
        Ok(Command::Service(options)) => daemon::service::run(&options),
        Ok(Command::Console(options)) => console::run(&options).map_err(std::io::Error::other),
        Ok(Command::Shepherd(options)) => {
            // The shepherd inherits the signal dispositions of the keeper that starts it.
            sys::process::default_and_block_signals().and_then(|()| shepherd::run(options))
        }
        Ok(Command::Keeper(options)) => keeper::run(options),
        Ok(Command::ToolSupervisor(options)) => tool_supervisor::run(options),
        Ok(Command::Opener(options)) => raw_socket::run(options),
        Ok(Command::Preflight(options)) => {
            launch::preflight::run(&options).map_err(std::io::Error::other)
        }
        Ok(Command::PreflightProbe(options)) => {
            launch::preflight::run_probe(&options).map_err(std::io::Error::other)
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
            return ExitCode::from(EXIT_USAGE);
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
