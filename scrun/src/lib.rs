//! The front end of SCore: a user types a parallel job like a shell pipeline (manual, scrun(1)).
//!
//! From the command line to the job: [`options`] -> [`pipeline`] -> [`program`] -> [`elf`] and
//! [`request`] -> [`local_environment`] and [`nodes`] -> [`job`] -> [`session`]. Only [`session`]
//! starts the job; the other modules prepare it. scrun, scout, tests and fuzzing use
//! this library.

pub mod debugger;
mod diagnostics;
pub mod elf;
mod help;
pub mod job;
pub mod local_environment;
mod monitor;
pub mod mpi;
pub mod mpi_library;
pub mod mpir;
pub mod multi_user;
pub mod networks;
pub mod nodes;
pub mod options;
pub mod pipeline;
pub mod program;
mod program_store;
pub mod request;
pub mod scout;
pub mod scout_login;
pub mod session;
pub mod statistics;
mod tool;
mod tool_files;
mod trial_run;
pub mod usage;

use diagnostics::Reporter;
use local_environment::LocalEnvironment;
use options::ScrunOptions;
use program_store::ProgramStore;
use score_proto::exit_code::EXIT_IO_ERROR;
use score_proto::message::Level;
use session::{DaemonSource, SessionConfig};
use std::ffi::{OsStr, OsString};
use std::io::Write;
use usage::StartError;

/// Executes the command line and returns scrun's exit code.
pub fn main(words: &[OsString], environment: &OsStr) -> u8 {
    match run(words, environment) {
        Ok(code) => code,
        Err(error) => {
            let reporter = Reporter::new("scrun", Level::Error);
            let text = match error.context(words, environment) {
                Some(context) => format!("{}\n{context}", error.line),
                None => error.line,
            };
            reporter.report(Level::Error, &text);
            error.code
        }
    }
}

fn run(words: &[OsString], environment: &OsStr) -> Result<u8, StartError> {
    let (options, word_count) = ScrunOptions::parse(words, environment)?;
    if options.has("help") {
        return print(&help::text());
    }
    if options.has("version") {
        return print(&help::version("scrun"));
    }
    let stages = pipeline::parse(words, word_count)?;
    let reporter = Reporter::new("scrun", options.level());
    let search_path = job::search_path()?;
    let programs = job::resolve_programs(&options, &stages, &search_path)?;
    let request = request::intersect(&programs.requests)?;
    request::check(&programs.requests, &options, &mut |level, text| reporter.report(level, text))?;
    let mut warn = |line: &str| reporter.report(Level::Warning, line);
    // The command line takes precedence over a scout session, and a session over the environment.
    let connection =
        if options.chooses_hosts() { None } else { scout_login::login_if_in_session()? };
    let cluster_request =
        if connection.is_some() { None } else { multi_user::from_options(&options, &request)? };
    let mut local_env = LocalEnvironment::current();
    local_env.session_hosts =
        connection.as_ref().map(|connection| local_env.hosts_of_session(&connection.hosts));
    let assignment = match &cluster_request {
        // The server of the cluster chooses the hosts.
        Some(cluster_request) => cluster_request.provisional_assignment(),
        None => nodes::assign_hosts(&options, &request, &local_env, &mut warn)?,
    };
    let networks = match &cluster_request {
        Some(_) => networks::requested_networks(&options),
        None => networks::select_networks(&options, &assignment.hosts, request.network_sets)?,
    };
    if options.has("resource") {
        return print(&request::describe(
            &options,
            &programs.requests,
            &request,
            &assignment,
            &networks,
        ));
    }
    let ineffective = options.without_effect(cluster_request.is_some());
    if !ineffective.is_empty() {
        reporter.report(Level::Info, &format!("ineffective options: {}", ineffective.join(", ")));
    }
    if let Some(file) = job::file_in_job_directory(&programs.stages) {
        let line = format!("{file} is in the job's directory and is removed with the job");
        reporter.report(Level::Info, &line);
    }
    let program_names = job::names(&programs.stages);
    let hold = mpir::begin();
    let mut spec = job::build(&options, programs, assignment, &search_path)?;
    (spec.networks, spec.network_sets, spec.hold) = (networks, request.network_sets, hold);
    let mut program_store = ProgramStore::add_content_hashes(&mut spec, cluster_request.is_some())?;
    if let Some(files) = tool_files::from_options(&options)? {
        program_store.add_tool_files(&mut spec, files);
    }
    let daemon_source = match (connection, cluster_request) {
        (Some(scout), _) => DaemonSource::ScoutSession(scout.connection),
        (None, Some(cluster_request)) => DaemonSource::MultiUser(cluster_request),
        (None, None) => DaemonSource::Private(options.scored_args()),
    };
    let statistics = options.statistics();
    let monitor = options.get("monitor").and_then(|given| match monitor::resolve_target() {
        Ok(target) => Some(monitor::MonitorRequest { target, value: given.value.clone() }),
        Err(reason) => {
            reporter.report(Level::Warning, &format!("monitor: not started: {reason}"));
            None
        }
    });
    if monitor.as_ref().is_some_and(|monitor_request| {
        spec.reads_stdin && monitor::takes_input(monitor_request.target)
    }) {
        spec.reads_stdin = false;
        let line = "monitor: uses the keyboard: the job has no standard input";
        reporter.report(Level::Info, line);
    }
    let (merger, debugger) = (None, Some(mpir::Debugger::new(&spec)));
    let config = SessionConfig {
        reporter,
        statistics,
        program_names,
        program_store,
        daemon_source,
        merger,
        monitor,
        debugger,
    };
    session::run(spec, config)
}

