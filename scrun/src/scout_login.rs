//! Logs in to the scout session that this process runs in, if it runs in one.

use crate::usage::StartError;
use score_client::{Connection, ConnectionError, Received};
use score_proto::env::SCOUT_ENV;
use score_proto::exit_code::EXIT_USAGE;
use score_proto::message::HostSpec;
use score_proto::server_message::ScoutHosts;
use std::ffi::OsString;
use std::path::Path;
use std::time::Duration;

/// The time in which the session must reply.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);

/// A connection to a scout session, after login.
#[derive(Debug)]
pub struct ScoutConnection {
    /// The connection: the handshake is done, and a job can be submitted.
    pub connection: Connection,
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
    let mut connection = score_client::connect_to_scout_session(path)?;
    connection.flush_all()?;
    loop {
        match connection.next(HANDSHAKE_TIMEOUT) {
            Ok(Received::Answer(ScoutHosts(hosts))) if !hosts.is_empty() => {
                return Ok(ScoutConnection { connection, hosts });
            }
            Ok(Received::Refused { reason, .. }) => return Err(reason),
            Ok(Received::Answer(_) | Received::Notice { .. }) => {}
            Err(ConnectionError::Closed(session)) => {
                return Err(format!("{session} belongs to another user, or is ending"));
            }
            Err(ConnectionError::Silent { peer: session, .. }) => {
                return Err(format!("{session} does not answer"));
            }
            Err(error) => return Err(error.into()),
        }
    }
}
