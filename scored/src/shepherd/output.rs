//! What the processes write: read from their pipes, cut into lines, merged fairly, and sent up
//! within the window. A closed window stops the reading, so that back-pressure reaches the writers.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::time::{Duration, Instant};

use mio::unix::SourceFd;
use mio::{Interest, Registry, Token};
use nix::errno::Errno;
use score_proto::message::{CHUNK, Stream};
use score_proto::order::{HOP_WINDOW, Report};

use super::reports::Reports;
use crate::job::lines::Lines;
use crate::link::{READ_BYTES, with_scratch};
use crate::sys::descriptor;

/// Less room than this is not worth a system call.
const LEAST_READ: usize = 4096;
/// Reads in one turn of the loop.
const TURN: usize = 32;
/// Bytes of all unfinished lines together. Above that one pipe at a time is read until its line
/// has gone; the others wait, and their writers with them.
const MOST_PENDING: usize = 16 * 1024 * 1024;
/// How long an unfinished line (a prompt, a progress bar) waits for its end.
const QUIET: Duration = Duration::from_millis(100);
/// The same when the writer is likely to be in the middle of something.
const QUIET_IN_WRITE: Duration = Duration::from_secs(1);
/// Buffered output is written in multiples of this.
const BLOCK: u64 = 1024;
/// Size that a busy pipe is enlarged to, if the system allows.
const BUSY_PIPE: i32 = 256 * 1024;

/// Why pipes are being read to their present end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Purpose {
    /// sc_flush of this element's node, with the id of its call.
    Flush(u32, u32, u32),
    /// Every process of a stage has ended.
    StageEnd,
    /// Every process of the job has ended.
    JobEnd,
}

#[derive(Debug)]
struct Drain {
    serial: u64,
    purpose: Purpose,
    left: usize,
}

#[derive(Debug)]
struct Output {
    pipe: OwnedFd,
    stream: Stream,
    /// Stage and element it belongs to.
    owner: (usize, u32),
    lines: Lines,
    /// Bytes read in all.
    total: u64,
    /// Bytes read since the pipe was last seen empty.
    burst: usize,
    capacity: usize,
    queued: bool,
    deadline: Option<Instant>,
    /// Drains that wait for it: serial, and the total to reach.
    marks: Vec<(u64, u64)>,
}

/// All pipes that are read here.
#[derive(Debug)]
pub struct Outputs {
    /// This host's place among the job's.
    pub host: u32,
    all: Vec<Option<Output>>,
    ready: VecDeque<usize>,
    /// Sent up and not yet gone on from there.
    unacknowledged: usize,
    /// The window left too little room for the next read.
    blocked: bool,
    closed: [bool; 2],
    /// Bytes of all unfinished lines.
    pending: usize,
    /// Who may go on when those are too many.
    holder: Option<usize>,
    /// Who waits for that, marked as queued.
    parked: Vec<usize>,
    batch: Vec<u8>,
    batch_stream: Stream,
    drains: Vec<Drain>,
    next_drain: u64,
    cut: Vec<u8>,
}

fn index(stream: Stream) -> usize {
    match stream {
        Stream::Stdout => 0,
        Stream::Stderr => 1,
    }
}

impl Default for Outputs {
    fn default() -> Self {
        Self {
            host: 0,
            all: Vec::new(),
            ready: VecDeque::new(),
            unacknowledged: 0,
            blocked: false,
            closed: [false; 2],
            pending: 0,
            holder: None,
            parked: Vec::new(),
            batch: Vec::new(),
            batch_stream: Stream::Stdout,
            drains: Vec::new(),
            next_drain: 0,
            cut: Vec::new(),
        }
    }
}

impl Outputs {
    /// Takes the read end of a pipe. Dropped at once when its stream has no reader any more.
    ///
    /// # Errors
    /// As fcntl(2), epoll_ctl(2).
    pub fn add(
        &mut self,
        pipe: OwnedFd,
        stream: Stream,
        owner: (usize, u32),
        registry: &Registry,
        token: impl Fn(usize) -> Token,
    ) -> io::Result<()> {
        if self.closed[index(stream)] {
            return Ok(());
        }
        descriptor::set_nonblocking(pipe.as_fd())?;
        let number = self.all.len();
        registry.register(&mut SourceFd(&pipe.as_raw_fd()), token(number), Interest::READABLE)?;
        let capacity = descriptor::pipe_capacity(pipe.as_fd());
        self.all.push(Some(Output {
            pipe,
            stream,
            owner,
            lines: Lines::default(),
            total: 0,
            burst: 0,
            capacity,
            queued: false,
            deadline: None,
            marks: Vec::new(),
        }));
        Ok(())
    }

    /// mio has reported that there is something to read, or the end.
    pub fn mark_ready(&mut self, number: usize) {
        if let Some(Some(output)) = self.all.get_mut(number)
            && !output.queued
        {
            output.queued = true;
            self.ready.push_back(number);
        }
    }

