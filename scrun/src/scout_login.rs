//! Logs in to the scout session that this process runs in, if it runs in one.

use crate::usage::StartError;
use score_proto::client_session;
use score_proto::env::SCOUT_ENV;
use score_proto::exit_code::EXIT_USAGE;
use score_proto::message::HostSpec;
use score_proto::server_message::{
    ScoutHosts, ServerMessageDecoder, SessionAnswer, SessionMessage,
};
use std::ffi::OsString;
use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

/// The time in which the session must reply.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);

/// A connection to a scout session, after login.
#[derive(Debug)]
pub struct ScoutConnection {
    /// The connection: the handshake is done, and a job can be submitted.
    pub stream: UnixStream,
    /// Decoder with the bytes received so far.
    pub decoder: ServerMessageDecoder,
    /// The hosts of the session, in order.
    pub hosts: Vec<HostSpec>,
}

/// The path of the session's socket, from the environment.
pub fn session_socket() -> Option<OsString> {
    std::env::var_os(SCOUT_ENV).filter(|path| !path.is_empty())
}

/// Logs in to the session that the environment names, if it names one.
///
/// # Errors
/// A session that no longer exists or rejects the login.
pub fn login_if_in_session() -> Result<Option<ScoutConnection>, StartError> {
    let Some(path) = session_socket() else { return Ok(None) };
    let connection = login(Path::new(&path)).map_err(|reason| {
        let line = format!("{SCOUT_ENV}: {reason}; leave this shell, or unset {SCOUT_ENV}");
        StartError::plain(EXIT_USAGE, line)
    })?;
    Ok(Some(connection))
}

/// Logs in to the session of this socket.
///
/// # Errors
/// One line with the reason.
pub fn login(path: &Path) -> Result<ScoutConnection, String> {
    let display = path.display();
    let connect_error = |error: io::Error| match error.kind() {
        io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused => {
            format!("the scout session at {display} no longer exists")
        }
        _ => format!("the scout session at {display}: {error}"),
    };
    let stream = UnixStream::connect(path).map_err(connect_error)?;
    let (hosts, decoder) = handshake(&stream).map_err(|error| match error.kind() {
        io::ErrorKind::UnexpectedEof
        | io::ErrorKind::ConnectionReset
        | io::ErrorKind::BrokenPipe => {
            format!("the scout session at {display} is another user's, or it is ending")
        }
        io::ErrorKind::WouldBlock => format!("the scout session at {display} does not answer"),
        io::ErrorKind::Other => error.to_string(),
        _ => format!("the scout session at {display}: {error}"),
    })?;
    Ok(ScoutConnection { stream, decoder, hosts })
}

fn handshake(mut stream: &UnixStream) -> io::Result<(Vec<HostSpec>, ServerMessageDecoder)> {
    stream.set_read_timeout(Some(HANDSHAKE_TIMEOUT))?;
    stream.set_write_timeout(Some(HANDSHAKE_TIMEOUT))?;
    let mut hello = Vec::new();
    client_session::encode_greeting(&mut hello).map_err(io::Error::other)?;
    stream.write_all(&hello)?;
    let mut decoder = ServerMessageDecoder::default();
    let mut chunk = [0; 4096];
    loop {
        match decoder.next().map_err(io::Error::other)? {
            Some(SessionMessage::Answer(ScoutHosts(hosts))) if !hosts.is_empty() => {
                stream.set_read_timeout(None)?;
                stream.set_write_timeout(None)?;
                return Ok((hosts, decoder));
            }
            Some(SessionMessage::Session(SessionAnswer::Refused { reason, .. })) => {
                return Err(io::Error::other(reason));
            }
            Some(SessionMessage::Session(SessionAnswer::Hello { version })) => {
                client_session::check_server_version(version).map_err(io::Error::other)?;
            }
            Some(SessionMessage::Session(_) | SessionMessage::Answer(_)) => {}
            None => match stream.read(&mut chunk)? {
                0 => return Err(io::ErrorKind::UnexpectedEof.into()),
                count => decoder.push(&chunk[..count]),
            },
        }
    }
}
