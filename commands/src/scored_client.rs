//! A client for queries to the scored of this host, and for commands of tools.

use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixStream};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, ppoll};
use nix::sys::socket::{getsockopt, sockopt::PeerCredentials};
use nix::sys::time::TimeSpec;
use nix::unistd::{User, getuid};
use score_proto::client_session::{self, SESSION_JOB};
use score_proto::env::{DEFAULT_SOCKET, SCORED_SOCKET_ENV, tool_socket_name};
use score_proto::message::{ConsoleRequest, Login, OsBytes, UserRequest};
use score_proto::server_message::{
    ConsoleAnswer, ConsoleReply, ServerMessageDecoder, SessionAnswer, SessionMessage,
};
use score_proto::tool_start::ScrunJob;

/// The time in which a reply must arrive.
const REPLY_TIMEOUT: Duration = Duration::from_secs(30);

/// A request, and the stream of its replies.
#[derive(Debug)]
pub struct QueryStream {
    socket: UnixStream,
    decoder: ServerMessageDecoder,
    path: PathBuf,
    /// The time at which bytes were last received.
    last_received_at: Instant,
}

/// The result of waiting for a reply whose parts are `A`.
#[derive(Debug)]
pub enum Reply<A> {
    /// A part of the reply.
    Answer(A),
    /// A line for the user, without newline.
    Notice(String),
    /// No message yet.
    Pending,
    /// The reply is complete.
    End,
}

/// Whether the descriptor becomes readable, or is closed, within `timeout`.
///
/// # Errors
/// As ppoll(2).
pub fn is_readable(fd: BorrowedFd<'_>, timeout: Duration) -> io::Result<bool> {
    match ppoll(&mut [PollFd::new(fd, PollFlags::POLLIN)], Some(TimeSpec::from(timeout)), None) {
        Err(Errno::EINTR) => Ok(false),
        ready => Ok(ready? > 0),
    }
}

/// The descriptor is readable when a part of the reply has arrived, or when the connection is
/// closed.
impl AsFd for QueryStream {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl QueryStream {
    /// Connects to the scored at `socket`, or at the socket from the environment, and sends the
    /// request.
    ///
    /// # Errors
    /// One line: there is no scored.
    pub fn open(request: ConsoleRequest, socket: Option<PathBuf>) -> Result<Self, String> {
        let from_env = || std::env::var_os(SCORED_SOCKET_ENV).map(PathBuf::from);
        let path = socket.or_else(from_env).unwrap_or_else(|| DEFAULT_SOCKET.into());
        let failed = |error: io::Error| match error.kind() {
            io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused => format!(
                "no scored serves this host ({}: {error}); an operator starts one",
                path.display()
            ),
            _ => format!("the scored of this host ({}): {error}", path.display()),
        };
        let socket = UnixStream::connect(&path).map_err(failed)?;
        let name = User::from_uid(getuid()).ok().flatten().map(|user| user.name);
        let login = Login {
            uid: getuid().as_raw(),
            name: OsBytes(name.unwrap_or_default().into_bytes()),
            cluster: String::new(),
        };
        let request = UserRequest::Console(request);
        let mut out = Vec::new();
        client_session::encode_greeting(&mut out)
            .and_then(|()| client_session::encode(SESSION_JOB, &login, &mut out))
            .and_then(|()| client_session::encode(SESSION_JOB, &request, &mut out))
            .map_err(|error| error.to_string())?;
        Self::start(socket, path, &out)
    }

    /// Sends a request about a job to the daemon that runs the job. `socket` is the socket of the
    /// scored of this host. It is not used in single-user mode.
    ///
    /// # Errors
    /// One line: there is no such scored of this user.
    pub fn open_at(
        job: ScrunJob,
        request: ConsoleRequest,
        socket: Option<PathBuf>,
    ) -> Result<Self, String> {
        match job.daemon {
            None => Self::open(request, socket),
            Some(pid) => Self::open_single_user(pid, &request),
        }
    }

