//! The ways to reach a scored, and the login of multi-user mode. All are sockets of this host:
//! daemons of other hosts serve only daemons.

use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixStream};
use std::path::{Path, PathBuf};

use nix::sys::socket::{getsockopt, sockopt::PeerCredentials};
use nix::unistd::{User, getuid};
use score_proto::client_session::SESSION_JOB;
use score_proto::env::{DEFAULT_SOCKET, SCORED_SOCKET_ENV, tool_socket_name};
use score_proto::message::{Login, OsBytes};

use crate::connection::Connection;
use crate::error::ConnectionError;

/// The service of this host: a scored in multi-user mode.
#[derive(Debug, Clone)]
pub struct Service {
    socket: PathBuf,
    remedy: &'static str,
}

impl Service {
    /// The service at `socket` or, without it, at the socket in the environment or the default
    /// socket. `remedy` is the advice for the user if there is no service.
    pub fn new(socket: Option<PathBuf>, remedy: &'static str) -> Self {
        let from_environment = || std::env::var_os(SCORED_SOCKET_ENV).map(PathBuf::from);
        let socket = socket.or_else(from_environment).unwrap_or_else(|| DEFAULT_SOCKET.into());
        Self { socket, remedy }
    }

    fn connect(&self) -> Result<Connection, ConnectionError> {
        let peer = format!("the scored of this host ({})", self.socket.display());
        match UnixStream::connect(&self.socket) {
            Ok(stream) => greeted(stream, peer),
            Err(error) if is_absent(&error) => Err(ConnectionError::NoService {
                socket: self.socket.clone(),
                error,
                remedy: self.remedy,
            }),
            Err(error) => Err(ConnectionError::System { peer, error }),
        }
    }
}

/// The login of the user of this process.
pub fn login_of_this_process(cluster: String) -> Login {
    let uid = getuid();
    let name = User::from_uid(uid).ok().flatten().map(|user| user.name).unwrap_or_default();
    Login { uid: uid.as_raw(), name: OsBytes(name.into_bytes()), cluster }
}

/// Connects to the service of this host and logs in. Greeting and login are sent with the first
/// request. scored answers a wrong login with [`crate::Received::Refused`].
///
/// # Errors
/// There is no service, or its socket is not accessible.
pub fn login(service: &Service, login: &Login) -> Result<Connection, ConnectionError> {
    let mut connection = service.connect()?;
    connection
        .queue(SESSION_JOB, login)
        .map_err(|error| ConnectionError::Frame { peer: connection.peer().to_owned(), error })?;
    Ok(connection)
}

/// Connects to a scored of this user in single-user mode, as a tool does. The user needs no login.
///
/// # Errors
/// The process has no such socket, or another process uses its name.
pub fn connect_to_single_user(scored_pid: u32) -> Result<Connection, ConnectionError> {
    let peer = format!("scored, process {scored_pid}");
    let connected = SocketAddr::from_abstract_name(tool_socket_name(scored_pid))
        .and_then(|address| UnixStream::connect_addr(&address))
        .and_then(|stream| Ok((getsockopt(&stream, PeerCredentials)?, stream)));
    let (credentials, stream) = match connected {
        Ok(connected) => connected,
        Err(error) => return Err(ConnectionError::System { peer, error }),
    };
    // Another process may use this name.
    let (pid, uid) = (credentials.pid(), credentials.uid());
    if i64::from(pid) != i64::from(scored_pid) || uid != getuid().as_raw() {
        return Err(ConnectionError::WrongProcess { peer, pid, uid });
    }
    greeted(stream, peer)
}

/// Connects to the scored of a scout session of this user. The user needs no login.
///
/// # Errors
/// The session no longer exists, or its socket is not accessible.
pub fn connect_to_scout_session(socket: &Path) -> Result<Connection, ConnectionError> {
    let peer = format!("the scout session at {}", socket.display());
    match UnixStream::connect(socket) {
        Ok(stream) => greeted(stream, peer),
        Err(error) if is_absent(&error) => Err(ConnectionError::NoScoutSession(socket.to_owned())),
        Err(error) => Err(ConnectionError::System { peer, error }),
    }
}

/// Whether no process listens on the socket.
fn is_absent(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused)
}

fn greeted(stream: UnixStream, peer: String) -> Result<Connection, ConnectionError> {
    match Connection::new(stream, peer.clone()) {
        Ok(mut connection) => {
            connection.greet();
            Ok(connection)
        }
        Err(error) => Err(ConnectionError::System { peer, error }),
    }
}

#[cfg(test)]
mod tests {
    use std::os::linux::net::SocketAddrExt;
    use std::os::unix::net::UnixListener;

    use super::*;

    #[test]
    fn an_absent_service_is_reported_with_its_socket_and_the_remedy() {
        let service = Service::new(Some("/nowhere/socket".into()), "start one");
        let error = login(&service, &login_of_this_process(String::new())).unwrap_err();
        let expected = "no scored serves this host (/nowhere/socket: No such file or directory (os \
                        error 2)); start one";
        assert_eq!(error.to_string(), expected);
        let error = connect_to_scout_session(Path::new("/nowhere/socket")).unwrap_err();
        let expected = "the scout session at /nowhere/socket no longer exists";
        assert_eq!(error.to_string(), expected);
    }

    #[test]
    fn another_process_under_the_name_of_a_scored_is_refused() {
        // No process has this id.
        let pid = u32::MAX;
        let address = SocketAddr::from_abstract_name(tool_socket_name(pid)).unwrap();
        let _listener = UnixListener::bind_addr(&address).unwrap();
        let error = connect_to_single_user(pid).unwrap_err().to_string();
        let own = format!("its socket belongs to process {} of uid", std::process::id());
        assert!(
            error.starts_with("scored, process 4294967295: ") && error.contains(&own),
            "{error}"
        );
    }
}
