//! `gather` (manual, gather(6)): what the nodes read goes to node 0's output, node by node.
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
use crate::options::Options;
use crate::post::Failure;
use crate::station::{Place, Station, standard_input, standard_output};

/// What `-help` prints.
pub const USAGE: &str = "\
usage: scrun [-OPTIONS] gather [-node N] [-file NAME]

Copies the standard input of every gather process to scrun's standard output, that of
node 0 first, then that of node 1, and so on.
  -node N     of that node alone
  -file NAME  the file instead of standard input: NAME.N of each node N where a redirect
              has made one, else NAME once on each host; a base name lies in the job's
              directory, any other name is an absolute path
";

/// The node that writes.
pub const COLLECTOR: u32 = 0;

/// What the processes of one host may put aside in files while they wait for their turn.
const SPOOL_PER_HOST: u64 = 1 << 30;

/// One node's part.
///
/// # Errors
/// The node cannot go on; the whole must end.
pub fn run(station: &mut Station, place: Place, options: &Options) -> Result<(), Failure> {
    let order: Vec<u32> = match options.node {
        None => (0..place.nodes).collect(),
        Some(node) => vec![node],
    };
    let chosen = order.contains(&place.node);
    let from_file = options.file.is_some();
    let input = match &options.file {
        Some(name) if chosen => open(name, place, options.node.is_some())?,
        Some(name) => (nothing(name)?, name.display().to_string()),
        None => (standard_input()?, "standard input".to_owned()),
    };
    if place.node == COLLECTOR {
        let output = standard_output()?;
        let input = (chosen || !from_file).then_some(input);
        let mut collector = Collector::new(place.nodes, &order, input, output, station);
        return station.run(&mut collector);
    }
    let mut contributor = if chosen {
        let limit = SPOOL_PER_HOST / u64::from(place.processes.max(1));
        let spool = Spool::new(limit, Box::new(move || aside(place.node)));
        let name = format!("gather: node {}", place.node);
        Contributor::giving(input, station, spool, !from_file, name)
    } else if from_file {
        return Ok(());
    } else {
        Contributor::discarding(input)
    };
    station.run(&mut contributor)
}

/// This process's file: its own by number, else the one that the host's processes share, which
/// the first of them gives, or the one that was asked for. The others have nothing to give.
fn open(name: &OsStr, place: Place, asked_for: bool) -> Result<(File, String), Failure> {
    let shown = |name: &OsStr| name.display().to_string();
    let failed = |name: &OsStr| {
        let shown = shown(name);
        move |error| Failure::Io(shown, error)
    };
    if name.as_bytes().starts_with(b"/") {
        if place.process > 0 && !asked_for {
            return Ok((nothing(name)?, shown(name)));
        }
        return Ok((File::open(name).map_err(failed(name))?, shown(name)));
    }
    let mut numbered = OsString::from(name);
    numbered.push(format!(".{}", place.node));
    match sc::open_temporary_file(&numbered) {
        Ok(file) => return Ok((file.into(), shown(&numbered))),
        Err(Errno::ENOENT) => {}
        Err(error) => return Err(failed(&numbered)(error.into())),
    }
    if place.process > 0 && !asked_for {
        return Ok((nothing(name)?, shown(name)));
    }
    match sc::open_temporary_file(name) {
        Ok(file) => Ok((file.into(), shown(name))),
        // The first process of a host may be the only one without a file of its own.
        Err(error) => Err(failed(name)(error.into())),
    }
}

fn nothing(name: &OsStr) -> Result<File, Failure> {
    File::open("/dev/null").map_err(|error| Failure::Io(name.display().to_string(), error))
}

/// A file in the job's directory without a name.
fn aside(node: u32) -> io::Result<File> {
    let name = OsString::from(format!(".gather-{}-{node}", std::process::id()));
    let file = sc::create_temporary_file(&name)?;
    sc::unlink_temporary_file(&name)?;
    Ok(file.into())
}
