//! Merges the reports of a job on their way to the master: equal reports about different nodes
//! become one report.

use score_proto::ids::ElementIndex;
use score_proto::job_control::{
    ElementReport, JobReport, MAX_BLOCK_PIDS, ProcessBlock, Report, ShepherdReport, SwitchReport,
};
use score_proto::nodeset::NodeSet;

use crate::report_queue;

/// The largest number of list entries in one merged report.
const MAX_USAGES: usize = 4096;

/// The largest number of bytes of PMI entries in one merged report.
const MAX_MERGED_FENCE_BYTES: usize = 256 << 10;

/// The other reports whose order relative to this report must not change.
enum Scope<'a> {
    /// Reports about the same nodes of the element.
    Nodes(ElementIndex, &'a NodeSet),
    /// No report.
    Independent,
    /// All reports except independent ones.
    Whole,
}

impl Scope<'_> {
    fn overlaps(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Nodes(element, nodes), Self::Nodes(other_element, other_nodes)) => {
                element == other_element && nodes.intersects(other_nodes)
            }
            (Self::Independent, _) | (_, Self::Independent) => false,
            (Self::Whole, _) | (_, Self::Whole) => true,
        }
    }
}

fn job_scope(report: &JobReport) -> Scope<'_> {
    match report {
        JobReport::Usage(_)
        | JobReport::Processes { .. }
        | JobReport::StdinWindow(_)
        | JobReport::StdinClosed
        | JobReport::Metrics(_)
        | JobReport::Tool(_) => Scope::Independent,
        JobReport::Ready
        | JobReport::Refused { .. }
        | JobReport::JobFailed { .. }
        | JobReport::Notice { .. }
        | JobReport::Finished { .. } => Scope::Whole,
    }
}

fn element_scope(element: ElementIndex, report: &ElementReport) -> Scope<'_> {
    match report {
        ElementReport::Attached { nodes, .. }
        | ElementReport::InBarrier { nodes }
        | ElementReport::InFence { nodes, .. }
        | ElementReport::InSubsetFence { nodes, .. }
        | ElementReport::Ended { nodes, .. }
        | ElementReport::Skipped { nodes }
        | ElementReport::Sent { nodes, .. }
        | ElementReport::Faulted { nodes, .. }
        | ElementReport::NotStarted { nodes, .. } => Scope::Nodes(element, nodes),
        ElementReport::ModexRequest { .. }
        | ElementReport::ModexAnswer { .. }
        | ElementReport::WaitStates { .. }
        | ElementReport::ToolEvent(_)
        | ElementReport::Sleep { .. }
        | ElementReport::Yield => Scope::Independent,
        ElementReport::Exit { .. }
        | ElementReport::Broadcast { .. }
        | ElementReport::Inspect { .. }
        | ElementReport::DebuggerWanted { .. }
        | ElementReport::SampleResult { .. }
        | ElementReport::ProtocolViolation { .. }
        | ElementReport::Failed { .. } => Scope::Whole,
    }
}

/// Appends entries if the result is not too long. Returns whether it did.
fn extend<T: Clone>(ours: &mut Vec<T>, theirs: &[T]) -> bool {
    let fits = ours.len() + theirs.len() <= MAX_USAGES;
    if fits {
        ours.extend_from_slice(theirs);
    }
    fits
}

fn merge_job(ours: &mut JobReport, theirs: &JobReport) -> bool {
    match (ours, theirs) {
        (JobReport::Usage(ours), JobReport::Usage(theirs)) => extend(ours, theirs),
        (
            JobReport::Processes { stage, blocks },
            JobReport::Processes { stage: other_stage, blocks: other_blocks },
        ) if stage == other_stage => {
            let pid_count = |blocks: &[ProcessBlock]| -> usize {
                blocks.iter().map(|block| block.pids.len()).sum()
            };
            let fits = pid_count(blocks) + pid_count(other_blocks) <= MAX_BLOCK_PIDS;
            fits && extend(blocks, other_blocks)
        }
        (JobReport::Metrics(ours), JobReport::Metrics(theirs)) => {
            let fits = extend(&mut ours.nodes, &theirs.nodes);
            if fits {
                ours.hosts.extend_from_slice(&theirs.hosts);
            }
            fits
        }
        _ => false,
    }
}

