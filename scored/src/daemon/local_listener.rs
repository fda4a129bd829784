//! A local socket at which scruns log in: that of a scout session or of a service. The kernel says
//! which user has connected; a claimed user is never trusted.

use std::fs::{self, Permissions};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

use mio::net::UnixListener;
use mio::{Interest, Registry, Token};
use nix::sys::socket::{Backlog, listen};

use crate::sys::credentials;

/// Clients that wait in the kernel, at most. Further ones wait in connect(2). The queue belongs to
/// all users: it is short, so that those who come later do not wait for a flood of others.
const MAX_QUEUED_CLIENTS: i32 = 0;

/// A client that has connected.
#[derive(Debug)]
pub struct AcceptedClient {
    /// The client's socket.
    pub socket: OwnedFd,
    /// The client's uid and gid.
    pub credentials: (u32, u32),
}

/// A listening socket.
#[derive(Debug)]
pub struct LocalListener {
    listener: UnixListener,
    path: PathBuf,
    /// Whether a client may wait. mio reports each connection once only.
    pub may_accept: bool,
    /// Whether descriptors have run out.
    fds_exhausted: bool,
}

impl LocalListener {
    /// Listens at `path` unless another process listens there. `mode` restricts who may connect.
    ///
    /// # Errors
    /// One line with the path.
    pub fn open(path: &Path, mode: u32, registry: &Registry, token: Token) -> Result<Self, String> {
        let with_path = |error: io::Error| format!("{}: {error}", path.display());
        // A killed daemon has left its socket.
        if fs::symlink_metadata(path).is_ok_and(|metadata| metadata.file_type().is_socket()) {
            if UnixStream::connect(path).is_ok() {
                return Err(format!(
                    "{}: another scored listens there; end it first",
                    path.display()
                ));
            }
            fs::remove_file(path).map_err(with_path)?;
        }
        let listener = UnixListener::bind(path).map_err(with_path)?;
        // Changes the length of the queue.
        Backlog::new(MAX_QUEUED_CLIENTS)
            .and_then(|backlog| listen(&listener, backlog))
            .map_err(|errno| with_path(errno.into()))?;
        let mut local_listener =
            Self { listener, path: path.to_owned(), may_accept: true, fds_exhausted: false };
        fs::set_permissions(path, Permissions::from_mode(mode)).map_err(with_path)?;
        registry
            .register(&mut local_listener.listener, token, Interest::READABLE)
            .map_err(with_path)?;
        Ok(local_listener)
    }

    /// The next client, if there is one. A client whose user the kernel does not report is dropped.
    pub fn accept(&mut self) -> Option<AcceptedClient> {
        while self.may_accept {
            match self.listener.accept() {
                Ok((stream, _)) => {
                    self.fds_exhausted = false;
                    let socket = OwnedFd::from(stream);
                    if let Ok(credentials) = credentials::peer_ids(&socket) {
                        return Some(AcceptedClient { socket, credentials });
                    }
                }
                Err(error) if is_connection_error(&error) => {}
                Err(error) => {
                    // If descriptors have run out, the waiting clients are accepted later.
                    self.may_accept = error.kind() != io::ErrorKind::WouldBlock;
                    self.fds_exhausted = self.may_accept;
                    return None;
                }
            }
        }
        None
    }

    /// The listening socket.
    pub fn as_fd(&self) -> BorrowedFd<'_> {
        self.listener.as_fd()
    }

    /// Whether a client may wait that can be accepted at once.
    pub fn can_accept_now(&self) -> bool {
        self.may_accept && !self.fds_exhausted
    }
}

impl Drop for LocalListener {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.path);
    }
}

/// Whether the error concerns one client, which has gone again. Another client may wait.
fn is_connection_error(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::Interrupted | io::ErrorKind::ConnectionAborted)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_is_known_by_its_uid_and_the_socket_is_removed_with_the_listener() {
        let directory = std::env::temp_dir().join(format!("score-listener-{}", std::process::id()));
        fs::create_dir(&directory).unwrap();
        let path = directory.join("socket");
        let poll = mio::Poll::new().unwrap();
        // A killed daemon leaves its socket like this.
        drop(UnixListener::bind(&path).unwrap());
        let mut local_listener =
            LocalListener::open(&path, 0o600, poll.registry(), Token(0)).unwrap();
        assert!(local_listener.accept().is_none());
        let _stream = UnixStream::connect(&path).unwrap();
        local_listener.may_accept = true;
        assert_eq!(local_listener.accept().unwrap().credentials.0, nix::unistd::geteuid().as_raw());
        let error = LocalListener::open(&path, 0o600, poll.registry(), Token(1)).unwrap_err();
        assert!(error.contains("another scored"), "{error}");
        let metadata = fs::metadata(&path).unwrap();
        assert!(metadata.file_type().is_socket());
        assert_eq!(metadata.permissions().mode() & 0o777, 0o600);
        // The kernel's queue is full when it has more than its length. It has one client already:
        // the second daemon.
        let connect = || mio::net::UnixStream::connect(&path);
        let queued: Vec<_> = std::iter::repeat_with(connect).map_while(Result::ok).collect();
        assert_eq!(queued.len(), MAX_QUEUED_CLIENTS as usize);
        drop(local_listener);
        assert!(!path.exists());
        fs::remove_dir(&directory).unwrap();
    }
}
