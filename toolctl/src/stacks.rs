//! The command that reads the stacks of all threads.

use std::collections::BTreeMap;

use score_proto::tool_command::{MAX_TOOL_BODY, ThreadKind, ThreadStacks, ToolResult};
use score_proto::toolctl::ToolProcess;
use score_stacks::capture::CaptureError;
use score_stacks::frame::{Detail, Frame, Stack};
use score_stacks::{ProcessStacks, StackReader, ThreadStack};

/// The communication threads of libpm have this name.
const COMMUNICATION_THREAD: &str = "score-pm";

/// The call in which a thread waits that has not got a signal.
const INSPECT_CALL: &str = "sc_inspectme";

/// Frames that are kept of a long stack after a fault: those of a recursion are alike.
const OUTER_FRAMES: usize = 12;
const INNER_FRAMES: usize = 20;

/// Bytes of an answer that are not those of its stacks.
const ANSWER_OVERHEAD: usize = 64;
/// Bytes of a stack in an answer in addition to its own.
const STACK_OVERHEAD: usize = 16;

/// See the [module](self). What it has read of programs is kept for the next command.
#[derive(Debug, Default)]
pub struct StackCommand(StackReader);

impl StackCommand {
    /// The result of each process. With `lines`, frames have source lines.
    pub fn run(&mut self, processes: &[ToolProcess], lines: bool) -> Vec<ToolResult> {
        let detail = if lines { Detail::Lines } else { Detail::Functions };
        self.read(processes, detail).into_iter().map(to_result).collect()
    }

    /// The result of each process: the stack of the thread that waits after a fault.
    pub fn run_after_fault(&mut self, processes: &[ToolProcess]) -> Vec<ToolResult> {
        let stacks = self.read(processes, Detail::Lines).into_iter();
        let to_result = |(stacks, process): (Result<_, _>, &ToolProcess)| {
            to_result(stacks.map(|stacks| at_fault(stacks, process.faulting_thread)))
        };
        stacks.zip(processes).map(to_result).collect()
    }

    fn read(
        &mut self,
        processes: &[ToolProcess],
        detail: Detail,
    ) -> Vec<Result<ProcessStacks, CaptureError>> {
        let pids: Vec<i32> = processes.iter().map(|process| process.pid).collect();
        self.0.stacks_of(&pids, detail)
    }
}

fn is_inspect_call(frame: &Frame) -> bool {
    matches!(frame, Frame::Function { name, .. } if name == INSPECT_CALL)
}

/// The thread that waits after a fault, without the frames of the handler in which it waits.
fn at_fault(mut process: ProcessStacks, thread: Option<i32>) -> ProcessStacks {
    // A process in a PID namespace of its own gives numbers that are not ours.
    if process.threads.iter().any(|one| Some(one.tid) == thread) {
        process.threads.retain(|one| Some(one.tid) == thread);
        process.omitted_threads = 0;
        for one in &mut process.threads {
            let frames = &mut one.stack.frames;
            let signal = frames.iter().rposition(|frame| *frame == Frame::Signal);
            let call = frames.iter().position(is_inspect_call).map(|index| index + 1);
            frames.truncate(signal.or(call).unwrap_or(frames.len()));
            if let Some(omitted) = frames.len().checked_sub(OUTER_FRAMES + INNER_FRAMES + 1)
                && omitted > 0
            {
                let middle = OUTER_FRAMES..OUTER_FRAMES + omitted + 1;
                frames.splice(middle, [Frame::Omitted(omitted as u64 + 1)]);
            }
        }
    }
    process
}

fn to_result(stacks: Result<ProcessStacks, CaptureError>) -> ToolResult {
    match stacks {
        Ok(process) => result_of(&process),
        // It was there when the shepherd passed the command on.
        Err(CaptureError::NoSuchProcess { .. } | CaptureError::Exited { .. }) => {
            ToolResult::Failed("it has ended".to_owned())
        }
        Err(error) => ToolResult::Failed(error.to_string()),
    }
}

/// Equal stacks once; as many as fit into an answer.
fn result_of(process: &ProcessStacks) -> ToolResult {
    let mut counts: BTreeMap<(ThreadKind, Vec<u8>), u32> = BTreeMap::new();
    for thread in &process.threads {
        let kind = match thread.name.as_str() {
            COMMUNICATION_THREAD => ThreadKind::Communication,
            _ => ThreadKind::Program,
        };
        *counts.entry((kind, encoded(thread))).or_default() += 1;
    }
    let mut omitted = u32::try_from(process.omitted_threads).unwrap_or(u32::MAX);
    let (mut stacks, mut len) = (Vec::new(), ANSWER_OVERHEAD);
    for ((kind, stack), threads) in counts {
        len += stack.len() + STACK_OVERHEAD;
        if len <= MAX_TOOL_BODY {
            stacks.push(ThreadStacks { kind, stack, threads });
        } else {
            omitted = omitted.saturating_add(threads);
        }
    }
    ToolResult::Stacks { stacks, omitted }
}

/// A stack that is too long is sent without its frames.
fn encoded(thread: &ThreadStack) -> Vec<u8> {
    thread.stack.encode().unwrap_or_else(|_| {
        let left_out = thread.stack.frames.len() as u64;
        Stack { frames: vec![Frame::Omitted(left_out)] }.encode().unwrap_or_default()
    })
}
