//! One command on every host of a session: a job with one process per host. The process is a shell,
//! as with a remote shell.

use super::merge::{OutputFormat, OutputMerger};
use super::options::ScoutOptions;
use super::reporter;
use crate::job;
use crate::options::Statistics;
use crate::program_store::ProgramStore;
use crate::scout_login::ScoutConnection;
use crate::session::{self, DaemonSource, SessionConfig};
use crate::usage::StartError;
use score_proto::message::{ElementSpec, HostSpec, JobSpec, OsBytes, ProgramKind, StageSpec};
use std::io::IsTerminal;
use std::os::unix::ffi::{OsStrExt, OsStringExt};

/// The script for the shell on each host: `$0` is scout's directory, `$1` the command. If that
/// directory does not exist, cd reports it and the command runs in the home directory.
const SCRIPT: &[u8] = b"cd -- \"$0\" || cd || exit 125; exec /bin/sh -c \"$1\"";

/// Runs the command and gives scout's exit code.
///
/// # Errors
/// If the command cannot be started.
pub fn run(options: &ScoutOptions, connection: ScoutConnection) -> Result<u8, StartError> {
    let names: Vec<String> = connection.hosts.iter().map(|host| host.name.clone()).collect();
    let mut spec = job(options, &connection.hosts)?;
    let program_store = ProgramStore::add_content_hashes(&mut spec, false)?;
    let output_format =
        OutputFormat { order: options.order, json: options.json, bold: bold_streams() };
    let config = SessionConfig {
        monitor: None,
        reporter: reporter(),
        statistics: Statistics::Off,
        program_names: Vec::new(),
        program_store,
        daemon_source: DaemonSource::ScoutSession(connection.connection),
        merger: Some(OutputMerger::new(names, output_format)),
        debugger: None,
    };
    session::run(spec, config)
}

/// The streams on which host names are bold: terminals that support it.
fn bold_streams() -> [bool; 2] {
    let is_set = |name: &str| std::env::var_os(name).is_some_and(|value| !value.is_empty());
    let is_dumb = std::env::var_os("TERM").is_none_or(|term| term == "dumb");
    let can_style = !is_dumb && !is_set("NO_COLOR");
    [can_style && std::io::stdout().is_terminal(), can_style && std::io::stderr().is_terminal()]
}

fn job(options: &ScoutOptions, hosts: &[HostSpec]) -> Result<JobSpec, StartError> {
    let search_path = job::search_path()?;
    let directory = OsBytes(search_path.directory.as_os_str().as_bytes().to_vec());
    // As with rsh and ssh, the words are a line for the remote shell.
    let words: Vec<&[u8]> = options.words.iter().map(|word| word.as_bytes()).collect();
    let bytes = |text: &[u8]| OsBytes(text.to_vec());
    let args = vec![
        bytes(b"sh"),
        bytes(b"-c"),
        bytes(SCRIPT),
        directory.clone(),
        OsBytes(words.join(&b' ')),
    ];
    let shell = ElementSpec::new(bytes(b"/bin/sh"), args, ProgramKind::System { per_host: false });
    let mut elements = vec![shell];
    if options.stdin {
        elements.insert(0, scatter());
    }
    Ok(JobSpec {
        hosts: hosts.iter().map(|host| HostSpec { procs: 1, ..host.clone() }).collect(),
        stages: vec![StageSpec { elements }],
        environment: job::environment(),
        rank_environment: Vec::new(),
        directory,
        umask: job::current_umask(),
        options: Vec::new(),
        terms: Box::default(),
        // The statistics carry the exit code of every host.
        statistics: true,
        reads_stdin: options.stdin,
        independent_nodes: true,
        hold: false,
        networks: Vec::new(),
        network_sets: 0,
        tool: None,
        tool_files: None,
        debuggers: None,
    })
}

/// The element that passes scout's standard input to every host. It is the command `scatter`, next
/// to this binary.
fn scatter() -> ElementSpec {
    let sibling = std::env::current_exe().ok().and_then(|exe| Some(exe.parent()?.join("scatter")));
    let path = sibling.unwrap_or_else(|| "scatter".into());
    ElementSpec::new(
        OsBytes(path.into_os_string().into_vec()),
        vec![OsBytes(b"scatter".to_vec())],
        ProgramKind::Score,
    )
}
