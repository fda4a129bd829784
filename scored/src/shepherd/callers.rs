//! What is decided on the spot about the calls of one parallel process: who may call what, whose
//! call waits for which answer. What concerns all nodes is reported; the numbers of calls stay
//! here.

use std::collections::VecDeque;

use score_proto::PROTOCOL_VERSION;
use score_proto::message::{Call, Reply};
use score_proto::nodeset::NodeSet;
use score_proto::order::Report;

/// Calls of sc_flush and of sc_signal_bcast that one process may have under way: one for each of
/// its threads, amply.
const MOST_CALLS: usize = 1024;

#[derive(Debug, Clone, Default)]
struct Caller {
    ended: bool,
    attached: bool,
    /// The call of sc_barrier that waits.
    barrier: Option<u32>,
    /// Calls of sc_barrier, and answers to them.
    barriers: (u64, u64),
    /// Calls of sc_signal_bcast that wait, in order.
    broadcasts: VecDeque<u32>,
    /// Calls of sc_flush not answered yet.
    flushes: usize,
}

/// What is to be done about a call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Step {
    /// Answer the caller.
    Answer(u32, Reply),
    /// Report it.
    Report(Report),
    /// Read what lies in the pipes, then ask for it to be written: node, and number of the call.
    Flush(u32, u32),
    /// Tell how to debug this node: the signal it named, and its display.
    Inspect(u32, i32, Option<String>),
}

/// The nodes of one parallel process on this host.
#[derive(Debug)]
pub struct Callers {
    element: u32,
    name: String,
    first: u32,
    nodes: Vec<Caller>,
    welcomed: bool,
    ending: bool,
}

fn done(node: u32, id: u32, error: i32) -> Step {
    Step::Answer(node, Reply::Done { id, error })
}

fn too_many(element: u32, node: u32, call: &str) -> Step {
    let what = format!("it has more than {MOST_CALLS} {call} under way");
    Step::Report(Report::Garbage { element, node, what })
}

impl Callers {
    /// Nodes `first` and the `count - 1` next, none of which has called.
    pub fn new(element: u32, name: String, first: u32, count: u32) -> Self {
        let nodes = vec![Caller::default(); count as usize];
        Self { element, name, first, nodes, welcomed: false, ending: false }
    }

    fn get(&mut self, node: u32) -> Option<&mut Caller> {
        self.nodes.get_mut(node.checked_sub(self.first)? as usize)
    }

    /// A message came on a node's control socket.
    pub fn called(&mut self, node: u32, call: Call) -> Vec<Step> {
        let (element, ending, welcomed) = (self.element, self.ending, self.welcomed);
        let Some(caller) = self.get(node).filter(|caller| !caller.ended && !ending) else {
            return Vec::new();
        };
        vec![match call {
            Call::Attach { version } => return self.attach(node, version),
            Call::Exit { code } => Step::Report(Report::Exit { element, code }),
            Call::Sleep { .. } | Call::Yield if !welcomed => return Vec::new(),
            Call::Sleep { seconds } => Step::Report(Report::Sleep { element, seconds }),
            Call::Yield => Step::Report(Report::Yield { element }),
            Call::Inspect { signal, display } => Step::Inspect(node, signal, display),
            Call::Barrier { id } | Call::Flush { id } | Call::SignalBroadcast { id, .. }
                if !welcomed =>
            {
                done(node, id, libc::EPERM)
            }
            // Another thread of the node is in it already.
            Call::Barrier { id } if caller.barrier.is_some() => {
                caller.barriers.0 += 1;
                caller.barriers.1 += 1;
                done(node, id, libc::EBUSY)
            }
            Call::Barrier { id } => {
                caller.barriers.0 += 1;
                caller.barrier = Some(id);
                Step::Report(Report::InBarrier { element, nodes: NodeSet::one(node) })
            }
            Call::Flush { id } if caller.flushes < MOST_CALLS => {
                caller.flushes += 1;
                Step::Flush(node, id)
            }
            Call::SignalBroadcast { id, signal } if !may_be_sent(signal) => {
                done(node, id, libc::EINVAL)
            }
            Call::SignalBroadcast { id, signal } if caller.broadcasts.len() < MOST_CALLS => {
                caller.broadcasts.push_back(id);
                Step::Report(Report::Broadcast { element, node, signal })
            }
            Call::Flush { .. } => too_many(element, node, "sc_flush()"),
            Call::SignalBroadcast { .. } => too_many(element, node, "sc_signal_bcast()"),
        }]
    }

