//! The exit status of a process.

use serde::{Deserialize, Serialize};

/// The exit status of a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Status {
    /// It called exit(3) or returned from main.
    Exited(u8),
    /// This signal killed it.
    Signaled(i32),
}
