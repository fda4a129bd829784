//! The identity of a file that hosts copy from each other.

use serde::{Deserialize, Serialize};

/// The contents of a file, identified by their hash. They are fetched with
/// [`crate::server_message::JobAnswer::FileRequest`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct FileDigest {
    /// The BLAKE3 hash.
    pub hash: ContentHash,
    /// Size in bytes.
    pub size: u64,
}

/// A BLAKE3 hash.
pub type ContentHash = [u8; 32];
