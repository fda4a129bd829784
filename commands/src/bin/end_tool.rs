//! `end_tool`: sends a signal to a tool that runs next to a job.
#![forbid(unsafe_code)]

use std::ffi::OsString;
use std::process::ExitCode;

use score_commands::end_tool::EndTool;
use score_commands::tool_client;

fn main() -> ExitCode {
    let args: Vec<OsString> = std::env::args_os().skip(1).collect();
    tool_client::finish("end_tool", EndTool::parse(&args), EndTool::execute)
}
