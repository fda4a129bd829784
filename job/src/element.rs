//! One parallel process: its running, attached and waiting nodes, and how it ends.

use std::collections::BTreeMap;

use score_proto::exit_code::EXIT_FAILED;
use score_proto::ids::ElementIndex;
use score_proto::job_control::{
    ElementOrder, HostNetworkAddress, MAX_FENCE_BYTES, MAX_FENCE_BYTES_PER_NODE, Status,
    SubsetFence,
};
use score_proto::message::{Level, ProgramKind};
use score_proto::nodeset::NodeSet;

use crate::exit_code::{self, ExitCodeSources};
use crate::master::Outbox;
use crate::signal;
use crate::subset_fences::{SubsetFenceProgress, SubsetFences};

/// The progress of the end of a parallel process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum EndProgress {
    /// The element has not been ended.
    Running,
    /// A deadlock was reported, and the element will be ended. Ends of its nodes are no longer
    /// reported.
    Deadlocked,
    /// The hosts have received the order to end the element.
    Ordered,
}

/// The progress of the communication setup of a SCore program.
#[derive(Debug)]
enum CommunicationPhase {
    /// Not all nodes have called score_initialize.
    Attaching {
        /// The nodes that have called it.
        attached: NodeSet,
        /// The addresses of these nodes in the networks.
        addresses: Vec<HostNetworkAddress>,
    },
    /// The nodes have received the addresses of the network.
    Communicating {
        /// Nodes in sc_barrier, including ended ones.
        in_barrier: NodeSet,
    },
}

/// A parallel process of the running stage.
#[derive(Debug)]
pub struct Element {
    /// The number of the element in the stage.
    number: ElementIndex,
    name: String,
    kind: ProgramKind,
    nodes: u32,
    /// Another element reads the output, so SIGPIPE can be an ordinary end.
    has_downstream: bool,
    /// The nodes are independent commands.
    independent_nodes: bool,
    /// Nodes that have ended or will never be started.
    ended_nodes: NodeSet,
    phase: CommunicationPhase,
    /// Nodes in a fence of PMI.
    in_fence: NodeSet,
    /// Bytes of entries that hosts have sent for this fence.
    fence_bytes: usize,
    subset_fences: SubsetFences,
    /// Broadcast signals that not all hosts have sent yet, by number: the calling node, and the
    /// nodes of the hosts that have sent.
    broadcasts: BTreeMap<u64, (u32, NodeSet)>,
    next_broadcast: u64,
    end: EndProgress,
    exit_summary: ExitCodeSources,
}

/// The exit code of a pipeline: the code of the rightmost element that failed, or 0.
pub fn code_of_pipeline(codes: impl DoubleEndedIterator<Item = u8>) -> u8 {
    codes.rev().find(|code| *code != 0).unwrap_or(0)
}

impl Element {
    /// A parallel process of `nodes` nodes, none of which has been started.
    pub fn new(
        number: ElementIndex,
        name: String,
        kind: ProgramKind,
        nodes: u32,
        has_downstream: bool,
    ) -> Self {
        Self {
            number,
            name,
            kind,
            nodes,
            has_downstream,
            independent_nodes: false,
            ended_nodes: NodeSet::new(),
            phase: CommunicationPhase::Attaching {
                attached: NodeSet::new(),
                addresses: Vec::new(),
            },
            in_fence: NodeSet::new(),
            fence_bytes: 0,
            subset_fences: SubsetFences::default(),
            broadcasts: BTreeMap::new(),
            next_broadcast: 0,
            end: EndProgress::Running,
            exit_summary: ExitCodeSources::default(),
        }
    }

    /// The same element with nodes that are independent commands, unless these communicate.
    pub fn with_independent_nodes(self) -> Self {
        let communicates = matches!(self.kind, ProgramKind::Score | ProgramKind::Mpi(_));
        Self { independent_nodes: !communicates, ..self }
    }

    /// The name of the program for the user.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Whether the element has a network, and running nodes that may use the network.
    pub fn is_communicating(&self) -> bool {
        matches!(self.phase, CommunicationPhase::Communicating { .. }) && !self.is_ended()
    }

