//! What scrun does while a job runs, as a pure state machine: an event in, actions out. Sockets,
//! threads and signals are outside.

use crate::options::Statistics;
use crate::statistics;
use nix::libc;
use score_proto::PROTOCOL_VERSION;
use score_proto::message::{ContentHash, Down, JobEnd, Level, Stream, Up};
use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// Exit code when the daemon is lost or cannot be understood (EX_SOFTWARE).
pub const DAEMON_LOST: u8 = 70;
/// Exit code when standard output or error cannot be written (EX_IOERR).
pub const OUTPUT_FAILED: u8 = 74;
/// The third SIGINT within this time kills the job.
pub const INTERRUPTS_WITHIN: Duration = Duration::from_secs(2);

/// What has happened.
#[derive(Debug)]
pub enum Event {
    /// The daemon said something.
    Up(Up),
    /// scrun got this signal.
    Signal(i32),
    /// So many bytes of the daemon's have been written to (or dropped at) each stream so far.
    Taken([u64; 2]),
    /// A stream cannot be written any more.
    OutputFailed(Stream, i32),
    /// Bytes of standard input.
    Stdin(Vec<u8>),
    /// Standard input has ended; with a reason if it was not its end.
    StdinEnd(Option<String>),
    /// The daemon is gone before it said that the job has ended.
    DaemonGone(String),
}

/// What is to be done.
#[derive(Debug, PartialEq, Eq)]
pub enum Action {
    /// Tell the daemon.
    Send(Down),
    /// Write bytes of the job, from this host.
    Write(u32, Stream, Vec<u8>),
    /// Show a line of scrun's own.
    Notice(Level, String),
    /// Write to standard error whatever `message` says.
    Print(String),
    /// So many more bytes of standard input may be read.
    Read(u64),
    /// No more standard input is wanted.
    StopReading,
    /// Send pieces of this program: from here, so many bytes.
    Provide(ContentHash, u64, u64),
    /// Stop this process (the job is being stopped), as the shell expects after ^Z.
    StopSelf,
    /// This process runs again: look at the terminal again.
    Continued,
    /// End once everything has been written, with this code.
    Finish(u8),
    /// End now, whatever is unwritten.
    Abandon(u8),
    /// The daemon cannot remove this directory any more.
    RemoveDirectory(String),
}

/// The state of one session.
#[derive(Debug)]
pub struct Session {
    statistics: Statistics,
    names: Vec<Vec<String>>,
    job: Option<u32>,
    /// The job's directory, to be removed should scored die.
    directory: Option<String>,
    queued: [u64; 2],
    taken: [u64; 2],
    flushes: VecDeque<(u64, [u64; 2])>,
    failed: [bool; 2],
    interrupts: VecDeque<Instant>,
    interrupted: bool,
    terminated: bool,
    /// Exit code that overrides that of the job.
    forced: Option<u8>,
    /// Exit code, once the job has ended.
    ended: Option<u8>,
}

fn index(stream: Stream) -> usize {
    match stream {
        Stream::Stdout => 0,
        Stream::Stderr => 1,
    }
}

impl Session {
    /// A session; `names` are the programs of its job by stage.
    pub fn new(statistics: Statistics, names: Vec<Vec<String>>) -> Self {
        Self {
            statistics,
            names,
            job: None,
            directory: None,
            queued: [0; 2],
            taken: [0; 2],
            flushes: VecDeque::new(),
            failed: [false; 2],
            interrupts: VecDeque::new(),
            interrupted: false,
            terminated: false,
            forced: None,
            ended: None,
        }
    }

    /// Whether the job has ended and only output is left to be written.
    pub fn has_ended(&self) -> bool {
        self.ended.is_some()
    }