    fn open_single_user(scored_pid: u32, request: &ConsoleRequest) -> Result<Self, String> {
        let failed = |error: io::Error| format!("scored, process {scored_pid}: {error}");
        let address = SocketAddr::from_abstract_name(tool_socket_name(scored_pid));
        let address = address.map_err(failed)?;
        let socket = UnixStream::connect_addr(&address).map_err(failed)?;
        // Another process may use this name, so check its user and process id.
        let peer = getsockopt(&socket, PeerCredentials).map_err(|error| failed(error.into()))?;
        if i64::from(peer.pid()) != i64::from(scored_pid) || peer.uid() != getuid().as_raw() {
            return Err(format!(
                "scored, process {scored_pid}: its socket belongs to process {} of uid {}",
                peer.pid(),
                peer.uid()
            ));
        }
        let mut out = Vec::new();
        client_session::encode_greeting(&mut out)
            .and_then(|()| client_session::encode(SESSION_JOB, request, &mut out))
            .map_err(|error| error.to_string())?;
        Self::start(socket, PathBuf::from(format!("process {scored_pid}")), &out)
    }

    fn start(mut socket: UnixStream, path: PathBuf, request: &[u8]) -> Result<Self, String> {
        socket.write_all(request).map_err(|error| format!("{}: {error}", path.display()))?;
        let (decoder, last_received_at) = (ServerMessageDecoder::default(), Instant::now());
        Ok(Self { socket, decoder, path, last_received_at })
    }

    /// The next part of the reply. `None` if the reply is complete.
    ///
    /// # Errors
    /// One line: scored has refused the request, or the connection is lost.
    pub fn next_reply<A: TryFrom<ConsoleAnswer>>(&mut self) -> Result<Option<A>, String> {
        loop {
            match self.next_reply_within(REPLY_TIMEOUT)? {
                Reply::Answer(answer) => return Ok(Some(answer)),
                Reply::Notice(_) | Reply::Pending => {}
                Reply::End => return Ok(None),
            }
        }
    }

    /// Restarts the time limit for a reply, if none is expected for a while.
    pub fn expect_silence(&mut self) {
        self.last_received_at = Instant::now();
    }

    /// The next part of the reply, if it arrives within `timeout`.
    ///
    /// # Errors
    /// As [`QueryStream::next_reply`].
    pub fn next_reply_within<A: TryFrom<ConsoleAnswer>>(
        &mut self,
        timeout: Duration,
    ) -> Result<Reply<A>, String> {
        loop {
            match self.decoder.next().map_err(|error| format!("from scored: {error}"))? {
                Some(SessionMessage::Session(answer)) => match answer {
                    SessionAnswer::Hello { version } => {
                        client_session::check_server_version(version)?;
                    }
                    SessionAnswer::Refused { reason, .. } => return Err(reason),
                    SessionAnswer::Notice { text, .. } => return Ok(Reply::Notice(text)),
                },
                Some(SessionMessage::Answer(reply)) => {
                    return Ok(match reply {
                        ConsoleReply::Answer(answer) => Reply::Answer(answer),
                        ConsoleReply::Finished { .. } => Reply::End,
                    });
                }
                None if self.is_readable(timeout)? => self.read()?,
                None => return Ok(Reply::Pending),
            }
        }
    }

    fn is_readable(&self, timeout: Duration) -> Result<bool, String> {
        match is_readable(self.socket.as_fd(), timeout) {
            Ok(false) if self.last_received_at.elapsed() >= REPLY_TIMEOUT => {
                Err(format!("the scored of this host has not answered for {REPLY_TIMEOUT:?}"))
            }
            result => result.map_err(|error| self.describe_error(&error)),
        }
    }

    fn read(&mut self) -> Result<(), String> {
        let mut chunk = [0; 1 << 14];
        match self.socket.read(&mut chunk) {
            Ok(0) => Err("the scored of this host has closed the connection".to_owned()),
            Ok(count) => {
                self.decoder.push(&chunk[..count]);
                self.last_received_at = Instant::now();
                Ok(())
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => Ok(()),
            Err(error) => Err(self.describe_error(&error)),
        }
    }

    fn describe_error(&self, error: &io::Error) -> String {
        format!("the scored of this host ({}): {error}", self.path.display())
    }
}
