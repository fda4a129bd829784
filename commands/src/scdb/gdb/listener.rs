//! A socket for one debugger of the same user.

use std::fs;
use std::io::{self, Write};
use std::os::fd::OwnedFd;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};

use nix::sys::socket::{getsockopt, sockopt::PeerCredentials};
use nix::unistd::{geteuid, mkdtemp};

use super::session::Debugger;

/// The name of the socket in its directory.
const NAME: &str = "gdb";

/// A directory that only this user can access. Dropping this value removes the directory with its
/// contents.
#[derive(Debug)]
struct PrivateFolder(PathBuf);

impl PrivateFolder {
    fn new() -> io::Result<Self> {
        let runtime = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from);
        let parent = runtime.filter(|path| path.is_dir()).unwrap_or_else(std::env::temp_dir);
        // mkdtemp(3) requires six X at the end.
        let template = format!("scdb-{}", "X".repeat(6));
        Ok(Self(mkdtemp(&parent.join(template))?))
    }
}

impl Drop for PrivateFolder {
    fn drop(&mut self) {
        _ = fs::remove_dir_all(&self.0);
    }
}

fn bind(path: &Path) -> io::Result<UnixListener> {
    let listener = UnixListener::bind(path)?;
    fs::set_permissions(path, fs::Permissions::from_mode(0o600))?;
    Ok(listener)
}

/// Waits for a client of this user. Clients of other users are disconnected.
fn accept(listener: &UnixListener) -> io::Result<UnixStream> {
    loop {
        let (client, _) = listener.accept()?;
        if getsockopt(&client, PeerCredentials)?.uid() == geteuid().as_raw() {
            return Ok(client);
        }
    }
}

/// A listening socket for one debugger. Dropping this value removes the socket.
#[derive(Debug)]
pub struct DebuggerSocket {
    listener: UnixListener,
    path: PathBuf,
    _folder: PrivateFolder,
}

impl DebuggerSocket {
    /// Creates the socket.
    ///
    /// # Errors
    /// One line with the reason.
    pub fn new() -> Result<Self, String> {
        let folder = PrivateFolder::new()
            .map_err(|error| format!("cannot create a directory for the socket: {error}"))?;
        let path = folder.0.join(NAME);
        let listener = bind(&path).map_err(|error| format!("{}: {error}", path.display()))?;
        Ok(Self { listener, path, _folder: folder })
    }

    /// The path to which the debugger connects.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Waits for the debugger. Further debuggers are not served.
    ///
    /// # Errors
    /// One line with the reason.
    pub fn accept(&self) -> Result<Debugger, String> {
        let failed = |error: io::Error| format!("{}: {error}", self.path.display());
        let client = accept(&self.listener).map_err(failed)?;
        let input = client.try_clone().map_err(failed)?;
        Ok(Debugger::new(OwnedFd::from(input), OwnedFd::from(client)))
    }

    /// Ends a wait in [`Self::accept`] if no debugger connects: connects a client that leaves at
    /// once.
    pub fn give_up(&self) {
        // If connecting fails, nothing can be waiting for a client.
        _ = UnixStream::connect(&self.path);
    }
}

/// Prints the path of a socket, and waits for the debugger. Afterwards nothing else can connect.
///
/// # Errors
/// One line with the reason.
pub fn accept_one() -> Result<Debugger, String> {
    let socket = DebuggerSocket::new()?;
    let mut output = io::stdout().lock();
    writeln!(output, "{}", socket.path().display())
        .and_then(|()| output.flush())
        .map_err(|error| format!("standard output: {error}"))?;
    socket.accept()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_directory_is_private_and_is_removed_with_its_socket() {
        let socket = DebuggerSocket::new().unwrap();
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        let path = socket.path().to_owned();
        let folder = path.parent().unwrap().to_owned();
        assert_eq!((mode(&folder), mode(&path)), (0o700, 0o600));
        socket.give_up();
        drop(socket.accept().unwrap());
        drop(socket);
        assert!(!folder.exists());
    }
}
