//! The socket at which scrun takes requests of start_tool and end_tool, and passes them on to its
//! job. It has an abstract name with the process id of scrun. Only scrun's own user, and root, are
//! answered; all others find the connection closed.

use std::io::{self, Read, Write};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener};

use mio::{Interest, Registry, Token};
use nix::sys::socket::{getsockopt, sockopt::PeerCredentials};
use nix::unistd::geteuid;
use score_proto::PROTOCOL_VERSION;
use score_proto::frame::{self, Decoder};
use score_proto::tool_start::{
    MAX_TOOL_ARGUMENT_BYTES, MAX_TOOL_ARGUMENTS, ScrunToolRequest, ToolAction, ToolActionAnswer,
    scrun_tool_socket,
};

/// Requests that may be without an answer at the same time.
const MAX_CLIENTS: usize = 16;
/// The longest request: arguments, with their lengths, and names of hosts.
const MAX_REQUEST_LEN: usize = MAX_TOOL_ARGUMENT_BYTES + 8 * MAX_TOOL_ARGUMENTS + (1 << 20);

/// A start_tool or end_tool.
#[derive(Debug)]
struct Client {
    serial: u64,
    stream: mio::net::UnixStream,
    decoder: Decoder,
    has_asked: bool,
}

/// See the [module](self).
#[derive(Debug)]
pub struct ToolSocket {
    listener: mio::net::UnixListener,
    clients: Vec<Client>,
    last_serial: u64,
}

impl ToolSocket {
    /// Opens the socket. None: somebody has taken the name, and there are no tools for this scrun.
    pub fn open(registry: &Registry, token: Token) -> Option<Self> {
        let name = scrun_tool_socket(std::process::id());
        let address = SocketAddr::from_abstract_name(name).ok()?;
        let listener = UnixListener::bind_addr(&address).ok()?;
        listener.set_nonblocking(true).ok()?;
        let mut listener = mio::net::UnixListener::from_std(listener);
        registry.register(&mut listener, token, Interest::READABLE).ok()?;
        Some(Self { listener, clients: Vec::new(), last_serial: 0 })
    }

    /// Accepts clients and reads their requests: a number for the answer, and what is wanted.
    pub fn receive(&mut self, registry: &Registry, token: Token) -> Vec<(u64, ToolAction)> {
        while let Ok((mut stream, _)) = self.listener.accept() {
            let peer = getsockopt(&stream, PeerCredentials);
            let is_permitted =
                peer.is_ok_and(|peer| peer.uid() == geteuid().as_raw() || peer.uid() == 0);
            if !is_permitted
                || self.clients.len() >= MAX_CLIENTS
                || registry.register(&mut stream, token, Interest::READABLE).is_err()
            {
                continue;
            }
            self.last_serial += 1;
            let mut decoder = Decoder::default();
            decoder.set_max_body(MAX_REQUEST_LEN);
            let serial = self.last_serial;
            self.clients.push(Client { serial, stream, decoder, has_asked: false });
        }
        let mut actions = Vec::new();
        self.clients.retain_mut(|client| match client.read() {
            Ok(Some(action)) => {
                actions.push((client.serial, action));
                true
            }
            Ok(None) => true,
            Err(_) => false,
        });
        actions
    }

    /// Sends an answer of the job.
    pub fn answer(&mut self, serial: u64, answer: &ToolActionAnswer) {
        let mut bytes = Vec::new();
        let encoded = frame::encode(answer, &mut bytes);
        for mut client in self.clients.extract_if(.., |client| client.serial == serial) {
            // The answer is short, and the first that is sent: it fits into the socket.
            let _ = encoded.is_ok() && client.stream.write_all(&bytes).is_ok();
        }
    }
}

impl Client {
    /// Reads its request, once. An error: it has gone, or says what no client says.
    fn read(&mut self) -> io::Result<Option<ToolAction>> {
        let mut chunk = [0; 16 << 10];
        loop {
            match self.stream.read(&mut chunk) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(_) if self.has_asked => return Err(io::ErrorKind::InvalidData.into()),
                Ok(count) => self.decoder.push(&chunk[..count]),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => return Err(error),
            }
            if self.decoder.pending() > MAX_REQUEST_LEN {
                return Err(io::ErrorKind::InvalidData.into());
            }
        }
        if self.has_asked {
            return Ok(None);
        }
        let request: Option<ScrunToolRequest> = self.decoder.next().map_err(io::Error::other)?;
        let Some(request) = request else { return Ok(None) };
        if request.version != PROTOCOL_VERSION {
            return Err(io::ErrorKind::InvalidData.into());
        }
        self.has_asked = true;
        Ok(Some(request.action))
    }
}
