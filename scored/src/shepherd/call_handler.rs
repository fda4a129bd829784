//! Decisions of the shepherd about the calls of one parallel process: which calls are allowed, and
//! which call waits for which reply. Calls that concern all nodes are reported. The ids of calls
//! stay in the shepherd.

use std::collections::VecDeque;

use score_proto::PROTOCOL_VERSION;
use score_proto::job_control::ElementReport;
use score_proto::message::{Call, Reply};
use score_proto::nodeset::NodeSet;

/// Pending calls of sc_flush and of sc_signal_bcast that one process may have: more than enough for
/// one call per thread.
const MAX_PENDING_CALLS: usize = 1024;

#[derive(Debug, Clone, Default)]
struct NodeCalls {
    has_exited: bool,
    is_attached: bool,
    /// The pending call of sc_barrier.
    pending_barrier: Option<u32>,
    /// Calls of sc_barrier, and replies to them.
    barrier_counts: (u64, u64),
    /// Pending calls of sc_signal_bcast, in order.
    pending_broadcasts: VecDeque<u32>,
    /// Number of pending calls of sc_flush.
    pending_flushes: usize,
}

/// How the shepherd reacts to a call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CallAction {
    /// Reply to the caller.
    Answer(u32, Reply),
    /// Send a report about the parallel process to the job master.
    Report(ElementReport),
    /// Drain the pipes, then request that the output is written: node, and id of the call.
    Flush(u32, u32),
    /// Report how to debug this node: node, signal, and display of the caller.
    Inspect(u32, i32, Option<String>),
}

/// The nodes of one parallel process on this host.
#[derive(Debug)]
pub struct CallHandler {
    name: String,
    first_node: u32,
    nodes: Vec<NodeCalls>,
    is_welcomed: bool,
    is_ending: bool,
}

fn answer_done(node: u32, id: u32, error: i32) -> CallAction {
    CallAction::Answer(node, Reply::Done { id, error })
}

fn too_many(node: u32, call: &str) -> CallAction {
    let violation = format!("it has more than {MAX_PENDING_CALLS} pending calls of {call}");
    CallAction::Report(ElementReport::ProtocolViolation { node, violation })
}

impl CallHandler {
    /// Handler for `node_count` nodes from `first_node` on, before their first calls.
    pub fn new(name: String, first_node: u32, node_count: u32) -> Self {
        let nodes = vec![NodeCalls::default(); node_count as usize];
        Self { name, first_node, nodes, is_welcomed: false, is_ending: false }
    }

    fn node_calls(&mut self, node: u32) -> Option<&mut NodeCalls> {
        self.nodes.get_mut(node.checked_sub(self.first_node)? as usize)
    }

    /// Handles a call that was received on a node's control socket.
    pub fn on_call(&mut self, node: u32, call: Call) -> Vec<CallAction> {
        let (is_ending, is_welcomed) = (self.is_ending, self.is_welcomed);
        let Some(caller) = self.node_calls(node).filter(|caller| !caller.has_exited && !is_ending)
        else {
            return Vec::new();
        };
        vec![match call {
            Call::Attach { version } => return self.attach(node, version),
            Call::Exit { code } => CallAction::Report(ElementReport::Exit { code }),
            Call::Sleep { .. } | Call::Yield if !is_welcomed => return Vec::new(),
            Call::Sleep { seconds } => CallAction::Report(ElementReport::Sleep { seconds }),
            Call::Yield => CallAction::Report(ElementReport::Yield),
            Call::Inspect { signal, display } => CallAction::Inspect(node, signal, display),
            Call::Barrier { id } | Call::Flush { id } | Call::SignalBroadcast { id, .. }
                if !is_welcomed =>
            {
                answer_done(node, id, libc::EPERM)
            }
            // Another thread of the node is in sc_barrier already.
            Call::Barrier { id } if caller.pending_barrier.is_some() => {
                caller.barrier_counts.0 += 1;
                caller.barrier_counts.1 += 1;
                answer_done(node, id, libc::EBUSY)
            }
            Call::Barrier { id } => {
                caller.barrier_counts.0 += 1;
                caller.pending_barrier = Some(id);
                CallAction::Report(ElementReport::InBarrier { nodes: NodeSet::one(node) })
            }
            Call::Flush { id } if caller.pending_flushes < MAX_PENDING_CALLS => {
                caller.pending_flushes += 1;
                CallAction::Flush(node, id)
            }
            Call::SignalBroadcast { id, signal } if !is_allowed_signal(signal) => {
                answer_done(node, id, libc::EINVAL)
            }
            Call::SignalBroadcast { id, signal }
                if caller.pending_broadcasts.len() < MAX_PENDING_CALLS =>
            {
                caller.pending_broadcasts.push_back(id);
                CallAction::Report(ElementReport::Broadcast { node, signal })
            }
            Call::Flush { .. } => too_many(node, "sc_flush()"),
            Call::SignalBroadcast { .. } => too_many(node, "sc_signal_bcast()"),
        }]
    }

