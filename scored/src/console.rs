//! `scored -list` and `scored -kill JOB`: send one request to the scored of this host and print the
//! answer.
#![forbid(unsafe_code)]

use std::io::Write;
use std::path::PathBuf;
use std::time::Duration;

use score_client::{Received, Service};
use score_proto::client_session::SESSION_JOB;
use score_proto::job_list::{JobEntry, JobState};
use score_proto::message::{ConsoleRequest, UserRequest};
use score_proto::server_message::{ConsoleReply, ListAnswer};

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
    let service = Service::new(options.socket.clone(), "start one first");
    let login = score_client::login_of_this_process(String::new());
    let mut connection = score_client::login(&service, &login)?;
    connection.send(SESSION_JOB, &UserRequest::Console(options.console.clone()))?;
    loop {
        match connection.next(REPLY_TIMEOUT)? {
            Received::Refused { reason, .. } => return Err(reason),
            Received::Notice { text, .. } => print_line(&text)?,
            Received::Answer(ConsoleReply::Answer(answer)) => match answer {
                ListAnswer::Jobs(jobs) => {
                    jobs.iter().try_for_each(|job| print_line(&job_line(job)))?
                }
                // Only scps prints the statistics.
                ListAnswer::Statistics(_) => {}
            },
            Received::Answer(ConsoleReply::Finished { .. }) => return Ok(()),
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
