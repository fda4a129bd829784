//! Clients of scored that use the protocol of scrun.

use std::io;
use std::os::fd::AsFd;
use std::path::Path;
use std::time::Duration;

use score_client::{Connection, Readiness, Received, Service, wait_until_ready};
use score_proto::client_session;
use score_proto::ids::SessionJobId;
use score_proto::message::{
    ElementSpec, HostSpec, JobSpec, Login, OsBytes, ProgramKind, StageSpec,
};
use score_proto::server_message::ConversationAnswer;
use serde::Serialize;

/// Time limit of a reply. Only a daemon that hangs exceeds it.
pub const READ_TIMEOUT: Duration = Duration::from_secs(20);

/// Connects to a multi-user scored and logs in as user `uid`, which must be the user of this
/// process.
///
/// # Errors
/// Returns an error if there is no scored, or if scored does not read the login.
pub fn log_in(socket: &Path, uid: u32) -> Result<Connection, String> {
    let service = Service::new(Some(socket.to_owned()), "the measurement starts one");
    let login = Login { uid, name: OsBytes(Vec::new()), cluster: String::new() };
    let mut connection = score_client::login(&service, &login)?;
    connection.flush_all()?;
    Ok(connection)
}

/// Waits for the next answer to a request.
///
/// # Errors
/// Returns an error if scored refuses the session, has closed the connection, or sends nothing
/// within the time limit.
pub fn receive_answer<A: ConversationAnswer>(connection: &mut Connection) -> Result<A, String> {
    loop {
        match connection.next(READ_TIMEOUT)? {
            Received::Answer(answer) => return Ok(answer),
            Received::Refused { reason, .. } => return Err(reason),
            Received::Notice { .. } => {}
        }
    }
}

/// Writes bytes that need not be whole messages, as a hostile client does. Waits for at most
/// `timeout` until the socket takes some of them.
///
/// # Errors
/// [`io::ErrorKind::WouldBlock`] after this time, or the errors of write(2).
pub fn write_bytes(connection: &Connection, bytes: &[u8], timeout: Duration) -> io::Result<usize> {
    wait_until_ready(connection.as_fd(), Readiness::Writable, timeout)?;
    Ok(nix::unistd::write(connection, bytes)?)
}

/// Encodes a message about a job as a frame.
///
/// # Errors
/// Returns an error if the message is too long for a frame.
pub fn encode(job: SessionJobId, request: &impl Serialize) -> Result<Vec<u8>, String> {
    let mut frame = Vec::new();
    client_session::encode(job, request, &mut frame).map_err(|error| error.to_string())?;
    Ok(frame)
}

/// A program that runs like the program of `scrun system PROGRAM`.
pub fn system_program(words: &[&str]) -> ElementSpec {
    let bytes = |word: &&str| OsBytes(word.as_bytes().to_vec());
    ElementSpec::new(
        words.first().map_or(OsBytes(Vec::new()), bytes),
        words.iter().map(bytes).collect(),
        ProgramKind::System { per_host: false },
    )
}

/// A job that runs one program after the other, on one node of this host.
pub fn job_of_stages(programs: Vec<ElementSpec>) -> JobSpec {
    let stage = |element| StageSpec { elements: vec![element] };
    JobSpec {
        hosts: vec![HostSpec::local(1)],
        stages: programs.into_iter().map(stage).collect(),
        environment: vec![OsBytes(b"PATH=/bin:/usr/bin".to_vec())],
        directory: OsBytes(b"/".to_vec()),
        umask: 0o022,
        ..JobSpec::default()
    }
}