    fn attach(&mut self, node: u32, version: u32) -> Vec<CallAction> {
        let name = self.name.clone();
        let refuse = |text: String| CallAction::Answer(node, Reply::Refused(text));
        if version != PROTOCOL_VERSION {
            let reason = format!(
                "it was built for version {version} of SCore's protocol, and this is version \
                 {PROTOCOL_VERSION}: link it again"
            );
            let text = format!("{name}: {reason}");
            return vec![refuse(text), CallAction::Report(ElementReport::Failed { reason })];
        }
        let Some(caller) = self.node_calls(node) else { return Vec::new() };
        if caller.is_attached {
            return vec![refuse(format!(
                "node {node} of {name} has attached already: a second program in the same node"
            ))];
        }
        caller.is_attached = true;
        let nodes = NodeSet::one(node);
        vec![CallAction::Report(ElementReport::Attached { nodes, addresses: Vec::new() })]
    }

    /// Whether no node of this host has attached yet.
    pub fn is_first_attach(&self) -> bool {
        !self.nodes.iter().any(|caller| caller.is_attached)
    }

    /// All nodes on all hosts have attached.
    pub fn mark_welcomed(&mut self) {
        self.is_welcomed = true;
    }

    /// All nodes on all hosts are in sc_barrier: returns the replies to the callers on this host.
    pub fn on_barrier_done(&mut self) -> Vec<CallAction> {
        let answer = |(node, caller): (u32, &mut NodeCalls)| {
            let id = caller.pending_barrier.take()?;
            caller.barrier_counts.1 += 1;
            Some(answer_done(node, id, 0))
        };
        (self.first_node..).zip(&mut self.nodes).filter_map(answer).collect()
    }

    /// How often a node has called sc_barrier, and how many replies it got.
    pub fn barrier_counts(&self, node: u32) -> (u64, u64) {
        let caller =
            node.checked_sub(self.first_node).and_then(|index| self.nodes.get(index as usize));
        caller.map_or((0, 0), |caller| caller.barrier_counts)
    }

    /// All hosts have sent a broadcast: returns the reply to the caller, if it is on this host.
    pub fn on_broadcast_done(&mut self, node: u32) -> Option<CallAction> {
        let id = self.node_calls(node)?.pending_broadcasts.pop_front()?;
        Some(answer_done(node, id, 0))
    }

    /// scrun has written the output that a call of sc_flush waited for.
    pub fn on_flushed(&mut self, node: u32, id: u32) -> Option<CallAction> {
        let caller = self.node_calls(node)?;
        caller.pending_flushes = caller.pending_flushes.saturating_sub(1);
        Some(answer_done(node, id, 0))
    }

    /// The parallel process is being ended: no further call gets a reply.
    pub fn mark_ending(&mut self) {
        self.is_ending = true;
    }

    /// A node has exited.
    pub fn on_process_exit(&mut self, node: u32) {
        if let Some(caller) = self.node_calls(node) {
            caller.has_exited = true;
        }
    }
}

/// Whether sc_signal_bcast may send this signal.
fn is_allowed_signal(signal: i32) -> bool {
    let refused = [libc::SIGKILL, libc::SIGSTOP, libc::SIGCONT].contains(&signal);
    (0..=64).contains(&signal) && !refused
}

#[cfg(test)]
mod tests {
    use super::*;

    fn new_handler() -> CallHandler {
        CallHandler::new("a.out".to_owned(), 4, 2)
    }

    fn attached_handler() -> CallHandler {
        let mut handler = new_handler();
        for node in [4, 5] {
            handler.on_call(node, Call::Attach { version: PROTOCOL_VERSION });
        }
        handler.mark_welcomed();
        handler
    }

