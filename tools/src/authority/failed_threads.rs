//! The commands of an Update that are skipped.

use std::collections::BTreeSet;

use crate::wire::CommandCode;

/// The threads for which a command of this Update has failed. Later commands for the same thread
/// are not carried out (ruling O13). This does not apply to a Query.
#[derive(Debug, Clone, Default)]
pub struct FailedThreads(BTreeSet<u32>);

impl FailedThreads {
    /// Checks whether a command for this thread, which is not 0, may be carried out.
    pub fn check(&self, thread: u32) -> Result<(), CommandCode> {
        match self.0.contains(&thread) {
            true => Err(CommandCode::PreviousCommandFailed),
            false => Ok(()),
        }
    }

    /// Notes the result of a command for this thread.
    pub fn record(&mut self, thread: u32, code: CommandCode) {
        if code != CommandCode::Success {
            self.0.insert(thread);
        }
    }
}