    /// That many bytes have gone on.
    pub fn taken(&mut self, bytes: u64, now: Instant) {
        let bytes = usize::try_from(bytes).unwrap_or(usize::MAX);
        self.unacknowledged = self.unacknowledged.saturating_sub(bytes);
        if std::mem::take(&mut self.blocked) {
            self.restart_clocks(now);
        }
    }

    /// Whoever reads scrun's stream has gone: our writers shall see that.
    pub fn close(&mut self, stream: Stream) {
        self.closed[index(stream)] = true;
        for number in 0..self.all.len() {
            if self.all[number].as_ref().is_some_and(|output| output.stream == stream) {
                self.remove(number);
            }
        }
    }

    /// Reads the pipes of one element, or of all, up to what lies in them now; [`Outputs::drained`]
    /// then reports `purpose`.
    pub fn drain(&mut self, purpose: Purpose, owner: Option<(usize, u32)>) {
        let serial = self.next_drain;
        self.next_drain += 1;
        let mut left = 0;
        for number in 0..self.all.len() {
            let Some(output) = &mut self.all[number] else { continue };
            if owner.is_none_or(|owner| owner == output.owner) {
                let waiting = descriptor::bytes_waiting(output.pipe.as_fd()) as u64;
                output.marks.push((serial, output.total + waiting));
                left += 1;
                self.mark_ready(number);
            }
        }
        self.drains.push(Drain { serial, purpose, left });
    }

    /// Gives up waiting for a purpose's pipes.
    pub fn abandon(&mut self, purpose: Purpose) {
        for drain in &mut self.drains {
            if drain.purpose == purpose {
                drain.left = 0;
            }
        }
    }

    /// A drain that is done: everything it waited for has been sent.
    pub fn drained(&mut self, reports: &mut Reports) -> Option<Purpose> {
        let at = self.drains.iter().position(|drain| drain.left == 0)?;
        self.send_batch(false, reports);
        Some(self.drains.remove(at).purpose)
    }

    /// Whether [`Outputs::pump`] has something to do without waiting.
    pub fn is_runnable(&self) -> bool {
        !self.blocked && (!self.ready.is_empty() || !self.parked.is_empty() && self.has_room())
    }

    /// Whether somebody else than the holder may begin or go on with a line.
    fn has_room(&self) -> bool {
        let holds =
            |number: usize| self.all[number].as_ref().is_some_and(|o| o.lines.pending() > 0);
        self.pending <= MOST_PENDING || !self.holder.is_some_and(holds)
    }

    /// Whether this pipe may be read; else it waits.
    fn takes_turn(&mut self, number: usize) -> bool {
        if self.holder != Some(number) {
            if !self.has_room() {
                self.parked.push(number);
                return false;
            }
            self.holder = (self.pending > MOST_PENDING).then_some(number);
        }
        true
    }

    /// Lets go of what is unfinished in a pipe, into `cut`.
    fn flush_lines(&mut self, number: usize) {
        if let Some(output) = &mut self.all[number] {
            self.pending -= output.lines.pending();
            output.lines.flush(&mut self.cut);
        }
    }

    /// Reads from the pipes that have something, in turn.
    pub fn pump(&mut self, reports: &mut Reports, now: Instant) {
        if !self.parked.is_empty() && self.has_room() {
            self.ready.extend(self.parked.drain(..));
        }
        for _ in 0..TURN {
            if self.blocked {
                break;
            }
            let Some(number) = self.ready.pop_front() else { break };
            self.read_one(number, reports, now);
        }
    }

    fn room(&self) -> usize {
        (HOP_WINDOW as usize).saturating_sub(self.unacknowledged)
    }

    fn read_one(&mut self, number: usize, reports: &mut Reports, now: Instant) {
        let room = self.room();
        let Some(output) = &mut self.all[number] else { return };
        let pending = output.lines.pending();
        if room < pending + LEAST_READ {
            self.ready.push_front(number);
            self.blocked = true;
            return;
        }
        if !self.takes_turn(number) {
            return;
        }
        let Some(output) = &mut self.all[number] else { return };
        let wanted = READ_BYTES.min(room - pending);
        output.queued = false;
        let read = with_scratch(|scratch| {
            let count = nix::unistd::read(&output.pipe, &mut scratch[..wanted])?;
            output.lines.push(&scratch[..count], &mut self.cut);
            Ok(count)
        });
        match read {
            Ok(0) | Err(Errno::EIO) => self.end_one(number, reports),
            Ok(count) => {
                output.total += count as u64;
                output.burst += count;
                self.pending = self.pending + output.lines.pending() - pending;
                // Less than asked for: the pipe is empty now, and mio reports what comes later.
                let empty = count < wanted;
                if empty {
                    output.seen_empty(now);
                }
                self.settle_marks(number, empty);
                self.emit(number, reports);
                if !empty {
                    self.mark_ready(number);
                }
            }
            Err(Errno::EINTR) => self.mark_ready(number),
            Err(_) => {
                output.seen_empty(now);
                self.settle_marks(number, true);
                self.emit(number, reports);
            }
        }
    }

