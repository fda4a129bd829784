//! A local socket at which scruns log in, of a session or of a service: who calls is what the
//! kernel says, never what is claimed.

use std::fs::{self, Permissions};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

use mio::net::UnixListener;
use mio::{Interest, Registry, Token};

use crate::sys::user;

/// A caller.
#[derive(Debug)]
pub struct Caller {
    /// Its socket.
    pub socket: OwnedFd,
    /// Its user and group.
    pub peer: (u32, u32),
}

/// A listening socket.
#[derive(Debug)]
pub struct Door {
    listener: UnixListener,
    path: PathBuf,
    /// Somebody may wait: mio reports each arrival once only.
    pub waiting: bool,
    /// Descriptors have run out.
    exhausted: bool,
}

impl Door {
    /// Listens at `path`, where nobody else listens; `mode` is who may connect at all.
    ///
    /// # Errors
    /// One line with the path.
    pub fn open(path: &Path, mode: u32, registry: &Registry, token: Token) -> Result<Self, String> {
        let named = |error: io::Error| format!("{}: {error}", path.display());
        // What a daemon has left that was killed.
        if fs::symlink_metadata(path).is_ok_and(|found| found.file_type().is_socket()) {
            if UnixStream::connect(path).is_ok() {
                return Err(format!(
                    "{}: another scored listens there; end it first",
                    path.display()
                ));
            }
            fs::remove_file(path).map_err(named)?;
        }
        let listener = UnixListener::bind(path).map_err(named)?;
        let mut door = Self { listener, path: path.to_owned(), waiting: true, exhausted: false };
        fs::set_permissions(path, Permissions::from_mode(mode)).map_err(named)?;
        registry.register(&mut door.listener, token, Interest::READABLE).map_err(named)?;
        Ok(door)
    }

    /// The next caller, if there is one; one whose user the kernel does not tell is sent away.
    pub fn accept(&mut self) -> Option<Caller> {
        while self.waiting {
            match self.listener.accept() {
                Ok((stream, _)) => {
                    self.exhausted = false;
                    let socket = OwnedFd::from(stream);
                    if let Ok(peer) = user::of_peer(&socket) {
                        return Some(Caller { socket, peer });
                    }
                }
                Err(error) if is_of_one(&error) => {}
                Err(error) => {
                    // When descriptors have run out, those who wait are taken later.
                    self.waiting = error.kind() != io::ErrorKind::WouldBlock;
                    self.exhausted = self.waiting;
                    return None;
                }
            }
        }
        None
    }

    /// Whether somebody may wait who can be taken at once.
    pub fn is_ready(&self) -> bool {
        self.waiting && !self.exhausted
    }
}

impl Drop for Door {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.path);
    }
}

/// The fault of one caller, which has gone again; the next may be there.
fn is_of_one(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::Interrupted | io::ErrorKind::ConnectionAborted)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_caller_is_known_by_its_user_and_the_socket_goes_with_the_door() {
        let folder = std::env::temp_dir().join(format!("score-door-{}", std::process::id()));
        fs::create_dir(&folder).unwrap();
        let path = folder.join("socket");
        let poll = mio::Poll::new().unwrap();
        // As a daemon leaves it that was killed.
        drop(UnixListener::bind(&path).unwrap());
        let mut door = Door::open(&path, 0o600, poll.registry(), Token(0)).unwrap();
        assert!(door.accept().is_none());
        let _stream = UnixStream::connect(&path).unwrap();
        door.waiting = true;
        assert_eq!(door.accept().unwrap().peer.0, nix::unistd::geteuid().as_raw());
        let taken = Door::open(&path, 0o600, poll.registry(), Token(1)).unwrap_err();
        assert!(taken.contains("another scored"), "{taken}");
        let data = fs::metadata(&path).unwrap();
        assert!(data.file_type().is_socket());
        assert_eq!(data.permissions().mode() & 0o777, 0o600);
        drop(door);
        assert!(!path.exists());
        fs::remove_dir(&folder).unwrap();
    }
}
