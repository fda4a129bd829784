//! The session of one job: one loop handles the socket to scored, signals, standard input and the
//! two outputs. [`state`] decides on the actions; this file executes them.

pub(crate) mod daemon;
mod input;
mod output;
mod signals;
pub mod state;
pub mod terminal_debugger;

use crate::diagnostics::Reporter;
use crate::monitor::{Monitor, MonitorRequest, REPORT_INTERVAL_MS};
use crate::mpir::{Debugger, Reaction};
use crate::multi_user::ClusterRequest;
use crate::options::Statistics;
use crate::program_store::ProgramStore;
use crate::scout::merge::OutputMerger;
use crate::usage::StartError;
use daemon::DaemonHandle;
use input::{StdinChunk, StdinReader};
use mio::unix::SourceFd;
use mio::{Events, Interest, Poll, Token, Waker};
use nix::libc;
use nix::sys::signal::{Signal, raise};
use nix::sys::signalfd::SignalFd;
use output::OutputWriter;
use score_client::{Connection, ConnectionError, Received};
use score_proto::client_session::{JobMessage, SessionKind};
use score_proto::exit_code::{EXIT_DAEMON_LOST, EXIT_USAGE};
use score_proto::frame::FrameError;
use score_proto::ids::{JobHostId, JobId, SessionJobId};
use score_proto::message::{
    ContentHash, JobEnd, JobRequest, JobSpec, Level, SingleUserRequest, Stream, UserRequest,
};
use score_proto::server_message::JobAnswer;
use score_proto::tool_start::ScrunJob;
use state::{Action, Event, SessionState};
use std::fs::File;
use std::io::{self, ErrorKind};
use std::net::Shutdown;
use std::os::fd::{AsFd, AsRawFd};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};
use terminal_debugger::TerminalDebugger;

/// The number that scrun gives its job on the session.
const JOB: SessionJobId = SessionJobId(1);

const SOCKET: Token = Token(0);
const SIGNALS: Token = Token(1);
const WAKE: Token = Token(2);

/// Time to write the output that was received before the daemon was lost.
const OUTPUT_DRAIN_TIMEOUT: Duration = Duration::from_millis(700);
/// The time in which the daemon must exit after its last message.
const DAEMON_EXIT_TIMEOUT: Duration = Duration::from_secs(1);

/// The configuration of a session, in addition to the job.
#[derive(Debug)]
pub struct SessionConfig {
    /// Writes scrun's own lines.
    pub reporter: Reporter,
    /// The amount of statistics that `stat` requests.
    pub statistics: Statistics,
    /// The programs by stage, for `stat`.
    pub program_names: Vec<Vec<String>>,
    /// The programs that hosts may request.
    pub program_store: ProgramStore,
    /// The daemon that runs the job.
    pub daemon_source: DaemonSource,
    /// Merges the output of the hosts. Set only by scout.
    pub merger: Option<OutputMerger>,
    /// The monitor, if one is requested.
    pub monitor: Option<MonitorRequest>,
    /// Serves debuggers. Not set by scout.
    pub debugger: Option<Debugger>,
}

/// The daemon that runs a job.
#[derive(Debug)]
pub enum DaemonSource {
    /// A daemon that scrun starts for this job, with these arguments.
    Private(Vec<String>),
    /// The daemon of a scout session, to which scrun has already logged in.
    ScoutSession(Connection),
    /// The daemon of this host, which runs as a service.
    MultiUser(ClusterRequest),
}

struct EventLoop {
    state: SessionState,
    /// The kind of requests that the daemon accepts.
    session_kind: SessionKind,
    reporter: Reporter,
    program_store: ProgramStore,
    connection: Connection,
    signals: SignalFd,
    input: StdinReader,
    outputs: [OutputWriter; 2],
    merger: Option<OutputMerger>,
    /// The monitor to start when the job runs. `monitor` is the running one.
    monitor_request: Option<MonitorRequest>,
    monitor: Option<Monitor>,
    debugger: Option<Debugger>,
    /// Bytes of the job, by stream, that [`OutputMerger`] has buffered or that were sent to scmon.
    /// They count as written.
    buffered_by_merger: [u64; 2],
    /// The memfd whose name identifies the daemon and the job, for tools.
    published_job: Option<File>,
    waker: Arc<Waker>,
    /// The debugger that uses the terminal, if there is one.
    terminal_debugger: Option<TerminalDebugger>,
    daemon: DaemonHandle,
    connected: bool,
    finish_code: Option<u8>,
    abandon_code: Option<u8>,
    /// The time until which output may still be written after the daemon is lost.
    output_deadline: Option<Instant>,
}

