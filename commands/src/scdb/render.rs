//! Formats the answers of ranks as text and as JSON.

use std::collections::BTreeMap;
use std::fmt::Write;

use score_proto::nodeset::NodeSet;
use score_proto::tool_command::{
    ProcessState, StopReason, ThreadDetail, ThreadInfo, ThreadState, ToolResult,
};
use score_stacks::frame::{Frame, SourceLine, Stack};
use serde_json::{Value, json};

use super::command::ranks_text;
use super::session::Answers;

/// Formats ranks, as in `rank 3` or `ranks 0-2,7`.
pub fn ranks_label(ranks: &NodeSet) -> String {
    match ranks.len() {
        1 => format!("rank {}", ranks_text(ranks)),
        _ => format!("ranks {}", ranks_text(ranks)),
    }
}

/// A line for each reason why ranks have no answer.
pub fn failures(answers: &Answers) -> Vec<String> {
    let line = |(reason, ranks): (&String, &NodeSet)| format!("{}: {reason}", ranks_label(ranks));
    answers.failed.iter().map(line).collect()
}

/// The stacks of threads. Each stack is stored once, with all ranks that have it.
type Stacks = BTreeMap<(u32, String, Vec<u8>), NodeSet>;

fn merged_stacks(answers: &Answers) -> Vec<(ThreadInfo, NodeSet)> {
    let mut merged = Stacks::new();
    for (result, ranks) in &answers.results {
        let ToolResult::Threads { threads, .. } = result else { continue };
        for thread in threads.iter().cloned() {
            let key = (thread.number, thread.name, thread.stack);
            merged.entry(key).or_default().union(ranks);
        }
    }
    let to_thread =
        |((number, name, stack), ranks)| (ThreadInfo { number, name, state: None, stack }, ranks);
    let mut stacks: Vec<_> = merged.into_iter().map(to_thread).collect();
    stacks.sort_by_key(|(thread, ranks): &(ThreadInfo, NodeSet)| (ranks.first(), thread.number));
    stacks
}

/// The frames of a stack, the innermost first.
fn frames(stack: &[u8]) -> Vec<Frame> {
    let mut frames = Stack::decode(stack).map(|stack| stack.frames).unwrap_or_default();
    frames.reverse();
    frames
}

fn state_name(state: ThreadState) -> &'static str {
    match state {
        ThreadState::Running => "running",
        ThreadState::Sleeping => "sleeping",
        ThreadState::Uninterruptible => "waiting",
        ThreadState::Stopped => "stopped",
        ThreadState::Held => "held",
    }
}

/// Formats the answers to `where` and `threads`.
pub fn threads_text(answers: &Answers, detail: ThreadDetail) -> String {
    let mut text = String::new();
    // Writing to a String cannot fail.
    if detail == ThreadDetail::TopFrames {
        for (result, ranks) in &answers.results {
            let ToolResult::Threads { threads, omitted } = result else { continue };
            _ = writeln!(text, "{}:", ranks_label(ranks));
            for thread in threads {
                let frame = frames(&thread.stack).first().map(Frame::to_string);
                _ = writeln!(
                    text,
                    "  {:<4} {:<9} {:<15} {}",
                    thread.number,
                    thread.state.map_or("", state_name),
                    thread.name,
                    frame.unwrap_or_default()
                );
            }
            if *omitted > 0 {
                _ = writeln!(text, "  ... {omitted} threads are left out");
            }
        }
        return text;
    }
    for (thread, ranks) in merged_stacks(answers) {
        let label = ranks_label(&ranks);
        _ = match (detail, thread.number) {
            (ThreadDetail::FirstStack, 1) => writeln!(text, "{label}:"),
            (_, number) => writeln!(text, "{label}: thread {number} ({}):", thread.name),
        };
        for (number, frame) in frames(&thread.stack).iter().enumerate() {
            _ = writeln!(text, "  #{number:<3} {frame}");
        }
    }
    text
}

