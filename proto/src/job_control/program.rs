//! Copying of programs from host to host, one hop at a time.

use serde::{Deserialize, Serialize};

use crate::message::{ContentHash, OsBytes};

/// A request for bytes of a program. It is only for the next hop.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileRequest {
    /// Hash of the program.
    pub hash: ContentHash,
    /// Offset of the first byte.
    pub offset: u64,
    /// Number of bytes.
    pub length: u64,
}

/// The answer to a [`FileRequest`]. It is only for the host that has sent the request.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum ProgramAnswer {
    /// A part of the program. It is empty if the file has ended, or does not match its digest.
    Chunk {
        /// Hash of the program.
        hash: ContentHash,
        /// Offset of the part in the file.
        offset: u64,
        /// At most [`crate::message::MAX_IO_CHUNK`] bytes.
        #[serde(with = "serde_bytes")]
        bytes: Vec<u8>,
    },
    /// The program is in this file, on the disk that virtual hosts share. The file does not change
    /// before the job's first process runs.
    SharedFile {
        /// Hash of the program.
        hash: ContentHash,
        /// Absolute path.
        path: OsBytes,
    },
}

impl ProgramAnswer {
    /// The hash of the program.
    pub fn hash(&self) -> &ContentHash {
        match self {
            ProgramAnswer::Chunk { hash, .. } | ProgramAnswer::SharedFile { hash, .. } => hash,
        }
    }

    /// The number of requested bytes that the answer uses up. It is at least one, so that there are
    /// never more answers than requested bytes.
    pub fn charge(&self) -> u64 {
        match self {
            ProgramAnswer::Chunk { bytes, .. } => bytes.len().max(1) as u64,
            ProgramAnswer::SharedFile { .. } => 1,
        }
    }
}
