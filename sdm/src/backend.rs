//! What carries the commands of one server out.

use std::os::fd::BorrowedFd;

use score_tools::merge::{CommandId, MonotonicTime};

use crate::message::{DebugEvent, Operation};

/// A debug engine for one process. Nothing here waits.
pub trait Backend {
    /// Begins an operation. It gets exactly one answer, from a later [`Backend::progress`].
    fn begin(&mut self, command: CommandId, operation: Operation, now: MonotonicTime);

    /// Goes on, and returns the answers.
    fn progress(&mut self, now: MonotonicTime) -> Vec<(CommandId, DebugEvent)>;

    /// What to wait for to be readable before the next [`Backend::progress`].
    fn descriptors(&self) -> Vec<BorrowedFd<'_>>;

    /// When [`Backend::progress`] is due at the latest.
    fn deadline(&self) -> Option<MonotonicTime>;

    /// Output of the process since the last call, if it is forwarded.
    fn take_output(&mut self) -> Vec<u8> {
        Vec::new()
    }
}

/// The master has no process.
#[derive(Debug, Default)]
pub struct NoBackend {
    answers: Vec<(CommandId, DebugEvent)>,
}

impl Backend for NoBackend {
    fn begin(&mut self, command: CommandId, _: Operation, _: MonotonicTime) {
        self.answers.push((command, DebugEvent::Failed("the master has no process".to_owned())));
    }

    fn progress(&mut self, _: MonotonicTime) -> Vec<(CommandId, DebugEvent)> {
        std::mem::take(&mut self.answers)
    }

    fn descriptors(&self) -> Vec<BorrowedFd<'_>> {
        Vec::new()
    }

    fn deadline(&self) -> Option<MonotonicTime> {
        None
    }
}
