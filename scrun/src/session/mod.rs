//! The session of one job: one loop handles the socket to scored, signals, standard input and the
//! two outputs. [`state`] decides on the actions; this file executes them.

pub(crate) mod daemon;
mod daemon_link;
mod input;
mod output;
mod output_router;
mod signals;
pub mod state;
pub mod terminal_debugger;

use crate::diagnostics::Reporter;
use crate::monitor::{MonitorRequest, REPORT_INTERVAL_MS};
use crate::mpir::{Debugger, Reaction};
use crate::multi_user::ClusterRequest;
use crate::options::Statistics;
use crate::program_store::ProgramStore;
use crate::scout::merge::OutputMerger;
use crate::usage::StartError;
use daemon::DaemonHandle;
use daemon_link::{DaemonLink, JOB};
use input::{StdinChunk, StdinReader};
use mio::unix::SourceFd;
use mio::{Events, Interest, Poll, Token, Waker};
use nix::sys::signal::{Signal, raise};
use nix::sys::signalfd::SignalFd;
use output_router::OutputRouter;
use score_client::{Connection, ConnectionError, Received};
use score_proto::client_session::{JobMessage, SessionKind};
use score_proto::exit_code::{EXIT_DAEMON_LOST, EXIT_USAGE};
use score_proto::frame::FrameError;
use score_proto::ids::JobId;
use score_proto::message::{
    ContentHash, JobRequest, JobSpec, Level, SingleUserRequest, Stream, UserRequest,
};
use score_proto::server_message::JobAnswer;
use state::{Action, Event, SessionState};
use std::fs::File;
use std::io::{self, ErrorKind};
use std::os::fd::{AsFd, AsRawFd};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};
use terminal_debugger::TerminalDebugger;

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
    reporter: Reporter,
    program_store: ProgramStore,
    daemon: DaemonLink,
    signals: SignalFd,
    input: StdinReader,
    output: OutputRouter,
    debugger: Option<Debugger>,
    /// The memfd whose name identifies the daemon and the job, for tools.
    published_job: Option<File>,
    waker: Arc<Waker>,
    /// The debugger that uses the terminal, if there is one.
    terminal_debugger: Option<TerminalDebugger>,
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
    let signals = signals::open_signalfd().map_err(|errno| daemon_error(&errno))?;
    let mut daemon = submit(spec, config.daemon_source)?;
    let open_loop = || -> io::Result<(Poll, EventLoop)> {
        let poll = Poll::new()?;
        let waker = Arc::new(Waker::new(poll.registry(), WAKE)?);
        daemon.register(poll.registry(), SOCKET)?;
        let signals_fd = signals.as_fd().as_raw_fd();
        poll.registry().register(&mut SourceFd(&signals_fd), SIGNALS, Interest::READABLE)?;
        let output = OutputRouter::new(&waker, config.merger, config.monitor);
        let input = StdinReader::new(waker.clone());
        Ok((
            poll,
            EventLoop {
                state,
                reporter: config.reporter,
                program_store: config.program_store,
                daemon,
                signals,
                input,
                output,
                debugger: config.debugger,
                published_job: None,
                waker,
                terminal_debugger: None,
                finish_code: None,
                abandon_code: None,
                output_deadline: None,
            },
        ))
    };
    let (mut poll, mut event_loop) = open_loop().map_err(|error| daemon_error(&error))?;
    event_loop.run(&mut poll).map_err(|error| daemon_error(&error))
}

fn daemon_error(error: &dyn std::fmt::Display) -> StartError {
    StartError::plain(EXIT_DAEMON_LOST, error.to_string())
}

