//! The exit status of a process.

use serde::{Deserialize, Serialize};

/// The exit status of a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Status {
    /// The process called exit(3) or returned from main.
    Exited(u8),
    /// This signal killed the process.
    Signaled(i32),
}
