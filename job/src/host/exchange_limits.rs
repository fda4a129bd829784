//! Limits what a host of a job sends to other hosts. This includes the data that its processes
//! exchange by PMI and PMIx: entries of fences, and questions about single nodes and their answers
//! ("direct modex"). It also includes the list of its processes for a debugger. All users share the
//! links that carry these messages. A faulty or hostile shepherd must not have more messages in
//! flight than its limits permit. It must not answer a question that was not asked.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use score_proto::ids::{ElementIndex, JobHostId};
use score_proto::job_control::{
    DebuggerOrder, ElementOrder, ElementReport, JobReport, MAX_FENCE_BYTES_PER_HOST,
    MAX_FENCE_BYTES_PER_NODE, MAX_MODEX_BYTES, MAX_SUBSET_RANGES, Placement, ProcessBlock,
    ShepherdReport, SubsetFence, max_modex_requests, max_subset_fences,
};
use score_proto::nodeset::NodeSet;

use crate::validate::MAX_ELEMENTS;

/// The messages of a host that are in flight.
#[derive(Debug, Default)]
pub struct ExchangeLimits {
    /// Elements whose processes on this host are in a fence, and the bytes of their entries.
    fences: BTreeMap<ElementIndex, usize>,
    /// Fences of a subset of the nodes, and the bytes of their entries.
    subset_fences: HashMap<(ElementIndex, SubsetFence), usize>,
    /// Element and node of another host whose entries this host has requested.
    requested: BTreeSet<(ElementIndex, u32)>,
    /// Element and node of this host, and the host that has requested the entries of the node.
    questions: BTreeSet<(ElementIndex, u32, JobHostId)>,
    /// Process identifiers that the host may still list.
    unlisted: usize,
}

impl ExchangeLimits {
    /// A new stage begins.
    pub fn clear(&mut self) {
        // The order to hold a stage arrives before the order to start it.
        *self = Self { unlisted: self.unlisted, ..Self::default() };
    }

    /// The shepherd gets an order for a debugger. It may have to list its processes for this order.
    pub fn on_debugger(&mut self, order: DebuggerOrder, placement: &Placement) {
        if matches!(order, DebuggerOrder::HoldStage | DebuggerOrder::ListProcesses) {
            let nodes = placement.self_placement().map_or(0, |host| host.nodes);
            self.unlisted = MAX_ELEMENTS * nodes as usize;
        }
    }

    /// Whether the shepherd may list these processes now.
    fn may_list(&mut self, placement: &Placement, blocks: &[ProcessBlock]) -> bool {
        let Some(host) = placement.self_placement() else { return false };
        let is_own = |block: &ProcessBlock| {
            let end = u32::try_from(block.pids.len())
                .ok()
                .and_then(|count| block.first_node.checked_add(count));
            block.host == placement.self_host
                && !block.pids.is_empty()
                && host.first_node <= block.first_node
                && end.is_some_and(|end| end <= host.node_range().end)
                && block.element.index() < MAX_ELEMENTS
        };
        let pid_count = blocks.iter().map(|block| block.pids.len()).sum();
        let left = self.unlisted.checked_sub(pid_count).filter(|_| blocks.iter().all(is_own));
        self.unlisted = left.unwrap_or(self.unlisted);
        left.is_some()
    }

    /// Whether the shepherd may send this report now. `placement` is the job's placement for this
    /// host.
    pub fn may_report(&mut self, placement: &Placement, report: &ShepherdReport) -> bool {
        match report {
            ShepherdReport::Job(JobReport::Processes { blocks, .. }) => {
                self.may_list(placement, blocks)
            }
            ShepherdReport::Element { element, report } => {
                self.may_report_about(placement, *element, report)
            }
            _ => true,
        }
    }

