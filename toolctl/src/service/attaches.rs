//! The Attach messages whose processes are not traced yet, and the attach to these processes.

use std::collections::VecDeque;

use score_toolctl::tracer::{Linux, Tracer};
use score_tools::authority::{ConnectionId, SeizeFailure};

use super::convert;
use super::ids::IdTranslator;
use super::rank_processes::RankProcesses;

/// The waiting Attach messages, with their ranks.
#[derive(Debug, Default)]
pub struct AttachQueue(VecDeque<(ConnectionId, Vec<u32>)>);

impl AttachQueue {
    /// Adds a message.
    pub fn push(&mut self, connection: ConnectionId, ranks: Vec<u32>) {
        self.0.push_back((connection, ranks));
    }

    /// Whether a message of this connection waits.
    pub fn has_any(&self, connection: ConnectionId) -> bool {
        self.0.iter().any(|(other, _)| *other == connection)
    }

    /// Takes the next message, from a position on, that does not have to wait. Messages of a
    /// connection keep their order. Sets the position to that of the message.
    pub fn take_ready(
        &mut self,
        position: &mut usize,
        has_to_wait: impl Fn(&[u32]) -> bool,
    ) -> Option<(ConnectionId, Vec<u32>)> {
        while let Some((connection, ranks)) = self.0.get(*position) {
            let is_behind = self.0.iter().take(*position).any(|(other, _)| other == connection);
            if !is_behind && !has_to_wait(ranks) {
                return self.0.remove(*position);
            }
            *position += 1;
        }
        None
    }
}

/// Traces the processes of these ranks: all of them, or none.
pub fn seize_all(
    ranks: &[u32],
    processes: &RankProcesses,
    tracer: &mut Tracer<Linux>,
    ids: &mut IdTranslator,
) -> Result<(), SeizeFailure> {
    let mut new = Vec::new();
    for rank in ranks {
        // The authority has already handled the end of a process that has ended meanwhile.
        let Some(pid) = processes.pid(*rank) else { continue };
        let was_there = tracer.is_attached(pid);
        if let Err(error) = tracer.attach(pid) {
            new.iter().for_each(|pid| _ = tracer.detach(*pid));
            let error_code = convert::errno_of(&error);
            let reason = ids.explain_attach(pid, error).to_string();
            return Err(SeizeFailure { rank: *rank, error_code, reason });
        }
        if !was_there {
            new.push(pid);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_of_a_connection_stay_in_order_and_others_overtake_them() {
        let mut queue = AttachQueue::default();
        for (connection, rank) in [(1, 10), (1, 11), (2, 12)] {
            queue.push(ConnectionId(connection), vec![rank]);
        }
        let mut position = 0;
        let mut take = |queue: &mut AttachQueue, waiting: u32| {
            let ready = queue.take_ready(&mut position, |ranks| ranks.contains(&waiting));
            ready.map(|(_, ranks)| ranks[0])
        };
        assert_eq!([take(&mut queue, 10), take(&mut queue, 10)], [Some(12), None]);
        assert!(queue.has_any(ConnectionId(1)) && !queue.has_any(ConnectionId(2)));
        position = 0;
        let mut rest = Vec::new();
        while let Some((_, ranks)) = queue.take_ready(&mut position, |_| false) {
            rest.extend(ranks);
        }
        assert_eq!(rest, [10, 11]);
    }
}
