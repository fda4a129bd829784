//! Asking the scored of this host, in multi-user mode.

use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::time::Duration;

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
        socket.set_read_timeout(Some(PATIENCE)).map_err(failed)?;
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
        Ok(Self { socket, ups: Ups::default(), path })
    }

    /// The next part of the answer; none when it is complete.
    ///
    /// # Errors
    /// One line: the question is refused, or scored has gone.
    pub fn next_part(&mut self) -> Result<Option<Up>, String> {
        let mut chunk = [0; 1 << 14];
        loop {
            match self.ups.next().map_err(|error| format!("from scored: {error}"))? {
                Some(OfJob { message: Up::Hello { .. }, .. }) => {}
                Some(OfJob { message: Up::Refused { reason, .. }, .. }) => return Err(reason),
                Some(OfJob { message: Up::Finished(_), .. }) => return Ok(None),
                Some(OfJob { message, .. }) => return Ok(Some(message)),
                None => self.read(&mut chunk)?,
            }
        }
    }

    fn read(&mut self, chunk: &mut [u8]) -> Result<(), String> {
        match self.socket.read(chunk) {
            Ok(0) => Err("the scored of this host has closed the connection".to_owned()),
            Ok(count) => {
                self.ups.push(&chunk[..count]);
                Ok(())
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => Ok(()),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                Err(format!("the scored of this host has not answered for {PATIENCE:?}"))
            }
            Err(error) => {
                Err(format!("the scored of this host ({}): {error}", self.path.display()))
            }
        }
    }
}