    fn attach(&mut self, node: u32, version: u32) -> Vec<Step> {
        let (element, name) = (self.element, self.name.clone());
        let refuse = |text: String| Step::Answer(node, Reply::Refused(text));
        if version != PROTOCOL_VERSION {
            let reason = format!(
                "it was built for version {version} of SCore's protocol, and this is version \
                 {PROTOCOL_VERSION}: link it again"
            );
            let text = format!("{name}: {reason}");
            return vec![refuse(text), Step::Report(Report::Broken { element, reason })];
        }
        let Some(caller) = self.get(node) else { return Vec::new() };
        if caller.attached {
            return vec![refuse(format!(
                "node {node} of {name} has attached already: a second program in the same node"
            ))];
        }
        caller.attached = true;
        let nodes = NodeSet::one(node);
        vec![Step::Report(Report::Attached { element, nodes, addresses: Vec::new() })]
    }

    /// Whether nobody has attached here yet.
    pub fn is_first_attach(&self) -> bool {
        !self.nodes.iter().any(|caller| caller.attached)
    }

    /// All nodes everywhere have attached.
    pub fn welcome(&mut self) {
        self.welcomed = true;
    }

    /// All nodes everywhere are in sc_barrier: who is to be answered here.
    pub fn barrier_done(&mut self) -> Vec<Step> {
        let answer = |(node, one): (u32, &mut Caller)| {
            let id = one.barrier.take()?;
            one.barriers.1 += 1;
            Some(done(node, id, 0))
        };
        (self.first..).zip(&mut self.nodes).filter_map(answer).collect()
    }

    /// How often a node has called sc_barrier, and was answered.
    pub fn barriers(&self, node: u32) -> (u64, u64) {
        let caller = node.checked_sub(self.first).and_then(|at| self.nodes.get(at as usize));
        caller.map_or((0, 0), |caller| caller.barriers)
    }

    /// A broadcast has been sent by all hosts: answers the caller, if it is here.
    pub fn broadcast_done(&mut self, node: u32) -> Option<Step> {
        let id = self.get(node)?.broadcasts.pop_front()?;
        Some(done(node, id, 0))
    }

    /// scrun has written what a call of sc_flush waited for.
    pub fn flushed(&mut self, node: u32, id: u32) -> Option<Step> {
        let caller = self.get(node)?;
        caller.flushes = caller.flushes.saturating_sub(1);
        Some(done(node, id, 0))
    }

    /// The parallel process is being ended: nobody is answered any more.
    pub fn end(&mut self) {
        self.ending = true;
    }

    /// A node has ended.
    pub fn ended(&mut self, node: u32) {
        if let Some(caller) = self.get(node) {
            caller.ended = true;
        }
    }
}

/// What sc_signal_bcast may send.
fn may_be_sent(signal: i32) -> bool {
    let refused = [libc::SIGKILL, libc::SIGSTOP, libc::SIGCONT].contains(&signal);
    (0..=64).contains(&signal) && !refused
}

#[cfg(test)]
mod tests {
    use super::*;

    fn callers() -> Callers {
        Callers::new(1, "a.out".to_owned(), 4, 2)
    }

    fn attached() -> Callers {
        let mut callers = callers();
        for node in [4, 5] {
            callers.called(node, Call::Attach { version: PROTOCOL_VERSION });
        }
        callers.welcome();
        callers
    }

