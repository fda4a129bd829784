//! Tools without a connection. Their messages arrive from the shepherd, like the commands of
//! consoles, so these tools can be on any host. The authority treats such a tool like any other.
//!
//! A tool can have one `Ask` and one `Listen` pending at a time. Records for the tool become the
//! answer to the `Ask`, or to the `Listen` if no `Ask` is pending. Answers are numbered, because
//! they reach the tool on different paths.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use score_proto::ids::ElementIndex;
use score_proto::tool_command::{
    CommandId, MAX_RELAY_TIMEOUT, RelayAction, ToolRecord, ToolResult,
};
use score_proto::toolctl::ToolProcess;
use score_tools::authority::{ConnectionId, Event, Reach};
use score_tools::wire::MAX_MESSAGE_LEN;

use super::Service;
use super::clients::{Clients, SentDescriptors};
use super::shepherd::{Shepherd, Target};

/// An action that has no answer yet.
#[derive(Debug)]
struct PendingAnswer {
    target: Target,
    deadline: Instant,
}

#[derive(Debug)]
struct RelayedTool {
    connection: ConnectionId,
    asks: Option<PendingAnswer>,
    listens: Option<PendingAnswer>,
    /// The number of the last answer.
    last_number: u64,
}

/// All relayed tools, by session.
#[derive(Debug, Default)]
pub struct Relays(BTreeMap<u64, RelayedTool>);

impl RelayedTool {
    fn waiting(&self) -> impl Iterator<Item = &PendingAnswer> {
        self.asks.iter().chain(&self.listens)
    }

    /// Takes the pending action that must be answered now.
    fn take_due(&mut self, has_records: bool, now: Instant) -> Option<Target> {
        let is_due = |waiting: &mut PendingAnswer| has_records || waiting.deadline <= now;
        let due = self.asks.take_if(is_due).or_else(|| self.listens.take_if(is_due))?;
        Some(due.target)
    }
}

impl Relays {
    /// The time until [`Self::answer`] has work to do.
    pub fn next_timeout(&self) -> Option<Duration> {
        let waiting = self.0.values().flat_map(RelayedTool::waiting);
        let deadline = waiting.map(|waiting| waiting.deadline).min()?;
        Some(deadline.saturating_duration_since(Instant::now()))
    }

    /// Answers actions for which there are records, or whose time has passed.
    pub fn answer(&mut self, clients: &mut Clients, shepherd: &mut Shepherd) {
        let now = Instant::now();
        for tool in self.0.values_mut() {
            while let Some(target) = tool.take_due(clients.has_records(tool.connection), now) {
                let records = clients.take_records(tool.connection, MAX_MESSAGE_LEN);
                tool.last_number += 1;
                let records = records.into_iter().map(ToolRecord).collect();
                let answer = ToolResult::Records { number: tool.last_number, records };
                shepherd.answer(target, &answer);
            }
        }
    }

    /// Removes the relayed tool of a connection that has been closed.
    pub fn remove(&mut self, connection: ConnectionId, shepherd: &mut Shepherd) {
        let is_it = |(_, tool): &(&u64, &RelayedTool)| tool.connection == connection;
        let session = self.0.iter().find(is_it).map(|(session, _)| *session);
        let removed = session.and_then(|session| self.0.remove(&session));
        for waiting in removed.iter().flat_map(RelayedTool::waiting) {
            shepherd.fail(waiting.target, "the service has ended the session of this tool");
        }
    }
}

fn waiting(target: Target, wait_ms: u32) -> Option<PendingAnswer> {
    let wait = Duration::from_millis(wait_ms.into()).min(MAX_RELAY_TIMEOUT);
    Some(PendingAnswer { target, deadline: Instant::now() + wait })
}

impl Service {
    /// Handles an action of a relayed tool.
    pub(super) fn on_relay_action(
        &mut self,
        (element, id): (ElementIndex, CommandId),
        processes: &[ToolProcess],
        session: u64,
        action: RelayAction,
    ) {
        if action == RelayAction::End
            && let Some(tool) = self.relays.0.get(&session)
        {
            self.disconnect(tool.connection);
        }
        let target = |process: &ToolProcess| Target { element, id, node: process.node };
        let result = match (action, processes) {
            (RelayAction::End, _) => ToolResult::Records { number: 0, records: Vec::new() },
            (action, [process]) => match self.relay(session, target(process), action) {
                Ok(()) => return,
                Err(reason) => ToolResult::Failed(reason.to_owned()),
            },
            _ => ToolResult::Failed("a tool control message must be for one process".to_owned()),
        };
        for process in processes {
            self.shepherd.answer(target(process), &result);
        }
    }

    fn relay(
        &mut self,
        session: u64,
        target: Target,
        action: RelayAction,
    ) -> Result<(), &'static str> {
        let connection = match self.relays.0.get(&session) {
            Some(tool) => tool.connection,
            None => self.begin_relay(session)?,
        };
        let Some(tool) = self.relays.0.get_mut(&session) else { return Ok(()) };
        let twice = "this tool already waits for an answer";
        match action {
            RelayAction::Ask { .. } if tool.asks.is_some() => Err(twice),
            RelayAction::Listen { .. } if tool.listens.is_some() => Err(twice),
            RelayAction::Ask { record, wait_ms } => {
                tool.asks = waiting(target, wait_ms);
                if !record.is_empty() {
                    if !self.clients.may_send(connection) {
                        tool.asks = None;
                        return Err("this tool has too many unanswered messages");
                    }
                    self.on_record(connection, record, SentDescriptors::None);
                }
                Ok(())
            }
            RelayAction::Listen { wait_ms } => {
                tool.listens = waiting(target, wait_ms);
                Ok(())
            }
            RelayAction::End => Ok(()),
        }
    }

    fn begin_relay(&mut self, session: u64) -> Result<ConnectionId, &'static str> {
        let too_many = "too many tools are connected to this host's processes; end one of them";
        let connection = self.clients.add_relay().ok_or(too_many)?;
        let tool = RelayedTool { connection, asks: None, listens: None, last_number: 0 };
        self.relays.0.insert(session, tool);
        // The daemons have admitted only the job's owner, and this process runs as that user.
        let uid = nix::unistd::geteuid().as_raw();
        self.feed(Event::Connected { connection, uid, reach: Reach::Host });
        Ok(connection)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_ask_is_answered_before_a_listen_and_each_by_its_deadline() {
        let target = |id| Target { element: ElementIndex(0), id: CommandId(id), node: 0 };
        let connection = ConnectionId(1);
        let (asks, listens) = (waiting(target(1), 0), waiting(target(2), u32::MAX));
        let mut tool = RelayedTool { connection, asks, listens, last_number: 0 };
        let id = |target: Option<Target>| target.map(|target| target.id.0);
        let now = Instant::now();
        assert_eq!(id(tool.take_due(true, now)), Some(1));
        assert_eq!(id(tool.take_due(false, now)), None);
        tool.asks = waiting(target(3), 0);
        assert_eq!(id(tool.take_due(false, Instant::now())), Some(3));
        // The wait has an upper limit.
        assert_eq!(id(tool.take_due(false, now + 2 * MAX_RELAY_TIMEOUT)), Some(2));
        assert_eq!(id(tool.take_due(true, now)), None);
    }
}
