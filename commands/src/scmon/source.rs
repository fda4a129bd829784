//! Where figures come from: scored, or a pipe from scrun. Where the picture is slow, what has come
//! waits, and scored sends less.

use std::fs::File;
use std::io::{ErrorKind, Read};
use std::os::fd::AsFd;
use std::path::Path;
use std::time::Duration;

use score_proto::frame::Decoder;
use score_proto::message::{Console, Up};

use super::Options;
use crate::cluster::{Answer, Part, is_readable};

/// Bytes that are taken from a pipe at once.
const CHUNK: usize = 1 << 16;

/// Who tells of the job.
pub enum Source {
    /// scored.
    Scored(Answer),
    /// scrun, which passes on what it hears.
    Scrun(Pipe),
}

impl Source {
    /// Begins to listen.
    ///
    /// # Errors
    /// One line: nobody is there, or it cannot be opened.
    pub fn open(options: &Options) -> Result<Self, String> {
        if let Some(path) = &options.pipe {
            return Pipe::open(path).map(Self::Scrun);
        }
        let job = options.job.unwrap_or_default();
        let question = Console::Watch { job, period_ms: options.period_ms };
        Answer::to(question, options.socket.clone()).map(Self::Scored)
    }

    /// What comes next, if it comes within `limit`.
    ///
    /// # Errors
    /// One line: it has ended, and not well.
    pub fn next(&mut self, limit: Duration) -> Result<Part, String> {
        match self {
            Self::Scored(answer) => answer.next_within(limit),
            Self::Scrun(pipe) => {
                pipe.next_within(limit).map_err(|error| format!("from scrun: {error}"))
            }
        }
    }
}

/// A pipe from scrun.
pub struct Pipe {
    file: File,
    decoder: Decoder,
    chunk: Vec<u8>,
}

impl Pipe {
    fn open(path: &Path) -> Result<Self, String> {
        let path = if path == Path::new("-") { Path::new("/dev/stdin") } else { path };
        let file = File::open(path).map_err(|error| format!("{}: {error}", path.display()))?;
        Ok(Self { file, decoder: Decoder::default(), chunk: vec![0; CHUNK] })
    }

    fn next_within(&mut self, limit: Duration) -> std::io::Result<Part> {
        loop {
            match self.decoder.next::<Up>().map_err(std::io::Error::other)? {
                Some(Up::Finished(_)) => return Ok(Part::End),
                Some(up) => return Ok(Part::Said(up)),
                None if !is_readable(self.file.as_fd(), limit)? => return Ok(Part::NotYet),
                None => {}
            }
            match self.file.read(&mut self.chunk) {
                Ok(0) => return Ok(Part::End),
                Ok(count) => self.decoder.push(&self.chunk[..count]),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
    }
}
