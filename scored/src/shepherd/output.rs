//! The output of the processes. The shepherd reads it from their pipes, splits it into lines,
//! merges it fairly, and sends it towards scrun within the window. While the window is full, the
//! shepherd does not read the pipes, so that writers block.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::time::{Duration, Instant};

use mio::unix::SourceFd;
use mio::{Interest, Registry, Token};
use nix::errno::Errno;
use score_client::{READ_BUFFER_LEN, with_read_buffer};
use score_job::line_splitter::LineSplitter;
use score_proto::ids::{ElementIndex, JobHostId};
use score_proto::job_control::{HOP_WINDOW, OutputReport, ShepherdReport};
use score_proto::message::{MAX_IO_CHUNK, Stream};

use super::job_info::ProcessKey;
use super::reports::ScoredLink;
use crate::sys::descriptor;

/// Smallest read that is worth a system call, in bytes.
const MIN_READ_LEN: usize = 4096;
/// Number of reads in one tick of the loop.
const READS_PER_TICK: usize = 32;
/// Largest total of all unfinished lines, in bytes. Above this limit, only one pipe is read until
/// its line is complete. The other pipes are not read, so that their writers block.
const MAX_PENDING_BYTES: usize = 16 * 1024 * 1024;
/// How long an unfinished line (a prompt, a progress bar) is held back.
const PARTIAL_LINE_TIMEOUT: Duration = Duration::from_millis(100);
/// How long an unfinished line is held back if its writer is probably in the middle of a write.
const MID_WRITE_LINE_TIMEOUT: Duration = Duration::from_secs(1);
/// The stdio library writes buffered output in multiples of this many bytes.
const STDIO_BLOCK_LEN: u64 = 1024;
/// How long output may take to drain after the user has killed the job.
const KILL_DRAIN_TIMEOUT: Duration = Duration::from_millis(300);
/// Size to which a busy pipe is enlarged, if the system allows.
const LARGE_PIPE_LEN: i32 = 256 * 1024;

/// Why pipes are being read up to their current end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DrainReason {
    /// sc_flush: the process that has called it, and the id of the call.
    Flush(ProcessKey, u32),
    /// Every process of a stage has exited.
    StageEnd,
    /// Every process of the job has exited.
    JobEnd,
}

#[derive(Debug)]
struct PendingDrain {
    serial: u64,
    reason: DrainReason,
    pipes_left: usize,
}

/// A kill by the user. It stays in effect until the job ends.
#[derive(Debug)]
struct UserKill {
    /// Output is read until this deadline. None: the rest of the output has been abandoned.
    drain_deadline: Option<Instant>,
}

impl UserKill {
    fn new(now: Instant) -> Self {
        Self { drain_deadline: Some(now + KILL_DRAIN_TIMEOUT) }
    }

    /// Whether output has to be abandoned now. Returns true once for each deadline.
    fn is_drain_overdue(&mut self, now: Instant) -> bool {
        self.drain_deadline.take_if(|deadline| *deadline <= now).is_some()
    }
}

#[derive(Debug)]
struct OutputPipe {
    pipe: OwnedFd,
    stream: Stream,
    /// Stage and element of the writer. The pipe may outlive the writer.
    owner: (usize, ElementIndex),
    lines: LineSplitter,
    /// Number of bytes read so far.
    bytes_read: u64,
    /// Bytes read since the pipe was last empty.
    burst_len: usize,
    capacity: usize,
    is_queued: bool,
    deadline: Option<Instant>,
    /// Drains that wait for this pipe: serial number, and the value of `bytes_read` that completes
    /// the drain.
    drain_marks: Vec<(u64, u64)>,
}