    fn end_one(&mut self, number: usize, reports: &mut Reports) {
        self.flush_lines(number);
        self.emit(number, reports);
        self.remove(number);
    }

    fn remove(&mut self, number: usize) {
        self.settle_marks(number, true);
        self.flush_lines(number);
        self.cut.clear();
        self.all[number] = None;
    }

    /// Tells the drains that this pipe has been read far enough, if so; an unfinished line goes
    /// out then, too.
    fn settle_marks(&mut self, number: usize, empty: bool) {
        let Some(output) = &mut self.all[number] else { return };
        let total = output.total;
        let before = output.marks.len();
        let drains = &mut self.drains;
        output.marks.retain(|(serial, until)| {
            let reached = empty || total >= *until;
            if reached && let Some(drain) = drains.iter_mut().find(|d| d.serial == *serial) {
                drain.left = drain.left.saturating_sub(1);
            }
            !reached
        });
        if output.marks.len() < before {
            output.deadline = None;
            self.flush_lines(number);
        }
    }

    /// Sends what has been cut from one stream.
    fn emit(&mut self, number: usize, reports: &mut Reports) {
        let Some(output) = &self.all[number] else { return };
        let stream = output.stream;
        let mut cut = std::mem::take(&mut self.cut);
        self.unacknowledged += cut.len();
        if stream != self.batch_stream {
            self.send_batch(false, reports);
            self.batch_stream = stream;
        }
        if self.batch.len() + cut.len() > CHUNK {
            self.send_batch(false, reports);
        }
        let mut pieces = cut.chunks(CHUNK).peekable();
        while let Some(piece) = pieces.next() {
            self.batch.extend_from_slice(piece);
            if pieces.peek().is_some() {
                self.send_batch(piece.last() != Some(&b'\n'), reports);
            }
        }
        cut.clear();
        self.cut = cut;
    }

    /// Sends what has been gathered, so that what is sent next comes after it. `unfinished`: a line
    /// goes on in what comes next.
    pub fn send_batch(&mut self, unfinished: bool, reports: &mut Reports) {
        if !self.batch.is_empty() {
            let bytes = std::mem::take(&mut self.batch);
            let (host, stream) = (self.host, self.batch_stream);
            reports.send(&Report::Output { host, stream, bytes, unfinished });
        }
    }

    /// When the next unfinished line is due.
    pub fn next_deadline(&self) -> Option<Instant> {
        if self.blocked {
            return None;
        }
        self.all.iter().flatten().filter(|output| !output.queued).filter_map(|o| o.deadline).min()
    }

    /// Lets unfinished lines go whose time has come.
    pub fn expire(&mut self, reports: &mut Reports, now: Instant) {
        if self.blocked {
            return;
        }
        for number in 0..self.all.len() {
            let room = self.room();
            let Some(output) = &mut self.all[number] else { continue };
            if !output.queued
                && output.deadline.is_some_and(|due| due <= now)
                && output.lines.pending() <= room
            {
                output.deadline = None;
                self.flush_lines(number);
                self.emit(number, reports);
            }
        }
    }

    /// The job was stopped for so long.
    pub fn postpone(&mut self, pause: Duration) {
        for due in self.all.iter_mut().flatten().filter_map(|output| output.deadline.as_mut()) {
            *due += pause;
        }
    }

    /// The job was held back by the window: nobody could have finished a line.
    fn restart_clocks(&mut self, now: Instant) {
        for output in self.all.iter_mut().flatten() {
            if output.deadline.is_some() {
                output.deadline = Some(now + QUIET_IN_WRITE);
            }
        }
    }
}

impl Output {
    /// The pipe is empty. If a write() is still going on it has filled the pipe before, since it
    /// holds the pipe's lock otherwise; every two neighbouring pages of a full pipe hold more than
    /// one page of data, so less than about half the capacity since the pipe was last empty
    /// means that the writer has finished. A line that ends with a block of buffered output goes
    /// on in the next block.
    fn seen_empty(&mut self, now: Instant) {
        let full = self.burst + 2 * LEAST_READ >= self.capacity / 2;
        if full && self.capacity < BUSY_PIPE as usize && self.burst >= LEAST_READ {
            self.capacity = descriptor::enlarge_pipe(self.pipe.as_fd(), BUSY_PIPE);
        }
        let buffered = self.burst >= LEAST_READ || self.total.is_multiple_of(BLOCK);
        let in_write = full || buffered;
        self.burst = 0;
        self.deadline = match self.lines.pending() {
            0 => None,
            _ if in_write => Some(now + QUIET_IN_WRITE),
            _ => Some(now + QUIET),
        };
    }
}

#[cfg(test)]
#[path = "output_tests.rs"]
mod tests;
