//! Routes the output of the job and scrun's own lines: to standard output and standard error, to
//! the merger of scout, or to scmon, which draws on the terminal.

use super::output::OutputWriter;
use crate::monitor::{Monitor, MonitorRequest};
use crate::scout::merge::OutputMerger;
use mio::Waker;
use nix::libc;
use score_proto::ids::{JobHostId, JobId};
use score_proto::message::{JobEnd, Stream};
use score_proto::observation::Metrics;
use std::sync::Arc;

/// See the [module](self).
pub struct OutputRouter {
    /// Standard output and standard error.
    writers: [OutputWriter; 2],
    /// Merges the output of the hosts. Set only by scout.
    merger: Option<OutputMerger>,
    /// The monitor to start when the job runs. After its start it is in `monitor`.
    monitor_request: Option<MonitorRequest>,
    monitor: Option<Monitor>,
    /// Bytes of the job, by stream, that [`OutputMerger`] has buffered or that were sent to scmon.
    /// They count as written.
    diverted_len: [u64; 2],
}

fn index(stream: Stream) -> usize {
    usize::from(stream == Stream::Stderr)
}

impl OutputRouter {
    /// A router before the first output. `waker` reports progress of the writers.
    pub fn new(
        waker: &Arc<Waker>,
        merger: Option<OutputMerger>,
        monitor_request: Option<MonitorRequest>,
    ) -> Self {
        let writers =
            [Stream::Stdout, Stream::Stderr].map(|stream| OutputWriter::new(stream, waker.clone()));
        Self { writers, merger, monitor_request, monitor: None, diverted_len: [0; 2] }
    }

    /// Writes bytes of the job that `host` has sent.
    pub fn write(&mut self, host: JobHostId, stream: Stream, bytes: Vec<u8>) {
        let is_for_programs = self.merger.as_ref().is_some_and(OutputMerger::is_for_programs);
        let stream_index = if is_for_programs { 0 } else { index(stream) };
        let count = bytes.len() as u64;
        let output = match &mut self.merger {
            Some(merger) => merger.push_output(host, stream, bytes),
            None => Some(bytes),
        };
        match output {
            Some(output) if stream_index == 1 => self.print_counted(output, count),
            Some(output) => self.writers[stream_index].push(output, count),
            None => self.diverted_len[stream_index] += count,
        }
    }

    /// Writes scrun's own text to standard error.
    pub fn print(&mut self, text: String) {
        self.print_counted(text.into_bytes(), 0);
    }

    /// Writes to standard error, or sends the bytes to scmon. Bytes that are sent to scmon count as
    /// written.
    fn print_counted(&mut self, bytes: Vec<u8>, count: u64) {
        if self.monitor.as_mut().is_some_and(|monitor| monitor.send_stderr(&bytes)) {
            self.diverted_len[1] += count;
        } else {
            self.writers[1].push(bytes, count);
        }
    }

    /// Starts the monitor if one is requested. Returns whether it runs now.
    ///
    /// # Errors
    /// One line that names the failed step.
    pub fn start_monitor(&mut self, job: JobId) -> Result<bool, String> {
        let Some(request) = self.monitor_request.take() else { return Ok(false) };
        self.monitor = Some(Monitor::start(&request, job)?);
        Ok(true)
    }

    /// Shows metrics on the monitor, if it runs. Returns false if the user has closed the monitor.
    pub fn show_metrics(&mut self, metrics: &Metrics) -> bool {
        let is_closed = self.monitor.as_mut().is_some_and(|monitor| !monitor.send_metrics(metrics));
        if is_closed {
            self.close_monitor();
        }
        !is_closed
    }

    /// Ends the monitor, if it runs.
    pub fn close_monitor(&mut self) {
        if let Some(monitor) = self.monitor.take() {
            self.writers[1].push(monitor.close(), 0);
        }
    }

    /// Writes the output that was buffered until the end of the job. May change the exit code in
    /// `end`.
    pub fn flush_merged(&mut self, end: Option<&mut JobEnd>) {
        let Some(merger) = &mut self.merger else { return };
        let reader_closed = self.writers[0].first_errno() == Some(libc::EPIPE);
        let flushed = merger.finish(end, reader_closed);
        for (writer, bytes) in self.writers.iter_mut().zip(flushed) {
            if !bytes.is_empty() {
                writer.push(bytes, 0);
            }
        }
    }

    /// Whether the queues have space for the chunks of one more message.
    pub fn has_capacity(&self) -> bool {
        self.writers.iter().all(OutputWriter::has_capacity)
    }

    /// Number of the job's bytes that count as written, by stream.
    pub fn written_len(&self) -> [u64; 2] {
        [0, 1].map(|index| self.writers[index].written_len() + self.diverted_len[index])
    }

    /// errno of the first failure of a stream.
    pub fn first_errno(&self, stream: Stream) -> Option<i32> {
        self.writers[index(stream)].first_errno()
    }

    /// Whether all queued bytes have been written or dropped.
    pub fn is_drained(&self) -> bool {
        self.writers.iter().all(OutputWriter::is_drained)
    }
}