/// All output pipes of the job on this host.
#[derive(Debug)]
pub struct OutputMux {
    /// This host's index among the job's hosts.
    pub host: JobHostId,
    pipes: Vec<Option<OutputPipe>>,
    ready: VecDeque<usize>,
    /// Bytes that have been sent to scored and are not acknowledged yet.
    unacked_len: usize,
    /// Whether the window had too little room for the last read.
    is_window_full: bool,
    closed_streams: [bool; 2],
    /// Length of all unfinished lines in bytes.
    pending_len: usize,
    /// The only pipe that may be read while `pending_len` exceeds its limit.
    exclusive_reader: Option<usize>,
    /// Pipes that wait for `exclusive_reader`. They count as queued.
    parked_pipes: Vec<usize>,
    batch: Vec<u8>,
    batch_stream: Stream,
    drains: Vec<PendingDrain>,
    next_drain: u64,
    user_kill: Option<UserKill>,
    ready_bytes: Vec<u8>,
}

fn stream_index(stream: Stream) -> usize {
    match stream {
        Stream::Stdout => 0,
        Stream::Stderr => 1,
    }
}

impl Default for OutputMux {
    fn default() -> Self {
        Self {
            host: JobHostId(0),
            pipes: Vec::new(),
            ready: VecDeque::new(),
            unacked_len: 0,
            is_window_full: false,
            closed_streams: [false; 2],
            pending_len: 0,
            exclusive_reader: None,
            parked_pipes: Vec::new(),
            batch: Vec::new(),
            batch_stream: Stream::Stdout,
            drains: Vec::new(),
            next_drain: 0,
            user_kill: None,
            ready_bytes: Vec::new(),
        }
    }
}

impl OutputMux {
    /// Takes the read end of a pipe. Drops it at once if scrun's stream has been closed.
    ///
    /// # Errors
    /// The errors of fcntl(2) and epoll_ctl(2).
    pub fn add(
        &mut self,
        pipe: OwnedFd,
        stream: Stream,
        owner: (usize, ElementIndex),
        registry: &Registry,
        token: impl Fn(usize) -> Token,
    ) -> io::Result<()> {
        if self.closed_streams[stream_index(stream)] {
            return Ok(());
        }
        descriptor::set_nonblocking(pipe.as_fd())?;
        let index = self.pipes.len();
        registry.register(&mut SourceFd(&pipe.as_raw_fd()), token(index), Interest::READABLE)?;
        let capacity = descriptor::pipe_capacity(pipe.as_fd());
        self.pipes.push(Some(OutputPipe {
            pipe,
            stream,
            owner,
            lines: LineSplitter::default(),
            bytes_read: 0,
            burst_len: 0,
            capacity,
            is_queued: false,
            deadline: None,
            drain_marks: Vec::new(),
        }));
        Ok(())
    }

    /// Records that mio has reported that a pipe is readable or at its end.
    pub fn mark_ready(&mut self, index: usize) {
        if let Some(Some(output)) = self.pipes.get_mut(index)
            && !output.is_queued
        {
            output.is_queued = true;
            self.ready.push_back(index);
        }
    }

    /// Handles an acknowledgement of the daemon on this host for this many bytes.
    pub fn on_output_ack(&mut self, bytes: u64, now: Instant) {
        let bytes = usize::try_from(bytes).unwrap_or(usize::MAX);
        self.unacked_len = self.unacked_len.saturating_sub(bytes);
        if std::mem::take(&mut self.is_window_full) {
            self.restart_line_timeouts(now);
        }
    }

    /// Handles the end of an output stream of scrun, whose reader has closed it. Closes the pipes
    /// of that stream, so that their writers get an error.
    pub fn close_stream(&mut self, stream: Stream) {
        self.closed_streams[stream_index(stream)] = true;
        for index in 0..self.pipes.len() {
            if self.pipes[index].as_ref().is_some_and(|output| output.stream == stream) {
                self.remove(index);
            }
        }
    }

