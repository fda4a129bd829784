//! What start_tool and end_tool have in common: which job they mean, and how their request gets
//! there. A job of the cluster is reached by the scored of this host, and every job of this host by
//! its scrun.

use std::ffi::OsString;
use std::io::{self, Write};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixStream};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use nix::sys::socket::{getsockopt, sockopt::PeerCredentials};
use nix::unistd::geteuid;
use score_proto::exit_code::{EXIT_IO_ERROR, EXIT_USAGE};
use score_proto::frame::{self, Decoder};
use score_proto::message::ConsoleRequest;
use score_proto::tool_start::{
    ScrunToolRequest, ToolAction, ToolActionAnswer, ToolId, scrun_tool_socket,
};

use crate::job_address::JobAddress;
use crate::scored_client::QueryStream;

/// The hosts answer within a shorter time, or are given up.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(60);

/// Why nothing was done.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ToolError {
    /// The exit code of the command.
    pub code: u8,
    /// One line.
    pub reason: String,
}

impl From<String> for ToolError {
    fn from(reason: String) -> Self {
        Self { code: 1, reason }
    }
}

/// Reads the value of `--id`: the number of a job, or `PID@HOST` of a scrun on this host.
///
/// # Errors
/// One line.
pub fn parse_id(value: &OsString) -> Result<JobAddress, String> {
    JobAddress::parse(&value.to_string_lossy()).map_err(|line| format!("--id {line}"))
}

/// Reads the value of `--pid`.
///
/// # Errors
/// One line.
pub fn parse_pid(value: &OsString) -> Result<JobAddress, String> {
    JobAddress::of_pid(&value.to_string_lossy()).map_err(|line| format!("--pid {line}"))
}

/// Has the job do this. Returns the tool.
///
/// # Errors
/// Why it was not done.
pub fn request(
    address: JobAddress,
    action: ToolAction,
    socket: Option<PathBuf>,
) -> Result<ToolId, ToolError> {
    let answer = match address {
        JobAddress::Cluster(job) => {
            let request = ConsoleRequest::ToolAction { job, action };
            let mut query = QueryStream::open(request, socket)?;
            let mut answer = None;
            while let Some(given) = query.next_reply()? {
                answer = Some(given);
            }
            answer.ok_or_else(|| "scored has given no answer".to_owned())?
        }
        JobAddress::Scrun(pid) => request_of_scrun(pid, action)?,
    };
    match answer {
        ToolActionAnswer::Done(tool) => Ok(tool),
        ToolActionAnswer::Refused { code, reason } => Err(ToolError { code, reason }),
    }
}

fn request_of_scrun(pid: u32, action: ToolAction) -> Result<ToolActionAnswer, String> {
    let none = || format!("you have no scrun with process id {pid} on this host");
    let failed = |error: io::Error| format!("scrun {pid}: {error}");
    let address = SocketAddr::from_abstract_name(scrun_tool_socket(pid)).map_err(failed)?;
    let mut stream = UnixStream::connect_addr(&address).map_err(|_| none())?;
    // Anybody may have taken the name.
    let peer = getsockopt(&stream, PeerCredentials).map_err(|errno| failed(errno.into()))?;
    if peer.uid() != geteuid().as_raw() {
        return Err(none());
    }
    stream.set_read_timeout(Some(ANSWER_TIMEOUT)).map_err(failed)?;
    let version = score_proto::PROTOCOL_VERSION;
    let mut bytes = Vec::new();
    frame::encode(&ScrunToolRequest { version, action }, &mut bytes)
        .map_err(|error| error.to_string())?;
    stream.write_all(&bytes).map_err(failed)?;
    let answer = Decoder::default().read_next(&mut stream).map_err(failed)?;
    answer.ok_or_else(|| format!("scrun {pid} has ended, or is of another version"))
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
