//! `gather` (manual, gather(6)): node 0 writes the standard input of all nodes, in the order of the
//! nodes.
#![forbid(unsafe_code)]

pub mod collector;
pub mod contributor;
pub mod spool;

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io;
use std::os::unix::ffi::OsStrExt;

use nix::errno::Errno;
use score_runtime::sc;

use crate::gather::collector::Collector;
use crate::gather::contributor::Contributor;
use crate::gather::spool::Spool;
use crate::options::NodeOptions;
use crate::runner::{NodeIdentity, NodeRunner, standard_input, standard_output};
use crate::transport::NodeError;

/// The output of `-help`.
pub const USAGE: &str = "\
usage: scrun [-OPTIONS] gather [-node N] [-file NAME]

Copies the standard input of every gather process to scrun's standard output, that of
node 0 first, then that of node 1, and so on.
  -node N     copy only the input of node N
  -file NAME  copy a file instead of standard input: NAME.N of each node N if a redirect
              has made one, else NAME once on each host; a base name is in the job's
              directory, any other name is an absolute path
";

/// The node that collects and writes.
pub const COLLECTOR: u32 = 0;

/// Maximum bytes that the processes of one host spool in files while they wait for their turn.
const MAX_SPOOL_BYTES_PER_HOST: u64 = 1 << 30;

/// Runs `gather` on one node.
///
/// # Errors
/// Returns an error if the node cannot continue, so that the job must end.
pub fn run(
    runner: &mut NodeRunner,
    identity: NodeIdentity,
    options: &NodeOptions,
) -> Result<(), NodeError> {
    let order: Vec<u32> = match options.node {
        None => (0..identity.nodes).collect(),
        Some(node) => vec![node],
    };
    let is_selected = order.contains(&identity.node);
    let from_file = options.file.is_some();
    let input = match &options.file {
        Some(name) if is_selected => open_input(name, identity, options.node.is_some())?,
        Some(name) => (open_dev_null(name)?, name.display().to_string()),
        None => (standard_input()?, "standard input".to_owned()),
    };
    if identity.node == COLLECTOR {
        let output = standard_output()?;
        let input = (is_selected || !from_file).then_some(input);
        let mut collector = Collector::new(identity.nodes, &order, input, output, runner);
        return runner.run(&mut collector);
    }
    let mut contributor = if is_selected {
        let limit = MAX_SPOOL_BYTES_PER_HOST / u64::from(identity.processes.max(1));
        let spool = Spool::new(limit, Box::new(move || create_spool_file(identity.node)));
        let name = format!("gather: node {}", identity.node);
        Contributor::forwarding(input, runner, spool, !from_file, name)
    } else if from_file {
        return Ok(());
    } else {
        Contributor::discarding(input)
    };
    runner.run(&mut contributor)
}

/// Opens the input file of this process: the file with its node number, or otherwise the file that
/// the processes of a host share. The first process of the host, or the node that `-node` names,
/// reads the shared file. The other processes get an empty input.
fn open_input(
    name: &OsStr,
    identity: NodeIdentity,
    is_node_given: bool,
) -> Result<(File, String), NodeError> {
    let printable = |name: &OsStr| name.display().to_string();
    let failed = |name: &OsStr| {
        let printable_name = printable(name);
        move |error| NodeError::Io(printable_name, error)
    };
    if name.as_bytes().starts_with(b"/") {
        if identity.process > 0 && !is_node_given {
            return Ok((open_dev_null(name)?, printable(name)));
        }
        return Ok((File::open(name).map_err(failed(name))?, printable(name)));
    }
    let mut numbered = OsString::from(name);
    numbered.push(format!(".{}", identity.node));
    match sc::open_temporary_file(&numbered) {
        Ok(file) => return Ok((file.into(), printable(&numbered))),
        Err(Errno::ENOENT) => {}
        Err(error) => return Err(failed(&numbered)(error.into())),
    }
    if identity.process > 0 && !is_node_given {
        return Ok((open_dev_null(name)?, printable(name)));
    }
    match sc::open_temporary_file(name) {
        Ok(file) => Ok((file.into(), printable(name))),
        // This is an error even if other processes of the host have a numbered file.
        Err(error) => Err(failed(name)(error.into())),
    }
}

fn open_dev_null(name: &OsStr) -> Result<File, NodeError> {
    File::open("/dev/null").map_err(|error| NodeError::Io(name.display().to_string(), error))
}

/// Creates a nameless file in the job's directory.
fn create_spool_file(node: u32) -> io::Result<File> {
    let name = OsString::from(format!(".gather-{}-{node}", std::process::id()));
    let file = sc::create_temporary_file(&name)?;
    sc::unlink_temporary_file(&name)?;
    Ok(file.into())
}