    /// Reads the pipes of one element, or of all elements, up to their current end. After that,
    /// [`OutputMux::drained`] returns `reason`.
    pub fn drain(&mut self, reason: DrainReason, owner: Option<(usize, ElementIndex)>) {
        let serial = self.next_drain;
        self.next_drain += 1;
        let mut pipes_left = 0;
        for index in 0..self.pipes.len() {
            let Some(output) = &mut self.pipes[index] else { continue };
            if owner.is_none_or(|owner| owner == output.owner) {
                let unread = descriptor::bytes_waiting(output.pipe.as_fd()) as u64;
                output.drain_marks.push((serial, output.bytes_read + unread));
                pipes_left += 1;
                self.mark_ready(index);
            }
        }
        self.drains.push(PendingDrain { serial, reason, pipes_left });
    }

    /// Reads all pipes up to their current end, because a stage or the job ends. If the user has
    /// killed the job, the time for this is limited.
    pub fn drain_all(&mut self, reason: DrainReason, now: Instant) {
        if let Some(kill) = &mut self.user_kill {
            *kill = UserKill::new(now);
        }
        self.drain(reason, None);
    }

    /// Handles a kill of the job by the user, which is possible in any phase. Limits the time of
    /// the drains from now on.
    pub fn on_user_kill(&mut self, now: Instant) {
        self.user_kill = Some(UserKill::new(now));
    }

    /// When [`OutputMux::check_user_kill`] has work to do.
    pub fn kill_deadline(&self) -> Option<Instant> {
        self.user_kill.as_ref()?.drain_deadline
    }

    /// Abandons the drains whose time has passed after a kill by the user.
    pub fn check_user_kill(&mut self, now: Instant) {
        if self.user_kill.as_mut().is_some_and(|kill| kill.is_drain_overdue(now)) {
            self.abandon(DrainReason::StageEnd);
            self.abandon(DrainReason::JobEnd);
        }
    }

    /// Completes all drains with this reason without waiting for their pipes.
    fn abandon(&mut self, reason: DrainReason) {
        for drain in &mut self.drains {
            if drain.reason == reason {
                drain.pipes_left = 0;
            }
        }
    }

    /// Removes a completed drain and returns its reason. Sends the collected output before.
    pub fn drained(&mut self, reports: &mut ScoredLink) -> Option<DrainReason> {
        let index = self.drains.iter().position(|drain| drain.pipes_left == 0)?;
        self.send_batch(false, reports);
        Some(self.drains.remove(index).reason)
    }

    /// Whether [`OutputMux::pump`] has work to do.
    pub fn is_runnable(&self) -> bool {
        !self.is_window_full
            && (!self.ready.is_empty() || !self.parked_pipes.is_empty() && self.has_line_capacity())
    }

    /// Whether other pipes than that of the exclusive reader may be read.
    fn has_line_capacity(&self) -> bool {
        let has_pending =
            |index: usize| self.pipes[index].as_ref().is_some_and(|o| o.lines.pending() > 0);
        self.pending_len <= MAX_PENDING_BYTES || !self.exclusive_reader.is_some_and(has_pending)
    }

    /// Whether this pipe may be read now. If not, parks it.
    fn try_acquire_read(&mut self, index: usize) -> bool {
        if self.exclusive_reader != Some(index) {
            if !self.has_line_capacity() {
                self.parked_pipes.push(index);
                return false;
            }
            self.exclusive_reader = (self.pending_len > MAX_PENDING_BYTES).then_some(index);
        }
        true
    }

    /// Moves the unfinished line of a pipe to `ready_bytes`.
    fn flush_lines(&mut self, index: usize) {
        if let Some(output) = &mut self.pipes[index] {
            self.pending_len -= output.lines.pending();
            output.lines.flush(&mut self.ready_bytes);
        }
    }

