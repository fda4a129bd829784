//! `scored -list` and `scored -kill JOB`: what users and operators ask the scored of their host.
#![forbid(unsafe_code)]

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::time::Duration;

use nix::unistd::{User, getuid};
use score_proto::PROTOCOL_VERSION;
use score_proto::env::{DEFAULT_SOCKET, SCORED_SOCKET};
use score_proto::listing::{JobLine, JobState};
use score_proto::login::{self, LOGIN, Ups};
use score_proto::message::{Console, Down, Login, OsBytes, Up};

/// How long an answer may take.
const PATIENCE: Duration = Duration::from_secs(30);

/// What is asked, and where.
#[derive(Debug)]
pub struct Setting {
    /// The question.
    pub console: Console,
    /// `-socket PATH`
    pub socket: Option<PathBuf>,
}

/// Asks, and prints the answer.
///
/// # Errors
/// One line.
pub fn run(setting: &Setting) -> Result<(), String> {
    let variable = std::env::var_os(SCORED_SOCKET).map(PathBuf::from);
    let path = setting.socket.clone().or(variable).unwrap_or_else(|| DEFAULT_SOCKET.into());
    let failed =
        |error: std::io::Error| format!("the scored of this host ({}): {error}", path.display());
    let mut socket = UnixStream::connect(&path).map_err(failed)?;
    socket.set_read_timeout(Some(PATIENCE)).map_err(failed)?;
    let name = User::from_uid(getuid()).ok().flatten().map(|user| user.name).unwrap_or_default();
    let login = Login {
        uid: getuid().as_raw(),
        name: OsBytes(name.into_bytes()),
        cluster: String::new(),
        limits: Vec::new(),
    };
    let mut out = Vec::new();
    let words = [
        Down::Hello { version: PROTOCOL_VERSION },
        Down::Login(login),
        Down::Console(setting.console),
    ];
    for word in &words {
        login::encode(LOGIN, word, &mut out).map_err(|error| error.to_string())?;
    }
    socket.write_all(&out).map_err(failed)?;
    let mut decoder = Ups::default();
    let mut chunk = [0; 4096];
    loop {
        match decoder.next().map_err(|error| error.to_string())?.map(|heard| heard.message) {
            Some(Up::Notice { text, .. }) => {
                writeln!(std::io::stdout(), "{text}").map_err(|error| error.to_string())?;
            }
            Some(Up::Jobs(jobs)) => {
                for job in &jobs {
                    writeln!(std::io::stdout(), "{}", line(job))
                        .map_err(|error| error.to_string())?;
                }
            }
            Some(Up::Refused { reason, .. }) => return Err(reason),
            Some(Up::Finished(_)) => return Ok(()),
            Some(_) => {}
            None => match socket.read(&mut chunk).map_err(failed)? {
                0 => return Err("the scored of this host has closed the connection".to_owned()),
                count => decoder.push(&chunk[..count]),
            },
        }
    }
}

/// A job as `scored -list` shows it.
fn line(job: &JobLine) -> String {
    let (number, uid) = (job.job, job.uid);
    let named: Vec<_> = job.names.iter().take(4).map(String::as_str).collect();
    let more = match (job.hosts as usize).saturating_sub(named.len()) {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    let place = format!("on {}{more}", named.join(", "));
    let what = match &job.detail {
        None if job.hosts == 0 => "waits".to_owned(),
        None => format!("runs {place}"),
        Some(detail) => match detail.state {
            JobState::Waiting { ahead } => format!("waits, {ahead} before it"),
            JobState::Running => format!("runs, {} processes {place}", detail.nodes),
            JobState::Suspended => format!("is suspended, {} processes {place}", detail.nodes),
            JobState::Ending => format!("is being ended, {} processes {place}", detail.nodes),
        },
    };
    format!("job {number}, uid {uid}: {what}")
}
