//! `scatter` (manual, scatter(6)): what node 0 reads goes to every node, in a pipeline along the
//! nodes as in figure 1.5.
#![forbid(unsafe_code)]

pub mod relay;

use std::ffi::OsStr;
use std::fs::File;
use std::os::unix::ffi::OsStrExt;

use score_runtime::sc;

use crate::options::Options;
use crate::post::Failure;
use crate::scatter::relay::Relay;
use crate::station::{Place, Station, standard_input, standard_output};

/// What `-help` prints.
pub const USAGE: &str = "\
usage: scrun [-OPTIONS] scatter [-node N] [-file NAME]

Copies scrun's standard input to the standard output of every scatter process.
  -node N     to that node alone
  -file NAME  into a file, one on each host: a base name lies in the job's directory
              and goes with the job, any other name is an absolute path
";

/// One node's part.
///
/// # Errors
/// The node cannot go on; the whole must end.
pub fn run(station: &mut Station, place: Place, options: &Options) -> Result<(), Failure> {
    let stops: Vec<u32> = match options.node {
        None => (0..place.nodes).collect(),
        Some(0) => vec![0],
        Some(node) => vec![0, node],
    };
    let Some(position) = stops.iter().position(|stop| *stop == place.node) else {
        return Ok(());
    };
    let chosen = options.node.is_none_or(|node| node == place.node);
    let output = match &options.file {
        _ if !chosen => None,
        None => Some((standard_output()?, "standard output".to_owned())),
        // One process on each host writes the file: the first, unless another one was asked for.
        Some(name) if place.process == 0 || options.node.is_some() => Some(create(name)?),
        Some(_) => None,
    };
    let next = stops.get(position + 1).copied();
    let mut relay = match position.checked_sub(1) {
        None => Relay::head(standard_input()?, output, next, station),
        Some(before) => Relay::behind(stops[before], output, next, station),
    };
    station.run(&mut relay)
}

fn create(name: &OsStr) -> Result<(File, String), Failure> {
    let created = if name.as_bytes().starts_with(b"/") {
        File::create(name)
    } else {
        sc::create_temporary_file(name).map(File::from).map_err(Into::into)
    };
    let shown = name.display().to_string();
    created.map(|file| (file, shown.clone())).map_err(|error| Failure::Io(shown, error))
}