    fn may_report_about(
        &mut self,
        placement: &Placement,
        element: ElementIndex,
        report: &ElementReport,
    ) -> bool {
        let self_host = placement.self_host;
        match report {
            ElementReport::InFence { nodes, entries } => {
                self.begin_fence(placement, element, nodes, entries.len())
            }
            ElementReport::InSubsetFence { fence, nodes, entries } => {
                self.begin_subset_fence(placement, element, fence, nodes, entries.len())
            }
            ElementReport::ModexRequest { asker, node } => {
                *asker == self_host
                    && placement.host_of(*node).is_some_and(|host| host != self_host)
                    && self.requested.len() < max_modex_requests(placement.hosts.len())
                    && self.requested.insert((element, *node))
            }
            ElementReport::ModexAnswer { asker, node, entries } => {
                entries.as_ref().map_or(0, Vec::len) <= MAX_MODEX_BYTES
                    && self.questions.remove(&(element, *node, *asker))
            }
            _ => true,
        }
    }

    /// Whether the processes on this host may enter a fence now, with this many bytes of entries.
    /// An element has at most one fence in flight.
    fn begin_fence(
        &mut self,
        placement: &Placement,
        element: ElementIndex,
        nodes: &NodeSet,
        entries_len: usize,
    ) -> bool {
        let Some(host) = placement.self_placement() else { return false };
        let own_nodes = host.node_range();
        let is_own = nodes
            .ranges()
            .all(|range| own_nodes.start <= range.start && range.end <= own_nodes.end);
        let max_len = own_nodes.len() * MAX_FENCE_BYTES_PER_NODE;
        let total_len = self.fences.values().sum::<usize>() + entries_len;
        let may_begin = is_own
            && !nodes.is_empty()
            && entries_len <= max_len
            && total_len <= MAX_FENCE_BYTES_PER_HOST
            && element.index() < MAX_ELEMENTS
            && !self.fences.contains_key(&element);
        if may_begin {
            self.fences.insert(element, entries_len);
        }
        may_begin
    }

    /// Whether the processes on this host may enter a fence of a subset of the nodes now.
    fn begin_subset_fence(
        &mut self,
        placement: &Placement,
        element: ElementIndex,
        fence: &SubsetFence,
        nodes: &NodeSet,
        entries_len: usize,
    ) -> bool {
        let Some(host) = placement.self_placement() else { return false };
        let SubsetFence { members, .. } = fence;
        let total_len = self.subset_fences.values().sum::<usize>() + entries_len;
        let ranges: usize =
            self.subset_fences.keys().map(|(_, fence)| fence.members.ranges().len()).sum();
        let of_element = self.subset_fences.keys().filter(|(other, _)| *other == element).count();
        let key = (element, fence.clone());
        let may_begin = !nodes.is_empty()
            && *nodes == members.within(host.node_range())
            && members.last().is_some_and(|last| last < placement.nodes())
            && ranges + members.ranges().len() <= MAX_SUBSET_RANGES
            && entries_len <= nodes.len() as usize * MAX_FENCE_BYTES_PER_NODE
            && total_len <= MAX_FENCE_BYTES_PER_HOST
            && of_element < max_subset_fences(host.nodes as usize)
            && element.index() < MAX_ELEMENTS
            && !self.subset_fences.contains_key(&key);
        if may_begin {
            self.subset_fences.insert(key, entries_len);
        }
        may_begin
    }

    /// The shepherd gets an order. It may send more reports because of this order.
    pub fn on_order(&mut self, self_host: JobHostId, element: ElementIndex, order: &ElementOrder) {
        match order {
            ElementOrder::FenceDone => {
                self.fences.remove(&element);
            }
            ElementOrder::SubsetFenceDone(fence) => {
                self.subset_fences.remove(&(element, fence.clone()));
            }
            ElementOrder::ModexRequest { host, asker, node } if *host == self_host => {
                self.questions.insert((element, *node, *asker));
            }
            ElementOrder::ModexAnswer { asker, node, .. } if *asker == self_host => {
                self.requested.remove(&(element, *node));
            }
            _ => {}
        }
    }
}