    #[test]
    fn a_node_attaches_once_and_with_the_right_version() {
        let mut handler = new_handler();
        let version = PROTOCOL_VERSION;
        assert!(handler.is_first_attach());
        let actions = handler.on_call(5, Call::Attach { version });
        let nodes = NodeSet::one(5);
        let report = ElementReport::Attached { nodes, addresses: Vec::new() };
        assert_eq!(actions, [CallAction::Report(report)]);
        assert!(!handler.is_first_attach());
        let second = handler.on_call(5, Call::Attach { version });
        assert!(matches!(second[..], [CallAction::Answer(5, Reply::Refused(_))]));
        let mismatch = handler.on_call(4, Call::Attach { version: version + 1 });
        let CallAction::Report(ElementReport::Failed { reason }) = &mismatch[1] else {
            panic!("{mismatch:?}")
        };
        assert!(reason.contains("link it again"));
    }

    #[test]
    fn calls_before_the_welcome_are_refused() {
        let mut handler = new_handler();
        handler.on_call(4, Call::Attach { version: PROTOCOL_VERSION });
        for call in [
            Call::Barrier { id: 3 },
            Call::Flush { id: 3 },
            Call::SignalBroadcast { id: 3, signal: 1 },
        ] {
            assert_eq!(handler.on_call(4, call), [answer_done(4, 3, libc::EPERM)]);
        }
    }

    #[test]
    fn barriers_answer_each_caller_with_its_own_id() {
        let mut handler = attached_handler();
        let report =
            |node| CallAction::Report(ElementReport::InBarrier { nodes: NodeSet::one(node) });
        assert_eq!(handler.on_call(5, Call::Barrier { id: 8 }), [report(5)]);
        // A second thread of the same node.
        assert_eq!(handler.on_call(5, Call::Barrier { id: 9 }), [answer_done(5, 9, libc::EBUSY)]);
        assert_eq!(handler.on_call(4, Call::Barrier { id: 3 }), [report(4)]);
        assert_eq!(handler.on_barrier_done(), [answer_done(4, 3, 0), answer_done(5, 8, 0)]);
        assert_eq!(handler.on_call(5, Call::Barrier { id: 1 }), [report(5)]);
    }

    #[test]
    fn broadcasts_are_answered_in_order_by_the_host_of_the_caller() {
        let mut handler = attached_handler();
        for id in [7, 6] {
            let actions = handler.on_call(4, Call::SignalBroadcast { id, signal: 10 });
            let report = ElementReport::Broadcast { node: 4, signal: 10 };
            assert_eq!(actions, [CallAction::Report(report)]);
        }
        assert_eq!(handler.on_broadcast_done(9), None);
        assert_eq!(handler.on_broadcast_done(4), Some(answer_done(4, 7, 0)));
        assert_eq!(handler.on_broadcast_done(4), Some(answer_done(4, 6, 0)));
        assert_eq!(handler.on_broadcast_done(4), None);
        for signal in [libc::SIGKILL, libc::SIGSTOP, -1, 65] {
            let actions = handler.on_call(4, Call::SignalBroadcast { id: 1, signal });
            assert_eq!(actions, [answer_done(4, 1, libc::EINVAL)]);
        }
    }

    #[test]
    fn a_process_with_too_many_calls_is_reported_and_an_exited_one_is_ignored() {
        let mut handler = attached_handler();
        for id in 0..MAX_PENDING_CALLS as u32 {
            assert_eq!(handler.on_call(4, Call::Flush { id }), [CallAction::Flush(4, id)]);
        }
        let actions = handler.on_call(4, Call::Flush { id: 0 });
        assert!(matches!(
            actions[..],
            [CallAction::Report(ElementReport::ProtocolViolation { node: 4, .. })]
        ));
        assert_eq!(handler.on_flushed(4, 5), Some(answer_done(4, 5, 0)));
        assert_eq!(handler.on_call(4, Call::Flush { id: 0 }), [CallAction::Flush(4, 0)]);
        handler.on_process_exit(5);
        assert_eq!(handler.on_call(5, Call::Barrier { id: 1 }), []);
        assert_eq!(handler.on_call(7, Call::Barrier { id: 1 }), []);
        handler.mark_ending();
        assert_eq!(handler.on_call(4, Call::Barrier { id: 1 }), []);
    }
}
