//! The files that `start_tool --files` sends for one tool of a running job. The messages are the
//! same as for programs at the start of a job, with start_tool instead of scrun:
//!
//! 1. start_tool names the archive of a directory in [`crate::tool_start::ToolAction::Start`].
//! 2. The master sends [`ToolFilesKind::Fetch`]. The hosts request the bytes of the archive from
//!    host to host ([`FileRequest`], [`crate::job_control::ProgramAnswer`]).
//! 3. The requests of the first host go to start_tool
//!    ([`crate::server_message::ConsoleAnswer::ToolFileRequest`]). [`ToolFileChunk`] answers them.
//! 4. Each host of the tool unpacks the archive, and reports
//!    [`crate::tool_start::ToolEventKind::FilesReady`]. The master then sends
//!    [`ToolFilesKind::Complete`] and starts the tool.
//!
//! [`FileRequest`]: crate::job_control::FileRequest

use serde::{Deserialize, Serialize};

use crate::ids::JobId;
use crate::message::{ContentHash, FileDigest};
use crate::nodeset::NodeSet;
use crate::tool_start::{TOOL_FILES_DIR, ToolId};

/// The directory of the files of one tool, in the job's directory.
pub fn directory_name(tool: ToolId) -> String {
    format!("{TOOL_FILES_DIR}-{tool}")
}

/// The name of the archive of these files, in the job's directory.
pub fn archive_name(tool: ToolId) -> String {
    format!("{TOOL_FILES_DIR}-{tool}.archive")
}

/// An order about the files of a tool. The ancestors of these hosts in the job's tree also get the
/// order, because the archive reaches the hosts of the tool through them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ToolFilesOrder {
    /// The tool.
    pub tool: ToolId,
    /// The hosts of the tool, by their index in the job.
    pub hosts: NodeSet,
    /// The order.
    pub kind: ToolFilesKind,
}

/// The order to the hosts.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum ToolFilesKind {
    /// Get the archive with this content. The hosts of the tool unpack it, and answer
    /// [`crate::tool_start::ToolEventKind::FilesReady`]. A host that cannot do so answers
    /// [`crate::tool_start::ToolEventKind::NotStarted`].
    Fetch(FileDigest),
    /// All hosts of the tool have the files: remove the archive.
    Complete,
    /// The tool is not started: remove the archive and the files.
    Cancel,
}

/// A part of the archive of a tool's files, from start_tool. It answers
/// [`crate::server_message::ConsoleAnswer::ToolFileRequest`], in order.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ToolFileChunk {
    /// The job.
    pub job: JobId,
    /// Hash of the archive.
    pub hash: ContentHash,
    /// Offset of the part in the archive.
    pub offset: u64,
    /// At most [`crate::message::MAX_IO_CHUNK`] bytes. There are none if the files can no longer be
    /// read.
    #[serde(with = "serde_bytes")]
    pub bytes: Vec<u8>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_files_and_the_archive_of_a_tool_have_its_number_in_their_names() {
        assert_eq!(directory_name(ToolId(3)), ".tool-files-3");
        assert_eq!(archive_name(ToolId(3)), ".tool-files-3.archive");
    }
}
