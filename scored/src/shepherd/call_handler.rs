//! Decides how the shepherd reacts to the calls of one parallel process: which calls are allowed,
//! and which call waits for which reply. Calls that concern all nodes are reported to the job
//! master, without their ids.

use std::collections::{HashMap, VecDeque};

use score_proto::PROTOCOL_VERSION;
use score_proto::exit_code::EXIT_FAILED;
use score_proto::job_control::ElementReport;
use score_proto::message::{Call, Reply};
use score_proto::nodeset::NodeSet;

use super::job_info::ProcessKey;

/// Largest number of pending calls of sc_flush, and of sc_signal_bcast, in one process. It is
/// enough for one call per thread.
const MAX_PENDING_CALLS: usize = 1024;

/// The signals that a fault of a process raises.
const FAULT_SIGNALS: [i32; 6] =
    [libc::SIGSEGV, libc::SIGBUS, libc::SIGFPE, libc::SIGILL, libc::SIGSYS, libc::SIGABRT];

/// The calls of one process that wait for a reply.
#[derive(Debug, Default)]
pub struct CallState {
    is_attached: bool,
    /// The pending call of sc_barrier.
    pending_barrier: Option<u32>,
    /// Pending calls of sc_signal_bcast, in order.
    pending_broadcasts: VecDeque<u32>,
    /// Number of pending calls of sc_flush.
    pending_flushes: usize,
    /// The thread that waits after a fault or in sc_inspectme.
    faulting_thread: Option<FaultingThread>,
}

/// A thread of a process that waits for the end of the process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FaultingThread {
    /// The thread id in the PID namespace of the process.
    pub thread: i32,
    /// The signal that will end the process. None: the thread is in sc_inspectme.
    pub signal: Option<i32>,
}

/// The phase of a parallel process on this host.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ElementPhase {
    /// No node of this host has attached.
    Starting,
    /// At least one node of this host has attached.
    Attaching,
    /// All nodes on all hosts have attached.
    Welcomed,
    /// The parallel process is being ended: no further call gets a reply.
    Ending,
}

/// How the shepherd reacts to a call of a process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CallAction {
    /// Reply to the call.
    Answer(Reply),
    /// Send a report about the parallel process to the job master.
    Report(ElementReport),
    /// Report that the node has attached. `is_first`: it is the first node to attach on this host.
    Attach { is_first: bool },
    /// Count a call of sc_barrier and report it.
    EnterBarrier,
    /// Count the call of sc_barrier with this id, and reply with EBUSY: another thread of the
    /// process is in sc_barrier.
    RefuseBarrier(u32),
    /// Drain the pipes, then request that scrun writes the output. Contains the id of the call.
    Flush(u32),
    /// Report how to debug the process: signal, and display of the caller.
    Inspect(i32, Option<String>),
    /// Report that the process waits for a debugger on this display, if the job has debuggers.
    OfferDebugger(Option<String>),
}

/// State that the calls of one parallel process share on this host.
#[derive(Debug)]
pub struct ElementCalls {
    name: String,
    phase: ElementPhase,
}

/// Flushes that have been reported. They map a token to the caller and the id of its call.
#[derive(Debug, Default)]
pub struct PendingFlushes {
    callers: HashMap<u64, (ProcessKey, u32)>,
    next_token: u64,
}

/// The reply to a call.
pub fn done(id: u32, error: i32) -> Reply {
    Reply::Done { id, error }
}

fn answer_done(id: u32, error: i32) -> CallAction {
    CallAction::Answer(done(id, error))
}

fn too_many(node: u32, call: &str) -> CallAction {
    let violation = format!("it has more than {MAX_PENDING_CALLS} pending calls of {call}");
    CallAction::Report(ElementReport::ProtocolViolation { node, violation })
}

impl ElementCalls {
    /// The state before the first call. `name`: name of the program, for messages.
    pub fn new(name: String) -> Self {
        Self { name, phase: ElementPhase::Starting }
    }

