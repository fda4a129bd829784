//! `scdb JOB stacks`: the stacks of all threads as one tree.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::time::{Duration, Instant};

use score_proto::message::{ConsoleRequest, ToolCall};
use score_proto::nodeset::NodeSet;
use score_proto::server_message::ToolAnswer;
use score_proto::tool_command::{EventBody, ThreadKind, ToolRequest, ToolResult};
use score_stacks::frame::Stack;
use score_stacks::render::{self, RenderLimits};
use score_stacks::tree::StackTree;
use serde_json::json;

use super::{Outcome, StacksOptions};
use crate::scored_client::{QueryStream, Reply};

/// How the tree is printed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Form {
    /// Lines.
    Text,
    /// For Graphviz.
    Dot,
    /// JSON.
    Json,
}

/// The last answer comes this long after the time that was asked for, at most.
const ANSWER_GRACE: Duration = Duration::from_secs(15);
/// How long to wait for a message before the time is looked at.
const POLL_INTERVAL: Duration = Duration::from_secs(1);

/// Why there is no answer of some ranks.
const NOT_ANSWERED: &str = "no answer in time";

/// What has come in.
#[derive(Debug, Default)]
struct Collected {
    /// The name of each program of the stage, and its nodes.
    programs: (Vec<String>, u32),
    program_threads: StackTree,
    communication_threads: StackTree,
    /// Threads of each rank that were not shown.
    omitted: BTreeMap<u32, NodeSet>,
    /// Ranks that could not be looked at, by reason.
    failed: BTreeMap<String, NodeSet>,
}

impl Collected {
    fn add(&mut self, answer: ToolAnswer) {
        match answer {
            ToolAnswer::Programs { names, nodes } => self.programs = (names, nodes),
            ToolAnswer::Missing(ranks) => self.fail(NOT_ANSWERED.to_owned(), &ranks),
            ToolAnswer::Event { ranks, body } => match body {
                EventBody::Answer(bytes) => self.add_result(&ranks, ToolResult::decode(&bytes)),
                EventBody::Lost => self.fail("its host is lost".to_owned(), &ranks),
                EventBody::Abandoned => self.fail(NOT_ANSWERED.to_owned(), &ranks),
                EventBody::Dropped { .. } => {
                    let reason = "too many different stacks; ask for fewer ranks (-ranks)";
                    self.fail(reason.to_owned(), &ranks);
                }
            },
        }
    }

