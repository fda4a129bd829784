//! `scored -list` and `scored -kill JOB`: send one request to the scored of this host and print the
//! answer.
#![forbid(unsafe_code)]

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::time::Duration;

use nix::unistd::{User, getuid};
use score_proto::client_session::{self, SESSION_JOB};
use score_proto::env::{DEFAULT_SOCKET, SCORED_SOCKET_ENV};
use score_proto::job_list::{JobEntry, JobState};
use score_proto::message::{ConsoleRequest, Login, OsBytes, UserRequest};
use score_proto::server_message::{
    ConsoleReply, ListAnswer, ServerMessageDecoder, SessionAnswer, SessionMessage,
};

/// How long the daemon may take to send the next part of its answer.
const REPLY_TIMEOUT: Duration = Duration::from_secs(30);

/// The request and its destination.
#[derive(Debug)]
pub struct ConsoleOptions {
    /// The request.
    pub console: ConsoleRequest,
    /// `-socket PATH`
    pub socket: Option<PathBuf>,
}

/// Sends the request and prints the answer.
///
/// # Errors
/// One line: the connection failed, or the daemon refused the request.
pub fn run(options: &ConsoleOptions) -> Result<(), String> {
    let variable = std::env::var_os(SCORED_SOCKET_ENV).map(PathBuf::from);
    let path = options.socket.clone().or(variable).unwrap_or_else(|| DEFAULT_SOCKET.into());
    let connection_error =
        |error: std::io::Error| format!("the scored of this host ({}): {error}", path.display());
    let mut socket = UnixStream::connect(&path).map_err(connection_error)?;
    socket.set_read_timeout(Some(REPLY_TIMEOUT)).map_err(connection_error)?;
    let name = User::from_uid(getuid()).ok().flatten().map(|user| user.name).unwrap_or_default();
    let login =
        Login { uid: getuid().as_raw(), name: OsBytes(name.into_bytes()), cluster: String::new() };
    let mut out = Vec::new();
    client_session::encode_greeting(&mut out)
        .and_then(|()| client_session::encode(SESSION_JOB, &login, &mut out))
        .and_then(|()| {
            let request = UserRequest::Console(options.console.clone());
            client_session::encode(SESSION_JOB, &request, &mut out)
        })
        .map_err(|error| error.to_string())?;
    socket.write_all(&out).map_err(connection_error)?;
    let mut decoder = ServerMessageDecoder::default();
    let mut chunk = [0; 4096];
    loop {
        match decoder.next().map_err(|error| error.to_string())? {
            Some(SessionMessage::Session(answer)) => match answer {
                SessionAnswer::Hello { version } => {
                    client_session::check_server_version(version)?;
                }
                SessionAnswer::Refused { reason, .. } => return Err(reason),
                SessionAnswer::Notice { text, .. } => print_line(&text)?,
            },
            Some(SessionMessage::Answer(ConsoleReply::Answer(answer))) => match answer {
                ListAnswer::Jobs(jobs) => {
                    jobs.iter().try_for_each(|job| print_line(&job_line(job)))?
                }
                // Only scps prints the statistics.
                ListAnswer::Statistics(_) => {}
            },
            Some(SessionMessage::Answer(ConsoleReply::Finished { .. })) => return Ok(()),
            None => match socket.read(&mut chunk).map_err(connection_error)? {
                0 => return Err("the scored of this host has closed the connection".to_owned()),
                count => decoder.push(&chunk[..count]),
            },
        }
    }
}

fn print_line(line: &str) -> Result<(), String> {
    writeln!(std::io::stdout(), "{line}").map_err(|error| error.to_string())
}

/// A line of `scored -list`.
fn job_line(job: &JobEntry) -> String {
    let (number, uid) = (job.job, job.uid);
    let named: Vec<_> = job.host_names.iter().take(4).map(String::as_str).collect();
    let more = match (job.hosts as usize).saturating_sub(named.len()) {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    let location = format!("on {}{more}", named.join(", "));
    let state = match &job.detail {
        None if job.hosts == 0 => "waits".to_owned(),
        None => format!("runs {location}"),
        Some(detail) => match detail.state {
            JobState::Waiting { jobs_ahead: ahead } => format!("waits, {ahead} before it"),
            JobState::Running => format!("runs, {} processes {location}", detail.nodes),
            JobState::SuspectedHang => format!("may hang, {} processes {location}", detail.nodes),
            JobState::Suspended => format!("is suspended, {} processes {location}", detail.nodes),
            JobState::Ending => format!("is being ended, {} processes {location}", detail.nodes),
        },
    };
    format!("job {number}, uid {uid}: {state}")
}