    /// Handles a call that was received on a node's control socket.
    pub fn on_call(&mut self, caller: &mut CallState, node: u32, call: Call) -> Vec<CallAction> {
        if self.phase == ElementPhase::Ending {
            return Vec::new();
        }
        let is_welcomed = self.phase == ElementPhase::Welcomed;
        vec![match call {
            Call::Attach { version } => return self.attach(caller, node, version),
            Call::Exit { code } => CallAction::Report(ElementReport::Exit { code }),
            Call::Sleep { .. } | Call::Yield if !is_welcomed => return Vec::new(),
            Call::Sleep { seconds } => CallAction::Report(ElementReport::Sleep { seconds }),
            Call::Yield => CallAction::Report(ElementReport::Yield),
            // Only the first fault or inspection counts, because the process is about to end.
            Call::Fault { .. } | Call::Inspect { .. } if caller.faulting_thread.is_some() => {
                return Vec::new();
            }
            Call::Fault { signal, .. } if !FAULT_SIGNALS.contains(&signal) => {
                let violation = format!("it reports signal {signal} as a fault");
                CallAction::Report(ElementReport::ProtocolViolation { node, violation })
            }
            Call::Fault { signal, thread } => {
                caller.faulting_thread = Some(FaultingThread { thread, signal: Some(signal) });
                let report = ElementReport::Faulted { nodes: NodeSet::one(node), signal };
                return vec![CallAction::Report(report), CallAction::OfferDebugger(None)];
            }
            Call::Inspect { signal, display, thread } => {
                caller.faulting_thread = Some(FaultingThread { thread, signal: None });
                let inspect = CallAction::Inspect(signal, display.clone());
                return vec![inspect, CallAction::OfferDebugger(display)];
            }
            Call::Barrier { id } | Call::Flush { id } | Call::SignalBroadcast { id, .. }
                if !is_welcomed =>
            {
                answer_done(id, libc::EPERM)
            }
            Call::Barrier { id } if caller.pending_barrier.is_some() => {
                CallAction::RefuseBarrier(id)
            }
            Call::Barrier { id } => {
                caller.pending_barrier = Some(id);
                CallAction::EnterBarrier
            }
            Call::Flush { id } if caller.pending_flushes < MAX_PENDING_CALLS => {
                caller.pending_flushes += 1;
                CallAction::Flush(id)
            }
            Call::SignalBroadcast { id, signal } if !is_allowed_signal(signal) => {
                answer_done(id, libc::EINVAL)
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

    fn attach(&mut self, caller: &mut CallState, node: u32, version: u32) -> Vec<CallAction> {
        let name = &self.name;
        let refuse = |text: String| CallAction::Answer(Reply::Refused(text));
        if version != PROTOCOL_VERSION {
            let reason = format!(
                "it was built for version {version} of SCore's protocol, and this is version \
                 {PROTOCOL_VERSION}: link it again"
            );
            let text = format!("{name}: {reason}");
            return vec![
                refuse(text),
                CallAction::Report(ElementReport::Failed { code: EXIT_FAILED, reason }),
            ];
        }
        if std::mem::replace(&mut caller.is_attached, true) {
            return vec![refuse(format!(
                "node {node} of {name} has already attached: another program runs in this node"
            ))];
        }
        let is_first = self.phase == ElementPhase::Starting;
        if is_first {
            self.phase = ElementPhase::Attaching;
        }
        vec![CallAction::Attach { is_first }]
    }

    /// Records that all nodes on all hosts have attached.
    pub fn mark_welcomed(&mut self) {
        if self.phase != ElementPhase::Ending {
            self.phase = ElementPhase::Welcomed;
        }
    }

    /// Records that the parallel process is being ended. No further call gets a reply.
    pub fn mark_ending(&mut self) {
        self.phase = ElementPhase::Ending;
    }
}

impl CallState {
    /// Takes the id of this process's call of sc_barrier, when all nodes on all hosts are in
    /// sc_barrier.
    pub fn take_barrier(&mut self) -> Option<u32> {
        self.pending_barrier.take()
    }

    /// Takes the id of this process's oldest call of sc_signal_bcast, when all hosts have sent the
    /// signal.
    pub fn take_broadcast(&mut self) -> Option<u32> {
        self.pending_broadcasts.pop_front()
    }

    /// The thread that waits after a fault or in sc_inspectme.
    pub fn faulting_thread(&self) -> Option<FaultingThread> {
        self.faulting_thread
    }

    /// Counts a reply: scrun has written the output for a call of sc_flush.
    pub fn on_flushed(&mut self) {
        self.pending_flushes = self.pending_flushes.saturating_sub(1);
    }
}

impl PendingFlushes {
    /// Returns a token for a call of sc_flush.
    pub fn add(&mut self, caller: ProcessKey, id: u32) -> u64 {
        let token = self.next_token;
        self.next_token += 1;
        self.callers.insert(token, (caller, id));
        token
    }

    /// Takes the call with this token, to reply to it.
    pub fn take(&mut self, token: u64) -> Option<(ProcessKey, u32)> {
        self.callers.remove(&token)
    }

    /// Drops all calls when the processes of a stage have ended. Tokens are never reused.
    pub fn clear(&mut self) {
        self.callers.clear();
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
    use score_proto::ids::ElementIndex;

    /// The calls of nodes 4 and 5.
    struct Fixture {
        element: ElementCalls,
        callers: [CallState; 2],
    }

    impl Fixture {
        fn new() -> Self {
            let element = ElementCalls::new("a.out".to_owned());
            Self { element, callers: Default::default() }
        }

        fn attached() -> Self {
            let mut fixture = Self::new();
            for node in [4, 5] {
                fixture.on_call(node, Call::Attach { version: PROTOCOL_VERSION });
            }
            fixture.element.mark_welcomed();
            fixture
        }

        fn on_call(&mut self, node: u32, call: Call) -> Vec<CallAction> {
            self.element.on_call(&mut self.callers[node as usize - 4], node, call)
        }
    }

    #[test]
    fn a_node_attaches_once_and_with_the_right_version() {
        let mut fixture = Fixture::new();
        let version = PROTOCOL_VERSION;
        let mismatch = fixture.on_call(4, Call::Attach { version: version + 1 });
        let CallAction::Report(ElementReport::Failed { reason, .. }) = &mismatch[1] else {
            panic!("{mismatch:?}")
        };
        assert!(reason.contains("link it again"));
        let actions = fixture.on_call(5, Call::Attach { version });
        assert_eq!(actions, [CallAction::Attach { is_first: true }]);
        let second = fixture.on_call(5, Call::Attach { version });
        assert!(matches!(second[..], [CallAction::Answer(Reply::Refused(_))]));
        let actions = fixture.on_call(4, Call::Attach { version });
        assert_eq!(actions, [CallAction::Attach { is_first: false }]);
    }

    #[test]
    fn calls_before_the_welcome_are_refused() {
        let mut fixture = Fixture::new();
        fixture.on_call(4, Call::Attach { version: PROTOCOL_VERSION });
        for call in [
            Call::Barrier { id: 3 },
            Call::Flush { id: 3 },
            Call::SignalBroadcast { id: 3, signal: 1 },
        ] {
            assert_eq!(fixture.on_call(4, call), [answer_done(3, libc::EPERM)]);
        }
    }

    #[test]
    fn each_caller_of_a_barrier_keeps_its_own_id() {
        let mut fixture = Fixture::attached();
        assert_eq!(fixture.on_call(5, Call::Barrier { id: 8 }), [CallAction::EnterBarrier]);
        // The call of a second thread of the same node.
        assert_eq!(fixture.on_call(5, Call::Barrier { id: 9 }), [CallAction::RefuseBarrier(9)]);
        assert_eq!(fixture.on_call(4, Call::Barrier { id: 3 }), [CallAction::EnterBarrier]);
        let ids = fixture.callers.each_mut().map(CallState::take_barrier);
        assert_eq!(ids, [Some(3), Some(8)]);
        assert_eq!(fixture.on_call(5, Call::Barrier { id: 1 }), [CallAction::EnterBarrier]);
    }

    #[test]
    fn broadcasts_are_answered_in_order() {
        let mut fixture = Fixture::attached();
        for id in [7, 6] {
            let actions = fixture.on_call(4, Call::SignalBroadcast { id, signal: 10 });
            let report = ElementReport::Broadcast { node: 4, signal: 10 };
            assert_eq!(actions, [CallAction::Report(report)]);
        }
        let ids = [(); 3].map(|()| fixture.callers[0].take_broadcast());
        assert_eq!(ids, [Some(7), Some(6), None]);
        for signal in [libc::SIGKILL, libc::SIGSTOP, -1, 65] {
            let actions = fixture.on_call(4, Call::SignalBroadcast { id: 1, signal });
            assert_eq!(actions, [answer_done(1, libc::EINVAL)]);
        }
    }

    #[test]
    fn a_process_with_too_many_calls_is_reported_unless_it_is_ending() {
        let mut fixture = Fixture::attached();
        for id in 0..MAX_PENDING_CALLS as u32 {
            assert_eq!(fixture.on_call(4, Call::Flush { id }), [CallAction::Flush(id)]);
        }
        let actions = fixture.on_call(4, Call::Flush { id: 0 });
        assert!(matches!(
            actions[..],
            [CallAction::Report(ElementReport::ProtocolViolation { node: 4, .. })]
        ));
        fixture.callers[0].on_flushed();
        assert_eq!(fixture.on_call(4, Call::Flush { id: 0 }), [CallAction::Flush(0)]);
        fixture.element.mark_ending();
        fixture.element.mark_welcomed();
        assert_eq!(fixture.on_call(4, Call::Barrier { id: 1 }), []);
    }

    #[test]
    fn a_token_belongs_to_one_flush() {
        let mut flushes = PendingFlushes::default();
        let keys = [4, 5].map(|node| ProcessKey { element: ElementIndex(0), node });
        let tokens = keys.map(|key| flushes.add(key, 3));
        assert_eq!(flushes.take(tokens[1]), Some((keys[1], 3)));
        assert_eq!(flushes.take(tokens[1]), None);
        flushes.clear();
        assert_eq!(flushes.take(tokens[0]), None);
        assert!(!tokens.contains(&flushes.add(keys[0], 3)));
    }

    #[test]
    fn a_fault_counts_once_with_its_thread_and_only_by_a_signal_of_faults() {
        let mut fixture = Fixture::new();
        let fault = |signal| Call::Fault { signal, thread: 77 };
        let refused = fixture.on_call(4, fault(libc::SIGKILL));
        assert!(
            matches!(
                &refused[..],
                [CallAction::Report(ElementReport::ProtocolViolation { node: 4, violation })]
                    if violation.contains("signal 9")
            ),
            "{refused:?}"
        );
        assert_eq!(fixture.callers[0].faulting_thread(), None);
        // A fault also counts before the process attaches.
        let signal = libc::SIGBUS;
        let report = ElementReport::Faulted { nodes: NodeSet::one(4), signal };
        let offer = CallAction::OfferDebugger(None);
        let actions = [CallAction::Report(report), offer.clone()];
        assert_eq!(fixture.on_call(4, fault(signal)), actions);
        assert_eq!(fixture.on_call(4, fault(signal)), []);
        let inspect = Call::Inspect { signal, display: None, thread: 78 };
        assert_eq!(fixture.on_call(4, inspect.clone()), []);
        assert_eq!(
            fixture.callers[0].faulting_thread(),
            Some(FaultingThread { thread: 77, signal: Some(signal) })
        );
        assert_eq!(fixture.on_call(5, inspect), [CallAction::Inspect(signal, None), offer]);
        assert_eq!(
            fixture.callers[1].faulting_thread(),
            Some(FaultingThread { thread: 78, signal: None })
        );
    }
}
