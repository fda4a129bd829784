//! One job's session: the socket to scored, signals, standard input and the two outputs meet in
//! one loop. What to do is decided in [`state`]; this file does it.

pub(crate) mod daemon;
mod input;
mod output;
mod signals;
pub mod state;

use crate::content::Contents;
use crate::monitor::{Monitor, PERIOD_MS, Plan};
use crate::notice::Reporter;
use crate::options::Statistics;
use crate::scout::show::Show;
use crate::shared::Shared;
use crate::usage::Refusal;
use daemon::Daemon;
use input::{Input, Piece};
use mio::unix::SourceFd;
use mio::{Events, Interest, Poll, Token, Waker};
use nix::libc;
use nix::sys::signal::{Signal, raise};
use nix::sys::signalfd::SignalFd;
use output::Output;
use score_proto::PROTOCOL_VERSION;
use score_proto::login::{self, LOGIN, Ups};
use score_proto::message::{ContentHash, Down, JobEnd, JobSpec, Level, Stream, Up};
use state::{Action, DAEMON_LOST, Event, Session};
use std::io::{self, ErrorKind, Read, Write};
use std::net::Shutdown;
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// What scrun calls its job.
const JOB: u32 = 1;

const SOCKET: Token = Token(0);
const SIGNALS: Token = Token(1);
const WAKE: Token = Token(2);

/// How long output that has come from a lost daemon may take to be written.
const LAST_OUTPUT: Duration = Duration::from_millis(700);
/// How long the daemon may take to exit after its last message.
const DAEMON_EXIT: Duration = Duration::from_secs(1);

/// What a session has to know beside the job.
#[derive(Debug)]
pub struct Settings {
    /// How lines are shown.
    pub reporter: Reporter,
    /// What `stat` asked for.
    pub statistics: Statistics,
    /// The programs by stage, for `stat`.
    pub names: Vec<Vec<String>>,
    /// The programs that hosts may ask for.
    pub contents: Contents,
    /// Which scored runs the job.
    pub call: Call,
    /// How output is shown by hosts, if it is.
    pub show: Option<Show>,
    /// Where a picture is shown, if one is wanted.
    pub monitor: Option<Plan>,
}

/// Which scored runs a job.
#[derive(Debug)]
pub enum Call {
    /// One of scrun's own, with these words on its command line.
    Own(Vec<String>),
    /// That of a scout session, where scrun has logged in already.
    Scout(UnixStream, Ups),
    /// That of this host.
    Shared(Shared),
}

struct Loop {
    state: Session,
    reporter: Reporter,
    contents: Contents,
    socket: mio::net::UnixStream,
    decoder: Ups,
    chunk: Vec<u8>,
    unsent: Vec<u8>,
    signals: SignalFd,
    input: Input,
    outputs: [Output; 2],
    show: Option<Show>,
    /// What is to be shown once the job runs, and what is.
    plan: Option<Plan>,
    monitor: Option<Monitor>,
    /// Bytes that [`Show`] has kept, by stream: they count as taken.
    kept: [u64; 2],
    daemon: Daemon,
    connected: bool,
    readable: bool,
    finish: Option<u8>,
    abandon: Option<u8>,
    /// Until when output may still be written, once the daemon is lost.
    last_output: Option<Instant>,
}

/// Runs the job and gives scrun's exit code.
///
/// # Errors
/// What kept the job from being started.
pub fn run(spec: JobSpec, settings: Settings) -> Result<u8, Refusal> {
    let mut unsent = Vec::new();
    let state = Session::new(settings.statistics, settings.names);
    let lost = |error: &dyn std::fmt::Display| Refusal::plain(DAEMON_LOST, error.to_string());
    let hello = Down::Hello { version: PROTOCOL_VERSION };
    let messages = match &settings.call {
        Call::Own(_) => vec![hello, Down::Submit(spec)],
        Call::Scout(..) => vec![Down::Submit(spec)],
        Call::Shared(Shared { login, shape }) => {
            vec![hello, Down::Login(login.clone()), Down::Request { shape: *shape, spec }]
        }
    };
    for message in &messages {
        let job = if matches!(message, Down::Login(_)) { LOGIN } else { JOB };
        login::encode(job, message, &mut unsent).map_err(|error| {
            let what = "arguments and environment are too long to be sent";
            Refusal::plain(crate::usage::USAGE, format!("{what}: {error}"))
        })?;
    }
    let signals = signals::take().map_err(|errno| lost(&errno))?;
    let (daemon, socket, decoder) = match settings.call {
        Call::Scout(stream, ups) => (Daemon::of_others("the scout session is over"), stream, ups),
        Call::Shared(shared) => {
            let daemon = Daemon::of_others("the scored of this host is gone");
            (daemon, shared.call()?, Ups::default())
        }
        Call::Own(words) => {
            let (daemon, socket) = daemon::start(&words, &[]).map_err(|error| lost(&error))?;
            (daemon, socket, Ups::default())
        }
    };
    let run = || -> io::Result<(Poll, Loop)> {
        socket.set_nonblocking(true)?;
        let mut socket = mio::net::UnixStream::from_std(socket);
        let poll = Poll::new()?;
        let waker = Arc::new(Waker::new(poll.registry(), WAKE)?);
        poll.registry().register(&mut socket, SOCKET, Interest::READABLE | Interest::WRITABLE)?;
        let signals_fd = signals.as_fd().as_raw_fd();
        poll.registry().register(&mut SourceFd(&signals_fd), SIGNALS, Interest::READABLE)?;
        let outputs =
            [Stream::Stdout, Stream::Stderr].map(|stream| Output::new(stream, waker.clone()));
        let input = Input::new(waker);
        Ok((
            poll,
            Loop {
                state,
                reporter: settings.reporter,
                contents: settings.contents,
                socket,
                decoder,
                chunk: vec![0; 128 * 1024],
                unsent,
                signals,
                input,
                outputs,
                show: settings.show,
                plan: settings.monitor,
                monitor: None,
                kept: [0; 2],
                daemon,
                connected: true,
                readable: false,
                finish: None,
                abandon: None,
                last_output: None,
            },
        ))
    };
    let (mut poll, mut job) = run().map_err(|error| lost(&error))?;
    job.go(&mut poll).map_err(|error| lost(&error))
}

