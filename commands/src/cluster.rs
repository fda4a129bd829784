//! Asking the scored of this host, in multi-user mode.

use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, ppoll};
use nix::sys::time::TimeSpec;
use nix::unistd::{User, getuid};
use score_proto::PROTOCOL_VERSION;
use score_proto::env::{DEFAULT_SOCKET, SCORED_SOCKET};
use score_proto::login::{self, LOGIN, OfJob, Ups};
use score_proto::message::{Console, Down, Login, OsBytes, Up};

/// How long an answer may take.
const PATIENCE: Duration = Duration::from_secs(30);

/// A question, and the answer as it comes.
#[derive(Debug)]
pub struct Answer {
    socket: UnixStream,
    ups: Ups,
    path: PathBuf,
    /// When something has come last.
    heard: Instant,
}

/// What an answer has brought.
#[derive(Debug)]
pub enum Part {
    /// This.
    Said(Up),
    /// Nothing yet.
    NotYet,
    /// It is complete.
    End,
}

/// Whether there is something to read, or the end, within `limit`.
///
/// # Errors
/// As ppoll(2).
pub fn is_readable(fd: BorrowedFd<'_>, limit: Duration) -> io::Result<bool> {
    match ppoll(&mut [PollFd::new(fd, PollFlags::POLLIN)], Some(TimeSpec::from(limit)), None) {
        Err(Errno::EINTR) => Ok(false),
        found => Ok(found? > 0),
    }
}

impl Answer {
    /// Asks the scored that listens at `socket`, or where the environment says.
    ///
    /// # Errors
    /// One line: nobody is there.
    pub fn to(question: Console, socket: Option<PathBuf>) -> Result<Self, String> {
        let variable = || std::env::var_os(SCORED_SOCKET).map(PathBuf::from);
        let path = socket.or_else(variable).unwrap_or_else(|| DEFAULT_SOCKET.into());
        let failed = |error: io::Error| match error.kind() {
            io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused => format!(
                "no scored serves this host ({}: {error}); an operator starts one",
                path.display()
            ),
            _ => format!("the scored of this host ({}): {error}", path.display()),
        };
        let mut socket = UnixStream::connect(&path).map_err(failed)?;
        let name = User::from_uid(getuid()).ok().flatten().map(|user| user.name);
        let login = Login {
            uid: getuid().as_raw(),
            name: OsBytes(name.unwrap_or_default().into_bytes()),
            cluster: String::new(),
            limits: Vec::new(),
        };
        let words = [
            Down::Hello { version: PROTOCOL_VERSION },
            Down::Login(login),
            Down::Console(question),
        ];
        let mut out = Vec::new();
        for word in &words {
            login::encode(LOGIN, word, &mut out).map_err(|error| error.to_string())?;
        }
        socket.write_all(&out).map_err(failed)?;
        Ok(Self { socket, ups: Ups::default(), path, heard: Instant::now() })
    }

    /// The next part of the answer; none when it is complete.
    ///
    /// # Errors
    /// One line: the question is refused, or scored has gone.
    pub fn next_part(&mut self) -> Result<Option<Up>, String> {
        loop {
            match self.next_within(PATIENCE)? {
                Part::Said(up) => return Ok(Some(up)),
                Part::NotYet => {}
                Part::End => return Ok(None),
            }
        }
    }

    /// The next part of the answer, if it comes within `limit`.
    ///
    /// # Errors
    /// As [`Answer::next_part`].
    pub fn next_within(&mut self, limit: Duration) -> Result<Part, String> {
        loop {
            match self.ups.next().map_err(|error| format!("from scored: {error}"))? {
                Some(OfJob { message: Up::Hello { .. }, .. }) => {}
                Some(OfJob { message: Up::Refused { reason, .. }, .. }) => return Err(reason),
                Some(OfJob { message: Up::Finished(_), .. }) => return Ok(Part::End),
                Some(OfJob { message, .. }) => return Ok(Part::Said(message)),
                None if self.is_readable(limit)? => self.read()?,
                None => return Ok(Part::NotYet),
            }
        }
    }

    fn is_readable(&self, limit: Duration) -> Result<bool, String> {
        match is_readable(self.socket.as_fd(), limit) {
            Ok(false) if self.heard.elapsed() >= PATIENCE => {
                Err(format!("the scored of this host has not answered for {PATIENCE:?}"))
            }
            found => found.map_err(|error| self.failed(&error)),
        }
    }

    fn read(&mut self) -> Result<(), String> {
        let mut chunk = [0; 1 << 14];
        match self.socket.read(&mut chunk) {
            Ok(0) => Err("the scored of this host has closed the connection".to_owned()),
            Ok(count) => {
                self.ups.push(&chunk[..count]);
                self.heard = Instant::now();
                Ok(())
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => Ok(()),
            Err(error) => Err(self.failed(&error)),
        }
    }

    fn failed(&self, error: &io::Error) -> String {
        format!("the scored of this host ({}): {error}", self.path.display())
    }
}
