//! scout: a session on the hosts of a group, and the commands that run on all of them (scout(1)).
//!
//! `scout -g GROUP` ([`open`]) has a scored bring the hosts up, and starts a shell whose
//! environment tells where the session is. Inside, `scout COMMAND` ([`command`]) is a job of one
//! process for each host, of which [`show`] merges the output; scrun takes the session's hosts
//! ([`crate::inside`]).

mod command;
pub mod names;
mod open;
pub mod options;
pub mod show;

use crate::inside;
use crate::notice::Reporter;
use crate::usage::Refusal;
use options::Options;
use score_proto::message::{HostSpec, Level};
use serde_json::json;
use std::ffi::{OsStr, OsString};
use std::path::Path;

/// Exit code of a bare `scout` outside of any session.
const OUTSIDE: u8 = 1;

/// Does what the command line says; gives scout's exit code.
pub fn main(words: &[OsString]) -> u8 {
    if let Some(command) = words.strip_prefix(&[OsString::from(open::INNER)]) {
        return open::become_shell(command);
    }
    match run(words) {
        Ok(code) => code,
        Err(refusal) => {
            reporter().say(Level::Error, &refusal.line);
            refusal.code
        }
    }
}

fn reporter() -> Reporter {
    Reporter::new("scout", Level::Warning)
}

fn run(words: &[OsString]) -> Result<u8, Refusal> {
    let options = Options::parse(words)?;
    if options.help {
        return crate::print(options::HELP);
    }
    if options.version {
        return crate::print(&crate::help::version());
    }
    if options.opens() {
        return open::run(&options);
    }
    if options.words.is_empty() {
        return tell(&options);
    }
    let login = inside::login_if_inside()?.ok_or_else(|| {
        let line = "no scout session here: open one with scout -g GROUP (scout -help)";
        Refusal::plain(crate::usage::USAGE, line)
    })?;
    command::run(&options, login)
}

/// Whether this is inside a session, and which.
fn tell(options: &Options) -> Result<u8, Refusal> {
    let path = inside::named();
    let login = path.as_deref().map(|path: &OsStr| inside::login(Path::new(path)));
    let (code, hosts, text) = match login {
        Some(Ok(login)) => {
            let text = format!("inside a scout session on {}", on(&login.hosts));
            (0, login.hosts, text)
        }
        Some(Err(reason)) => (OUTSIDE, Vec::new(), format!("in no scout session: {reason}")),
        None => (OUTSIDE, Vec::new(), "in no scout session".to_owned()),
    };
    if options.json {
        let hosts: Vec<&str> = hosts.iter().map(|host| host.name.as_str()).collect();
        return crate::print(&format!("{}\n", json!({ "inside": code == 0, "hosts": hosts })))
            .map(|failed| failed.max(code));
    }
    crate::print(&format!("{text}\n")).map(|failed| failed.max(code))
}

/// How many hosts, and which.
fn on(hosts: &[HostSpec]) -> String {
    let names = names::joined(hosts.iter().map(|host| host.name.as_str()));
    let s = if hosts.len() == 1 { "" } else { "s" };
    format!("{} host{s}: {names}", hosts.len())
}