impl DaemonSource {
    /// The kind of requests that the daemon accepts.
    fn session_kind(&self) -> SessionKind {
        match self {
            DaemonSource::Private(_) | DaemonSource::ScoutSession(_) => SessionKind::SingleUser,
            DaemonSource::MultiUser(_) => SessionKind::MultiUser,
        }
    }
}

/// Runs the job and gives scrun's exit code.
///
/// # Errors
/// If the job cannot be started.
pub fn run(spec: JobSpec, config: SessionConfig) -> Result<u8, StartError> {
    let state = SessionState::new(config.statistics, config.program_names);
    let daemon_error =
        |error: &dyn std::fmt::Display| StartError::plain(EXIT_DAEMON_LOST, error.to_string());
    let session_kind = config.daemon_source.session_kind();
    let too_long = |error: FrameError| {
        let reason = "arguments and environment are too long to be sent";
        StartError::plain(EXIT_USAGE, format!("{reason}: {error}"))
    };
    let signals = signals::open_signalfd().map_err(|errno| daemon_error(&errno))?;
    let (daemon, mut connection) = match config.daemon_source {
        DaemonSource::ScoutSession(mut connection) => {
            connection.queue(JOB, &SingleUserRequest::Submit(spec)).map_err(too_long)?;
            (DaemonHandle::of_scout(&connection), connection)
        }
        DaemonSource::MultiUser(cluster_request) => {
            let mut connection = cluster_request.log_in()?;
            let request = UserRequest::SubmitJob { allocation: cluster_request.shape, spec };
            connection.queue(JOB, &request).map_err(too_long)?;
            let daemon =
                DaemonHandle::external("the scored of this host has closed the connection");
            (daemon, connection)
        }
        DaemonSource::Private(words) => {
            let (daemon, mut connection) =
                daemon::start(&words, &[]).map_err(|error| daemon_error(&error))?;
            connection.queue(JOB, &SingleUserRequest::Submit(spec)).map_err(too_long)?;
            (daemon, connection)
        }
    };
    let open_loop = || -> io::Result<(Poll, EventLoop)> {
        let poll = Poll::new()?;
        let waker = Arc::new(Waker::new(poll.registry(), WAKE)?);
        connection.register(poll.registry(), SOCKET)?;
        let signals_fd = signals.as_fd().as_raw_fd();
        poll.registry().register(&mut SourceFd(&signals_fd), SIGNALS, Interest::READABLE)?;
        let outputs =
            [Stream::Stdout, Stream::Stderr].map(|stream| OutputWriter::new(stream, waker.clone()));
        let input = StdinReader::new(waker.clone());
        Ok((
            poll,
            EventLoop {
                state,
                session_kind,
                reporter: config.reporter,
                program_store: config.program_store,
                connection,
                signals,
                input,
                outputs,
                merger: config.merger,
                monitor_request: config.monitor,
                monitor: None,
                debugger: config.debugger,
                buffered_by_merger: [0; 2],
                published_job: None,
                waker,
                terminal_debugger: None,
                daemon,
                connected: true,
                finish_code: None,
                abandon_code: None,
                output_deadline: None,
            },
        ))
    };
    let (mut poll, mut event_loop) = open_loop().map_err(|error| daemon_error(&error))?;
    event_loop.run(&mut poll).map_err(|error| daemon_error(&error))
}

