//! The behaviour of scrun while a job runs, as a pure state machine: it takes an event and returns
//! actions. It has no sockets, threads or signal handlers.

use crate::options::Statistics;
use crate::statistics;
use nix::libc;
use score_proto::exit_code::{EXIT_DAEMON_LOST, EXIT_IO_ERROR};
use score_proto::ids::{JobHostId, JobId};
use score_proto::message::{ContentHash, JobEnd, JobRequest, Level, Stream};
use score_proto::server_message::{JobAnswer, ReportedStacks};
use score_stacks::collected::CollectedStacks;
use score_stacks::render::RenderLimits;
use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// The third SIGINT within this time kills the job.
pub const TRIPLE_INTERRUPT_WINDOW: Duration = Duration::from_secs(2);

/// Limits of the displayed stacks after faults.
const FAULT_STACK_LIMITS: RenderLimits = RenderLimits { max_depth: 64, max_nodes: 300 };

/// An event of a session.
#[derive(Debug)]
pub enum Event {
    /// The daemon has ended the session.
    SessionRefused {
        /// One line with the cause.
        reason: String,
        /// Exit code of scrun.
        code: u8,
    },
    /// The daemon has sent a message about the job.
    JobAnswer(JobAnswer),
    /// scrun got this signal.
    Signal(i32),
    /// Number of the job's bytes that have been written to (or dropped at) each stream so far.
    OutputWritten([u64; 2]),
    /// Writing to this stream has failed, with this errno.
    OutputFailed(Stream, i32),
    /// Bytes of standard input.
    Stdin(Vec<u8>),
    /// Standard input has ended, or reading it has failed for this reason.
    StdinEnd(Option<String>),
    /// The connection to the daemon was lost before the job had ended.
    DaemonLost(String),
}

/// An action for the event loop.
#[derive(Debug, PartialEq, Eq)]
pub enum Action {
    /// Send a message to the daemon.
    Send(JobRequest),
    /// Write bytes of the job that this host has sent.
    Write(JobHostId, Stream, Vec<u8>),
    /// Show a message of scrun.
    Notice(Level, String),
    /// Write to standard error, independently of the option `message`.
    Print(String),
    /// Permit reading this number of further bytes of standard input.
    GrantInput(u64),
    /// Stop reading standard input.
    StopReading,
    /// Send chunks of this program: from this offset, this number of bytes.
    SendFileChunks(ContentHash, u64, u64),
    /// Stop this process, because the job is being stopped. The shell expects this after ^Z.
    StopSelf,
    /// Show a debugger that a signal ends this process.
    ReportAbort,
    /// This process was continued: check again whether it is in the foreground.
    RecheckForeground,
    /// Exit with this code when all output has been written.
    Finish(u8),
    /// Exit with this code at once, and drop unwritten output.
    Abandon(u8),
    /// Remove this directory, because the daemon can no longer do so.
    RemoveDirectory(String),
}

/// The state of one session.
#[derive(Debug)]
pub struct SessionState {
    statistics: Statistics,
    program_names: Vec<Vec<String>>,
    job: Option<JobId>,
    /// The job's directory. scrun removes it if scored dies.
    directory: Option<String>,
    queued_len: [u64; 2],
    written_len: [u64; 2],
    pending_flushes: VecDeque<(u64, [u64; 2])>,
    has_failed: [bool; 2],
    interrupts: VecDeque<Instant>,
    interrupted: bool,
    terminated: bool,
    /// The stacks after faults that have been received so far.
    reported_stacks: CollectedStacks,
    /// Exit code that overrides the exit code of the job.
    forced_code: Option<u8>,
    /// Exit code, once the job has ended.
    exit_code: Option<u8>,
}

fn index(stream: Stream) -> usize {
    match stream {
        Stream::Stdout => 0,
        Stream::Stderr => 1,
    }
}

impl SessionState {
    /// A new session. `program_names` are the programs of its job by stage.
    pub fn new(statistics: Statistics, program_names: Vec<Vec<String>>) -> Self {
        Self {
            statistics,
            program_names,
            job: None,
            directory: None,
            queued_len: [0; 2],
            written_len: [0; 2],
            pending_flushes: VecDeque::new(),
            has_failed: [false; 2],
            interrupts: VecDeque::new(),
            interrupted: false,
            terminated: false,
            reported_stacks: CollectedStacks::default(),
            forced_code: None,
            exit_code: None,
        }
    }

    /// Whether the job has ended and only output is left to be written.
    pub fn has_ended(&self) -> bool {
        self.exit_code.is_some()
    }

