//! The front end of SCore: a parallel job is typed like a shell pipeline (manual, scrun(1)).
//!
//! From the command line to the job: [`options`] -> [`pipeline`] -> [`program`] -> [`elf`] and
//! [`request`] -> [`site`] and [`nodes`] -> [`job`] -> [`session`]. All but the last decide, and
//! start nothing; a library only for tests and fuzzing.
#![forbid(unsafe_code)]

mod content;
pub mod elf;
mod help;
pub mod inside;
pub mod job;
mod local;
mod monitor;
pub mod networks;
pub mod nodes;
pub mod notice;
pub mod options;
pub mod pipeline;
pub mod program;
pub mod request;
pub mod scout;
pub mod session;
pub mod shared;
pub mod site;
pub mod statistics;
pub mod usage;

use content::Contents;
use notice::Reporter;
use options::Options;
use score_proto::message::Level;
use session::{Call, Settings};
use site::Site;
use std::ffi::{OsStr, OsString};
use std::io::Write;
use usage::Refusal;

/// Does what the command line says; gives scrun's exit code.
pub fn main(words: &[OsString], environment: &OsStr) -> u8 {
    match run(words, environment) {
        Ok(code) => code,
        Err(refusal) => {
            let reporter = Reporter::new("scrun", Level::Error);
            let text = match refusal.context(words, environment) {
                Some(context) => format!("{}\n{context}", refusal.line),
                None => refusal.line,
            };
            reporter.say(Level::Error, &text);
            refusal.code
        }
    }
}

fn run(words: &[OsString], environment: &OsStr) -> Result<u8, Refusal> {
    let (options, taken) = Options::parse(words, environment)?;
    if options.has("help") {
        return print(&help::text());
    }
    if options.has("version") {
        return print(&help::version());
    }
    let stages = pipeline::parse(words, taken)?;
    let reporter = Reporter::new("scrun", options.level());
    let places = job::places()?;
    let programs = job::find(&stages, &places)?;
    let request = request::intersect(&programs.asked)?;
    request::check(&programs.asked, &options, &mut |level, text| reporter.say(level, text))?;
    let mut say = |line: &str| reporter.say(Level::Warning, line);
    // What the command line says comes before a scout session, and that before the environment.
    let login = if options.chooses_hosts() { None } else { inside::login_if_inside()? };
    let shared = if login.is_some() { None } else { shared::of(&options, &request)? };
    let mut site = Site::of_process();
    site.session = login.as_ref().map(|login| site.hosts_of(&login.hosts));
    let chosen = match &shared {
        // Which hosts it gets is decided there.
        Some(shared) => shared.unplaced(),
        None => nodes::settle(&options, &request, &site, &mut say)?,
    };
    let networks = match &shared {
        Some(_) => networks::named(&options),
        None => networks::settle(&options, &chosen.hosts, request.nets)?,
    };
    if options.has("resource") {
        return print(&request::describe(&options, &programs.asked, &request, &chosen, &networks));
    }
    let idle = options.without_effect(shared.is_some());
    if !idle.is_empty() {
        reporter.say(Level::Info, &format!("no effect yet: {}", idle.join(", ")));
    }
    if let Some(file) = job::file_in_job_directory(&programs.stages) {
        let line = format!("{file} is written in the job's directory and gone with the job");
        reporter.say(Level::Info, &line);
    }
    let names = job::names(&programs.stages);
    let mut spec = job::build(&options, programs, chosen, &places)?;
    (spec.networks, spec.sets) = (networks, request.nets);
    let contents = Contents::offer(&mut spec, shared.is_some())?;
    let call = match (login, shared) {
        (Some(login), _) => Call::Scout(login.stream, login.ups),
        (None, Some(shared)) => Call::Shared(shared),
        (None, None) => Call::Own(options.for_scored()),
    };
    let statistics = options.statistics();
    let monitor = options.get("monitor").and_then(|given| match monitor::settle() {
        Ok(place) => Some(monitor::Plan { place, value: given.value.clone() }),
        Err(why) => {
            reporter.say(Level::Warning, &format!("no picture of the job is shown: {why}"));
            None
        }
    });
    if monitor.as_ref().is_some_and(|plan| spec.stdin && monitor::takes_input(plan.place)) {
        spec.stdin = false;
        reporter.say(Level::Info, "the keyboard is the monitor's: the job reads nothing");
    }
    let show = None;
    let settings = Settings { reporter, statistics, names, contents, call, show, monitor };
    session::run(spec, settings)
}

/// Prints and ends; a reader that has gone is no failure, a full disk is one.
fn print(text: &str) -> Result<u8, Refusal> {
    let mut stdout = std::io::stdout().lock();
    match stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()) {
        Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => {
            Err(Refusal::plain(session::state::OUTPUT_FAILED, format!("standard output: {error}")))
        }
        _ => Ok(0),
    }
}

/// Fuzzing entry: any bytes as a SCORE_OPTIONS value and, cut at newlines, as option words.
pub fn fuzz_options(bytes: &[u8]) {
    use std::os::unix::ffi::OsStrExt;
    let words: Vec<OsString> =
        bytes.split(|byte| *byte == b'\n').map(|word| OsStr::from_bytes(word).into()).collect();
    let environment = OsStr::from_bytes(bytes);
    for result in [Options::parse(&words, OsStr::new("")), Options::parse(&[], environment)] {
        match result {
            Ok((options, _)) => {
                let request = score_proto::note::Request::default();
                let _ = nodes::settle(&options, &request, &Site::nowhere(), &mut |_| ());
                let _ = (options.without_effect(false), options.level(), options.statistics());
            }
            Err(refusal) => drop(refusal.context(&words, environment)),
        }
    }
}

/// Fuzzing entry: any bytes, cut at newlines, as the words of a job.
///
/// # Panics
/// When a job that was accepted does not read the same once its words are written out again.
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
        Err(refusal) => drop(refusal.context(&words, OsStr::new(""))),
    }
}

/// Fuzzing entry: any bytes as an ELF file.
pub fn fuzz_elf(bytes: &[u8]) {
    // Both answers are right for one input or another; only a panic is wrong.
    let _ = elf::request_of_bytes(bytes);
}
