//! The socket that the scruns of this host call at: who calls is what the kernel says, and only so
//! many may be there without having logged in.

use std::fs::{self, DirBuilder, Permissions};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use mio::net::UnixListener;
use mio::{Interest, Registry, Token};

use crate::sys::user;

/// Callers without login at the same time. When there are more, the user that has most of them
/// loses the oldest.
pub const STRANGERS: usize = 256;
/// A caller is not dropped before.
pub const PROBATION: Duration = Duration::from_secs(1);
/// How long a caller may take to log in.
pub const PATIENCE: Duration = Duration::from_secs(5);

/// The listening socket.
#[derive(Debug)]
pub struct Local {
    listener: UnixListener,
    path: PathBuf,
    /// Somebody may wait: mio reports each arrival once only.
    pub waiting: bool,
}

/// Somebody who has called.
#[derive(Debug)]
pub struct Caller {
    /// Its socket.
    pub socket: OwnedFd,
    /// uid and gid.
    pub peer: (u32, u32),
}

impl Local {
    /// Listens at this path, where nobody else listens.
    ///
    /// # Errors
    /// One line with the path.
    pub fn new(path: &Path, registry: &Registry, token: Token) -> Result<Self, String> {
        let named = |error: io::Error| format!("{}: {error}", path.display());
        if let Some(folder) = path.parent().filter(|folder| !folder.exists()) {
            let made = DirBuilder::new().recursive(true).mode(0o755).create(folder);
            made.map_err(named)?;
        }
        if fs::symlink_metadata(path).is_ok_and(|found| found.file_type().is_socket()) {
            if std::os::unix::net::UnixStream::connect(path).is_ok() {
                return Err(format!("{}: another scored listens there", path.display()));
            }
            fs::remove_file(path).map_err(named)?;
        }
        let mut listener = UnixListener::bind(path).map_err(named)?;
        // Everybody may call; who it is, the kernel says.
        fs::set_permissions(path, Permissions::from_mode(0o666)).map_err(named)?;
        registry.register(&mut listener, token, Interest::READABLE).map_err(named)?;
        Ok(Self { listener, path: path.to_owned(), waiting: true })
    }

    /// The next caller.
    pub fn accept(&mut self) -> Option<Caller> {
        while self.waiting {
            match self.listener.accept() {
                Ok((stream, _)) => {
                    let socket = OwnedFd::from(stream);
                    if let Ok(peer) = user::of_peer(&socket) {
                        return Some(Caller { socket, peer });
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => {
                    // When descriptors have run out, those who wait are taken later.
                    self.waiting = error.kind() != io::ErrorKind::WouldBlock;
                    return None;
                }
            }
        }
        None
    }
}

impl Drop for Local {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.path);
    }
}