    fn add_result(&mut self, ranks: &NodeSet, result: Option<ToolResult>) {
        match result {
            None => self.fail("its scored-toolctl is of another release".to_owned(), ranks),
            Some(ToolResult::Failed(reason)) => self.fail(reason, ranks),
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

    fn problems(&self) -> Vec<String> {
        let failed = self.failed.iter().map(|(reason, ranks)| format!("rank {ranks}: {reason}"));
        let omitted = self.omitted.iter().map(|(count, ranks)| {
            format!("rank {ranks}: {count} threads are not shown: there are too many")
        });
        failed.chain(omitted).collect()
    }

    fn into_outcome(self, form: Form) -> Outcome {
        let limits = RenderLimits::default();
        let problems = self.problems();
        let has_communication = self.communication_threads.root().threads > 0;
        let text = match form {
            Form::Text => {
                let mut text = self.program_lines() + &render::text(&self.program_threads, limits);
                if has_communication {
                    text += "communication threads of libpm:\n";
                    text += &render::text(&self.communication_threads, limits);
                }
                text
            }
            Form::Dot => render::dot(&self.program_threads, limits),
            Form::Json => {
                let to_json = |(reason, ranks): (&String, &NodeSet)| json!({ "ranks": ranks.to_string(), "reason": reason });
                let failed: Vec<_> = self.failed.iter().map(to_json).collect();
                let value = json!({
                    "programs": self.programs.0,
                    "nodes": self.programs.1,
                    "stacks": render::json(&self.program_threads, limits),
                    "communication_threads": render::json(&self.communication_threads, limits),
                    "failed": failed,
                });
                format!("{value:#}\n")
            }
        };
        Outcome { text, problems }
    }
}

/// Asks for the stacks, and prints them in the form that was asked for.
pub fn run(options: StacksOptions) -> Result<Outcome, String> {
    let StacksOptions { address, ranks, lines, form, timeout, socket } = options;
    let body = ToolRequest::Stacks { lines }.encode();
    let wait_ms = u32::try_from(timeout.as_millis()).unwrap_or(u32::MAX);
    let target = address.find()?;
    let call = ToolCall { job: target.job, ranks, wait_ms, body };
    let mut query = QueryStream::open_at(target, ConsoleRequest::Tool(call), socket)?;
    let deadline = Instant::now() + timeout + ANSWER_GRACE;
    let mut collected = Collected::default();
    loop {
        match query.next_reply_within::<ToolAnswer>(POLL_INTERVAL)? {
            Reply::Answer(answer) => collected.add(answer),
            Reply::End => return Ok(collected.into_outcome(form)),
            Reply::Notice(_) | Reply::Pending if Instant::now() < deadline => {}
            Reply::Notice(_) | Reply::Pending => {
                return Err("scored has not answered in time; give it more (-wait)".to_owned());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use score_proto::tool_command::ThreadStacks;
    use score_stacks::frame::Frame;

    fn stack(names: &[&str]) -> Vec<u8> {
        let frame = |name: &&str| Frame::Function {
            name: (*name).to_owned(),
            module: "a.out".to_owned(),
            source: None,
            is_inlined: false,
        };
        Stack { frames: names.iter().map(frame).collect() }.encode().unwrap()
    }

    fn event(ranks: impl Into<NodeSet>, result: &ToolResult) -> ToolAnswer {
        ToolAnswer::Event { ranks: ranks.into(), body: EventBody::Answer(result.encode()) }
    }

    fn collected() -> Collected {
        let threads = |kind, names: &[&str]| ThreadStacks { kind, stack: stack(names), threads: 1 };
        let program = |names: &[&str]| threads(ThreadKind::Program, names);
        let mut collected = Collected::default();
        for answer in [
            ToolAnswer::Programs { names: vec!["scatter".into(), "a.out".into()], nodes: 4 },
            event(
                0..4,
                &ToolResult::Stacks { stacks: vec![program(&["main", "read"])], omitted: 0 },
            ),
            event(
                4..6,
                &ToolResult::Stacks {
                    stacks: vec![
                        program(&["main", "solve"]),
                        threads(ThreadKind::Communication, &["clone", "progress"]),
                    ],
                    omitted: 3,
                },
            ),
            event(6..7, &ToolResult::Failed("process 9 has exited".to_owned())),
            ToolAnswer::Missing(NodeSet::one(7)),
        ] {
            collected.add(answer);
        }
        collected
    }

    #[test]
    fn all_that_has_come_is_shown_and_what_has_not_come_is_named() {
        let outcome = collected().into_outcome(Form::Text);
        for part in ["scatter: ranks 0-3\na.out: ranks 4-7\n", "main", "read", "solve", "progress"]
        {
            assert!(outcome.text.contains(part), "{}", outcome.text);
        }
        assert_eq!(
            outcome.problems,
            [
                "rank 7: no answer in time",
                "rank 6: process 9 has exited",
                "rank 4-5: 3 threads are not shown: there are too many",
            ]
        );
    }

    #[test]
    fn json_has_the_tree_and_the_failures() {
        let outcome = collected().into_outcome(Form::Json);
        let value: serde_json::Value = serde_json::from_str(&outcome.text).unwrap();
        assert_eq!(value["programs"], json!(["scatter", "a.out"]));
        assert_eq!(value["failed"][1], json!({ "ranks": "6", "reason": "process 9 has exited" }));
        assert!(value["stacks"].to_string().contains("solve"), "{value}");
        assert!(!value["stacks"].to_string().contains("progress"), "{value}");
    }
}