fn frame_json(frame: &Frame) -> Value {
    match frame {
        Frame::Function { name, module, source, is_inlined } => {
            let mut value = json!({ "function": name, "module": module });
            if let Some(SourceLine { file, line }) = source {
                value["file"] = json!(file);
                value["line"] = json!(line);
            }
            if *is_inlined {
                value["inlined"] = json!(true);
            }
            value
        }
        other => json!({ "text": other.to_string() }),
    }
}

fn thread_json(thread: &ThreadInfo) -> Value {
    let frames: Vec<Value> = frames(&thread.stack).iter().map(frame_json).collect();
    let mut value = json!({ "number": thread.number, "name": thread.name, "frames": frames });
    if let Some(state) = thread.state {
        value["state"] = json!(state_name(state));
    }
    value
}

/// The location where a thread has stopped, as in `main.c:12 in solve`.
fn place(stack: &[u8]) -> String {
    match frames(stack).first() {
        Some(Frame::Function { name, source: Some(SourceLine { file, line }), .. }) => {
            let file = file.rsplit('/').next().unwrap_or(file);
            format!("{file}:{line} in {name}")
        }
        Some(Frame::Function { name, module, .. }) => format!("{name} in {module}"),
        Some(frame) => frame.to_string(),
        None => "an unknown place".to_owned(),
    }
}

/// The state of a process, as text.
pub fn state_text(state: &ProcessState) -> String {
    match state {
        ProcessState::Running => "running".to_owned(),
        ProcessState::Held => "held".to_owned(),
        ProcessState::Stopped { reason, thread, stack } => {
            let place = place(stack);
            let event = match reason {
                StopReason::Breakpoint => format!("stopped at {place}"),
                StopReason::Watchpoint => format!("stopped after a write, at {place}"),
                StopReason::Step => format!("stepped to {place}"),
                StopReason::Trap => format!("stopped by its own SIGTRAP at {place}"),
            };
            match thread {
                1 => event,
                other => format!("{event} (thread {other})"),
            }
        }
    }
}

/// A line for each state, with its ranks.
pub fn states_text(answers: &Answers) -> String {
    let states = answers.results.iter().filter_map(|(result, ranks)| match result {
        ToolResult::Console(state) => Some((state, ranks)),
        _ => None,
    });
    let line = |(state, ranks)| format!("{}: {}\n", ranks_label(ranks), state_text(state));
    states.map(line).collect()
}

fn state_json(state: &ProcessState) -> Value {
    match state {
        ProcessState::Running => json!({ "state": "running" }),
        ProcessState::Held => json!({ "state": "held" }),
        ProcessState::Stopped { reason, thread, stack } => {
            let reason = match reason {
                StopReason::Breakpoint => "breakpoint",
                StopReason::Watchpoint => "watchpoint",
                StopReason::Step => "step",
                StopReason::Trap => "trap",
            };
            let frame = frames(stack).first().map(frame_json);
            json!({ "state": "stopped", "reason": reason, "thread": thread, "frame": frame })
        }
    }
}

