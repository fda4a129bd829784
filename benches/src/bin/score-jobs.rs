//! Measures jobs per second for `cargo xtask bench jobs`. Each command prints one number.
//!
//! ```text
//! score-jobs loop N PROGRAM [ARGUMENT...]   spawns N processes and waits for each, one at a time
//! score-jobs flight K N                     jobs of `true`, K in flight, by scrun's protocol
//! ```
//! `flight` uses the protocol of scrun, but starts no scrun. It starts one `scored -single`,
//! logs in, and keeps K jobs running until N have ended.
#![forbid(unsafe_code)]

use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::UnixStream;
use std::process::{Child, Command, ExitCode, Stdio};
use std::time::Instant;

use nix::fcntl::{FcntlArg, FdFlag, fcntl};
use score_benches::client;
use score_client::Connection;
use score_proto::client_session::JobMessage;
use score_proto::ids::SessionJobId;
use score_proto::message::{JobRequest, JobSpec, OsBytes, SingleUserRequest};
use score_proto::server_message::JobAnswer;

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let start = Instant::now();
    let count = match &words[..] {
        ["loop", count, program @ ..] if !program.is_empty() => run_one_by_one(count, program),
        ["flight", max_in_flight, count] => run_in_flight(max_in_flight, count),
        _ => Err("usage: score-jobs loop N PROGRAM [ARGUMENT...] | flight K N".to_owned()),
    };
    match count {
        Ok(count) => {
            println!("{:.1}", f64::from(count) / start.elapsed().as_secs_f64());
            ExitCode::SUCCESS
        }
        Err(reason) => {
            eprintln!("score-jobs: {reason}");
            ExitCode::FAILURE
        }
    }
}

fn number(word: &str) -> Result<u32, String> {
    word.parse().ok().filter(|count| *count > 0).ok_or(format!("{word}: not a count"))
}

fn run_one_by_one(count: &str, words: &[&str]) -> Result<u32, String> {
    let count = number(count)?;
    for _ in 0..count {
        let mut command = Command::new(words[0]);
        command.args(&words[1..]).stdin(Stdio::null()).stdout(Stdio::null());
        let status = command.status().map_err(|error| format!("{}: {error}", words[0]))?;
        if !status.success() {
            return Err(format!("{}: {status}", words.join(" ")));
        }
    }
    Ok(count)
}

fn run_in_flight(max_in_flight: &str, count: &str) -> Result<u32, String> {
    let (max_in_flight, count) = (number(max_in_flight)?, number(count)?);
    let mut daemon = SingleUserDaemon::start()?;
    let spec = true_job_spec()?;
    let mut submitted = max_in_flight.min(count);
    (1..=submitted).try_for_each(|job| {
        daemon.client.send(SessionJobId(job), &SingleUserRequest::Submit(spec.clone()))
    })?;
    for _ in 0..count {
        let job = daemon.wait_for_job_end()?;
        if submitted < count {
            submitted += 1;
            daemon.client.send(job, &SingleUserRequest::Submit(spec.clone()))?;
        }
    }
    daemon.close()?;
    Ok(count)
}

/// A private scored, and a connection to it.
struct SingleUserDaemon {
    child: Child,
    client: Connection,
}

fn io_error(error: std::io::Error) -> String {
    format!("scored: {error}")
}

impl SingleUserDaemon {
    fn start() -> Result<Self, String> {
        let program_path =
            std::env::current_exe().map_err(|error| format!("path of this program: {error}"))?;
        let (socket, remote_socket) = UnixStream::pair().map_err(io_error)?;
        fcntl(&remote_socket, FcntlArg::F_SETFD(FdFlag::empty()))
            .map_err(|errno| io_error(errno.into()))?;
        let mut command = Command::new(program_path.with_file_name("scored"));
        command.args(["-single", "-control", &remote_socket.as_raw_fd().to_string()]);
        let child = command.stdin(Stdio::null()).stdout(Stdio::null()).spawn().map_err(io_error)?;
        let mut client = Connection::new(socket, "scored").map_err(io_error)?;
        client.greet();
        Ok(Self { child, client })
    }

    /// Waits until a job has ended. Returns the number of the job.
    fn wait_for_job_end(&mut self) -> Result<SessionJobId, String> {
        loop {
            let received: JobMessage<JobAnswer> = client::receive_answer(&mut self.client)?;
            match received.message {
                JobAnswer::Finished(end) if end.code == 0 => return Ok(received.job),
                JobAnswer::Finished(end) => {
                    return Err(format!("true ended with {}", end.code));
                }
                JobAnswer::Refused { reason, .. } => return Err(reason),
                JobAnswer::Flush(token) => {
                    let request = SingleUserRequest::Job(JobRequest::Flushed(token));
                    self.client.send(received.job, &request)?
                }
                _ => {}
            }
        }
    }

    fn close(mut self) -> Result<(), String> {
        drop(self.client);
        self.child.wait().map_err(io_error)?;
        Ok(())
    }
}

/// The job that runs `true` on one node.
fn true_job_spec() -> Result<JobSpec, String> {
    let variable = |(name, value): (std::ffi::OsString, std::ffi::OsString)| {
        OsBytes([name.as_bytes(), b"=", value.as_bytes()].concat())
    };
    let directory = std::env::current_dir().map_err(|error| format!("directory: {error}"))?;
    Ok(JobSpec {
        environment: std::env::vars_os().map(variable).collect(),
        directory: OsBytes(directory.as_os_str().as_bytes().to_vec()),
        ..client::job_of_stages(vec![client::system_program(&["true"])])
    })
}
