//! Logging in to the scout session that this process runs in, if it runs in one.

use crate::usage::{Refusal, USAGE};
use score_proto::PROTOCOL_VERSION;
use score_proto::env::SCOUT;
use score_proto::frame;
use score_proto::login::Ups;
use score_proto::message::{Down, HostSpec, Up};
use std::ffi::OsString;
use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

/// How long the session may take to answer.
const ANSWER: Duration = Duration::from_secs(10);

/// A session that has been entered.
#[derive(Debug)]
pub struct Login {
    /// The connection: greeted, and ready for a job.
    pub stream: UnixStream,
    /// What has been heard of it.
    pub ups: Ups,
    /// The hosts of the session, in order.
    pub hosts: Vec<HostSpec>,
}

/// What the environment says of a session.
pub fn named() -> Option<OsString> {
    std::env::var_os(SCOUT).filter(|path| !path.is_empty())
}

/// Enters the session that the environment names, if it names one.
///
/// # Errors
/// A session that is gone, or lets nobody in.
pub fn login_if_inside() -> Result<Option<Login>, Refusal> {
    let Some(path) = named() else { return Ok(None) };
    let login = login(Path::new(&path)).map_err(|reason| {
        let line = format!("{SCOUT}: {reason}; leave this shell, or unset {SCOUT}");
        Refusal::plain(USAGE, line)
    })?;
    Ok(Some(login))
}

/// Enters the session behind this socket.
///
/// # Errors
/// One line.
pub fn login(path: &Path) -> Result<Login, String> {
    let shown = path.display();
    let gone = |error: io::Error| match error.kind() {
        io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused => {
            format!("the scout session at {shown} is gone")
        }
        _ => format!("the scout session at {shown}: {error}"),
    };
    let stream = UnixStream::connect(path).map_err(gone)?;
    let (hosts, ups) = greet(&stream).map_err(|error| match error.kind() {
        io::ErrorKind::UnexpectedEof
        | io::ErrorKind::ConnectionReset
        | io::ErrorKind::BrokenPipe => {
            format!("the scout session at {shown} is another user's, or it is ending")
        }
        io::ErrorKind::WouldBlock => format!("the scout session at {shown} does not answer"),
        io::ErrorKind::Other => error.to_string(),
        _ => format!("the scout session at {shown}: {error}"),
    })?;
    Ok(Login { stream, ups, hosts })
}

fn greet(mut stream: &UnixStream) -> io::Result<(Vec<HostSpec>, Ups)> {
    stream.set_read_timeout(Some(ANSWER))?;
    stream.set_write_timeout(Some(ANSWER))?;
    let mut hello = Vec::new();
    frame::encode(&Down::Hello { version: PROTOCOL_VERSION }, &mut hello)
        .map_err(io::Error::other)?;
    stream.write_all(&hello)?;
    let mut decoder = Ups::default();
    let mut chunk = [0; 4096];
    loop {
        match decoder.next().map_err(io::Error::other)?.map(|heard| heard.message) {
            Some(Up::Hosts(hosts)) if !hosts.is_empty() => {
                stream.set_read_timeout(None)?;
                stream.set_write_timeout(None)?;
                return Ok((hosts, decoder));
            }
            Some(Up::Refused { reason, .. }) => return Err(io::Error::other(reason)),
            Some(Up::Hello { version }) if version != PROTOCOL_VERSION => {
                return Err(io::Error::other(format!(
                    "the session's scored speaks protocol {version}, this command \
                     {PROTOCOL_VERSION}"
                )));
            }
            Some(_) => {}
            None => match stream.read(&mut chunk)? {
                0 => return Err(io::ErrorKind::UnexpectedEof.into()),
                count => decoder.push(&chunk[..count]),
            },
        }
    }
}
