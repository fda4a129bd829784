//! One command on every host of a session: a job with one process for each, a shell as a remote
//! one would be.

use super::options::Options;
use super::reporter;
use super::show::{Manner, Show};
use crate::content::Contents;
use crate::inside::Login;
use crate::job;
use crate::options::Statistics;
use crate::session::{self, Call, Settings};
use crate::usage::Refusal;
use score_proto::message::{
    ElementSpec, HostSpec, Input, JobSpec, Kind, OsBytes, Output, StageSpec,
};
use std::io::IsTerminal;
use std::os::unix::ffi::{OsStrExt, OsStringExt};

/// What each host's shell does: `$0` is scout's directory, `$1` the command. Where that directory
/// is not, it says so and stays at home.
const SCRIPT: &[u8] = b"cd -- \"$0\" || cd || exit 125; exec /bin/sh -c \"$1\"";

/// Runs the command and gives scout's exit code.
///
/// # Errors
/// What kept it from being started.
pub fn run(options: &Options, login: Login) -> Result<u8, Refusal> {
    let names: Vec<String> = login.hosts.iter().map(|host| host.name.clone()).collect();
    let mut spec = job(options, &login.hosts)?;
    let contents = Contents::offer(&mut spec, false)?;
    let manner = Manner { order: options.order, json: options.json, bold: bold() };
    let settings = Settings {
        monitor: None,
        reporter: reporter(),
        statistics: Statistics::Off,
        names: Vec::new(),
        contents,
        call: Call::Scout(login.stream, login.ups),
        show: Some(Show::new(names, manner)),
    };
    session::run(spec, settings)
}

/// Names of hosts stand out on a terminal that can do that.
fn bold() -> [bool; 2] {
    let set = |name: &str| std::env::var_os(name).is_some_and(|value| !value.is_empty());
    let dumb = std::env::var_os("TERM").is_none_or(|term| term == "dumb");
    let can = !dumb && !set("NO_COLOR");
    [can && std::io::stdout().is_terminal(), can && std::io::stderr().is_terminal()]
}

fn job(options: &Options, hosts: &[HostSpec]) -> Result<JobSpec, Refusal> {
    let places = job::places()?;
    let directory = OsBytes(places.directory.as_os_str().as_bytes().to_vec());
    // As rsh and ssh do: the words are a line for the remote shell.
    let words: Vec<&[u8]> = options.words.iter().map(|word| word.as_bytes()).collect();
    let bytes = |text: &[u8]| OsBytes(text.to_vec());
    let args = vec![
        bytes(b"sh"),
        bytes(b"-c"),
        bytes(SCRIPT),
        directory.clone(),
        OsBytes(words.join(&b' ')),
    ];
    let shell = ElementSpec {
        path: bytes(b"/bin/sh"),
        args,
        input: Input::Default,
        output: Output::Default,
        kind: Kind::System { per_host: false },
        content: None,
    };
    let mut elements = vec![shell];
    if options.stdin {
        elements.insert(0, scatter());
    }
    Ok(JobSpec {
        hosts: hosts.iter().map(|host| HostSpec { procs: 1, ..host.clone() }).collect(),
        stages: vec![StageSpec { elements }],
        environment: job::environment(),
        directory,
        umask: job::current_umask(),
        options: Vec::new(),
        // The exit code of every host comes with them.
        statistics: true,
        stdin: options.stdin,
        separate: true,
        networks: Vec::new(),
        sets: 0,
    })
}

/// What hands scout's standard input to every host: the command of that name, beside this one.
fn scatter() -> ElementSpec {
    let beside = std::env::current_exe().ok().and_then(|exe| Some(exe.parent()?.join("scatter")));
    let path = beside.unwrap_or_else(|| "scatter".into());
    ElementSpec {
        path: OsBytes(path.into_os_string().into_vec()),
        args: vec![OsBytes(b"scatter".to_vec())],
        input: Input::Default,
        output: Output::Default,
        kind: Kind::Score,
        content: None,
    }
}
