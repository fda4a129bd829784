//! The stack of the thread that waits after a fault or in sc_inspectme.

use score_stacks::ProcessStacks;
use score_stacks::frame::Frame;

/// The function in which a thread without a fault signal waits.
const INSPECT_CALL: &str = "sc_inspectme";

/// The frames that are kept of a long stack. The omitted frames are usually those of a recursion.
const OUTER_FRAMES: usize = 12;
const INNER_FRAMES: usize = 20;

fn is_inspect_call(frame: &Frame) -> bool {
    matches!(frame, Frame::Function { name, .. } if name == INSPECT_CALL)
}

/// Selects the thread that waits after a fault, and removes the frames of the handler in which it
/// waits.
pub fn at_fault(mut process: ProcessStacks, thread: Option<i32>) -> ProcessStacks {
    // A process in a PID namespace of its own reports a thread id that is not found here. All
    // threads are then kept.
    if process.threads.iter().any(|one| Some(one.tid) == thread) {
        process.threads.retain(|one| Some(one.tid) == thread);
        process.omitted_threads = 0;
        for one in &mut process.threads {
            let frames = &mut one.stack.frames;
            let signal = frames.iter().rposition(|frame| *frame == Frame::Signal);
            let call = frames.iter().position(is_inspect_call).map(|index| index + 1);
            frames.truncate(signal.or(call).unwrap_or(frames.len()));
            if frames.first() == Some(&Frame::Truncated) {
                // The copied part of a truncated stack varies at random between ranks.
                frames.drain(1..frames.len().saturating_sub(OUTER_FRAMES + INNER_FRAMES).max(1));
            } else if let Some(omitted) = frames.len().checked_sub(OUTER_FRAMES + INNER_FRAMES + 1)
                && omitted > 0
            {
                let middle = OUTER_FRAMES..OUTER_FRAMES + omitted + 1;
                frames.splice(middle, [Frame::Omitted(omitted as u64 + 1)]);
            }
        }
    }
    process
}