    /// The next step.
    pub fn on(&mut self, event: Event, now: Instant, out: &mut Vec<Action>) {
        match event {
            Event::Up(up) => self.up(up, out),
            Event::Signal(signal) => self.signal(signal, now, out),
            Event::Taken(taken) => self.acknowledge(taken, out),
            Event::OutputFailed(stream, errno) => self.output_failed(stream, errno, out),
            Event::Stdin(bytes) => out.push(Action::Send(Down::Stdin(bytes))),
            Event::StdinEnd(why) => {
                if let Some(why) = why {
                    out.push(Action::Notice(Level::Warning, format!("standard input: {why}")));
                }
                out.push(Action::Send(Down::StdinEof));
            }
            Event::DaemonGone(how) => self.lost(&how, out),
        }
    }

    fn up(&mut self, up: Up, out: &mut Vec<Action>) {
        match up {
            Up::Hello { version } if version == PROTOCOL_VERSION => {}
            Up::Hello { version } => {
                let ours = PROTOCOL_VERSION;
                self.lost(&format!("scored speaks protocol {version}, scrun {ours}"), out);
            }
            Up::Accepted { job, nodes, hosts } => {
                self.job = Some(job);
                let s = |count| if count == 1 { "" } else { "s" };
                let line =
                    format!("job {job}: {nodes} node{} on {hosts} host{}", s(nodes), s(hosts));
                out.push(Action::Notice(Level::Info, line));
            }
            Up::Refused { reason, code } => {
                out.push(Action::Notice(Level::Error, reason));
                self.finish(code, out);
            }
            Up::StdinWindow(bytes) => out.push(Action::Read(bytes)),
            Up::StdinClosed => out.push(Action::StopReading),
            Up::Output { host, stream, bytes } => {
                self.queued[index(stream)] += bytes.len() as u64;
                out.push(Action::Write(host, stream, bytes));
            }
            Up::Flush(token) => {
                self.flushes.push_back((token, self.queued));
                self.answer_flushes(out);
            }
            Up::Notice { level, text } => out.push(Action::Notice(level, text)),
            Up::Finished(end) => self.finished(&end, out),
            Up::Directory(dir) => self.directory = Some(dir),
            Up::Want { hash, offset, length } => {
                out.push(Action::Provide(hash, offset, length));
            }
            // Those of a session that is being opened, or entered.
            Up::Hosts(_) | Up::Opened { .. } => {}
            // What crossed the job's last word.
            Up::Figures(_) | Up::Jobs(_) | Up::Page { .. } | Up::NoJob => {}
        }
    }

    fn finished(&mut self, end: &JobEnd, out: &mut Vec<Action>) {
        let job = self.job.unwrap_or(0);
        let report = statistics::report(self.statistics, job, &self.names, end);
        if !report.is_empty() {
            out.push(Action::Print(report));
        }
        self.finish(end.code, out);
    }

    fn finish(&mut self, code: u8, out: &mut Vec<Action>) {
        let code = self.forced.unwrap_or(code);
        self.ended = Some(code);
        out.push(Action::Finish(code));
    }

    fn lost(&mut self, how: &str, out: &mut Vec<Action>) {
        if self.ended.is_some() {
            return;
        }
        let line = match self.job {
            Some(job) => format!("job {job} is lost: {how}"),
            None => format!("no job was started: {how}"),
        };
        out.push(Action::Notice(Level::Error, line));
        if let Some(dir) = self.directory.take() {
            out.push(Action::RemoveDirectory(dir));
        }
        self.finish(DAEMON_LOST, out);
    }

    fn acknowledge(&mut self, taken: [u64; 2], out: &mut Vec<Action>) {
        let more: u64 = (0..2).map(|stream| taken[stream] - self.taken[stream]).sum();
        self.taken = taken;
        if more > 0 {
            out.push(Action::Send(Down::OutputTaken(more)));
        }
        self.answer_flushes(out);
    }

