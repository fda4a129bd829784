//! The common parts of start_tool and end_tool: parsing the address of a job, and sending a request
//! to it.

use std::ffi::OsString;
use std::io::{self, Write};
use std::path::Path;
use std::process::ExitCode;

use score_proto::exit_code::{EXIT_IO_ERROR, EXIT_USAGE};
use score_proto::message::ConsoleRequest;
use score_proto::tool_start::{ScrunJob, ToolAction, ToolActionAnswer};

use crate::job_address::JobAddress;
use crate::scored_client::QueryStream;

/// The reason why a request failed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ToolError {
    /// The exit code of the command.
    pub code: u8,
    /// One line for the user.
    pub reason: String,
}

impl From<&str> for ToolError {
    fn from(reason: &str) -> Self {
        reason.to_owned().into()
    }
}

impl From<String> for ToolError {
    fn from(reason: String) -> Self {
        Self { code: 1, reason }
    }
}

/// Parses the value of `--id`: the number of a job, or `PID@HOST` of a scrun on this host.
///
/// # Errors
/// One line with the reason.
pub fn parse_id(value: &OsString) -> Result<JobAddress, String> {
    JobAddress::parse(&value.to_string_lossy()).map_err(|line| format!("--id {line}"))
}

/// Parses the value of `--pid`.
///
/// # Errors
/// One line with the reason.
pub fn parse_pid(value: &OsString) -> Result<JobAddress, String> {
    JobAddress::of_pid(&value.to_string_lossy()).map_err(|line| format!("--pid {line}"))
}

/// Sends a request to the job. Returns the answer. A refusal is an error.
///
/// # Errors
/// The reason why the request failed.
pub fn request(
    target: ScrunJob,
    action: ToolAction,
    socket: Option<&Path>,
) -> Result<ToolActionAnswer, ToolError> {
    let request = ConsoleRequest::ToolAction { job: target.job, action };
    let mut query = QueryStream::open_at(target, request, socket.map(Path::to_owned))?;
    let mut answer = None;
    while let Some(given) = query.next_reply()? {
        answer = Some(given);
    }
    accepted(answer.ok_or("scored has given no answer")?)
}

/// Converts a refusal to an error.
///
/// # Errors
/// The reason of the refusal.
pub fn accepted(answer: ToolActionAnswer) -> Result<ToolActionAnswer, ToolError> {
    match answer {
        ToolActionAnswer::Refused { code, reason } => Err(ToolError { code, reason }),
        answer => Ok(answer),
    }
}

/// Executes a command, and prints its text or its error. Returns its exit code.
pub fn finish<C>(
    name: &str,
    parsed: Result<C, String>,
    execute: impl FnOnce(C) -> Result<String, ToolError>,
) -> ExitCode {
    let command = match parsed {
        Ok(command) => command,
        Err(line) => {
            eprintln!("{name}: {line} ({name} -help)");
            return ExitCode::from(EXIT_USAGE);
        }
    };
    let text = match execute(command) {
        Ok(text) => text,
        Err(ToolError { code, reason }) => {
            eprintln!("{name}: {reason}");
            return ExitCode::from(code);
        }
    };
    let mut out = io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
            eprintln!("{name}: standard output: {error}");
            ExitCode::from(EXIT_IO_ERROR)
        }
        _ => ExitCode::SUCCESS,
    }
}