/// Formats all answers as JSON.
pub fn answers_json(command: &str, answers: &Answers) -> Value {
    let to_answer = |(result, ranks): &(ToolResult, NodeSet)| {
        let mut value = match result {
            ToolResult::Threads { threads, omitted } => {
                let threads: Vec<Value> = threads.iter().map(thread_json).collect();
                json!({ "threads": threads, "omitted": omitted })
            }
            ToolResult::Console(state) => state_json(state),
            ToolResult::Stacks { .. }
            | ToolResult::Records { .. }
            | ToolResult::File(_)
            | ToolResult::Failed(_) => json!({}),
        };
        value["ranks"] = json!(ranks_text(ranks));
        value
    };
    let to_failure = |(reason, ranks): (&String, &NodeSet)| json!({ "ranks": ranks_text(ranks), "reason": reason });
    json!({
        "command": command,
        "answers": answers.results.iter().map(to_answer).collect::<Vec<_>>(),
        "failed": answers.failed.iter().map(to_failure).collect::<Vec<_>>(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stack(names: &[&str]) -> Vec<u8> {
        let frame = |(line, name): (u32, &&str)| Frame::Function {
            name: (*name).to_owned(),
            module: "a.out".to_owned(),
            source: Some(SourceLine { file: "/src/main.c".to_owned(), line }),
            is_inlined: false,
        };
        Stack { frames: (12..).zip(names).map(frame).collect() }.encode().unwrap()
    }

    fn thread(number: u32, state: Option<ThreadState>, names: &[&str]) -> ThreadInfo {
        ThreadInfo { number, name: "a.out".to_owned(), state, stack: stack(names) }
    }

    fn answers(results: Vec<(ToolResult, NodeSet)>) -> Answers {
        let mut answers = Answers { results, ..Answers::default() };
        answers.fail("it has ended".to_owned(), &NodeSet::one(9));
        answers
    }

    #[test]
    fn equal_stacks_of_different_processes_are_shown_once() {
        let first = thread(1, None, &["main", "solve"]);
        let of = |threads| ToolResult::Threads { threads, omitted: 0 };
        let others = [3, 5].into_iter().collect();
        let answers = answers(vec![
            (of(vec![first.clone(), thread(2, None, &["progress"])]), (0..3).into()),
            (of(vec![first]), others),
        ]);
        assert_eq!(
            threads_text(&answers, ThreadDetail::AllStacks),
            "ranks 0-3,5: thread 1 (a.out):\n  #0   solve at main.c:13\n  #1   main at main.c:12\n\
             ranks 0-2: thread 2 (a.out):\n  #0   progress at main.c:12\n"
        );
        assert_eq!(failures(&answers), ["rank 9: it has ended"]);
    }

    #[test]
    fn threads_are_listed_with_state_and_innermost_function() {
        let threads = vec![
            thread(1, Some(ThreadState::Running), &["solve"]),
            thread(2, Some(ThreadState::Sleeping), &["nanosleep"]),
        ];
        let answers = answers(vec![(ToolResult::Threads { threads, omitted: 4 }, (0..2).into())]);
        let text = threads_text(&answers, ThreadDetail::TopFrames);
        assert_eq!(
            text,
            "ranks 0-1:\n  1    running   a.out           solve at main.c:12\n  \
             2    sleeping  a.out           nanosleep at main.c:12\n  ... 4 threads are left out\n"
        );
        let json = answers_json("threads", &answers);
        assert_eq!(json["answers"][0]["ranks"], "0-1");
        assert_eq!(json["answers"][0]["threads"][1]["state"], "sleeping");
        assert_eq!(json["answers"][0]["threads"][0]["frames"][0]["line"], 12);
        assert_eq!(json["failed"], json!([{ "ranks": "9", "reason": "it has ended" }]));
    }

    #[test]
    fn a_stop_is_shown_with_its_location_and_its_reason() {
        let stop =
            |reason, thread| ProcessState::Stopped { reason, thread, stack: stack(&["solve"]) };
        let ranks = [0, 1, 2, 3, 7].into_iter().collect();
        let stopped = ToolResult::Console(stop(StopReason::Breakpoint, 1));
        let held = ToolResult::Console(ProcessState::Held);
        let answers = answers(vec![(stopped, ranks), (held, NodeSet::one(4))]);
        let text = "ranks 0-3,7: stopped at main.c:12 in solve\nrank 4: held\n";
        assert_eq!(states_text(&answers), text);
        let watched = stop(StopReason::Watchpoint, 2);
        assert_eq!(state_text(&watched), "stopped after a write, at main.c:12 in solve (thread 2)");
        let json = answers_json("continue", &answers);
        assert_eq!(json["answers"][0]["reason"], "breakpoint");
        assert_eq!(json["answers"][0]["frame"]["function"], "solve");
    }
}
