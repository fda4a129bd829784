//! The socket at which tools connect to the daemon of single-user mode. It is an abstract socket:
//! its name contains the process id of the daemon, and it disappears with the daemon. The daemon
//! accepts only its own user. A tool checks that the listening process has the process id in the
//! name.

use std::os::fd::OwnedFd;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::SocketAddr;

use mio::net::UnixListener;
use mio::{Interest, Registry, Token};
use nix::unistd::geteuid;
use score_proto::env::tool_socket_name;

use super::event_sources::EventSources;
use super::session::ClientSession;
use super::sessions::Sessions;
use crate::sys::credentials;

/// The maximum number of simultaneous connections of tools.
const MAX_TOOL_SESSIONS: usize = 64;

/// See the [module](self).
#[derive(Debug)]
pub struct ToolListener {
    listener: UnixListener,
    /// Whether a connection may be waiting. mio reports each connection once only.
    may_accept: bool,
}

impl ToolListener {
    /// Opens the socket. Returns `None` if another process uses the name; tools then do not find
    /// this daemon.
    pub fn open(registry: &Registry, token: Token) -> Option<Self> {
        let address = SocketAddr::from_abstract_name(tool_socket_name(std::process::id())).ok()?;
        let mut listener = UnixListener::bind_addr(&address).ok()?;
        registry.register(&mut listener, token, Interest::READABLE).ok()?;
        Some(Self { listener, may_accept: true })
    }

    /// Accepts the next connection of a process of this user.
    fn accept(&mut self) -> Option<OwnedFd> {
        while self.may_accept {
            let Ok((stream, _)) = self.listener.accept() else {
                self.may_accept = false;
                return None;
            };
            let socket = OwnedFd::from(stream);
            let own_uid = geteuid().as_raw();
            if credentials::peer_ids(&socket).is_ok_and(|ids| ids.uid == own_uid) {
                return Some(socket);
            }
        }
        None
    }

    /// Records that mio has reported a connection.
    pub fn mark_ready(&mut self) {
        self.may_accept = true;
    }

    /// Accepts the waiting tools.
    pub fn accept_sessions(&mut self, sessions: &mut Sessions, sources: &mut EventSources) {
        while let Some(socket) = self.accept() {
            if sessions.tool_session_count() >= MAX_TOOL_SESSIONS {
                continue;
            }
            let (session_key, token) = sources.allocate_session();
            if let Ok(session) = ClientSession::of_tool(socket, sources.registry(), token) {
                sessions.insert(session_key, session);
            }
        }
    }
}