/// Prints the text and returns the exit code. A closed reader is not an error; a full disk is one.
fn print(text: &str) -> Result<u8, StartError> {
    let mut stdout = std::io::stdout().lock();
    match stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()) {
        Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => {
            Err(StartError::plain(EXIT_IO_ERROR, format!("standard output: {error}")))
        }
        _ => Ok(0),
    }
}

/// Entry for fuzzing: any bytes as a SCORE_OPTIONS value and, split at newlines, as option words.
pub fn fuzz_options(bytes: &[u8]) {
    use std::os::unix::ffi::OsStrExt;
    let words: Vec<OsString> =
        bytes.split(|byte| *byte == b'\n').map(|word| OsStr::from_bytes(word).into()).collect();
    let environment = OsStr::from_bytes(bytes);
    for result in
        [ScrunOptions::parse(&words, OsStr::new("")), ScrunOptions::parse(&[], environment)]
    {
        match result {
            Ok((options, _)) => {
                let request = score_proto::elf_note::Request::default();
                let _ = nodes::assign_hosts(
                    &options,
                    &request,
                    &LocalEnvironment::for_tests(),
                    &mut |_| (),
                );
                let _ = (options.without_effect(false), options.level(), options.statistics());
            }
            Err(error) => drop(error.context(&words, environment)),
        }
    }
}

/// Entry for fuzzing: any bytes, split at newlines, as the words of a job.
///
/// # Panics
/// If an accepted job has an empty stage or program, or a word that changes if it is escaped and
/// unescaped.
pub fn fuzz_pipeline(bytes: &[u8]) {
    use std::os::unix::ffi::OsStrExt;
    let words: Vec<OsString> =
        bytes.split(|byte| *byte == b'\n').map(|word| OsStr::from_bytes(word).into()).collect();
    match pipeline::parse(&words, 0) {
        Ok(stages) => {
            assert!(stages.iter().all(|stage| !stage.is_empty()));
            for element in stages.iter().flatten() {
                assert!(!element.words.is_empty());
                for word in &element.words {
                    assert_eq!(pipeline::unescape(&pipeline::escape(&word.text)), word.text);
                }
            }
        }
        Err(error) => drop(error.context(&words, OsStr::new(""))),
    }
}

/// Entry for fuzzing: any bytes as an ELF file.
pub fn fuzz_elf(bytes: &[u8]) {
    // Both results can be correct; only a panic is an error.
    let _ = elf::request_of_bytes(bytes);
}
