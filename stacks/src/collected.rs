//! Merges the answers of a job's ranks to a request for their stacks into prefix trees.

use std::collections::BTreeMap;
use std::fmt::Write;

use score_proto::nodeset::NodeSet;
use score_proto::server_message::ToolAnswer;
use score_proto::tool_command::{EventBody, NOT_ANSWERED, OTHER_RELEASE, ThreadKind, ToolResult};

use crate::frame::Stack;
use crate::render::{self, RenderLimits};
use crate::tree::StackTree;

/// The number of steps that each frame costs, in addition to the steps of its ranges.
pub const STEPS_OF_FRAME: usize = 16;

/// The limits of a collector in a process that serves several users. Ranks whose stacks exceed a
/// limit are reported.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CollectBounds {
    /// Maximum number of bytes of all answers.
    pub bytes: usize,
    /// Maximum number of frames of the trees.
    pub nodes: usize,
    /// Maximum number of steps of work. A frame costs [`STEPS_OF_FRAME`] steps, and one more step
    /// for each range of ranks that is merged at the frame.
    pub steps: usize,
}

impl Default for CollectBounds {
    /// In a process of the user, only the trees are limited.
    fn default() -> Self {
        Self { bytes: usize::MAX, nodes: usize::MAX, steps: usize::MAX }
    }
}

impl CollectBounds {
    /// Whether a stack fits in addition to `nodes` frames, each with at most `ranges` ranges.
    /// Deducts its work.
    fn take_stack(&mut self, stack: &Stack, ranges: usize, nodes: usize) -> bool {
        let frames = stack.frames.len();
        let steps = frames.saturating_mul(ranges.saturating_add(STEPS_OF_FRAME));
        let left = self.steps.checked_sub(steps);
        self.steps = left.unwrap_or(0);
        left.is_some() && nodes.saturating_add(frames) <= self.nodes
    }
}

/// The reason for ranks whose stacks exceed the limits.
const TOO_MUCH: &str = "too many different stacks; scdb JOB stacks -ranks RANKS shows them";

/// See the [module](self).
#[derive(Debug, Default)]
pub struct CollectedStacks {
    /// The name of each program of the stage, and the number of nodes of each program.
    pub programs: (Vec<String>, u32),
    /// The stacks of threads of the program.
    pub program_threads: StackTree,
    /// The stacks of communication threads of libpm.
    pub communication_threads: StackTree,
    /// The number of threads that are not shown, and the ranks with this number.
    omitted: BTreeMap<u32, NodeSet>,
    /// The ranks without stacks, by reason.
    pub failed: BTreeMap<String, NodeSet>,
    /// The remaining limits.
    room: CollectBounds,
    /// The number of ranges of ranks that have answered.
    ranges: usize,
}

impl CollectedStacks {
    /// A collector with limits.
    pub fn bounded(bounds: CollectBounds) -> Self {
        Self { room: bounds, ..Self::default() }
    }

    /// Adds an answer.
    pub fn add(&mut self, answer: ToolAnswer) {
        match answer {
            ToolAnswer::Programs { names, nodes } => self.programs = (names, nodes),
            ToolAnswer::Missing(ranks) => self.fail(NOT_ANSWERED.to_owned(), &ranks),
            ToolAnswer::Event { ranks, body } => match (body.failure(), body) {
                (Some(reason), _) => self.fail(reason.to_owned(), &ranks),
                (None, EventBody::Answer(bytes)) => match self.take_bytes(bytes.len()) {
                    true => self.add_result(&ranks, ToolResult::decode(&bytes)),
                    false => self.fail(TOO_MUCH.to_owned(), &ranks),
                },
                (None, _) => {}
            },
        }
    }

