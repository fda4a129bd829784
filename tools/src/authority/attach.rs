//! Attach. The authority checks all ranks, the service then traces the processes that it does not
//! trace yet, and the authority answers. An Attach succeeds for all its ranks or for none.

use super::process::Attachment;
use super::{
    Action, Authority, ConnectionId, FIRST_OWN_TOOL, MAX_PRIORITY, Reach, SeizeFailure,
    ToolIdentity, answer,
};
use crate::wire::{Attach, Header, ProcessSelect, ReturnCode, ServiceMessage};

/// The reason for refusing a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Denial {
    code: ReturnCode,
    /// The rank that caused the refusal.
    rank: u32,
    error_code: u32,
}

impl Authority {
    /// The ranks that an Attach selects.
    fn selected(
        &self,
        reach: Reach,
        header: &Header,
        select: ProcessSelect,
    ) -> Result<Vec<u32>, Denial> {
        let denial = |rank, code| Err(Denial { code, rank, error_code: 0 });
        let only = match (select, reach) {
            (ProcessSelect::RankInHeader, Reach::Rank(rank)) if rank != header.rank => {
                return denial(header.rank, ReturnCode::ProcessIdError);
            }
            (ProcessSelect::RankInHeader, _) => Some(header.rank),
            (ProcessSelect::RanksInNode, Reach::Rank(rank)) => Some(rank),
            (ProcessSelect::RanksInNode, Reach::Host) => None,
        };
        if let Some(rank) = only {
            return match self.processes.get(&rank) {
                None => denial(rank, ReturnCode::ProcessIdError),
                Some(process) if process.has_exited => denial(rank, ReturnCode::ToolProcessExiting),
                Some(_) => Ok(vec![rank]),
            };
        }
        let live = self.processes.iter().filter(|(_, process)| !process.has_exited);
        let ranks: Vec<u32> = live.map(|(rank, _)| *rank).collect();
        match ranks.is_empty() {
            true if self.processes.is_empty() => denial(header.rank, ReturnCode::ProcessIdError),
            true => denial(header.rank, ReturnCode::ToolProcessExiting),
            false => Ok(ranks),
        }
    }

    /// The number that a tool gets or already has. `None` if it must not use the requested number.
    fn tool_number(&self, connection: ConnectionId, asked: u32) -> Option<u32> {
        match (self.connections[&connection].tool, asked) {
            (Some(own), 0) => Some(own),
            (Some(own), _) => (own == asked).then_some(own),
            (None, 0) => Some(self.next_own_tool),
            (None, _) => (asked < FIRST_OWN_TOOL).then_some(asked),
        }
    }

    /// Attaches to all ranks or to none (ruling O9). The answer has the first error.
    pub(super) fn on_attach(
        &mut self,
        connection: ConnectionId,
        header: &Header,
        body: &Attach,
        actions: &mut Vec<Action>,
    ) {
        match self.check_attach(connection, header, body) {
            Ok((identity, ranks)) => {
                self.begin_attach(connection, header, identity, ranks, actions);
            }
            Err(denial) => {
                let header = Header { rank: denial.rank, ..*header };
                let message = ServiceMessage::AttachAck(Vec::new());
                actions.push(answer(connection, &header, denial.code, denial.error_code, message));
            }
        }
    }

    fn check_attach(
        &self,
        connection: ConnectionId,
        header: &Header,
        body: &Attach,
    ) -> Result<(ToolIdentity, Vec<u32>), Denial> {
        let denial = |code| Denial { code, rank: header.rank, error_code: 0 };
        let tool = self.tool_number(connection, header.tool);
        let tool = tool.ok_or(denial(ReturnCode::ToolIdError))?;
        if body.priority > MAX_PRIORITY {
            return Err(denial(ReturnCode::ToolPriorityError));
        }
        let ranks = self.selected(self.connections[&connection].reach, header, body.select)?;
        let identity = ToolIdentity { tool, tag: body.tag, priority: body.priority };
        for rank in &ranks {
            self.processes[rank].check_attach(connection, &identity).map_err(|code| Denial {
                code,
                rank: *rank,
                error_code: 0,
            })?;
        }
        Ok((identity, ranks))
    }

