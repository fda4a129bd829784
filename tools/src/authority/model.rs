//! The model of the simulation: the expected state of a process and its tools, as plain lists.

use std::collections::BTreeSet;

use super::ConnectionId;

/// A tool that is attached to a process.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct ModelTool {
    pub connection: ConnectionId,
    pub tool: u32,
    pub priority: u8,
}

#[derive(Debug, Default)]
pub(super) struct ModelProcess {
    pub has_exited: bool,
    pub tools: Vec<ModelTool>,
    pub controller: Option<ConnectionId>,
    pub notify_set: u64,
    /// Tools that were refused since they were last notified of "available".
    pub refused: BTreeSet<ConnectionId>,
    /// The refused tools of which the controller has been notified.
    pub announced: BTreeSet<ConnectionId>,
    /// Tools that have released authority and have requested a notice of its next release.
    pub yielded: BTreeSet<ConnectionId>,
    /// The tool that was notified of "available" while authority is still free.
    pub offered: Option<ConnectionId>,
    pub is_suspended: bool,
    /// Threads that are stopped at a signal of which the controller is, or will be, notified.
    pub standing: BTreeSet<u32>,
    /// The thread whose notice was sent and not handled.
    pub unsatisfied: Option<u32>,
}

impl ModelProcess {
    pub fn tool(&self, connection: ConnectionId) -> Option<ModelTool> {
        self.tools.iter().find(|tool| tool.connection == connection).copied()
    }

    pub fn favoured(&self) -> Option<ConnectionId> {
        let waits = |tool: &&ModelTool| {
            self.refused.contains(&tool.connection) || self.yielded.contains(&tool.connection)
        };
        let favoured = self.tools.iter().filter(waits).max_by_key(|tool| tool.priority);
        favoured.map(|tool| tool.connection)
    }

    pub fn forget(&mut self, connection: ConnectionId) {
        self.tools.retain(|tool| tool.connection != connection);
        self.refused.remove(&connection);
        self.announced.remove(&connection);
        self.yielded.remove(&connection);
    }

    pub fn all_go_on(&mut self) {
        self.is_suspended = false;
        self.standing.clear();
        self.unsatisfied = None;
    }
}
