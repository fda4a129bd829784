//! The answers of a job's ranks to a request for their stacks, merged into prefix trees.

use std::collections::BTreeMap;
use std::fmt::Write;

use score_proto::nodeset::NodeSet;
use score_proto::server_message::ToolAnswer;
use score_proto::tool_command::{EventBody, NOT_ANSWERED, OTHER_RELEASE, ThreadKind, ToolResult};

use crate::frame::Stack;
use crate::render::{self, RenderLimits};
use crate::tree::StackTree;

/// See the [module](self).
#[derive(Debug, Default)]
pub struct CollectedStacks {
    /// The name of each program of the stage, and its nodes.
    pub programs: (Vec<String>, u32),
    /// Threads of the program.
    pub program_threads: StackTree,
    /// Communication threads of libpm.
    pub communication_threads: StackTree,
    /// Threads of each rank that were not shown.
    omitted: BTreeMap<u32, NodeSet>,
    /// Ranks that could not be looked at, by reason.
    pub failed: BTreeMap<String, NodeSet>,
}

impl CollectedStacks {
    /// An answer has come.
    pub fn add(&mut self, answer: ToolAnswer) {
        match answer {
            ToolAnswer::Programs { names, nodes } => self.programs = (names, nodes),
            ToolAnswer::Missing(ranks) => self.fail(NOT_ANSWERED.to_owned(), &ranks),
            ToolAnswer::Event { ranks, body } => match (body.failure(), body) {
                (Some(reason), _) => self.fail(reason.to_owned(), &ranks),
                (None, EventBody::Answer(bytes)) => {
                    self.add_result(&ranks, ToolResult::decode(&bytes));
                }
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
                self.fail("it has answered another question".to_owned(), ranks);
            }
            Some(ToolResult::Stacks { stacks, omitted }) => {
                if omitted > 0 {
                    self.omitted.entry(omitted).or_default().union(ranks);
                }
                for of_threads in stacks {
                    let tree = match of_threads.kind {
                        ThreadKind::Program => &mut self.program_threads,
                        ThreadKind::Communication => &mut self.communication_threads,
                    };
                    match Stack::decode(&of_threads.stack) {
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

    fn fail(&mut self, reason: String, ranks: &NodeSet) {
        self.failed.entry(reason).or_default().union(ranks);
    }

    /// The trees as lines.
    pub fn text(&self, limits: RenderLimits) -> String {
        let mut text = self.program_lines() + &render::text(&self.program_threads, limits);
        if self.communication_threads.root().threads > 0 {
            text += "communication threads of libpm:\n";
            text += &render::text(&self.communication_threads, limits);
        }
        text
    }

    /// The programs with their ranks, if there are several.
    fn program_lines(&self) -> String {
        let (names, nodes) = &self.programs;
        let mut text = String::new();
        if names.len() > 1 {
            for (first, name) in (0u32..).step_by(*nodes as usize).zip(names) {
                let ranks = NodeSet::from(first..first + nodes);
                // Writing into memory does not fail.
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
