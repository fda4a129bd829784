//! Merges the answers to commands of tools at one host's node of a job's range tree.

use std::collections::BTreeMap;
use std::time::Duration;

use score_proto::ids::ElementIndex;
use score_proto::job_control::{ElementReport, Report};
use score_proto::nodeset::NodeSet;
use score_proto::tool_command::{
    EventBody, MAX_TOOL_ANSWER_BYTES, MAX_TOOL_BODY, MAX_TOOL_COMMANDS, MergedEvent, ToolCommand,
};
use score_tools::merge::{MergeAction, MergeBounds, MergeInput, Merger, timeout_of_children};

use crate::cluster::MonotonicTime;

/// Bytes of answers to all commands that wait here. A merger bounds the bytes of one command to one
/// parallel process, but a job may have many parallel processes.
const MAX_HELD_BYTES: usize = 2 * MAX_TOOL_ANSWER_BYTES;

const BOUNDS: MergeBounds = MergeBounds {
    open_commands: MAX_TOOL_COMMANDS,
    command_bytes: MAX_TOOL_ANSWER_BYTES,
    body_len: MAX_TOOL_BODY,
};

/// A merger for each parallel process of the running stage to which a tool has sent a command. The
/// sources are the children of the node.
#[derive(Debug, Default)]
pub struct ToolMergers(BTreeMap<ElementIndex, Merger>);

impl ToolMergers {
    /// A new stage begins.
    pub fn clear(&mut self) {
        self.0.clear();
    }

    /// A command passes this node on its way down. `nodes_of_children` are the nodes of each child.
    /// The time of the command is reduced to the time that the children have. Returns reports for
    /// the parent.
    pub fn on_command(
        &mut self,
        element: ElementIndex,
        command: &mut ToolCommand,
        nodes_of_children: Vec<NodeSet>,
        now: MonotonicTime,
    ) -> Vec<Report> {
        let new_merger = || Merger::with_bounds(nodes_of_children, BOUNDS);
        self.0.entry(element).or_insert_with(new_merger);
        let timeout = Duration::from_millis(command.wait_ms.into());
        let for_children = timeout_of_children(timeout).as_millis();
        command.wait_ms = u32::try_from(for_children).unwrap_or(u32::MAX);
        let ranks = command.nodes.clone();
        self.step(element, MergeInput::Command { command: command.id, ranks, timeout }, now)
    }

    /// A child has sent an event. Returns reports for the parent.
    pub fn on_event(
        &mut self,
        source: usize,
        element: ElementIndex,
        mut event: MergedEvent,
        now: MonotonicTime,
    ) -> Vec<Report> {
        if let EventBody::Answer(bytes) = &event.body
            && bytes.len() > MAX_HELD_BYTES.saturating_sub(self.held_bytes())
        {
            event.body = EventBody::Dropped { events: 1 };
        }
        self.step(element, MergeInput::Event { source, event }, now)
    }

    /// A child sends no further events. Returns reports for the parent.
    pub fn on_child_closed(&mut self, source: usize, now: MonotonicTime) -> Vec<Report> {
        self.step_all(&MergeInput::SourceLost { source }, now)
    }

    /// Time has passed. Returns reports for the parent.
    pub fn on_tick(&mut self, now: MonotonicTime) -> Vec<Report> {
        self.step_all(&MergeInput::Tick, now)
    }

    /// When [`ToolMergers::on_tick`] is due.
    pub fn deadline(&self) -> Option<MonotonicTime> {
        self.0.values().filter_map(Merger::deadline).min()
    }

    fn held_bytes(&self) -> usize {
        self.0.values().map(Merger::held_bytes).sum()
    }

    fn step_all(&mut self, input: &MergeInput, now: MonotonicTime) -> Vec<Report> {
        let elements: Vec<ElementIndex> = self.0.keys().copied().collect();
        elements.into_iter().flat_map(|element| self.step(element, input.clone(), now)).collect()
    }

