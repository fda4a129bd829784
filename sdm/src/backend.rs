//! The interface to the debug engine that executes the commands of one server.

use std::os::fd::BorrowedFd;

use score_tools::merge::{CommandId, MonotonicTime};

use crate::message::{DebugEvent, Operation};

/// A debug engine for one process. Its functions do not wait for the process. They may wait a few
/// seconds for the end of a debugger.
pub trait Backend {
    /// Begins an operation. A later [`Backend::progress`] returns exactly one answer to it.
    fn begin(&mut self, command: CommandId, operation: Operation, now: MonotonicTime);

    /// Does the work that is possible without waiting, and returns answers.
    fn progress(&mut self, now: MonotonicTime) -> Vec<(CommandId, DebugEvent)>;

    /// The descriptors that become readable when [`Backend::progress`] has work to do.
    fn descriptors(&self) -> Vec<BorrowedFd<'_>>;

    /// The latest time for the next [`Backend::progress`].
    fn deadline(&self) -> Option<MonotonicTime>;

    /// Output of the process since the last call, if it is forwarded.
    fn take_output(&mut self) -> Vec<u8> {
        Vec::new()
    }
}

/// The back end of the master, which has no process.
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