    /// Whether every node has ended.
    pub fn is_ended(&self) -> bool {
        self.ended_nodes.len() == self.nodes
    }

    /// The nodes that have not ended, whether started or not.
    pub fn running_nodes(&self) -> NodeSet {
        self.ended_nodes.missing(0..self.nodes)
    }

    /// Whether some nodes have not ended, and the end of the element was not ordered.
    pub fn may_go_on(&self) -> bool {
        !self.is_ended() && !self.is_ending()
    }

    fn is_ending(&self) -> bool {
        self.end == EndProgress::Ordered
    }

    /// The exit code, as far as known.
    pub fn code(&self) -> u8 {
        self.exit_summary.code()
    }

    /// These nodes will not be started, or their host is lost.
    pub fn on_skipped(&mut self, nodes: &NodeSet) {
        self.mark_ended(nodes);
    }

    /// Ends the element, if it has not ended, for a reason that is reported elsewhere.
    pub fn end(&mut self, failure: u8, out: &mut Outbox) {
        if !self.is_ended() {
            self.fail(failure, out);
        }
    }

    /// Records that the element cannot continue, for a reason that is reported elsewhere. The
    /// element is ended after a grace period.
    pub fn mark_failed(&mut self, failure: u8) {
        self.exit_summary.failure.get_or_insert(failure);
        if self.end == EndProgress::Running {
            self.end = EndProgress::Deadlocked;
        }
    }

    fn fail(&mut self, failure: u8, out: &mut Outbox) {
        self.exit_summary.failure.get_or_insert(failure);
        self.stop(out);
    }

    fn stop(&mut self, out: &mut Outbox) {
        if !self.is_ending() {
            self.end = EndProgress::Ordered;
            out.element_order(self.number, ElementOrder::End);
        }
    }

    fn fail_with_notice(&mut self, failure: u8, level: Level, text: String, out: &mut Outbox) {
        if !self.is_ending() {
            out.notice(level, text);
        }
        self.fail(failure, out);
    }

    /// The element cannot continue. `code` is its exit code. A code of 0 is replaced by 1.
    pub fn on_broken(&mut self, code: u8, reason: &str, out: &mut Outbox) {
        let text = format!("{}: {reason}", self.name);
        self.fail_with_notice(code.max(1), Level::Error, text, out);
    }

    /// The program could not be started on these nodes.
    pub fn on_not_started(&mut self, nodes: &NodeSet, code: u8, reason: &str, out: &mut Outbox) {
        if let Some(first) = self.mark_ended(nodes).first() {
            let text = format!("node {first}: {}: {reason}", self.name);
            if self.independent_nodes {
                self.exit_summary.failure.get_or_insert(code);
                return out.notice(Level::Error, text);
            }
            self.fail_with_notice(code, Level::Error, text, out);
        }
    }

    /// These nodes have ended. `expected_signals` are the signals that the user has caused.
    pub fn on_ended(
        &mut self,
        nodes: &NodeSet,
        status: Status,
        expected_signals: &[i32],
        out: &mut Outbox,
    ) {
        let newly_ended = self.mark_ended(nodes);
        let Some(first) = newly_ended.first() else { return };
        if self.end != EndProgress::Running || self.independent_nodes {
            return;
        }
        if first == 0 {
            self.exit_summary.node0 = exit_code::of_status(status);
        }
        match status {
            Status::Signaled(signal::SIGPIPE) if self.has_downstream => {
                if first == 0 {
                    self.exit_summary.node0 = 0;
                }
            }
            Status::Signaled(signal) => {
                let text = self.killed_by(first, signal);
                let failure = exit_code::of_signal(signal);
                match expected_signals.contains(&signal) {
                    // The output of scrun is closed. A shell reports no error in this case either.
                    true if signal == signal::SIGPIPE => self.fail(failure, out),
                    true => self.fail_with_notice(failure, Level::Info, text, out),
                    false => self.fail_with_notice(failure, Level::Error, text, out),
                }
            }
            Status::Exited(code) => self.on_exited(&newly_ended, code, out),
        }
    }

    fn killed_by(&self, node: u32, signal: i32) -> String {
        format!("node {node} of {} was killed by {}", self.name, signal::name(signal))
    }

