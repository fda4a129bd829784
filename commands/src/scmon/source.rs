//! The source of the metrics: scored, or a pipe from scrun. If drawing is slow, received messages
//! wait, and scored sends fewer of them.

use std::fs::File;
use std::io::{ErrorKind, Read};
use std::os::fd::AsFd;
use std::path::Path;
use std::time::Duration;

use score_client::is_readable;
use score_proto::frame::Decoder;
use score_proto::ids::JobId;
use score_proto::message::ConsoleRequest;
use score_proto::observation::{Metrics, MonitorMessage};

use super::ScmonOptions;
use crate::scored_client::{QueryStream, Reply};

/// Maximum bytes of one read from a pipe.
const READ_CHUNK_LEN: usize = 1 << 16;

/// The remedy if there is no service.
const REMEDY: &str = "use scrun -monitor for a job without a service";

/// The sender of the metrics.
pub enum MetricsSource {
    /// scored.
    Scored(QueryStream),
    /// scrun, which forwards metrics of scored.
    Scrun(Pipe),
}

impl MetricsSource {
    /// Opens the source.
    ///
    /// # Errors
    /// One line: there is no scored, or the pipe cannot be opened.
    pub fn open(options: &ScmonOptions) -> Result<Self, String> {
        if let Some(path) = &options.pipe {
            return Pipe::open(path).map(Self::Scrun);
        }
        let job = options.job.unwrap_or(JobId(0));
        let request = ConsoleRequest::SubscribeMetrics { job, period_ms: options.period_ms };
        QueryStream::open(request, options.socket.clone(), REMEDY).map(Self::Scored)
    }

    /// The next message, if it arrives within `timeout`.
    ///
    /// # Errors
    /// One line: the source has failed.
    pub fn next_reply(&mut self, timeout: Duration) -> Result<Reply<MonitorMessage>, String> {
        match self {
            Self::Scored(query) => Ok(match query.next_reply_within::<Metrics>(timeout)? {
                Reply::Answer(metrics) => Reply::Answer(MonitorMessage::Metrics(metrics)),
                Reply::Notice(text) => Reply::Notice(text),
                Reply::Pending => Reply::Pending,
                Reply::End => Reply::End,
            }),
            Self::Scrun(pipe) => {
                pipe.next_reply_within(timeout).map_err(|error| format!("from scrun: {error}"))
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
        Ok(Self { file, decoder: Decoder::default(), chunk: vec![0; READ_CHUNK_LEN] })
    }

    fn next_reply_within(&mut self, timeout: Duration) -> std::io::Result<Reply<MonitorMessage>> {
        loop {
            match self.decoder.next().map_err(std::io::Error::other)? {
                Some(message) => return Ok(Reply::Answer(message)),
                None if !is_readable(self.file.as_fd(), timeout)? => return Ok(Reply::Pending),
                None => {}
            }
            match self.file.read(&mut self.chunk) {
                Ok(0) => return Ok(Reply::End),
                Ok(count) => self.decoder.push(&self.chunk[..count]),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
    }
}