    fn begin_attach(
        &mut self,
        connection: ConnectionId,
        header: &Header,
        identity: ToolIdentity,
        ranks: Vec<u32>,
        actions: &mut Vec<Action>,
    ) {
        if identity.tool == self.next_own_tool {
            self.next_own_tool = self.next_own_tool.wrapping_add(1).max(FIRST_OWN_TOOL);
        }
        let mut unseized = Vec::new();
        for rank in &ranks {
            let process = self.processes.get_mut(rank).expect("selected");
            process.attachments.insert(connection, Attachment { identity, is_complete: false });
            if !process.is_seized {
                unseized.push(*rank);
            }
        }
        let own = self.connections.get_mut(&connection).expect("it has sent a message");
        own.tool = Some(identity.tool);
        own.attaching.push_back((Header { tool: identity.tool, ..*header }, ranks));
        // The answer also waits for earlier answers, so that answers keep their order.
        if unseized.is_empty() && own.attaching.len() == 1 {
            self.on_seized(connection, Vec::new(), Ok(()), actions);
        } else {
            actions.push(Action::Seize { connection, ranks: unseized });
        }
    }

    pub(super) fn on_seized(
        &mut self,
        connection: ConnectionId,
        seized: Vec<u32>,
        result: Result<(), SeizeFailure>,
        actions: &mut Vec<Action>,
    ) {
        let is_seized = result.is_ok();
        let own = self.connections.get_mut(&connection);
        let waiting = own.and_then(|own| own.attaching.pop_front());
        if let Some((header, ranks)) = waiting {
            self.end_attach(connection, &header, ranks, result, actions);
        }
        // The tool may have left meanwhile, or the process may have exited.
        for rank in seized.into_iter().filter(|_| is_seized) {
            match self.processes.get_mut(&rank) {
                Some(process) if process.has_exited => {}
                Some(process) if !process.attachments.is_empty() => process.is_seized = true,
                _ => actions.push(Action::Unseize { rank }),
            }
        }
    }

    fn end_attach(
        &mut self,
        connection: ConnectionId,
        header: &Header,
        mut ranks: Vec<u32>,
        result: Result<(), SeizeFailure>,
        actions: &mut Vec<Action>,
    ) {
        // A process that has exited meanwhile has no attachment.
        ranks.retain(|rank| match self.processes[rank].attachments.get(&connection) {
            Some(attachment) => !attachment.is_complete,
            None => false,
        });
        let denial = match &result {
            Err(SeizeFailure { rank, error_code, .. }) => Some(Denial {
                code: ReturnCode::RequestFailed,
                rank: *rank,
                error_code: *error_code,
            }),
            Ok(()) if ranks.is_empty() => Some(Denial {
                code: ReturnCode::ToolProcessExiting,
                rank: header.rank,
                error_code: 0,
            }),
            Ok(()) => None,
        };
        for rank in &ranks {
            let process = self.processes.get_mut(rank).expect("retained");
            match denial {
                None => {
                    process.is_seized = true;
                    let own = process.attachments.get_mut(&connection).expect("retained");
                    own.is_complete = true;
                }
                Some(_) => {
                    process.remove_tool(connection, self.job, *rank, actions);
                }
            }
        }
        let (header, code, error_code, ranks) = match denial {
            None => (*header, ReturnCode::Success, 0, ranks),
            Some(Denial { code, rank, error_code }) => {
                (Header { rank, ..*header }, code, error_code, Vec::new())
            }
        };
        let message = match result {
            Err(failure) => ServiceMessage::AttachRefused(failure.reason),
            Ok(()) => ServiceMessage::AttachAck(ranks),
        };
        actions.push(answer(connection, &header, code, error_code, message));
    }
}