    /// Handles an event and appends the resulting actions to `out`.
    pub fn on_event(&mut self, event: Event, now: Instant, out: &mut Vec<Action>) {
        match event {
            Event::SessionRefused { reason, code } => self.on_refused(reason, code, out),
            Event::JobAnswer(answer) => self.on_job_answer(answer, out),
            Event::Signal(signal) => self.on_signal(signal, now, out),
            Event::OutputWritten(written) => self.on_output_written(written, out),
            Event::OutputFailed(stream, errno) => self.on_output_failed(stream, errno, out),
            Event::Stdin(bytes) => out.push(Action::Send(JobRequest::Stdin(bytes))),
            Event::StdinEnd(reason) => {
                if let Some(reason) = reason {
                    out.push(Action::Notice(Level::Warning, format!("standard input: {reason}")));
                }
                out.push(Action::Send(JobRequest::StdinEof));
            }
            Event::DaemonLost(description) => self.on_daemon_lost(&description, out),
        }
    }

    fn on_job_answer(&mut self, answer: JobAnswer, out: &mut Vec<Action>) {
        match answer {
            JobAnswer::Accepted { job, nodes, hosts } => {
                self.job = Some(job);
                let plural = |count| if count == 1 { "" } else { "s" };
                let line = format!(
                    "job {job}: {nodes} node{} on {hosts} host{}",
                    plural(nodes),
                    plural(hosts)
                );
                out.push(Action::Notice(Level::Info, line));
            }
            JobAnswer::Refused { reason, code } => self.on_refused(reason, code, out),
            JobAnswer::StdinWindow(bytes) => out.push(Action::GrantInput(bytes)),
            JobAnswer::StdinClosed => out.push(Action::StopReading),
            JobAnswer::Output { host, stream, bytes } => {
                self.queued_len[index(stream)] += bytes.len() as u64;
                out.push(Action::Write(host, stream, bytes));
            }
            JobAnswer::Flush(token) => {
                self.pending_flushes.push_back((token, self.queued_len));
                self.send_due_flushes(out);
            }
            JobAnswer::Notice { level, text } => out.push(Action::Notice(level, text)),
            JobAnswer::Finished(end) => self.on_finished(&end, out),
            JobAnswer::Directory(dir) => self.directory = Some(dir),
            JobAnswer::FileRequest { hash, offset, length } => {
                out.push(Action::SendFileChunks(hash, offset, length));
            }
            JobAnswer::ToolOutput(text) => out.push(Action::Print(format!("{text}\n"))),
            JobAnswer::Stacks(ReportedStacks::Part(answer)) => self.reported_stacks.add(answer),
            JobAnswer::Stacks(ReportedStacks::End { title }) => self.show_stacks(&title, out),
            // The event loop has already handled these.
            JobAnswer::Metrics(_)
            | JobAnswer::ToolAction(_)
            | JobAnswer::Processes { .. }
            | JobAnswer::OpenDebugger(_) => {}
            // scrun sent a request before it received the end of the job.
            JobAnswer::UnknownJob => {}
        }
    }

    /// Shows the collected stacks after a fault or a deadlock.
    fn show_stacks(&mut self, title: &str, out: &mut Vec<Action>) {
        let stacks = std::mem::take(&mut self.reported_stacks);
        let mut text = stacks.text(FAULT_STACK_LIMITS);
        for problem in stacks.problems() {
            text += &format!("{problem}\n");
        }
        out.push(Action::Notice(Level::Error, format!("{title}:")));
        out.push(Action::Print(text));
    }

    fn on_refused(&mut self, reason: String, code: u8, out: &mut Vec<Action>) {
        out.push(Action::Notice(Level::Error, reason));
        self.finish(code, out);
    }

    fn on_finished(&mut self, end: &JobEnd, out: &mut Vec<Action>) {
        let job = self.job.unwrap_or(JobId(0));
        let report = statistics::report(self.statistics, job, &self.program_names, end);
        if !report.is_empty() {
            out.push(Action::Print(report));
        }
        self.finish(end.code, out);
    }

    fn finish(&mut self, code: u8, out: &mut Vec<Action>) {
        let code = self.forced_code.unwrap_or(code);
        self.exit_code = Some(code);
        if self.ended_by_interrupt() {
            out.push(Action::ReportAbort);
        }
        out.push(Action::Finish(code));
    }

    fn on_daemon_lost(&mut self, description: &str, out: &mut Vec<Action>) {
        if self.exit_code.is_some() {
            return;
        }
        let line = match self.job {
            Some(job) => format!("job {job} is lost: {description}"),
            None => format!("no job was started: {description}"),
        };
        out.push(Action::Notice(Level::Error, line));
        if let Some(dir) = self.directory.take() {
            out.push(Action::RemoveDirectory(dir));
        }
        self.finish(EXIT_DAEMON_LOST, out);
    }