/// Submits the job to the daemon, which may have to be started first.
fn submit(spec: JobSpec, daemon_source: DaemonSource) -> Result<DaemonLink, StartError> {
    let session_kind = daemon_source.session_kind();
    let too_long = |error: FrameError| {
        let reason = "arguments and environment are too long to be sent";
        StartError::plain(EXIT_USAGE, format!("{reason}: {error}"))
    };
    let (daemon, connection) = match daemon_source {
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
    Ok(DaemonLink::new(connection, session_kind, daemon))
}

impl EventLoop {
    fn run(&mut self, poll: &mut Poll) -> io::Result<u8> {
        let mut events = Events::with_capacity(8);
        loop {
            self.daemon.flush();
            if let Some(code) = self.poll_exit_code() {
                self.terminal_debugger = None;
                self.daemon.close(DAEMON_EXIT_TIMEOUT);
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
            self.daemon.update_interest(poll.registry());
            // A debugger that stops this process also interrupts the wait.
            let is_interrupted = match poll.poll(&mut events, timeout) {
                Err(error) if error.kind() == ErrorKind::Interrupted => true,
                other => other.map(|()| false)?,
            };
            self.serve_debugger(|debugger| debugger.look(is_interrupted));
            if events.iter().any(|event| event.token() == SOCKET) {
                self.daemon.mark_readable();
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
            self.daemon.abandon();
            return Some(code);
        }
        let code = self.finish_code?;
        if self.output.is_drained() {
            // A failure of the last write changes the exit code and adds a line to write.
            self.check_outputs();
        }
        let drained = self.output.is_drained();
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
            Action::Send(request) => self.daemon.queue(request),
            Action::Write(host, stream, bytes) => self.output.write(host, stream, bytes),
            Action::Notice(level, text) => {
                if let Some(line) = self.reporter.line(level, &text) {
                    self.output.print(line);
                }
            }
            Action::Print(text) => self.output.print(text),
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

    /// Sends chunks of a program or of the directory for tools.
    fn send_file_chunks(&mut self, hash: ContentHash, offset: u64, length: u64) {
        for (offset, length) in score_client::chunk_ranges(offset, length) {
            let bytes = self.program_store.read(&hash, offset, length);
            self.daemon.queue(JobRequest::FileChunk { hash, offset, bytes });
        }
    }

    /// Starts, updates or closes the monitor, or starts a debugger on the terminal, depending on an
    /// answer of the job.
    fn update_monitor(&mut self, answer: &JobAnswer) {
        match answer {
            JobAnswer::Accepted { job, .. } => match self.output.start_monitor(*job) {
                Ok(true) => {
                    self.apply(Action::Send(JobRequest::SubscribeMetrics(REPORT_INTERVAL_MS)));
                }
                Ok(false) => {}
                Err(reason) => self.apply(Action::Notice(Level::Warning, reason)),
            },
            JobAnswer::Metrics(metrics) if !self.output.show_metrics(metrics) => {
                self.apply(Action::Send(JobRequest::SubscribeMetrics(0)));
            }
            JobAnswer::OpenDebugger(request) => self.open_debugger(request),
            JobAnswer::Finished(_) | JobAnswer::Refused { .. } => self.output.close_monitor(),
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

    /// Sends all messages to the daemon, then stops this process. It continues here after SIGCONT.
    fn stop_self(&mut self) {
        self.daemon.flush();
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
        let name = self.daemon.job_name(job).memfd_name();
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
            if let Some(errno) = self.output.first_errno(stream) {
                self.on_event(Event::OutputFailed(stream, errno));
            }
        }
        let written = self.output.written_len();
        self.on_event(Event::OutputWritten(written));
    }

    fn forward_input(&mut self) {
        while let Some(chunk) = self.input.pop() {
            self.on_event(match chunk {
                StdinChunk::Bytes(bytes) => Event::Stdin(bytes),
                StdinChunk::End(reason) => Event::StdinEnd(reason),
            });
        }
    }

    /// Receives and handles messages of the daemon, as long as the output queues have capacity.
    fn receive(&mut self) {
        while self.output.has_capacity() {
            match self.daemon.receive() {
                // The session has only this job.
                Ok(Some(Received::Answer(JobMessage { job: _, message: answer }))) => {
                    self.on_job_answer(answer)
                }
                Ok(Some(Received::Notice { level, text })) => {
                    self.apply(Action::Notice(level, text));
                }
                Ok(Some(Received::Refused { reason, code })) => {
                    self.output.close_monitor();
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
        let kind = self.daemon.kind();
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
            self.output.flush_merged(Some(end));
        }
        self.on_event(Event::JobAnswer(answer));
    }

    fn on_daemon_lost(&mut self, reason: Option<String>) {
        self.output.close_monitor();
        let has_ended = self.state.has_ended();
        let timeout = if has_ended { DAEMON_EXIT_TIMEOUT } else { Duration::from_millis(100) };
        let exit_description = self.daemon.on_lost(timeout);
        if !has_ended {
            self.output.flush_merged(None);
            self.output_deadline = Some(Instant::now() + OUTPUT_DRAIN_TIMEOUT);
            self.on_event(Event::DaemonLost(reason.unwrap_or(exit_description)));
        }
    }
}