    fn add_result(&mut self, ranks: &NodeSet, result: Option<ToolResult>) {
        match result {
            None => self.fail(OTHER_RELEASE.to_owned(), ranks),
            Some(ToolResult::Failed(reason)) => self.fail(reason, ranks),
            Some(
                ToolResult::Records { .. }
                | ToolResult::File(_)
                | ToolResult::Threads { .. }
                | ToolResult::Console(_),
            ) => {
                self.fail(
                    "the tool control service has sent an unexpected answer".to_owned(),
                    ranks,
                );
            }
            Some(ToolResult::Stacks { stacks, omitted }) => {
                if omitted > 0 {
                    self.omitted.entry(omitted).or_default().union(ranks);
                }
                self.ranges = self.ranges.saturating_add(ranks.ranges().count());
                for of_threads in stacks {
                    let trees = [&self.program_threads, &self.communication_threads];
                    let nodes = trees.map(StackTree::node_count).iter().sum();
                    let tree = match of_threads.kind {
                        ThreadKind::Program => &mut self.program_threads,
                        ThreadKind::Communication => &mut self.communication_threads,
                    };
                    match Stack::decode(&of_threads.stack) {
                        Ok(stack) if !self.room.take_stack(&stack, self.ranges, nodes) => {
                            self.fail(TOO_MUCH.to_owned(), ranks);
                        }
                        Ok(stack) => {
                            let threads = u64::from(of_threads.threads) * u64::from(ranks.len());
                            tree.insert(&stack, ranks, threads);
                        }
                        Err(error) => self.fail(error.to_string(), ranks),
                    }
                }
            }
        }
    }

    /// Whether this number of bytes of an answer fits. Deducts them.
    fn take_bytes(&mut self, len: usize) -> bool {
        let left = self.room.bytes.checked_sub(len);
        self.room.bytes = left.unwrap_or(0);
        left.is_some()
    }

    fn fail(&mut self, reason: String, ranks: &NodeSet) {
        self.failed.entry(reason).or_default().union(ranks);
    }

    /// The trees as text.
    pub fn text(&self, limits: RenderLimits) -> String {
        let mut text = self.program_lines() + &render::text(&self.program_threads, limits);
        if self.communication_threads.root().threads > 0 {
            text += "communication threads of libpm:\n";
            text += &render::text(&self.communication_threads, limits);
        }
        text
    }

    /// The programs with their ranks, if there are several programs.
    fn program_lines(&self) -> String {
        let (names, nodes) = &self.programs;
        let mut text = String::new();
        if names.len() > 1 {
            for (first, name) in (0u32..).step_by(*nodes as usize).zip(names) {
                let ranks = NodeSet::from(first..first + nodes);
                // Writing to a String cannot fail.
                let _ = writeln!(text, "{name}: ranks {ranks}");
            }
        }
        text
    }

    /// A line for each reason why ranks or threads are not in the trees.
    pub fn problems(&self) -> Vec<String> {
        let failed = self.failed.iter().map(|(reason, ranks)| format!("rank {ranks}: {reason}"));
        let omitted = self.omitted.iter().map(|(count, ranks)| {
            format!("rank {ranks}: {count} threads are not shown: there are too many")
        });
        failed.chain(omitted).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::frame::Frame;
    use score_proto::tool_command::ThreadStacks;

    fn answer(ranks: impl Into<NodeSet>, names: &[&str]) -> ToolAnswer {
        let frame = |name: &&str| Frame::Address { module: (*name).to_owned(), offset: 0 };
        let stack = Stack { frames: names.iter().map(frame).collect() }.encode().unwrap();
        let stacks = vec![ThreadStacks { kind: ThreadKind::Program, stack, threads: 1 }];
        let body = EventBody::Answer(ToolResult::Stacks { stacks, omitted: 0 }.encode());
        ToolAnswer::Event { ranks: ranks.into(), body }
    }

    #[test]
    fn stacks_beyond_the_limits_are_named_and_the_rest_is_shown() {
        let small = |change: fn(&mut CollectBounds)| {
            let mut bounds = CollectBounds::default();
            change(&mut bounds);
            let mut collected = CollectedStacks::bounded(bounds);
            collected.add(answer(0..4, &["a", "b"]));
            collected.add(answer([4, 6].into_iter().collect::<NodeSet>(), &["a", "c"]));
            (collected.program_threads.root().ranks.len(), collected.problems())
        };
        assert_eq!(small(|_| ()), (6, Vec::new()));
        let problems = vec![format!("rank 4, 6: {TOO_MUCH}")];
        assert_eq!(small(|bounds| bounds.bytes = 20), (4, problems.clone()));
        assert_eq!(small(|bounds| bounds.nodes = 3), (4, problems.clone()));
        // The second stack has two ranges, which are merged with the range of the first stack.
        let steps = 2 * (STEPS_OF_FRAME + 1) + 2 * (STEPS_OF_FRAME + 3);
        assert_eq!(steps, 72);
        assert_eq!(small(|bounds| bounds.steps = 71), (4, problems));
        assert_eq!(small(|bounds| bounds.steps = 72), (6, Vec::new()));
    }
}
