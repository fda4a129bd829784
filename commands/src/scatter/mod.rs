//! `scatter` (manual, scatter(6)): sends the standard input of node 0 to every node, in a pipeline
//! along the nodes as in figure 1.5.
#![forbid(unsafe_code)]

pub mod relay;

use std::ffi::OsStr;
use std::fs::File;
use std::os::unix::ffi::OsStrExt;

use score_runtime::sc;

use crate::options::NodeOptions;
use crate::runner::{NodeIdentity, NodeRunner, standard_input, standard_output};
use crate::scatter::relay::Relay;
use crate::transport::NodeError;

/// The output of `-help`.
pub const USAGE: &str = "\
usage: scrun [-OPTIONS] scatter [-node N] [-file NAME]

Copies scrun's standard input to the standard output of every scatter process.
  -node N     copy only to node N
  -file NAME  copy into a file on each host: a base name is in the job's directory, which is
              removed with the job; any other name is an absolute path
";

/// Runs `scatter` on one node.
///
/// # Errors
/// Returns an error if the node cannot continue, so that the job must end.
pub fn run(
    runner: &mut NodeRunner,
    identity: NodeIdentity,
    options: &NodeOptions,
) -> Result<(), NodeError> {
    let route: Vec<u32> = match options.node {
        None => (0..identity.nodes).collect(),
        Some(0) => vec![0],
        Some(node) => vec![0, node],
    };
    let Some(position) = route.iter().position(|node| *node == identity.node) else {
        return Ok(());
    };
    let is_selected = options.node.is_none_or(|node| node == identity.node);
    let output = match &options.file {
        _ if !is_selected => None,
        None => Some((standard_output()?, "standard output".to_owned())),
        // One process on each host writes the file: the first process, or the node that `-node`
        // names.
        Some(name) if identity.process == 0 || options.node.is_some() => Some(create_output(name)?),
        Some(_) => None,
    };
    let next = route.get(position + 1).copied();
    let mut relay = match position.checked_sub(1) {
        None => Relay::from_input(standard_input()?, output, next, runner),
        Some(previous) => Relay::from_node(route[previous], output, next, runner),
    };
    runner.run(&mut relay)
}

fn create_output(name: &OsStr) -> Result<(File, String), NodeError> {
    let created = if name.as_bytes().starts_with(b"/") {
        File::create(name)
    } else {
        sc::create_temporary_file(name).map(File::from).map_err(Into::into)
    };
    let printable_name = name.display().to_string();
    created
        .map(|file| (file, printable_name.clone()))
        .map_err(|error| NodeError::Io(printable_name, error))
}
