//! The text about a tool that is refused control of a process.

use super::FIRST_OWN_TOOL;
use crate::wire::{ControlAck, ToolTag};

/// The tag of the consoles of scdb.
pub const CONSOLE_TAG: ToolTag = *b"scdb\0\0\0\0";
/// The tag of `scdb JOB gdb`.
pub const GDB_TAG: ToolTag = *b"scdb gdb";

/// Names the tool that has control of a process, and how to end its control. `ack` is the answer to
/// the tool that was refused. The text is for the user, without the name of the process.
pub fn describe_control_conflict(ack: &ControlAck) -> String {
    let tag: String =
        ack.tag.iter().take_while(|byte| **byte != 0).map(|byte| *byte as char).collect();
    let tag = tag.trim_end().escape_default();
    let tool = ack.controller;
    match ack.tag {
        CONSOLE_TAG => {
            "another scdb has control of it; enter release or quit in that scdb".to_owned()
        }
        GDB_TAG => "a gdb of scdb JOB gdb has control of it; detach that gdb, or end it".to_owned(),
        _ if tool < FIRST_OWN_TOOL => format!(
            "tool {tool} ('{tag}') has control of it; end it with end_tool --id JOB --tool {tool}"
        ),
        _ => format!(
            "a tool with the tag '{tag}', which was not started by start_tool, has control of it; \
             end that tool, or let it give control up"
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_names_the_tool_in_control_and_the_command_that_ends_the_control() {
        for (tool, tag, expected) in [
            (FIRST_OWN_TOOL + 4, CONSOLE_TAG, "another scdb has control of it; enter release or"),
            (FIRST_OWN_TOOL + 4, GDB_TAG, "a gdb of scdb JOB gdb has control of it; detach"),
            (
                3,
                *b"snap\0\0\0\0",
                "tool 3 ('snap') has control of it; end it with end_tool --id JOB --tool 3",
            ),
            (
                FIRST_OWN_TOOL,
                *b"a\nb     ",
                "a tool with the tag 'a\\nb', which was not started by",
            ),
        ] {
            let text = describe_control_conflict(&ControlAck::new(tool, tag, 10));
            assert!(text.starts_with(expected), "{text}");
        }
    }
}