    #[test]
    fn a_node_attaches_once_and_with_the_right_version() {
        let mut callers = callers();
        let version = PROTOCOL_VERSION;
        assert!(callers.is_first_attach());
        let steps = callers.called(5, Call::Attach { version });
        let nodes = NodeSet::one(5);
        let report = Report::Attached { element: 1, nodes, addresses: Vec::new() };
        assert_eq!(steps, [Step::Report(report)]);
        assert!(!callers.is_first_attach());
        let again = callers.called(5, Call::Attach { version });
        assert!(matches!(again[..], [Step::Answer(5, Reply::Refused(_))]));
        let other = callers.called(4, Call::Attach { version: version + 1 });
        let Step::Report(Report::Broken { element: 1, reason }) = &other[1] else {
            panic!("{other:?}")
        };
        assert!(reason.contains("link it again"));
    }

    #[test]
    fn nothing_may_be_called_before_the_welcome() {
        let mut callers = callers();
        callers.called(4, Call::Attach { version: PROTOCOL_VERSION });
        for call in [
            Call::Barrier { id: 3 },
            Call::Flush { id: 3 },
            Call::SignalBroadcast { id: 3, signal: 1 },
        ] {
            assert_eq!(callers.called(4, call), [done(4, 3, libc::EPERM)]);
        }
    }

    #[test]
    fn barriers_answer_each_caller_with_its_own_id() {
        let mut callers = attached();
        let report =
            |node| Step::Report(Report::InBarrier { element: 1, nodes: NodeSet::one(node) });
        assert_eq!(callers.called(5, Call::Barrier { id: 8 }), [report(5)]);
        // A second thread of the same node.
        assert_eq!(callers.called(5, Call::Barrier { id: 9 }), [done(5, 9, libc::EBUSY)]);
        assert_eq!(callers.called(4, Call::Barrier { id: 3 }), [report(4)]);
        assert_eq!(callers.barrier_done(), [done(4, 3, 0), done(5, 8, 0)]);
        assert_eq!(callers.called(5, Call::Barrier { id: 1 }), [report(5)]);
    }

    #[test]
    fn broadcasts_are_answered_in_order_by_the_host_of_the_caller() {
        let mut callers = attached();
        for id in [7, 6] {
            let steps = callers.called(4, Call::SignalBroadcast { id, signal: 10 });
            let report = Report::Broadcast { element: 1, node: 4, signal: 10 };
            assert_eq!(steps, [Step::Report(report)]);
        }
        assert_eq!(callers.broadcast_done(9), None);
        assert_eq!(callers.broadcast_done(4), Some(done(4, 7, 0)));
        assert_eq!(callers.broadcast_done(4), Some(done(4, 6, 0)));
        assert_eq!(callers.broadcast_done(4), None);
        for signal in [libc::SIGKILL, libc::SIGSTOP, -1, 65] {
            let steps = callers.called(4, Call::SignalBroadcast { id: 1, signal });
            assert_eq!(steps, [done(4, 1, libc::EINVAL)]);
        }
    }

    #[test]
    fn who_floods_is_named_and_who_has_ended_is_not_heard() {
        let mut callers = attached();
        for id in 0..MOST_CALLS as u32 {
            assert_eq!(callers.called(4, Call::Flush { id }), [Step::Flush(4, id)]);
        }
        let steps = callers.called(4, Call::Flush { id: 0 });
        assert!(matches!(steps[..], [Step::Report(Report::Garbage { node: 4, .. })]));
        assert_eq!(callers.flushed(4, 5), Some(done(4, 5, 0)));
        assert_eq!(callers.called(4, Call::Flush { id: 0 }), [Step::Flush(4, 0)]);
        callers.ended(5);
        assert_eq!(callers.called(5, Call::Barrier { id: 1 }), []);
        assert_eq!(callers.called(7, Call::Barrier { id: 1 }), []);
        callers.end();
        assert_eq!(callers.called(4, Call::Barrier { id: 1 }), []);
    }
}