impl Loop {
    fn go(&mut self, poll: &mut Poll) -> io::Result<u8> {
        let mut events = Events::with_capacity(8);
        loop {
            self.send();
            if let Some(code) = self.over() {
                if self.connected {
                    // It has said its last word, or one that we cannot understand.
                    let _ = self.socket.shutdown(Shutdown::Both);
                    self.daemon.see_off(DAEMON_EXIT);
                }
                if self.state.ended_by_interrupt() {
                    signals::die_of(Signal::SIGINT);
                }
                return Ok(code);
            }
            let timeout =
                self.last_output.map(|until| until.saturating_duration_since(Instant::now()));
            match poll.poll(&mut events, timeout) {
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                other => other?,
            }
            self.readable |= events.iter().any(|event| event.token() == SOCKET);
            self.take_signals();
            self.take_output_reports();
            self.take_input();
            self.receive();
            // What was kept counts at once.
            self.take_output_reports();
        }
    }

    /// The exit code, when nothing is left to do.
    fn over(&mut self) -> Option<u8> {
        if let Some(code) = self.abandon {
            // Closing the socket makes the daemon end the job, if there is still one.
            self.connected = false;
            return Some(code);
        }
        let code = self.finish?;
        if self.outputs.iter().all(Output::is_drained) {
            // A failure of the very last write changes the code and has its line to write.
            self.take_output_reports();
        }
        let drained = self.outputs.iter().all(Output::is_drained);
        let late = self.last_output.is_some_and(|until| Instant::now() >= until);
        (drained || late).then(|| self.finish.unwrap_or(code))
    }

    fn on(&mut self, event: Event) {
        let mut actions = Vec::new();
        self.state.on(event, Instant::now(), &mut actions);
        for action in actions {
            self.act(action);
        }
    }

    fn act(&mut self, action: Action) {
        match action {
            Action::Send(message) => {
                // Every message is far below the limit of a frame.
                let _ = login::encode(JOB, &message, &mut self.unsent);
            }
            Action::Write(host, stream, bytes) => self.write(host, stream, bytes),
            Action::Notice(level, text) => {
                if let Some(line) = self.reporter.line(level, &text) {
                    self.print(line.into_bytes(), 0);
                }
            }
            Action::Print(text) => self.print(text.into_bytes(), 0),
            Action::Read(bytes) => self.input.grant(bytes),
            Action::StopReading => self.input.stop(),
            Action::StopSelf => self.stop_self(),
            Action::Continued => self.input.look_again(),
            Action::Provide(hash, offset, length) => self.provide(hash, offset, length),
            Action::Finish(code) => self.finish = Some(code),
            Action::Abandon(code) => self.abandon = Some(code),
            Action::RemoveDirectory(path) => self.remove_directory(&path),
        }
    }

    /// Sends pieces of a program.
    fn provide(&mut self, hash: ContentHash, offset: u64, length: u64) {
        for (offset, length) in Contents::pieces(offset, length) {
            let bytes = self.contents.read(&hash, offset, length);
            let message = Down::Content { hash, offset, bytes };
            // A piece is far below the limit of a frame.
            let _ = login::encode(JOB, &message, &mut self.unsent);
        }
    }

    fn write(&mut self, host: u32, stream: Stream, bytes: Vec<u8>) {
        let programs_read = self.show.as_ref().is_some_and(Show::is_for_programs);
        let index = usize::from(stream == Stream::Stderr && !programs_read);
        let count = bytes.len() as u64;
        let piece = match &mut self.show {
            Some(show) => show.take(host, stream, bytes),
            None => Some(bytes),
        };
        match piece {
            Some(piece) if index == 1 => self.print(piece, count),
            Some(piece) => self.outputs[index].push(piece, count),
            None => self.kept[index] += count,
        }
    }

