//! scout: a session on the hosts of a group, and commands that run on all hosts (scout(1)).
//!
//! `scout -g GROUP` ([`session`]) starts a shell and a daemon. The daemon starts the daemons of the
//! other hosts. A variable of the shell's environment names the session's socket. In the session,
//! `scout COMMAND` ([`command`]) is a job of one process per host, and [`merge`] merges its output.
//! scrun uses the session's hosts ([`crate::scout_login`]).

mod command;
pub mod host_ranges;
pub mod merge;
pub mod options;
mod session;

use crate::diagnostics::Reporter;
use crate::scout_login;
use crate::usage::StartError;
use options::ScoutOptions;
use score_proto::exit_code::{EXIT_NO_SESSION, EXIT_USAGE};
use score_proto::message::{HostSpec, Level};
use serde_json::json;
use std::ffi::{OsStr, OsString};
use std::path::Path;

/// Executes the command line and returns scout's exit code.
pub fn main(words: &[OsString]) -> u8 {
    if let Some(command) = words.strip_prefix(&[OsString::from(session::SHELL_CHILD_ARG)]) {
        return session::exec_shell(command);
    }
    match run(words) {
        Ok(code) => code,
        Err(error) => {
            reporter().report(Level::Error, &error.line);
            error.code
        }
    }
}

fn reporter() -> Reporter {
    Reporter::new("scout", Level::Warning)
}

fn run(words: &[OsString]) -> Result<u8, StartError> {
    let options = ScoutOptions::parse(words)?;
    if options.help {
        return crate::print(options::HELP);
    }
    if options.version {
        return crate::print(&crate::help::version("scout"));
    }
    if options.opens_session() {
        return session::run(&options);
    }
    if options.words.is_empty() {
        return report_session(&options);
    }
    let connection = scout_login::login_if_in_session()?.ok_or_else(|| {
        let line = "no scout session here: open one with scout -g GROUP (scout -help)";
        StartError::plain(EXIT_USAGE, line)
    })?;
    command::run(&options, connection)
}

/// Reports whether this process is inside a session, and its hosts.
fn report_session(options: &ScoutOptions) -> Result<u8, StartError> {
    let path = scout_login::session_socket();
    let connection = path.as_deref().map(|path: &OsStr| scout_login::login(Path::new(path)));
    let (code, hosts, text) = match connection {
        Some(Ok(connection)) => {
            let text = format!("inside a scout session on {}", describe_hosts(&connection.hosts));
            (0, connection.hosts, text)
        }
        Some(Err(reason)) => {
            (EXIT_NO_SESSION, Vec::new(), format!("in no scout session: {reason}"))
        }
        None => (EXIT_NO_SESSION, Vec::new(), "in no scout session".to_owned()),
    };
    if options.json {
        let hosts: Vec<&str> = hosts.iter().map(|host| host.name.as_str()).collect();
        return crate::print(&format!("{}\n", json!({ "inside": code == 0, "hosts": hosts })))
            .map(|print_code| print_code.max(code));
    }
    crate::print(&format!("{text}\n")).map(|print_code| print_code.max(code))
}

/// The number of hosts, and their names.
fn describe_hosts(hosts: &[HostSpec]) -> String {
    let names = host_ranges::compress(hosts.iter().map(|host| host.name.as_str()));
    let plural = if hosts.len() == 1 { "" } else { "s" };
    format!("{} host{plural}: {names}", hosts.len())
}