    fn on_output_written(&mut self, written: [u64; 2], out: &mut Vec<Action>) {
        let new_len: u64 = (0..2).map(|stream| written[stream] - self.written_len[stream]).sum();
        self.written_len = written;
        if new_len > 0 {
            out.push(Action::Send(JobRequest::OutputAck(new_len)));
        }
        self.send_due_flushes(out);
    }

    fn send_due_flushes(&mut self, out: &mut Vec<Action>) {
        while let Some((token, target)) = self.pending_flushes.front()
            && (0..2).all(|stream| self.written_len[stream] >= target[stream])
        {
            out.push(Action::Send(JobRequest::Flushed(*token)));
            self.pending_flushes.pop_front();
        }
    }

    /// If the reader has closed the stream, the writers get SIGPIPE, as in a pipeline. Any other
    /// error (disk full, I/O error) ends the job.
    fn on_output_failed(&mut self, stream: Stream, errno: i32, out: &mut Vec<Action>) {
        if std::mem::replace(&mut self.has_failed[index(stream)], true) {
            return;
        }
        if errno == libc::EPIPE {
            out.push(Action::Send(JobRequest::OutputClosed(stream)));
            return;
        }
        let name = match stream {
            Stream::Stdout => "standard output",
            Stream::Stderr => "standard error",
        };
        let reason = std::io::Error::from_raw_os_error(errno);
        let line = format!("{name}: cannot be written, and the job ends: {reason}");
        out.push(Action::Notice(Level::Error, line));
        self.forced_code = Some(EXIT_IO_ERROR);
        match self.exit_code {
            None => out.push(Action::Send(JobRequest::Kill)),
            Some(_) => self.finish(EXIT_IO_ERROR, out),
        }
    }

    /// Handles signals as in the manual, table 3.1, and by the rules of this project for SIGTERM,
    /// SIGHUP and SIGQUIT.
    fn on_signal(&mut self, signal: i32, now: Instant, out: &mut Vec<Action>) {
        if self.exit_code.is_some() {
            return self.on_signal_after_end(signal, out);
        }
        match signal {
            libc::SIGTERM if self.terminated => out.push(Action::Abandon(128 + signal as u8)),
            libc::SIGTERM => {
                self.terminated = true;
                out.extend([Action::ReportAbort, Action::Send(JobRequest::Kill)]);
            }
            libc::SIGINT => self.on_interrupt(now, out),
            libc::SIGTSTP => out.extend([Action::Send(JobRequest::Suspend), Action::StopSelf]),
            libc::SIGCONT => {
                out.extend([Action::RecheckForeground, Action::Send(JobRequest::Resume)])
            }
            libc::SIGQUIT => {
                let line = "SIGQUIT: ignored, because checkpoints are not supported yet";
                out.push(Action::Notice(Level::Warning, line.into()));
            }
            other => out.push(Action::Send(JobRequest::Signal(other))),
        }
    }

    /// Whether SIGINT was received and has ended the job. In this case scrun also dies by SIGINT,
    /// because a shell continues a loop or script after every exit code, including 130.
    pub fn ended_by_interrupt(&self) -> bool {
        self.interrupted && self.exit_code == Some(128 + libc::SIGINT as u8)
    }

    fn on_interrupt(&mut self, now: Instant, out: &mut Vec<Action>) {
        while let Some(first) = self.interrupts.front()
            && now.saturating_duration_since(*first) > TRIPLE_INTERRUPT_WINDOW
        {
            self.interrupts.pop_front();
        }
        self.interrupts.push_back(now);
        self.interrupted = true;
        match self.interrupts.len() {
            1 => out.push(Action::Send(JobRequest::Signal(libc::SIGINT))),
            2 => {
                out.push(Action::Send(JobRequest::Signal(libc::SIGINT)));
                let line = "interrupt once more to kill the job";
                out.push(Action::Notice(Level::Info, line.into()));
            }
            _ => {
                self.interrupts.clear();
                out.push(Action::Notice(Level::Warning, "the job is being killed".into()));
                out.extend([Action::ReportAbort, Action::Send(JobRequest::Kill)]);
            }
        }
    }

    /// Handles a signal after the end of the job, while scrun waits only for a reader that does not
    /// read. A signal of the user ends scrun.
    fn on_signal_after_end(&mut self, signal: i32, out: &mut Vec<Action>) {
        match signal {
            libc::SIGINT | libc::SIGTERM | libc::SIGHUP | libc::SIGABRT => {
                out.extend([Action::ReportAbort, Action::Abandon(128 + signal as u8)]);
            }
            libc::SIGTSTP => out.push(Action::StopSelf),
            _ => {}
        }
    }
}

#[cfg(test)]
#[path = "state_tests.rs"]
mod tests;
