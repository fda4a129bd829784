//! The option `tool-files`: a directory that each host of the job gets for the job's tools.

use std::ffi::OsStr;
use std::path::Path;

use score_client::FolderArchive;
use score_proto::exit_code::EXIT_USAGE;
use score_proto::message::FileDigest;

use crate::options::ScrunOptions;
use crate::usage::{StartError, printable};

/// The directory that the option names, if any, and the hash of the archive. Reads the whole
/// directory, so that scrun reports an unusable file before it submits the job.
///
/// # Errors
/// The first file at fault.
pub fn from_options(
    options: &ScrunOptions,
) -> Result<Option<(FolderArchive, FileDigest)>, StartError> {
    let Some(folder) = options.get("tool-files").and_then(|given| given.value.clone()) else {
        return Ok(None);
    };
    let archive = FolderArchive::open(Path::new(&folder)).and_then(|archive| {
        let digest = archive.digest()?;
        Ok((archive, digest))
    });
    let archive = archive.map_err(|reason| {
        let shown = printable(OsStr::new(&folder));
        StartError::plain(EXIT_USAGE, format!("tool-files: {shown}: {reason}"))
    });
    archive.map(Some)
}