    /// Reads from the ready pipes, one after the other.
    pub fn pump(&mut self, reports: &mut ScoredLink, now: Instant) {
        if !self.parked_pipes.is_empty() && self.has_line_capacity() {
            self.ready.extend(self.parked_pipes.drain(..));
        }
        for _ in 0..READS_PER_TICK {
            if self.is_window_full {
                break;
            }
            let Some(index) = self.ready.pop_front() else { break };
            self.read_pipe(index, reports, now);
        }
    }

    fn window_left(&self) -> usize {
        (HOP_WINDOW as usize).saturating_sub(self.unacked_len)
    }

    fn read_pipe(&mut self, index: usize, reports: &mut ScoredLink, now: Instant) {
        let window_left = self.window_left();
        let Some(output) = &mut self.pipes[index] else { return };
        let pending_before = output.lines.pending();
        if window_left < pending_before + MIN_READ_LEN {
            self.ready.push_front(index);
            self.is_window_full = true;
            return;
        }
        if !self.try_acquire_read(index) {
            return;
        }
        let Some(output) = &mut self.pipes[index] else { return };
        let read_len = READ_BUFFER_LEN.min(window_left - pending_before);
        output.is_queued = false;
        let result = with_read_buffer(|scratch| {
            let count = nix::unistd::read(&output.pipe, &mut scratch[..read_len])?;
            output.lines.push(&scratch[..count], &mut self.ready_bytes);
            Ok(count)
        });
        match result {
            Ok(0) | Err(Errno::EIO) => self.on_pipe_eof(index, reports),
            Ok(count) => {
                output.bytes_read += count as u64;
                output.burst_len += count;
                self.pending_len = self.pending_len + output.lines.pending() - pending_before;
                // After a short read the pipe is empty, and mio reports later data.
                let is_empty = count < read_len;
                if is_empty {
                    output.on_pipe_empty(now);
                }
                self.resolve_drain_marks(index, is_empty);
                self.emit(index, reports);
                if !is_empty {
                    self.mark_ready(index);
                }
            }
            Err(Errno::EINTR) => self.mark_ready(index),
            Err(_) => {
                output.on_pipe_empty(now);
                self.resolve_drain_marks(index, true);
                self.emit(index, reports);
            }
        }
    }

    fn on_pipe_eof(&mut self, index: usize, reports: &mut ScoredLink) {
        self.flush_lines(index);
        self.emit(index, reports);
        self.remove(index);
    }

    fn remove(&mut self, index: usize) {
        self.resolve_drain_marks(index, true);
        self.flush_lines(index);
        self.ready_bytes.clear();
        self.pipes[index] = None;
    }

    /// Resolves the drains for which this pipe has been read far enough. If there are any, also
    /// moves the unfinished line to `ready_bytes`.
    fn resolve_drain_marks(&mut self, index: usize, is_empty: bool) {
        let Some(output) = &mut self.pipes[index] else { return };
        let total = output.bytes_read;
        let marks_before = output.drain_marks.len();
        let drains = &mut self.drains;
        output.drain_marks.retain(|(serial, target)| {
            let reached = is_empty || total >= *target;
            if reached && let Some(drain) = drains.iter_mut().find(|d| d.serial == *serial) {
                drain.pipes_left = drain.pipes_left.saturating_sub(1);
            }
            !reached
        });
        if output.drain_marks.len() < marks_before {
            output.deadline = None;
            self.flush_lines(index);
        }
    }

    /// Adds the lines that were read from one pipe to the batch, and sends full batches.
    fn emit(&mut self, index: usize, reports: &mut ScoredLink) {
        let Some(output) = &self.pipes[index] else { return };
        let stream = output.stream;
        let mut ready_bytes = std::mem::take(&mut self.ready_bytes);
        self.unacked_len += ready_bytes.len();
        if stream != self.batch_stream {
            self.send_batch(false, reports);
            self.batch_stream = stream;
        }
        if self.batch.len() + ready_bytes.len() > MAX_IO_CHUNK {
            self.send_batch(false, reports);
        }
        let mut chunks = ready_bytes.chunks(MAX_IO_CHUNK).peekable();
        while let Some(chunk) = chunks.next() {
            self.batch.extend_from_slice(chunk);
            if chunks.peek().is_some() {
                self.send_batch(chunk.last() != Some(&b'\n'), reports);
            }
        }
        ready_bytes.clear();
        self.ready_bytes = ready_bytes;
    }