    fn answer_flushes(&mut self, out: &mut Vec<Action>) {
        while let Some((token, until)) = self.flushes.front()
            && (0..2).all(|stream| self.taken[stream] >= until[stream])
        {
            out.push(Action::Send(Down::Flushed(*token)));
            self.flushes.pop_front();
        }
    }

    /// A reader that has gone is what a pipeline knows: the writers get SIGPIPE. Anything else
    /// (disk full, I/O error) ends the job.
    fn output_failed(&mut self, stream: Stream, errno: i32, out: &mut Vec<Action>) {
        if std::mem::replace(&mut self.failed[index(stream)], true) {
            return;
        }
        if errno == libc::EPIPE {
            out.push(Action::Send(Down::OutputClosed(stream)));
            return;
        }
        let name = match stream {
            Stream::Stdout => "standard output",
            Stream::Stderr => "standard error",
        };
        let why = std::io::Error::from_raw_os_error(errno);
        let line = format!("{name} cannot be written, the job is ended: {why}");
        out.push(Action::Notice(Level::Error, line));
        self.forced = Some(OUTPUT_FAILED);
        match self.ended {
            None => out.push(Action::Send(Down::Kill)),
            Some(_) => self.finish(OUTPUT_FAILED, out),
        }
    }

    /// Manual, table 3.1, with the rulings on SIGTERM, SIGHUP and SIGQUIT.
    fn signal(&mut self, signal: i32, now: Instant, out: &mut Vec<Action>) {
        if self.ended.is_some() {
            return self.signal_after_the_end(signal, out);
        }
        match signal {
            libc::SIGTERM if self.terminated => out.push(Action::Abandon(128 + signal as u8)),
            libc::SIGTERM => {
                self.terminated = true;
                out.push(Action::Send(Down::Kill));
            }
            libc::SIGINT => self.interrupt(now, out),
            libc::SIGTSTP => out.extend([Action::Send(Down::Suspend), Action::StopSelf]),
            libc::SIGCONT => out.extend([Action::Continued, Action::Send(Down::Resume)]),
            libc::SIGQUIT => {
                let line = "SIGQUIT: checkpoints are not built yet, nothing is done";
                out.push(Action::Notice(Level::Warning, line.into()));
            }
            other => out.push(Action::Send(Down::Signal(other))),
        }
    }

    /// Whether SIGINT came and the job ended of it. scrun then dies of SIGINT, too: a shell that
    /// runs a loop or script goes on after any exit code, 130 included.
    pub fn ended_by_interrupt(&self) -> bool {
        self.interrupted && self.ended == Some(128 + libc::SIGINT as u8)
    }

    fn interrupt(&mut self, now: Instant, out: &mut Vec<Action>) {
        while let Some(first) = self.interrupts.front()
            && now.saturating_duration_since(*first) > INTERRUPTS_WITHIN
        {
            self.interrupts.pop_front();
        }
        self.interrupts.push_back(now);
        self.interrupted = true;
        match self.interrupts.len() {
            1 => out.push(Action::Send(Down::Signal(libc::SIGINT))),
            2 => {
                out.push(Action::Send(Down::Signal(libc::SIGINT)));
                let line = "interrupt once more to kill the job";
                out.push(Action::Notice(Level::Info, line.into()));
            }
            _ => {
                self.interrupts.clear();
                out.push(Action::Notice(Level::Warning, "the job is being killed".into()));
                out.push(Action::Send(Down::Kill));
            }
        }
    }

    /// The job is over and only a reader that does not read keeps scrun: let the user out.
    fn signal_after_the_end(&mut self, signal: i32, out: &mut Vec<Action>) {
        match signal {
            libc::SIGINT | libc::SIGTERM | libc::SIGHUP | libc::SIGABRT => {
                out.push(Action::Abandon(128 + signal as u8));
            }
            libc::SIGTSTP => out.push(Action::StopSelf),
            _ => {}
        }
    }
}

#[cfg(test)]
#[path = "state_tests.rs"]
mod tests;
