//! `stacks`: the stacks of all threads as one tree.

use score_proto::nodeset::NodeSet;
use score_proto::tool_command::ToolRequest;
use score_stacks::collected::CollectedStacks;
use score_stacks::render::{self, RenderLimits};
use serde_json::json;

use super::command::Ranks;
use super::outcome::Outcome;
use super::session::{Interrupted, Session};

/// The output format of the tree.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Form {
    /// Text.
    Text,
    /// The language of Graphviz.
    Dot,
    /// JSON.
    Json,
}

/// Formats the trees.
fn outcome(line: &str, collected: &CollectedStacks, form: Form) -> Outcome {
    let limits = RenderLimits::default();
    let text = match form {
        Form::Text => collected.text(limits),
        Form::Dot => render::dot(&collected.program_threads, limits),
        Form::Json => {
            let to_json = |(reason, ranks): (&String, &NodeSet)| json!({ "ranks": ranks.to_string(), "reason": reason });
            let failed: Vec<_> = collected.failed.iter().map(to_json).collect();
            let value = json!({
                "command": line,
                "programs": collected.programs.0,
                "nodes": collected.programs.1,
                "stacks": render::json(&collected.program_threads, limits),
                "communication_threads": render::json(&collected.communication_threads, limits),
                "failed": failed,
            });
            format!("{value}\n")
        }
    };
    Outcome { text, problems: collected.problems() }
}

/// Requests the stacks. `line` is the command as the user typed it.
///
/// # Errors
/// The errors of [`Session::stream`].
pub fn run(
    session: &Session,
    line: &str,
    (ranks, lines): (Ranks, bool),
    form: Form,
    interrupted: Interrupted<'_>,
) -> Result<Outcome, String> {
    let mut collected = CollectedStacks::default();
    let request = ToolRequest::Stacks { lines };
    session.stream(ranks, &request, interrupted, &mut |answer| collected.add(answer))?;
    Ok(outcome(line, &collected, form))
}

#[cfg(test)]
mod tests {
    use super::*;
    use score_proto::server_message::ToolAnswer;
    use score_proto::tool_command::{EventBody, ThreadKind, ThreadStacks, ToolResult};
    use score_stacks::frame::{Frame, Stack};

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

    fn collected() -> CollectedStacks {
        let threads = |kind, names: &[&str]| ThreadStacks { kind, stack: stack(names), threads: 1 };
        let program = |names: &[&str]| threads(ThreadKind::Program, names);
        let mut collected = CollectedStacks::default();
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
    fn received_stacks_are_shown_and_missing_ranks_are_named() {
        let outcome = outcome("stacks", &collected(), Form::Text);
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
        let outcome = outcome("stacks", &collected(), Form::Json);
        let value: serde_json::Value = serde_json::from_str(&outcome.text).unwrap();
        assert_eq!(value["programs"], json!(["scatter", "a.out"]));
        assert_eq!(value["failed"][1], json!({ "ranks": "6", "reason": "process 9 has exited" }));
        assert!(value["stacks"].to_string().contains("solve"), "{value}");
        assert!(!value["stacks"].to_string().contains("progress"), "{value}");
    }
}
