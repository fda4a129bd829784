//! The resource requests of programs (manual 1.4, 4.1). This module combines the notes of all
//! programs of a job and the requests that programs write in a trial run on this host. It checks
//! whether the requests can be met.

use crate::elf::{self, LibrarySearchPath, ProgramNeeds};
use crate::mpi;
use crate::mpi_library::MpiLibrary;
use crate::nodes::HostAssignment;
use crate::options::ScrunOptions;
use crate::trial_run;
use crate::usage::{StartError, printable};
use score_proto::elf_note::Request;
use score_proto::exit_code::EXIT_USAGE;
use score_proto::message::Level;
use std::path::{Path, PathBuf};

/// The resource request of one program.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProgramRequest {
    /// The program.
    pub path: PathBuf,
    /// The resource request of the program.
    pub request: Request,
    /// The MPI library that the program needs, if any.
    pub mpi_library: Option<MpiLibrary>,
    /// Whether the program needs an OpenMP library.
    pub uses_openmp: bool,
}

/// Reads the resource request of a program. Runs the program on this host if its note requires it
/// (manual 1.4.2, step 2).
///
/// # Errors
/// A note that cannot be honoured, or a trial run that failed.
pub fn program_request(
    path: &Path,
    loader: &mut LibrarySearchPath,
) -> Result<ProgramRequest, StartError> {
    let ProgramNeeds { mut request, mpi_library, uses_openmp, .. } = elf::needs_of(path, loader)
        .map_err(|error| StartError::plain(EXIT_USAGE, error.to_string()))?;
    if request.uses_libscore && request.run_locally {
        trial_run::run_for_request(path, &mut request)?;
    }
    let mpi_library = mpi_library.or_else(|| mpi::library_of_python(path, loader));
    Ok(ProgramRequest { path: path.to_path_buf(), request, mpi_library, uses_openmp })
}

/// The combination of all requests.
///
/// # Errors
/// Two programs that exclude each other. The error names both.
pub fn intersect(programs: &[ProgramRequest]) -> Result<Request, StartError> {
    let mut combined = Request::default();
    for (index, program) in programs.iter().enumerate() {
        combined = combined.intersect(&program.request).map_err(|error| {
            let other = programs[..index]
                .iter()
                .find(|other| other.request.intersect(&program.request).is_err())
                .map_or(String::new(), |other| {
                    format!("{} and ", printable(other.path.as_os_str()))
                });
            let this = printable(program.path.as_os_str());
            StartError::plain(EXIT_USAGE, format!("{other}{this} cannot run in one job: {error}"))
        })?;
    }
    combined.allows_hetero = programs
        .iter()
        .all(|program| program.request.allows_hetero || !program.request.uses_libscore)
        && programs.iter().any(|program| program.request.allows_hetero);
    Ok(combined)
}

/// Rejects requests that this version cannot meet, and warns about ignored ones.
///
/// # Errors
/// A request that cannot be met. The error names its macro.
pub fn check(
    programs: &[ProgramRequest],
    options: &ScrunOptions,
    report: &mut dyn FnMut(Level, &str),
) -> Result<(), StartError> {
    for ProgramRequest { path, request, mpi_library, .. } in programs {
        let name = printable(path.as_os_str());
        if !request.uses_libscore
            && let Some((level, text)) = mpi::notice(options, &name, mpi_library.as_ref())
        {
            report(level, &text);
        }
        if let Some(given) = options.hetero()
            && request.uses_libscore
            && !request.allows_hetero
        {
            let reason = "the program does not declare SCORE_RSRC_HETERO_NODES";
            return Err(StartError::usage(
                given.position,
                format!("{}: {name}: {reason}", given.key),
            ));
        }
        if request.nockpt && options.has("checkpoint") {
            let reason = "declares SCORE_RSRC_NOCKPT; the checkpoint option is ignored";
            report(Level::Warning, &format!("{name} {reason}"));
        }
    }
    Ok(())
}

/// The output of the option `resource`: the options, the requests and the paths of the programs.
pub fn describe(
    options: &ScrunOptions,
    programs: &[ProgramRequest],
    combined: &Request,
    assignment: &HostAssignment,
    networks: &[String],
) -> String {
    let given: Vec<String> = options
        .given
        .iter()
        .map(|given| match &given.value {
            Some(value) => format!("{}={value}", given.key),
            None => given.key.clone(),
        })
        .collect();
    let mut out = format!("options: {}\n", given.join(" "));
    for ProgramRequest { path, request, .. } in programs {
        out.push_str(&format!("program: {}\n  {}\n", path.display(), request_line(request)));
    }
    let (nodes, combined_line) = (assignment.nodes(), request_line(combined));
    out.push_str(&format!("together: {combined_line}\nnodes: {nodes} ({})\n", assignment.layout()));
    if !networks.is_empty() {
        out.push_str(&format!("networks: {}\n", networks.join(" ")));
    }
    let named_hosts = assignment.hosts.iter().filter(|host| !host.name.is_empty());
    for host in named_hosts {
        out.push_str(&format!("host: {} {}\n", host.name, host.procs));
    }
    out
}

fn request_line(request: &Request) -> String {
    if *request == Request::default() {
        return "no request".into();
    }
    let (min, max) = request.nodes;
    let mut parts = vec![format!("nodes {min}..{max}")];
    parts.extend(request.procs.map(|procs| format!("{procs} processes per host")));
    parts.push(format!(
        "{} network set{}",
        request.network_sets,
        if request.network_sets == 1 { "" } else { "s" }
    ));
    for (is_set, name) in [
        (request.zerocopy, "zero copy"),
        (request.allows_hetero, "hosts of different kinds"),
        (request.nockpt, "no checkpoint"),
        (request.run_locally, "found by a trial run on this host"),
    ] {
        if is_set {
            parts.push(name.into());
        }
    }
    parts.join(", ")
}

#[cfg(test)]
mod tests;
