//! From what the user typed to the job that scored gets.

use crate::elf::Loader;
use crate::nodes::Chosen;
use crate::options::{Options, Statistics};
use crate::pipeline::{Element, Stages};
use crate::program::{Places, Program, resolve};
use crate::request::{self, Asked};
use crate::usage::{Refusal, USAGE, shown};
use nix::sys::stat::{Mode, umask};
use score_proto::env::{CONTROL_FD, RESOURCE_FD, SCOUT};
use score_proto::message::{ElementSpec, Input, JobSpec, Kind, OsBytes, Output, StageSpec};
use std::ffi::OsStr;
use std::os::unix::ffi::{OsStrExt, OsStringExt};

/// The programs of a job, found and looked into.
#[derive(Debug)]
pub struct Programs {
    /// Element by element, as scored gets them.
    pub stages: Vec<StageSpec>,
    /// Their requests, `system` left out.
    pub asked: Vec<Asked>,
}

/// Finds every program and reads what it asks for.
///
/// # Errors
/// The first program that cannot be run.
pub fn find(stages: &Stages, places: &Places) -> Result<Programs, Refusal> {
    // All programs are found before any is looked into: a local run comes after every refusal.
    let resolved = stages
        .iter()
        .map(|stage| stage.iter().map(|element| resolve(element, places)).collect())
        .collect::<Result<Vec<Vec<Program>>, Refusal>>()?;
    let mut loader = Loader::of_process();
    let mut programs = Programs { stages: Vec::new(), asked: Vec::new() };
    for (stage, found) in stages.iter().zip(resolved) {
        let mut elements = Vec::new();
        for (element, program) in stage.iter().zip(found) {
            elements.push(spec(element, program, &mut loader, &mut programs.asked)?);
        }
        programs.stages.push(StageSpec { elements });
    }
    Ok(programs)
}

fn spec(
    element: &Element,
    program: Program,
    loader: &mut Loader,
    asked: &mut Vec<Asked>,
) -> Result<ElementSpec, Refusal> {
    let words = |skip: usize| -> Vec<OsBytes> {
        element.words[skip..].iter().map(|word| OsBytes(word.text.clone())).collect()
    };
    let (path, args, kind) = match program {
        Program::System { per_host, skip } => {
            let args = words(skip);
            (args[0].clone(), args, Kind::System { per_host })
        }
        Program::File(path) => {
            let known = asked.iter().find(|asked| asked.path == path).cloned();
            let found = match known {
                Some(known) => known,
                None => request::of_program(&path, loader)?,
            };
            let kind = if found.request.library { Kind::Score } else { Kind::Plain };
            asked.push(found);
            (OsBytes(path.into_os_string().into_vec()), words(0), kind)
        }
    };
    let (input, output) = (element.input.clone(), element.output.clone());
    Ok(ElementSpec { path, args, input, output, kind, content: None })
}

/// The job for scored.
///
/// # Errors
/// A working directory that is gone.
pub fn build(
    options: &Options,
    programs: Programs,
    chosen: Chosen,
    places: &Places,
) -> Result<JobSpec, Refusal> {
    let Programs { stages, .. } = programs;
    let first = stages.first().and_then(|stage| stage.elements.first());
    let stdin = first.is_some_and(|element| element.input == Input::Default);
    Ok(JobSpec {
        hosts: chosen.hosts,
        stages,
        environment: environment(),
        directory: OsBytes(places.directory.as_os_str().as_bytes().to_vec()),
        umask: current_umask(),
        options: options.pairs(),
        statistics: options.statistics() != Statistics::Off,
        stdin,
        separate: false,
        networks: Vec::new(),
        sets: 0,
    })
}

/// A redirect that writes a file which goes with the job, so that the user can be told once.
pub fn file_in_job_directory(stages: &[StageSpec]) -> Option<String> {
    stages.iter().flat_map(|stage| &stage.elements).find_map(|element| match &element.output {
        Output::File { name, .. } if !name.is_absolute() => {
            Some(shown(OsStr::from_bytes(&name.0.0)))
        }
        _ => None,
    })
}

/// The names of the programs by stage, for the user.
pub fn names(stages: &[StageSpec]) -> Vec<Vec<String>> {
    let name = |element: &ElementSpec| shown(OsStr::from_bytes(&element.args[0].0));
    stages.iter().map(|stage| stage.elements.iter().map(name).collect()).collect()
}

/// The environment for the processes of a job.
pub(crate) fn environment() -> Vec<OsBytes> {
    std::env::vars_os()
        .filter(|(name, _)| name != CONTROL_FD && name != RESOURCE_FD && name != SCOUT)
        .map(|(name, value)| OsBytes([name.as_bytes(), b"=", value.as_bytes()].concat()))
        .collect()
}

/// The mask can only be read by setting it; there is one thread yet.
pub(crate) fn current_umask() -> u32 {
    let mask = umask(Mode::from_bits_truncate(0o077));
    umask(mask);
    mask.bits()
}

/// The working directory and PATH of this process.
///
/// # Errors
/// A working directory that is gone.
pub fn places() -> Result<Places, Refusal> {
    Places::of_process()
        .map_err(|error| Refusal::plain(USAGE, format!("the working directory: {error}")))
}