    /// Writes to standard error, or where the picture shows it: there it counts as written.
    fn print(&mut self, bytes: Vec<u8>, count: u64) {
        if self.monitor.as_mut().is_some_and(|monitor| monitor.say(&bytes)) {
            self.kept[1] += count;
        } else {
            self.outputs[1].push(bytes, count);
        }
    }

    /// What concerns the picture of the job.
    fn picture(&mut self, up: &Up) {
        match up {
            Up::Accepted { job, .. } => {
                let Some(plan) = self.plan.take() else { return };
                match Monitor::start(&plan, *job) {
                    Ok(monitor) => self.monitor = Some(monitor),
                    Err(why) => return self.act(Action::Notice(Level::Warning, why)),
                }
                self.act(Action::Send(Down::Watch(PERIOD_MS)));
            }
            Up::Figures(_) if self.monitor.as_mut().is_some_and(|one| !one.show(up)) => {
                self.close_picture();
                self.act(Action::Send(Down::Watch(0)));
            }
            Up::Finished(_) | Up::Refused { .. } => self.close_picture(),
            _ => {}
        }
    }

    fn close_picture(&mut self) {
        if let Some(monitor) = self.monitor.take() {
            self.outputs[1].push(monitor.close(), 0);
        }
    }

    /// Writes what was kept until the end, which is there; the exit code may be another then.
    fn show_the_rest(&mut self, end: Option<&mut JobEnd>) {
        let Some(show) = &mut self.show else { return };
        let reader_gone = self.outputs[0].failed() == Some(libc::EPIPE);
        let pieces = show.finish(end, reader_gone);
        for (output, piece) in self.outputs.iter_mut().zip(pieces) {
            if !piece.is_empty() {
                output.push(piece, 0);
            }
        }
    }

    /// Stops this process once the daemon has been told; it goes on from here after SIGCONT.
    fn stop_self(&mut self) {
        self.send();
        // SIGSTOP, since SIGTSTP does nothing to an orphaned process group.
        let _ = raise(Signal::SIGSTOP);
    }

    fn remove_directory(&mut self, path: &str) {
        if let Err(why) = daemon::remove_directory(Path::new(path)) {
            self.act(Action::Notice(Level::Error, format!("left behind: {why}")));
        }
    }

    fn take_signals(&mut self) {
        while let Ok(Some(info)) = self.signals.read_signal() {
            self.on(Event::Signal(info.ssi_signo as i32));
        }
    }

    fn take_output_reports(&mut self) {
        for stream in [Stream::Stdout, Stream::Stderr] {
            if let Some(errno) = self.outputs[usize::from(stream == Stream::Stderr)].failed() {
                self.on(Event::OutputFailed(stream, errno));
            }
        }
        let taken = |index: usize| self.outputs[index].taken() + self.kept[index];
        self.on(Event::Taken([taken(0), taken(1)]));
    }

    fn take_input(&mut self) {
        while let Some(piece) = self.input.pop() {
            self.on(match piece {
                Piece::Bytes(bytes) => Event::Stdin(bytes),
                Piece::End(why) => Event::StdinEnd(why),
            });
        }
    }

    /// Sends what the socket takes. A daemon that is gone is noticed by reading.
    fn send(&mut self) {
        let mut sent = 0;
        while self.connected && sent < self.unsent.len() {
            match self.socket.write(&self.unsent[sent..]) {
                Ok(n) => sent += n,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(_) => sent = self.unsent.len(),
            }
        }
        self.unsent.drain(..sent);
    }

    /// Reads and does what the daemon says, as long as there is room for its output.
    fn receive(&mut self) {
        loop {
            while self.outputs.iter().all(Output::has_room) {
                let heard = self.decoder.next().map(|heard| heard.map(|heard| heard.message));
                if let Ok(Some(up)) = &heard {
                    self.picture(up);
                }
                match heard {
                    Ok(Some(Up::Finished(mut end))) => {
                        self.show_the_rest(Some(&mut end));
                        self.on(Event::Up(Up::Finished(end)));
                    }
                    Ok(Some(up)) => self.on(Event::Up(up)),
                    Ok(None) => break,
                    Err(error) => return self.daemon_gone(Some(error.to_string())),
                }
            }
            if !self.readable || !self.connected || !self.outputs.iter().all(Output::has_room) {
                return;
            }
            match self.socket.read(&mut self.chunk) {
                Ok(0) => return self.daemon_gone(None),
                Ok(n) => self.decoder.push(&self.chunk[..n]),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => self.readable = false,
                Err(_) => return self.daemon_gone(None),
            }
        }
    }

    fn daemon_gone(&mut self, why: Option<String>) {
        self.connected = false;
        self.close_picture();
        let over = self.state.has_ended();
        let patience = if over { DAEMON_EXIT } else { Duration::from_millis(100) };
        let how = self.daemon.see_off(patience);
        if !over {
            self.show_the_rest(None);
            self.last_output = Some(Instant::now() + LAST_OUTPUT);
            self.on(Event::DaemonGone(why.unwrap_or(how)));
        }
    }
}
