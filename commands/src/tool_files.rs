//! The files that `start_tool --files` sends to the hosts of its tool.

use std::path::Path;
use std::time::Duration;

use score_client::{FolderArchive, chunk_ranges};
use score_proto::exit_code::EXIT_USAGE;
use score_proto::job_control::FileRequest;
use score_proto::message::{ConsoleRequest, FileDigest};
use score_proto::server_message::ToolStartAnswer;
use score_proto::tool_files::ToolFileChunk;
use score_proto::tool_start::{ScrunJob, ToolAction, ToolActionAnswer};

use crate::scored_client::{QueryStream, Reply};
use crate::tool_client::ToolError;

/// Time limit for one wait for a message. The hosts may take longer to unpack the files. If scored
/// is lost, the connection ends.
const WAIT_TIMEOUT: Duration = Duration::from_secs(10);

/// A directory, as one archive.
#[derive(Debug)]
pub struct ToolFiles {
    archive: FolderArchive,
    digest: FileDigest,
}

impl ToolFiles {
    /// Reads the directory.
    ///
    /// # Errors
    /// The first file that cannot be sent.
    pub fn open(directory: &Path) -> Result<Self, ToolError> {
        let opened = FolderArchive::open(directory).and_then(|archive| {
            let digest = archive.digest()?;
            Ok(Self { archive, digest })
        });
        opened.map_err(|reason| {
            let reason = format!("--files {}: {reason}", directory.display());
            ToolError { code: EXIT_USAGE, reason }
        })
    }

    /// The hash and the size of the archive.
    pub fn digest(&self) -> FileDigest {
        self.digest
    }

    /// Sends the request to start a tool, and then the bytes that the hosts request. Returns the
    /// answer to the request.
    ///
    /// # Errors
    /// The connection is lost, or scored refuses the request.
    pub fn start(
        &self,
        target: ScrunJob,
        action: ToolAction,
        socket: Option<&Path>,
    ) -> Result<ToolActionAnswer, ToolError> {
        let request = ConsoleRequest::ToolAction { job: target.job, action };
        let mut query = QueryStream::open_at(target, request, socket.map(Path::to_owned))?;
        let mut answer = None;
        loop {
            query.expect_silence();
            match query.next_reply_within(WAIT_TIMEOUT)? {
                Reply::Answer(ToolStartAnswer::Action(given)) => answer = Some(given),
                Reply::Answer(ToolStartAnswer::FileRequest(request)) => {
                    self.send(&mut query, target, request)?;
                }
                Reply::Notice(_) | Reply::Pending => {}
                Reply::End => {
                    return answer.ok_or_else(|| "scored has given no answer".into());
                }
            }
        }
    }

    /// Sends the requested bytes. Sends an empty chunk if a file can no longer be read, so that the
    /// hosts do not wait.
    fn send(
        &self,
        query: &mut QueryStream,
        target: ScrunJob,
        request: FileRequest,
    ) -> Result<(), String> {
        for (offset, length) in chunk_ranges(request.offset, request.length) {
            let mut bytes = vec![0; length];
            let count = self.archive.read_at(&mut bytes, offset).unwrap_or(0);
            bytes.truncate(count);
            let (job, hash) = (target.job, request.hash);
            query.send(ConsoleRequest::ToolFile(ToolFileChunk { job, hash, offset, bytes }))?;
        }
        Ok(())
    }
}