impl EventLoop {
    fn run(&mut self, poll: &mut Poll) -> io::Result<u8> {
        let mut events = Events::with_capacity(8);
        loop {
            self.send();
            if let Some(code) = self.poll_exit_code() {
                self.terminal_debugger = None;
                if self.connected {
                    // The daemon has sent its last message, or a message that scrun cannot decode.
                    let _ = self.connection.shutdown(Shutdown::Both);
                    self.daemon.wait_for_exit(DAEMON_EXIT_TIMEOUT);
                }
                if self.state.ended_by_interrupt() {
                    signals::reraise(Signal::SIGINT);
                }
                return Ok(code);
            }
            let drain_time = self
                .output_deadline
                .map(|deadline| deadline.saturating_duration_since(Instant::now()));
            let look_interval = self.debugger.as_ref().and_then(Debugger::look_interval);
            let timeout = drain_time.into_iter().chain(look_interval).min();
            self.connection.update_interest(poll.registry());
            // A debugger that stops this process also interrupts the wait.
            let is_interrupted = match poll.poll(&mut events, timeout) {
                Err(error) if error.kind() == ErrorKind::Interrupted => true,
                other => other.map(|()| false)?,
            };
            self.serve_debugger(|debugger| debugger.look(is_interrupted));
            if events.iter().any(|event| event.token() == SOCKET) {
                self.connection.mark_readable();
            }
            self.read_signals();
            self.check_terminal_debugger();
            self.check_outputs();
            self.forward_input();
            self.receive();
            // Buffered output counts as written at once.
            self.check_outputs();
        }
    }

    /// Passes an event to the code for debuggers, and executes its reaction.
    fn serve_debugger(&mut self, on_event: impl FnOnce(&mut Debugger) -> Reaction) {
        let Some(Reaction { requests, problem }) = self.debugger.as_mut().map(on_event) else {
            return;
        };
        requests.into_iter().for_each(|request| self.apply(Action::Send(request)));
        problem.into_iter().for_each(|line| self.apply(Action::Notice(Level::Error, line)));
    }

    /// The exit code, if no work is left.
    fn poll_exit_code(&mut self) -> Option<u8> {
        if let Some(code) = self.abandon_code {
            // Closing the socket makes the daemon end the job if it still runs.
            self.connected = false;
            return Some(code);
        }
        let code = self.finish_code?;
        if self.outputs.iter().all(OutputWriter::is_drained) {
            // A failure of the last write changes the exit code and adds a line to write.
            self.check_outputs();
        }
        let drained = self.outputs.iter().all(OutputWriter::is_drained);
        let is_late = self.output_deadline.is_some_and(|deadline| Instant::now() >= deadline);
        (drained || is_late).then(|| self.finish_code.unwrap_or(code))
    }

    fn on_event(&mut self, event: Event) {
        let mut actions = Vec::new();
        self.state.on_event(event, Instant::now(), &mut actions);
        for action in actions {
            self.apply(action);
        }
    }

    fn apply(&mut self, action: Action) {
        match action {
            Action::Send(request) => self.queue_request(request),
            Action::Write(host, stream, bytes) => self.write_output(host, stream, bytes),
            Action::Notice(level, text) => {
                if let Some(line) = self.reporter.line(level, &text) {
                    self.print(line.into_bytes(), 0);
                }
            }
            Action::Print(text) => self.print(text.into_bytes(), 0),
            Action::GrantInput(bytes) => self.input.grant(bytes),
            Action::StopReading => self.input.stop(),
            Action::StopSelf => self.stop_self(),
            Action::ReportAbort => self.debugger.iter_mut().for_each(Debugger::on_abort),
            Action::RecheckForeground => self.input.wake_reader(),
            Action::SendFileChunks(hash, offset, length) => {
                self.send_file_chunks(hash, offset, length)
            }
            Action::Finish(code) => self.finish_code = Some(code),
            Action::Abandon(code) => self.abandon_code = Some(code),
            Action::RemoveDirectory(path) => self.remove_directory(&path),
        }
    }

    /// Sends chunks of a program.
    fn send_file_chunks(&mut self, hash: ContentHash, offset: u64, length: u64) {
        for (offset, length) in score_client::chunk_ranges(offset, length) {
            let bytes = self.program_store.read(&hash, offset, length);
            self.queue_request(JobRequest::FileChunk { hash, offset, bytes });
        }
    }