    fn step(
        &mut self,
        element: ElementIndex,
        input: MergeInput,
        now: MonotonicTime,
    ) -> Vec<Report> {
        let mut actions = Vec::new();
        if let Some(merger) = self.0.get_mut(&element) {
            merger.step(input, now, &mut actions);
        }
        let to_report = |action| match action {
            MergeAction::Pass(event) => Some(ElementReport::ToolEvent(event).of(element)),
            // Input of a faulty or hostile child is not forwarded.
            MergeAction::Complete(_)
            | MergeAction::Refuse { .. }
            | MergeAction::RefuseCommand { .. } => None,
        };
        actions.into_iter().filter_map(to_report).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::tree_node::{Outgoing, TreeNode};
    use score_proto::job_control::{
        ElementOrder, HopOrder, Order, Placement, ShepherdOrder, ShepherdReport,
    };
    use score_proto::peer_message::JobIncarnation;
    use score_proto::tool_command::CommandId;

    const FIRST: ElementIndex = ElementIndex::FIRST;

    /// Host 0 of three hosts with two nodes each; the other two are its children.
    fn root_node() -> TreeNode {
        let hosts = (0..3).map(|host| (format!("h{host}"), None, 2));
        TreeNode::new(Placement::new(JobIncarnation(0), hosts))
    }

    fn send(node: &mut TreeNode, id: u64, nodes: NodeSet) {
        let (id, wait_ms, body) = (CommandId(id), 8000, Vec::new());
        let command = ToolCommand { id, nodes, wait_ms, body };
        node.on_order(ElementOrder::ToolCommand(command).to(FIRST));
    }

    fn event(id: u64, nodes: impl Into<NodeSet>, body: EventBody) -> ElementReport {
        let command = CommandId(id);
        ElementReport::ToolEvent(MergedEvent { command, ranks: nodes.into(), body })
    }

    fn said(text: &str) -> EventBody {
        EventBody::Answer(text.into())
    }

    fn from_shepherd(node: &mut TreeNode, report: ElementReport) {
        node.on_shepherd_report(ShepherdReport::Element { element: FIRST, report });
    }

    /// The reports to the parent, and the child index and time of each command to a child.
    fn outgoing(node: &mut TreeNode) -> (Vec<Report>, Vec<(usize, u32)>) {
        let (mut reports, mut commands) = (Vec::new(), Vec::new());
        for message in node.take_outgoing() {
            let (child_index, order) = match message {
                Outgoing::Parent(report) => {
                    reports.push(report);
                    continue;
                }
                Outgoing::Child(index, HopOrder::Tree(Order::Element { order, .. })) => {
                    (index, order)
                }
                Outgoing::Shepherd(ShepherdOrder::Element { order, .. }) => (0, order),
                other => panic!("{other:?}"),
            };
            let ElementOrder::ToolCommand(command) = order else { panic!("{order:?}") };
            commands.push((child_index, command.wait_ms));
        }
        (reports, commands)
    }

    #[test]
    fn a_command_is_sent_to_the_hosts_of_its_nodes_and_equal_answers_are_merged() {
        let mut node = root_node();
        send(&mut node, 1, NodeSet::from(1..4));
        // Child hosts get less time, so that their answers arrive in time.
        assert_eq!(outgoing(&mut node), (Vec::new(), vec![(0, 7000), (1, 7000)]));
        from_shepherd(&mut node, event(1, 1..2, said("main")));
        node.on_report(1, event(1, 3..4, said("main")).of(FIRST));
        assert_eq!(outgoing(&mut node).0, []);
        node.on_report(1, event(1, 2..3, said("solve")).of(FIRST));
        let main = event(1, [1, 3].into_iter().collect::<NodeSet>(), said("main")).of(FIRST);
        let solve = event(1, 2..3, said("solve")).of(FIRST);
        assert_eq!(outgoing(&mut node).0, [main, solve]);
        assert_eq!(node.deadline(), None);
    }

    #[test]
    fn at_the_deadline_the_merger_sends_the_answers_it_has_and_later_answers_separately() {
        let mut node = root_node();
        node.set_time(Duration::from_secs(10));
        send(&mut node, 1, NodeSet::from(0..6));
        from_shepherd(&mut node, event(1, 0..2, said("main")));
        outgoing(&mut node);
        assert_eq!(node.deadline(), Some(Duration::from_secs(18)));
        node.set_time(Duration::from_secs(18));
        node.on_tick();
        assert_eq!(outgoing(&mut node).0, [event(1, 0..2, said("main")).of(FIRST)]);
        node.on_report(1, event(1, 2..4, said("main")).of(FIRST));
        assert_eq!(outgoing(&mut node).0, [event(1, 2..4, said("main")).of(FIRST)]);
        node.close_child(2);
        assert_eq!(outgoing(&mut node).0, [event(1, 4..6, EventBody::Lost).of(FIRST)]);
    }

    #[test]
    fn a_hostile_shepherd_can_answer_only_once_and_for_its_own_nodes() {
        let mut node = root_node();
        send(&mut node, 1, NodeSet::from(0..6));
        outgoing(&mut node);
        // Wrong answers: about nodes of other hosts, to an unknown command, a second time, and for
        // an element without a command.
        from_shepherd(&mut node, event(1, 2..6, said("forged")));
        from_shepherd(&mut node, event(2, 0..2, said("forged")));
        from_shepherd(&mut node, event(1, 0..2, said("main")));
        from_shepherd(&mut node, event(1, 0..2, said("forged")));
        let report = event(1, 0..2, said("forged"));
        node.on_shepherd_report(ShepherdReport::Element { element: ElementIndex(1), report });
        node.on_report(1, event(1, 2..4, said("main")).of(FIRST));
        node.on_report(2, event(1, 4..6, said("main")).of(FIRST));
        assert_eq!(outgoing(&mut node).0, [event(1, 0..6, said("main")).of(FIRST)]);
    }

    /// Each parallel process has a merger of its own, and a hostile job has a thousand parallel
    /// processes.
    #[test]
    fn the_answers_to_all_commands_that_wait_are_bounded_together() {
        let mut mergers = ToolMergers::default();
        let count = 2 * MAX_HELD_BYTES / MAX_TOOL_BODY;
        for element in ElementIndex::all(count) {
            let (id, wait_ms, body) = (CommandId(1), 8000, Vec::new());
            let mut command = ToolCommand { id, nodes: (0..2).into(), wait_ms, body };
            let children = vec![NodeSet::from(0..2)];
            mergers.on_command(element, &mut command, children, Duration::ZERO);
        }
        for element in ElementIndex::all(count) {
            let body = EventBody::Answer(vec![0; MAX_TOOL_BODY]);
            let event = MergedEvent { command: CommandId(1), ranks: NodeSet::one(0), body };
            assert_eq!(mergers.on_event(0, element, event, Duration::ZERO), []);
        }
        // The sets and the table need a little more.
        assert!(mergers.held_bytes() < MAX_HELD_BYTES + MAX_TOOL_BODY);
        // No rank is lost: ranks whose answers were too long are named.
        let reports = mergers.on_tick(Duration::from_secs(8));
        let is_dropped = |report: &&Report| {
            let body = EventBody::Dropped { events: 1 };
            let dropped = event(1, 0..1, body);
            matches!(report, Report::Element { report, .. } if *report == dropped)
        };
        assert_eq!(reports.len(), count);
        assert!(reports.iter().filter(is_dropped).count() >= count / 2);
    }
}
