//! Builds the job that scrun submits to scored, from the command line.

use crate::debugger;
use crate::elf::LibrarySearchPath;
use crate::mpi;
use crate::nodes::HostAssignment;
use crate::options::{ScrunOptions, Statistics};
use crate::pipeline::{Element, Stages};
use crate::program::{Program, ProgramSearchPath, resolve};
use crate::request::{self, ProgramRequest};
use crate::tool;
use crate::usage::{StartError, printable};
use nix::sys::stat::{Mode, umask};
use score_proto::env::{CONTROL_FD_ENV, RESOURCE_FD_ENV, SCOUT_ENV};
use score_proto::exit_code::EXIT_USAGE;
use score_proto::message::{
    ElementSpec, Input, JobSpec, JobTerms, OsBytes, Output, ProgramKind, StageSpec,
};
use std::ffi::OsStr;
use std::os::unix::ffi::{OsStrExt, OsStringExt};

/// The programs of a job, with their resource requests.
#[derive(Debug)]
pub struct ResolvedPrograms {
    /// The stages and their elements, as scored receives them.
    pub stages: Vec<StageSpec>,
    /// The requests of the programs, except those run by `system`.
    pub requests: Vec<ProgramRequest>,
}

/// Finds every program and reads its resource request.
///
/// # Errors
/// The first program that cannot be run.
pub fn resolve_programs(
    options: &ScrunOptions,
    stages: &Stages,
    search_path: &ProgramSearchPath,
) -> Result<ResolvedPrograms, StartError> {
    // All programs are found before any request is read, so that a missing program is reported
    // before any trial run.
    let resolved = stages
        .iter()
        .map(|stage| stage.iter().map(|element| resolve(element, search_path)).collect())
        .collect::<Result<Vec<Vec<Program>>, StartError>>()?;
    let mut loader = LibrarySearchPath::from_env();
    let mut programs = ResolvedPrograms { stages: Vec::new(), requests: Vec::new() };
    for (stage, found) in stages.iter().zip(resolved) {
        let mut elements = Vec::new();
        for (element, program) in stage.iter().zip(found) {
            let requests = &mut programs.requests;
            elements.push(element_spec(options, element, program, &mut loader, requests)?);
        }
        programs.stages.push(StageSpec { elements });
    }
    Ok(programs)
}

fn element_spec(
    options: &ScrunOptions,
    element: &Element,
    program: Program,
    loader: &mut LibrarySearchPath,
    requests: &mut Vec<ProgramRequest>,
) -> Result<ElementSpec, StartError> {
    let args_from = |skip: usize| -> Vec<OsBytes> {
        element.words[skip..].iter().map(|word| OsBytes(word.text.clone())).collect()
    };
    let (path, args, kind, uses_openmp, uses_pm_provider, pmix_library) = match program {
        Program::System { per_host, skip } => {
            let args = args_from(skip);
            (args[0].clone(), args, ProgramKind::System { per_host }, false, false, None)
        }
        Program::File(path) => {
            let existing = requests.iter().find(|request| request.path == path).cloned();
            let mut found = match existing {
                Some(existing) => existing,
                None => request::program_request(&path, loader)?,
            };
            found.mpi_library = mpi::effective_library(options, found.mpi_library, loader);
            let kind = match found.request.uses_libscore {
                true => ProgramKind::Score,
                false => mpi::program_kind(options, found.mpi_library.as_ref()),
            };
            let uses_openmp = found.uses_openmp;
            let library = found.mpi_library.as_ref();
            let uses_pm = matches!(kind, ProgramKind::Mpi(_)) && mpi::uses_pm(options, library);
            let pmix_library = mpi::pmix_library(kind, library);
            requests.push(found);
            let path = OsBytes(path.into_os_string().into_vec());
            (path, args_from(0), kind, uses_openmp, uses_pm, pmix_library)
        }
    };
    let (input, output) = (element.input.clone(), element.output.clone());
    let digest = None;
    Ok(ElementSpec {
        path,
        args,
        input,
        output,
        kind,
        uses_openmp,
        uses_pm_provider,
        pmix_library,
        digest,
    })
}

/// The job for scored.
///
/// # Errors
/// If the working directory no longer exists.
pub fn build(
    options: &ScrunOptions,
    programs: ResolvedPrograms,
    assignment: HostAssignment,
    search_path: &ProgramSearchPath,
) -> Result<JobSpec, StartError> {
    let ResolvedPrograms { stages, .. } = programs;
    let first = stages.first().and_then(|stage| stage.elements.first());
    let stdin = first.is_some_and(|element| element.input == Input::Default);
    let pairs = options.pairs();
    let terms =
        JobTerms::from_options(&pairs).map_err(|reason| StartError::plain(EXIT_USAGE, reason))?;
    Ok(JobSpec {
        hosts: assignment.hosts,
        stages,
        environment: environment(),
        rank_environment: options.rank_environment(),
        directory: OsBytes(search_path.directory.as_os_str().as_bytes().to_vec()),
        umask: current_umask(),
        terms: Box::new(terms),
        options: pairs,
        statistics: options.statistics() != Statistics::Off,
        reads_stdin: stdin,
        independent_nodes: false,
        hold: false,
        networks: Vec::new(),
        network_sets: 0,
        tool: tool::from_options(options)?,
        tool_files: None,
        debuggers: debugger::from_options(options, &search_path.directory)?.map(Box::new),
    })
}

/// The first output redirection to a file in the job's directory, which is removed with the job.
/// scrun notifies the user once.
pub fn file_in_job_directory(stages: &[StageSpec]) -> Option<String> {
    stages.iter().flat_map(|stage| &stage.elements).find_map(|element| match &element.output {
        Output::File { name, .. } if !name.is_absolute() => {
            Some(printable(OsStr::from_bytes(&name.0.0)))
        }
        _ => None,
    })
}

/// The names of the programs by stage, for the user.
pub fn names(stages: &[StageSpec]) -> Vec<Vec<String>> {
    let name = |element: &ElementSpec| printable(OsStr::from_bytes(&element.args[0].0));
    stages.iter().map(|stage| stage.elements.iter().map(name).collect()).collect()
}

/// The environment for the processes of a job.
pub(crate) fn environment() -> Vec<OsBytes> {
    std::env::vars_os()
        .filter(|(name, _)| name != CONTROL_FD_ENV && name != RESOURCE_FD_ENV && name != SCOUT_ENV)
        .map(|(name, value)| OsBytes([name.as_bytes(), b"=", value.as_bytes()].concat()))
        .collect()
}

/// The umask can be read only by setting it. This is safe because there is only one thread yet.
pub(crate) fn current_umask() -> u32 {
    let mask = umask(Mode::from_bits_truncate(0o077));
    umask(mask);
    mask.bits()
}

/// The working directory and PATH of this process.
///
/// # Errors
/// If the working directory no longer exists.
pub fn search_path() -> Result<ProgramSearchPath, StartError> {
    ProgramSearchPath::from_env()
        .map_err(|error| StartError::plain(EXIT_USAGE, format!("the working directory: {error}")))
}
