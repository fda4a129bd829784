//! `start_tool`: starts a tool next to a running job.
#![forbid(unsafe_code)]

use std::ffi::OsString;
use std::process::ExitCode;

use score_commands::start_tool::StartTool;
use score_commands::tool_client;

fn main() -> ExitCode {
    let args: Vec<OsString> = std::env::args_os().skip(1).collect();
    tool_client::finish("start_tool", StartTool::parse(&args), StartTool::execute)
}