    /// Queues a request about the job.
    fn queue_request(&mut self, request: JobRequest) {
        // Every request is far below the limit of a frame.
        let _ = match self.session_kind {
            SessionKind::SingleUser => self.connection.queue(JOB, &SingleUserRequest::Job(request)),
            SessionKind::MultiUser => self.connection.queue(JOB, &UserRequest::Job(request)),
        };
    }

    fn write_output(&mut self, host: JobHostId, stream: Stream, bytes: Vec<u8>) {
        let is_for_programs = self.merger.as_ref().is_some_and(OutputMerger::is_for_programs);
        let index = usize::from(stream == Stream::Stderr && !is_for_programs);
        let count = bytes.len() as u64;
        let output = match &mut self.merger {
            Some(merger) => merger.push_output(host, stream, bytes),
            None => Some(bytes),
        };
        match output {
            Some(output) if index == 1 => self.print(output, count),
            Some(output) => self.outputs[index].push(output, count),
            None => self.buffered_by_merger[index] += count,
        }
    }

    /// Writes to standard error, or sends the bytes to scmon. Bytes that are sent to scmon count as
    /// written.
    fn print(&mut self, bytes: Vec<u8>, count: u64) {
        if self.monitor.as_mut().is_some_and(|monitor| monitor.send_stderr(&bytes)) {
            self.buffered_by_merger[1] += count;
        } else {
            self.outputs[1].push(bytes, count);
        }
    }

    /// Starts, updates or closes the monitor, depending on an answer of the job.
    fn update_monitor(&mut self, answer: &JobAnswer) {
        match answer {
            JobAnswer::Accepted { job, .. } => {
                let Some(request) = self.monitor_request.take() else { return };
                match Monitor::start(&request, *job) {
                    Ok(monitor) => self.monitor = Some(monitor),
                    Err(reason) => return self.apply(Action::Notice(Level::Warning, reason)),
                }
                self.apply(Action::Send(JobRequest::SubscribeMetrics(REPORT_INTERVAL_MS)));
            }
            JobAnswer::Metrics(metrics)
                if self.monitor.as_mut().is_some_and(|monitor| !monitor.send_metrics(metrics)) =>
            {
                self.close_monitor();
                self.apply(Action::Send(JobRequest::SubscribeMetrics(0)));
            }
            JobAnswer::OpenDebugger(request) => self.open_debugger(request),
            JobAnswer::Finished(_) | JobAnswer::Refused { .. } => self.close_monitor(),
            _ => {}
        }
    }

    /// Starts a debugger on the terminal, at the request of a process.
    fn open_debugger(&mut self, request: &score_proto::server_message::TerminalDebugger) {
        self.terminal_debugger = TerminalDebugger::start(request, self.waker.clone());
        if self.terminal_debugger.is_none() {
            let (element, node) = (request.element, request.node);
            let answer = JobRequest::DebuggerEnded { element, node, is_refused: true };
            self.apply(Action::Send(answer));
        } else {
            let line = format!("{} is stopped in gdb; \"quit\" ends the process", request.title);
            self.apply(Action::Notice(Level::Error, line));
        }
    }

    fn check_terminal_debugger(&mut self) {
        if let Some(ended) = self.terminal_debugger.take_if(|it| it.has_ended()) {
            let (element, node) = ended.node;
            let answer = JobRequest::DebuggerEnded { element, node, is_refused: false };
            self.apply(Action::Send(answer));
        }
    }

    fn close_monitor(&mut self) {
        if let Some(monitor) = self.monitor.take() {
            self.outputs[1].push(monitor.close(), 0);
        }
    }

    /// Writes the output that was buffered until the end of the job. May change the exit code in
    /// `end`.
    fn flush_merged_output(&mut self, end: Option<&mut JobEnd>) {
        let Some(merger) = &mut self.merger else { return };
        let reader_closed = self.outputs[0].first_errno() == Some(libc::EPIPE);
        let flushed = merger.finish(end, reader_closed);
        for (output, bytes) in self.outputs.iter_mut().zip(flushed) {
            if !bytes.is_empty() {
                output.push(bytes, 0);
            }
        }
    }

    /// Sends all messages to the daemon, then stops this process. It continues here after SIGCONT.
    fn stop_self(&mut self) {
        self.send();
        // SIGSTOP, because SIGTSTP has no effect on an orphaned process group.
        let _ = raise(Signal::SIGSTOP);
    }