/// Merges two reports about the same element. Returns whether they could be merged.
fn merge_element(ours: &mut ElementReport, theirs: &ElementReport) -> bool {
    let (nodes, other_nodes) = match (ours, theirs) {
        (ElementReport::WaitStates { waits }, ElementReport::WaitStates { waits: other_waits }) => {
            return extend(waits, other_waits);
        }
        (ElementReport::Yield, ElementReport::Yield) => return true,
        // Equal sleep times merge.
        (ElementReport::Sleep { seconds }, ElementReport::Sleep { seconds: other_seconds }) => {
            return seconds == other_seconds;
        }
        (
            ElementReport::Attached { nodes, addresses },
            ElementReport::Attached { nodes: other_nodes, addresses: other_addresses },
        ) if nodes.union_fits(other_nodes) => {
            addresses.extend_from_slice(other_addresses);
            (nodes, other_nodes)
        }
        (
            ElementReport::InFence { nodes, entries },
            ElementReport::InFence { nodes: other_nodes, entries: other_entries },
        ) if nodes.union_fits(other_nodes)
            && entries.len() + other_entries.len() <= MAX_MERGED_FENCE_BYTES =>
        {
            entries.extend_from_slice(other_entries);
            (nodes, other_nodes)
        }
        (
            ElementReport::InSubsetFence { fence, nodes, entries },
            ElementReport::InSubsetFence {
                fence: other_fence,
                nodes: other_nodes,
                entries: other_entries,
            },
        ) if fence == other_fence
            && nodes.union_fits(other_nodes)
            && entries.len() + other_entries.len() <= MAX_MERGED_FENCE_BYTES =>
        {
            entries.extend_from_slice(other_entries);
            (nodes, other_nodes)
        }
        (ElementReport::InBarrier { nodes }, ElementReport::InBarrier { nodes: other_nodes })
        | (ElementReport::Skipped { nodes }, ElementReport::Skipped { nodes: other_nodes }) => {
            (nodes, other_nodes)
        }
        (
            ElementReport::Ended { nodes, status },
            ElementReport::Ended { nodes: other_nodes, status: other_status },
        ) if status == other_status => (nodes, other_nodes),
        (
            ElementReport::Sent { serial, nodes },
            ElementReport::Sent { serial: other_serial, nodes: other_nodes },
        ) if serial == other_serial => (nodes, other_nodes),
        (
            ElementReport::Faulted { nodes, signal },
            ElementReport::Faulted { nodes: other_nodes, signal: other_signal },
        ) if signal == other_signal => (nodes, other_nodes),
        (
            ElementReport::NotStarted { nodes, code, reason: why },
            ElementReport::NotStarted { nodes: other_nodes, code: other_code, reason },
        ) if code == other_code && why == reason => (nodes, other_nodes),
        _ => return false,
    };
    let fits = nodes.union_fits(other_nodes);
    if fits {
        nodes.union(other_nodes);
    }
    fits
}

fn merge_switch(ours: &mut SwitchReport, theirs: &SwitchReport) -> bool {
    match (ours, theirs) {
        (
            SwitchReport::IdleSummary { element, summary },
            SwitchReport::IdleSummary { element: other, summary: newer },
        ) if element == other => {
            *summary = *newer;
            true
        }
        _ => false,
    }
}

fn scope_of(report: &Report) -> Scope<'_> {
    match report {
        Report::Job(report) => job_scope(report),
        Report::Element { element, report } => element_scope(*element, report),
        Report::Switch(SwitchReport::IdleSummary { .. }) => Scope::Independent,
        Report::Switch(SwitchReport::Stopped { .. })
        | Report::FileRequest(_)
        | Report::HostsLost { .. }
        | Report::Output(_) => Scope::Whole,
    }
}

fn scope_of_shepherds(report: &ShepherdReport) -> Scope<'_> {
    match report {
        ShepherdReport::Job(report) => job_scope(report),
        ShepherdReport::Element { element, report } => element_scope(*element, report),
        ShepherdReport::FileRequest(_)
        | ShepherdReport::ToolsPrepared(_)
        | ShepherdReport::ToolFiles { .. }
        | ShepherdReport::Program { .. }
        | ShepherdReport::Output(_) => Scope::Whole,
    }
}

impl report_queue::Mergeable for Report {
    fn merge(&mut self, other: &Self) -> bool {
        match (self, other) {
            (Report::Job(ours), Report::Job(theirs)) => merge_job(ours, theirs),
            (
                Report::Element { element, report },
                Report::Element { element: other, report: theirs },
            ) => element == other && merge_element(report, theirs),
            (Report::Switch(ours), Report::Switch(theirs)) => merge_switch(ours, theirs),
            _ => false,
        }
    }

    fn concerns(&self, other: &Self) -> bool {
        scope_of(self).overlaps(&scope_of(other))
    }
}

impl report_queue::Mergeable for ShepherdReport {
    fn merge(&mut self, other: &Self) -> bool {
        match (self, other) {
            (ShepherdReport::Job(ours), ShepherdReport::Job(theirs)) => merge_job(ours, theirs),
            (
                ShepherdReport::Element { element, report },
                ShepherdReport::Element { element: other, report: theirs },
            ) => element == other && merge_element(report, theirs),
            _ => false,
        }
    }

    fn concerns(&self, other: &Self) -> bool {
        scope_of_shepherds(self).overlaps(&scope_of_shepherds(other))
    }
}

#[cfg(test)]
mod tests;
