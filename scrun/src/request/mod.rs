//! Programmed resource requests (manual 1.4, 4.1): the notes of all programs of a job together,
//! what a program that asks for it says when it is run here, and whether all that can be met.

use crate::elf::{self, Loader};
use crate::local;
use crate::nodes::Chosen;
use crate::options::Options;
use crate::usage::{Refusal, USAGE, shown};
use score_proto::message::Level;
use score_proto::note::Request;
use std::path::{Path, PathBuf};

/// What one program asks for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Asked {
    /// The program.
    pub path: PathBuf,
    /// Its request.
    pub request: Request,
}

/// Reads what a program asks for; runs it here when its note wants that (manual 1.4.2, step 2).
///
/// # Errors
/// A note that cannot be honoured, or a local run that failed.
pub fn of_program(path: &Path, loader: &mut Loader) -> Result<Asked, Refusal> {
    let mut request =
        elf::request_of(path, loader).map_err(|bad| Refusal::plain(USAGE, bad.to_string()))?;
    if request.library && request.run {
        local::run(path, &mut request)?;
    }
    Ok(Asked { path: path.to_path_buf(), request })
}

/// All requests together.
///
/// # Errors
/// Two programs that exclude each other, with both sides named.
pub fn intersect(all: &[Asked]) -> Result<Request, Refusal> {
    let mut both = Request::default();
    for (index, asked) in all.iter().enumerate() {
        both = both.intersect(&asked.request).map_err(|fault| {
            let other = all[..index]
                .iter()
                .find(|other| other.request.intersect(&asked.request).is_err())
                .map_or(String::new(), |other| format!("{} and ", shown(other.path.as_os_str())));
            let this = shown(asked.path.as_os_str());
            Refusal::plain(USAGE, format!("{other}{this} cannot run in one job: {fault}"))
        })?;
    }
    both.hetero = all.iter().all(|asked| asked.request.hetero || !asked.request.library)
        && all.iter().any(|asked| asked.request.hetero);
    Ok(both)
}

/// Refuses what this version cannot give; warns of what it leaves out.
///
/// # Errors
/// A request that cannot be met, with its macro named.
pub fn check(
    all: &[Asked],
    options: &Options,
    notice: &mut dyn FnMut(Level, &str),
) -> Result<(), Refusal> {
    for Asked { path, request } in all {
        let name = shown(path.as_os_str());
        if let Some(given) = options.hetero()
            && request.library
            && !request.hetero
        {
            let why = "the program does not declare SCORE_RSRC_HETERO_NODES";
            return Err(Refusal::usage(given.place, format!("{}: {name}: {why}", given.key)));
        }
        if request.nockpt && options.has("checkpoint") {
            let why = "declares SCORE_RSRC_NOCKPT; the checkpoint option is ignored";
            notice(Level::Warning, &format!("{name} {why}"));
        }
    }
    Ok(())
}

/// What `resource` prints: options, requests, paths.
pub fn describe(
    options: &Options,
    all: &[Asked],
    both: &Request,
    chosen: &Chosen,
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
    for Asked { path, request } in all {
        out.push_str(&format!("program: {}\n  {}\n", path.display(), line(request)));
    }
    let (nodes, together) = (chosen.nodes(), line(both));
    out.push_str(&format!("together: {together}\nnodes: {nodes} ({})\n", chosen.layout()));
    if !networks.is_empty() {
        out.push_str(&format!("networks: {}\n", networks.join(" ")));
    }
    let named = chosen.hosts.iter().filter(|host| !host.name.is_empty());
    for host in named {
        out.push_str(&format!("host: {} {}\n", host.name, host.procs));
    }
    out
}

fn line(request: &Request) -> String {
    if *request == Request::default() {
        return "no request".into();
    }
    let (min, max) = request.nodes;
    let mut parts = vec![format!("nodes {min}..{max}")];
    parts.extend(request.procs.map(|procs| format!("{procs} processes per host")));
    parts.push(format!("{} network set{}", request.nets, if request.nets == 1 { "" } else { "s" }));
    for (set, name) in [
        (request.zerocopy, "zero copy"),
        (request.hetero, "hosts of different kinds"),
        (request.nockpt, "no checkpoint"),
        (request.run, "asked by a local run"),
    ] {
        if set {
            parts.push(name.into());
        }
    }
    parts.join(", ")
}

#[cfg(test)]
mod tests;