    /// Sends the collected output, so that it precedes all later reports. `unfinished`: the last
    /// line continues in the next batch.
    pub fn send_batch(&mut self, unfinished: bool, reports: &mut ScoredLink) {
        if !self.batch.is_empty() {
            let bytes = std::mem::take(&mut self.batch);
            let (host, stream) = (self.host, self.batch_stream);
            let report = OutputReport::Text { host, stream, bytes, is_partial_line: unfinished };
            reports.send(&ShepherdReport::Output(report));
        }
    }

    /// The earliest deadline of an unfinished line.
    pub fn next_deadline(&self) -> Option<Instant> {
        if self.is_window_full {
            return None;
        }
        self.pipes
            .iter()
            .flatten()
            .filter(|output| !output.is_queued)
            .filter_map(|o| o.deadline)
            .min()
    }

    /// Sends the unfinished lines whose deadline has passed.
    pub fn expire(&mut self, reports: &mut ScoredLink, now: Instant) {
        if self.is_window_full {
            return;
        }
        for index in 0..self.pipes.len() {
            let window_left = self.window_left();
            let Some(output) = &mut self.pipes[index] else { continue };
            if !output.is_queued
                && output.deadline.is_some_and(|due| due <= now)
                && output.lines.pending() <= window_left
            {
                output.deadline = None;
                self.flush_lines(index);
                self.emit(index, reports);
            }
        }
    }

    /// Postpones all deadlines by the time for which the job was stopped.
    pub fn postpone(&mut self, stop_time: Duration) {
        for due in self.pipes.iter_mut().flatten().filter_map(|output| output.deadline.as_mut()) {
            *due += stop_time;
        }
    }

    /// Restarts the timeouts of unfinished lines. Their writers could not complete them while the
    /// window was full.
    fn restart_line_timeouts(&mut self, now: Instant) {
        for output in self.pipes.iter_mut().flatten() {
            if output.deadline.is_some() {
                output.deadline = Some(now + MID_WRITE_LINE_TIMEOUT);
            }
        }
    }
}

impl OutputPipe {
    /// Handles an empty pipe: enlarges a busy pipe, and sets the deadline of the unfinished line.
    ///
    /// A write() that is still in progress must have filled the pipe before, because otherwise it
    /// would hold the pipe's lock. Any two neighbouring pages of a full pipe hold more than one
    /// page of data. If fewer bytes than about half the capacity were read since the pipe was last
    /// empty, the writer has therefore finished. A line that ends at the end of a block of buffered
    /// output probably continues in the next block.
    fn on_pipe_empty(&mut self, now: Instant) {
        let was_full = self.burst_len + 2 * MIN_READ_LEN >= self.capacity / 2;
        if was_full && self.capacity < LARGE_PIPE_LEN as usize && self.burst_len >= MIN_READ_LEN {
            self.capacity = descriptor::enlarge_pipe(self.pipe.as_fd(), LARGE_PIPE_LEN);
        }
        let is_block_buffered =
            self.burst_len >= MIN_READ_LEN || self.bytes_read.is_multiple_of(STDIO_BLOCK_LEN);
        let is_mid_write = was_full || is_block_buffered;
        self.burst_len = 0;
        self.deadline = match self.lines.pending() {
            0 => None,
            _ if is_mid_write => Some(now + MID_WRITE_LINE_TIMEOUT),
            _ => Some(now + PARTIAL_LINE_TIMEOUT),
        };
    }
}

#[cfg(test)]
#[path = "output_tests.rs"]
mod tests;