    /// The node has not died of the signal that it has received.
    pub fn on_killed(&mut self, node: u32, signal: i32, out: &mut Outbox) {
        let text = self.killed_by(node, signal);
        self.fail_with_notice(exit_code::of_signal(signal), Level::Error, text, out);
    }

    fn on_exited(&mut self, nodes: &NodeSet, code: u8, out: &mut Outbox) {
        let unattached = match &self.phase {
            CommunicationPhase::Attaching { attached, .. } => {
                nodes.iter().find(|node| !attached.contains(*node))
            }
            CommunicationPhase::Communicating { .. } => None,
        };
        if let (ProgramKind::Score, Some(node)) = (self.kind, unattached) {
            let name = &self.name;
            let text =
                format!("node {node} of {name} exited with code {code} before score_initialize()");
            return self.fail_with_notice(code.max(1), Level::Error, text, out);
        }
        for node in nodes.iter().filter(|node| code != 0 && *node != 0) {
            let text = format!("node {node} of {} exited with code {code}", self.name);
            out.notice(Level::Warning, text);
        }
        self.check_waiters(out);
    }

    /// Ends the element if a node waits for a node that has ended.
    fn check_waiters(&mut self, out: &mut Outbox) {
        if self.is_ending() || self.ended_nodes.is_empty() || self.is_ended() {
            return;
        }
        if let Some((waiting, awaited)) = self.subset_fences.waiting_for(&self.ended_nodes) {
            let text = format!(
                "{}: node {waiting} waits in a fence or group of PMIx (such as \
                 MPI_Comm_create_from_group()) for node {awaited}, which has exited",
                self.name
            );
            return self.fail_with_notice(1, Level::Error, text, out);
        }
        let (arrived_nodes, call) = match &self.phase {
            _ if !self.in_fence.is_empty() => {
                (&self.in_fence, "a fence (MPI_Init() or MPI_Finalize())")
            }
            CommunicationPhase::Attaching { attached, .. } => (attached, "score_initialize()"),
            CommunicationPhase::Communicating { in_barrier } => (in_barrier, "sc_barrier()"),
        };
        let waiting: NodeSet =
            arrived_nodes.iter().filter(|node| !self.ended_nodes.contains(*node)).collect();
        if waiting.is_empty() {
            return;
        }
        let text = format!(
            "{}: node {waiting} waits in {call} for node {}, which has exited",
            self.name, self.ended_nodes
        );
        self.fail_with_notice(1, Level::Error, text, out);
    }

    /// These nodes have called score_initialize.
    pub fn on_attached(
        &mut self,
        nodes: &NodeSet,
        addresses: Vec<HostNetworkAddress>,
        out: &mut Outbox,
    ) {
        if self.is_ending() || nodes.last().is_some_and(|last| last >= self.nodes) {
            return;
        }
        let CommunicationPhase::Attaching { attached, addresses: peers } = &mut self.phase else {
            return;
        };
        attached.union(nodes);
        peers.extend(addresses);
        if attached.len() == self.nodes {
            let peers = std::mem::take(peers);
            self.phase = CommunicationPhase::Communicating { in_barrier: NodeSet::new() };
            out.element_order(self.number, ElementOrder::Welcome { peers });
        } else {
            self.check_waiters(out);
        }
    }

    /// These nodes have called sc_barrier. Returns whether the barrier is complete, so that all
    /// nodes continue.
    pub fn on_in_barrier(&mut self, nodes: &NodeSet, out: &mut Outbox) -> bool {
        if self.is_ending() || nodes.last().is_some_and(|last| last >= self.nodes) {
            return false;
        }
        // No node can be in a barrier before all nodes have attached.
        let CommunicationPhase::Communicating { in_barrier } = &mut self.phase else {
            return false;
        };
        in_barrier.union(nodes);
        let is_complete = in_barrier.len() == self.nodes;
        if is_complete {
            *in_barrier = NodeSet::new();
            out.element_order(self.number, ElementOrder::BarrierDone);
        } else {
            self.check_waiters(out);
        }
        is_complete
    }

