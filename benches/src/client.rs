//! A client of scored that speaks scrun's protocol.

use std::io::{ErrorKind, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use score_proto::client_session::{self, SESSION_JOB};
use score_proto::ids::SessionJobId;
use score_proto::message::{
    ElementSpec, HostSpec, JobSpec, Login, OsBytes, ProgramKind, StageSpec,
};
use score_proto::server_message::{
    ConversationAnswer, ServerMessageDecoder, SessionAnswer, SessionMessage,
};
use serde::Serialize;

/// Time limit of a reply. Only a daemon that hangs exceeds it.
const READ_TIMEOUT: Duration = Duration::from_secs(20);

/// A connection to a scored.
#[derive(Debug)]
pub struct Client {
    /// The connection.
    pub socket: UnixStream,
    decoder: ServerMessageDecoder,
    read_buffer: Vec<u8>,
}

fn io_error(error: std::io::Error) -> String {
    format!("scored: {error}")
}

impl Client {
    /// Sends the greeting over a connection.
    ///
    /// # Errors
    /// If scored has closed the connection.
    pub fn greet(socket: UnixStream) -> Result<Self, String> {
        socket.set_read_timeout(Some(READ_TIMEOUT)).map_err(io_error)?;
        let decoder = ServerMessageDecoder::default();
        let mut client = Self { socket, decoder, read_buffer: vec![0; 4096] };
        let mut greeting = Vec::new();
        client_session::encode_greeting(&mut greeting).map_err(|error| error.to_string())?;
        client.socket.write_all(&greeting).map_err(io_error)?;
        Ok(client)
    }

    /// Connects to a multi-user scored and logs in as user `uid`, which must be the user of this
    /// process.
    ///
    /// # Errors
    /// If there is no scored, or it has closed the connection.
    pub fn log_in(path: &Path, uid: u32) -> Result<Self, String> {
        let socket = UnixStream::connect(path).map_err(io_error)?;
        let mut client = Self::greet(socket)?;
        let (name, cluster) = (OsBytes(Vec::new()), String::new());
        client.send(SESSION_JOB, &Login { uid, name, cluster })?;
        Ok(client)
    }

    /// Sends a request about a job: a `SingleUserRequest` or a `UserRequest`.
    ///
    /// # Errors
    /// If scored has closed the connection.
    pub fn send(&mut self, job: SessionJobId, request: &impl Serialize) -> Result<(), String> {
        let frame = encode(job, request)?;
        self.socket.write_all(&frame).map_err(io_error)
    }

    /// Waits for the next answer to a request.
    ///
    /// As for [`Self::receive`]. Also if scored refuses the session.
    pub fn receive_answer<A: ConversationAnswer>(&mut self) -> Result<A, String> {
        loop {
            match self.receive()? {
                SessionMessage::Answer(answer) => return Ok(answer),
                SessionMessage::Session(SessionAnswer::Refused { reason, .. }) => {
                    return Err(reason);
                }
                SessionMessage::Session(_) => {}
            }
        }
    }

    /// Waits for the next message.
    ///
    /// # Errors
    /// If scored has closed the connection, or sends nothing within the time limit.
    pub fn receive<A: ConversationAnswer>(&mut self) -> Result<SessionMessage<A>, String> {
        loop {
            if let Some(received) = self.decoder.next().map_err(|error| error.to_string())? {
                return Ok(received);
            }
            match self.socket.read(&mut self.read_buffer) {
                Ok(0) => return Err("scored: the connection is closed".to_owned()),
                Ok(count) => self.decoder.push(&self.read_buffer[..count]),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(io_error(error)),
            }
        }
    }
}

/// Encodes a message about a job as a frame.
///
/// # Errors
/// If the message is too long for a frame.
pub fn encode(job: SessionJobId, request: &impl Serialize) -> Result<Vec<u8>, String> {
    let mut frame = Vec::new();
    client_session::encode(job, request, &mut frame).map_err(|error| error.to_string())?;
    Ok(frame)
}

/// A program that runs as with `scrun system`.
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