    fn remove_directory(&mut self, path: &str) {
        if let Err(reason) = daemon::remove_directory(Path::new(path)) {
            self.apply(Action::Notice(Level::Error, format!("not removed: {reason}")));
        }
    }

    /// Lets tools find the job by the process id of this process.
    fn publish_job(&mut self, job: JobId) {
        let daemon = match self.session_kind {
            SessionKind::MultiUser => None,
            SessionKind::SingleUser => self.daemon.pid(),
        };
        let name = ScrunJob { daemon, job }.memfd_name();
        // Without the memfd, tools do not find the job. The job itself does not need it.
        self.published_job = score_sys::memfd::create(&name).ok();
    }

    fn read_signals(&mut self) {
        while let Ok(Some(info)) = self.signals.read_signal() {
            self.on_event(Event::Signal(info.ssi_signo as i32));
        }
    }

    fn check_outputs(&mut self) {
        for stream in [Stream::Stdout, Stream::Stderr] {
            if let Some(errno) = self.outputs[usize::from(stream == Stream::Stderr)].first_errno() {
                self.on_event(Event::OutputFailed(stream, errno));
            }
        }
        let written =
            |index: usize| self.outputs[index].written_len() + self.buffered_by_merger[index];
        self.on_event(Event::OutputWritten([written(0), written(1)]));
    }

    fn forward_input(&mut self) {
        while let Some(chunk) = self.input.pop() {
            self.on_event(match chunk {
                StdinChunk::Bytes(bytes) => Event::Stdin(bytes),
                StdinChunk::End(reason) => Event::StdinEnd(reason),
            });
        }
    }

    /// Sends as much as the socket accepts. A receive detects a lost daemon.
    fn send(&mut self) {
        if self.connected {
            self.connection.flush();
        }
    }

    /// Receives and handles messages of the daemon, as long as the output queues have capacity.
    fn receive(&mut self) {
        while self.connected && self.outputs.iter().all(OutputWriter::has_capacity) {
            match self.connection.receive() {
                // The session has only this job.
                Ok(Some(Received::Answer(JobMessage { job: _, message: answer }))) => {
                    self.on_job_answer(answer)
                }
                Ok(Some(Received::Notice { level, text })) => {
                    self.apply(Action::Notice(level, text));
                }
                Ok(Some(Received::Refused { reason, code })) => {
                    self.close_monitor();
                    self.on_event(Event::SessionRefused { reason, code });
                }
                Ok(None) => return,
                Err(ConnectionError::Closed(_)) => return self.on_daemon_lost(None),
                Err(error) => return self.on_daemon_lost(Some(error.to_string())),
            }
        }
    }

    fn on_job_answer(&mut self, mut answer: JobAnswer) {
        self.update_monitor(&answer);
        let kind = self.session_kind;
        match &answer {
            JobAnswer::ToolAction(answer) => {
                self.serve_debugger(|debugger| debugger.on_tool_answer(answer));
            }
            JobAnswer::Accepted { job, nodes, .. } => {
                self.publish_job(*job);
                self.serve_debugger(|debugger| debugger.on_accepted(*job, *nodes, kind));
            }
            JobAnswer::Processes { stage, host_name, block } => {
                self.serve_debugger(|debugger| debugger.on_processes(*stage, host_name, block));
            }
            _ => {}
        }
        if let JobAnswer::Finished(end) = &mut answer {
            self.flush_merged_output(Some(end));
        }
        self.on_event(Event::JobAnswer(answer));
    }

    fn on_daemon_lost(&mut self, reason: Option<String>) {
        self.connected = false;
        self.close_monitor();
        let has_ended = self.state.has_ended();
        let timeout = if has_ended { DAEMON_EXIT_TIMEOUT } else { Duration::from_millis(100) };
        let exit_description = self.daemon.wait_for_exit(timeout);
        if !has_ended {
            self.flush_merged_output(None);
            self.output_deadline = Some(Instant::now() + OUTPUT_DRAIN_TIMEOUT);
            self.on_event(Event::DaemonLost(reason.unwrap_or(exit_description)));
        }
    }
}