    /// These nodes are in a fence of PMI or PMIx. Their hosts send new entries for all other nodes.
    pub fn on_in_fence(&mut self, nodes: &NodeSet, entries: Vec<u8>, out: &mut Outbox) {
        if self.is_ending() || nodes.last().is_some_and(|last| last >= self.nodes) {
            return;
        }
        self.in_fence.union(nodes);
        self.fence_bytes = self.fence_bytes.saturating_add(entries.len());
        let max_bytes = (self.nodes as usize * MAX_FENCE_BYTES_PER_NODE).min(MAX_FENCE_BYTES);
        if self.fence_bytes > max_bytes {
            let reason =
                format!("more than {max_bytes} bytes of entries in a fence of PMI or PMIx");
            return self.on_broken(EXIT_FAILED, &reason, out);
        }
        if !entries.is_empty() {
            out.element_order(self.number, ElementOrder::FenceEntries(entries));
        }
        if self.in_fence.len() == self.nodes {
            (self.in_fence, self.fence_bytes) = (NodeSet::new(), 0);
            out.element_order(self.number, ElementOrder::FenceDone);
        } else {
            self.check_waiters(out);
        }
    }

    /// These nodes are in a fence of a subset of the nodes. Their host sends new entries for the
    /// other nodes of the fence.
    pub fn on_in_subset_fence(
        &mut self,
        fence: SubsetFence,
        nodes: &NodeSet,
        entries: Vec<u8>,
        out: &mut Outbox,
    ) {
        if self.is_ending() || fence.members.last().is_none_or(|last| last >= self.nodes) {
            return;
        }
        let progress = self.subset_fences.on_in_fence(&fence, nodes, entries.len());
        if let SubsetFenceProgress::TooManyBytes(max_bytes) = progress {
            let members = &fence.members;
            let reason =
                format!("more than {max_bytes} bytes of entries in a fence of nodes {members}");
            return self.on_broken(EXIT_FAILED, &reason, out);
        }
        if !entries.is_empty() {
            let fence = fence.clone();
            out.element_order(self.number, ElementOrder::SubsetFenceEntries { fence, entries });
        }
        match progress {
            SubsetFenceProgress::Done => {
                out.element_order(self.number, ElementOrder::SubsetFenceDone(fence));
            }
            _ => self.check_waiters(out),
        }
    }

    /// A node has called sc_signal_bcast.
    pub fn on_broadcast(&mut self, node: u32, signal: i32, out: &mut Outbox) {
        let serial = self.next_broadcast;
        self.next_broadcast += 1;
        self.broadcasts.insert(serial, (node, NodeSet::new()));
        out.element_order(self.number, ElementOrder::Broadcast { serial, signal });
    }

    /// The hosts of these nodes have delivered a broadcast signal.
    pub fn on_broadcast_sent(&mut self, serial: u64, nodes: &NodeSet, out: &mut Outbox) {
        let Some((node, sent_nodes)) = self.broadcasts.get_mut(&serial) else { return };
        if nodes.last().is_none_or(|last| last >= self.nodes) {
            return;
        }
        sent_nodes.union(nodes);
        if sent_nodes.len() == self.nodes {
            let order = ElementOrder::BroadcastDone { node: *node };
            self.broadcasts.remove(&serial);
            out.element_order(self.number, order);
        }
    }

    /// A node has called sc_exit.
    pub fn on_exit(&mut self, code: i32, out: &mut Outbox) {
        if !self.is_ending() {
            self.exit_summary.exit.get_or_insert((code & 0xff) as u8);
            self.stop(out);
        }
    }

    /// A node has called sc_inspectme.
    pub fn on_inspect(&mut self, signal: i32, text: String, out: &mut Outbox) {
        let failure = match signal {
            1..=64 => exit_code::of_signal(signal),
            _ => 1,
        };
        self.fail_with_notice(failure, Level::Error, text, out);
    }

    /// Marks nodes as ended, and returns those that had not ended before.
    fn mark_ended(&mut self, nodes: &NodeSet) -> NodeSet {
        let mut newly_ended = NodeSet::new();
        for range in nodes.ranges() {
            newly_ended.union(&self.ended_nodes.missing(range.start..range.end.min(self.nodes)));
        }
        self.ended_nodes.union(&newly_ended);
        newly_ended
    }
}

#[cfg(test)]
#[path = "element_tests.rs"]
mod tests;
