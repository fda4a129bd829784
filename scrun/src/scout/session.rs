//! Opens a scout session: a daemon starts the daemons of the hosts, then the user's shell runs. The
//! session ends with the shell.

use super::options::ScoutOptions;
use super::{describe_hosts, host_ranges, reporter};
use crate::diagnostics::Reporter;
use crate::local_environment::{LocalEnvironment, bintype};
use crate::options::table::FORWARDED_TO_SCORED;
use crate::options::{OptionArg, ScrunOptions as JobOptions};
use crate::scout_login;
use crate::session::daemon::{self, DaemonHandle};
use crate::usage::{ErrorPosition, StartError};
use crate::{networks, nodes};
use nix::errno::Errno;
use nix::libc;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::prctl::set_pdeathsig;
use nix::sys::signal::{SigSet, Signal, kill, killpg, raise};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::{Pid, getpgid, getpgrp, getppid};
use score_client::{Connection, ConnectionError, Received};
use score_proto::client_session::SESSION_JOB;
use score_proto::env::{REMOTE_SHELL_ENV, SCOUT_ENV};
use score_proto::exit_code::{EXIT_DAEMON_LOST, EXIT_NOT_EXECUTABLE, EXIT_NOT_FOUND, EXIT_USAGE};
use score_proto::message::{HostSpec, Level, SingleUserRequest};
use score_proto::server_message::ScoutAnswer;
use std::ffi::{OsStr, OsString};
use std::io::{self, ErrorKind, IsTerminal};
use std::os::fd::AsFd;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

/// First word of the process that becomes the shell.
pub const SHELL_CHILD_ARG: &str = "-shell";

/// The time in which the shell must exit after a signal has ended scout.
const SHELL_EXIT_TIMEOUT: Duration = Duration::from_millis(500);
/// The time in which scored must exit.
const DAEMON_EXIT_TIMEOUT: Duration = Duration::from_secs(2);

/// Opens a session, runs the shell or command in it, and gives its exit code.
///
/// # Errors
/// If the session cannot be opened.
pub fn run(options: &ScoutOptions) -> Result<u8, StartError> {
    refuse_nested(options)?;
    let reporter = reporter();
    let hosts = hosts(options, &reporter)?;
    let daemon_error =
        |error: &dyn std::fmt::Display| StartError::plain(EXIT_DAEMON_LOST, error.to_string());
    let signals = open_signalfd().map_err(|errno| daemon_error(&errno))?;
    let rsh: Option<(&str, &OsStr)> = options.rsh.as_deref().map(|rsh| (REMOTE_SHELL_ENV, rsh));
    let variables: Vec<_> = rsh.into_iter().collect();
    let (daemon, connection) =
        daemon::start(&scored_args(options), &variables).map_err(|error| daemon_error(&error))?;
    let mut session =
        ScoutSession { reporter, connection: Some(connection), signals, daemon, directory: None };
    let result = session.serve(options, &hosts);
    // Close the connection first: this ends the session.
    drop(session.connection.take());
    session.daemon.wait_for_exit(DAEMON_EXIT_TIMEOUT);
    session.remove_directory();
    result.map_err(|error| match error {
        SessionError::Refused(error) => error,
        SessionError::System(error) => daemon_error(&error),
    })
}

/// Rejects a session inside a session, which is rarely intended.
fn refuse_nested(options: &ScoutOptions) -> Result<(), StartError> {
    let Some(path) = scout_login::session_socket().filter(|_| !options.force) else {
        return Ok(());
    };
    // A session that no longer exists does not count.
    let Ok(connection) = scout_login::login(Path::new(&path)) else { return Ok(()) };
    let line = format!(
        "this is inside a scout session on {}; leave it first, or use -force",
        describe_hosts(&connection.hosts)
    );
    Err(StartError::plain(EXIT_USAGE, line))
}

/// The hosts that the options select, by the rules of scrun.
fn hosts(options: &ScoutOptions, reporter: &Reporter) -> Result<Vec<HostSpec>, StartError> {
    let given = |(key, value): &(&str, String)| OptionArg {
        key: (*key).to_owned(),
        value: Some(value.clone()),
        position: ErrorPosition::Unspecified,
    };
    let job_options = JobOptions { given: options.hosts.iter().map(given).collect() };
    let links = networks::links(&job_options);
    let local_env = LocalEnvironment::current();
    let mut warn = |line: &str| reporter.report(Level::Warning, line);
    let hosts = local_env.available_hosts(&job_options, &mut warn)?.unwrap_or_default();
    let spec = |mut host: score_hosts::Host| {
        if local_env.is_local(&host) {
            host.processors.get_or_insert_with(|| (local_env.count_processors)());
            host.bintype.get_or_insert_with(bintype);
        }
        nodes::host_spec(&host, (1, links), &local_env)
    };
    Ok(hosts.into_iter().map(spec).collect())
}

/// The arguments for scored: the options that concern the start of daemons.
fn scored_args(options: &ScoutOptions) -> Vec<String> {
    let given = options.hosts.iter().filter(|(name, _)| FORWARDED_TO_SCORED.contains(name));
    let timeout =
        options.timeout.map(|duration| ["-timeout".into(), duration.as_secs().to_string()]);
    let words = given.map(|(name, value)| [format!("-{name}"), value.clone()]);
    words.chain(timeout).flatten().collect()
}

/// Opens a descriptor from which signals are read. scout leaves the signals of the terminal's keys
/// and stop signals to the shell.
fn open_signalfd() -> nix::Result<SignalFd> {
    let handled =
        [Signal::SIGCHLD, Signal::SIGHUP, Signal::SIGINT, Signal::SIGQUIT, Signal::SIGTERM];
    let handled: SigSet = handled.into_iter().collect();
    let mut blocked = handled;
    // scout may write a line while the shell is in the foreground.
    blocked.add(Signal::SIGTTOU);
    blocked.thread_block()?;
    SignalFd::with_flags(&handled, SfdFlags::SFD_NONBLOCK | SfdFlags::SFD_CLOEXEC)
}

enum SessionError {
    Refused(StartError),
    System(io::Error),
}

impl From<io::Error> for SessionError {
    fn from(error: io::Error) -> Self {
        SessionError::System(error)
    }
}

impl From<Errno> for SessionError {
    fn from(errno: Errno) -> Self {
        SessionError::System(errno.into())
    }
}

/// An event of a session.
enum SessionEvent {
    Message(Received<ScoutAnswer>),
    /// The connection to scored has closed.
    Lost,
    Signal(i32),
}

struct ScoutSession {
    reporter: Reporter,
    /// The connection to scored, while it is open.
    connection: Option<Connection>,
    signals: SignalFd,
    daemon: DaemonHandle,
    /// The session's directory. scored removes it; if scored has died, scout does.
    directory: Option<PathBuf>,
}

impl ScoutSession {
    fn serve(&mut self, options: &ScoutOptions, hosts: &[HostSpec]) -> Result<u8, SessionError> {
        self.request_session(hosts)?;
        let socket_path = match self.wait_until_open()? {
            Ok(socket_path) => socket_path,
            Err(code) => return Ok(code),
        };
        if options.words.is_empty() && io::stdin().is_terminal() {
            let names = host_ranges::compress(hosts.iter().map(|host| host.name.as_str()));
            let line = format!("session on {names}: exit or ^D ends it");
            self.reporter.report(Level::Error, &line);
        }
        let pid = self.start_shell(options, &socket_path)?;
        self.supervise_shell(pid)
    }

    fn request_session(&mut self, hosts: &[HostSpec]) -> Result<(), SessionError> {
        let request = SingleUserRequest::OpenScoutSession(hosts.to_vec());
        match &mut self.connection {
            Some(connection) => {
                Ok(connection.send(SESSION_JOB, &request).map_err(io::Error::other)?)
            }
            None => Ok(()),
        }
    }

    /// The path of the session's socket, or the exit code if a signal ends scout.
    fn wait_until_open(&mut self) -> Result<Result<OsString, u8>, SessionError> {
        loop {
            match self.next_event()? {
                SessionEvent::Message(Received::Answer(ScoutAnswer::Opened { socket })) => {
                    return Ok(Ok(socket.into()));
                }
                SessionEvent::Message(Received::Refused { reason, code }) => {
                    return Err(SessionError::Refused(StartError::plain(code, reason)));
                }
                SessionEvent::Message(message) => self.on_message(message),
                SessionEvent::Lost => {
                    let exit_description = self.daemon.wait_for_exit(DAEMON_EXIT_TIMEOUT);
                    let line = format!("the session was not opened: {exit_description}");
                    return Err(SessionError::Refused(StartError::plain(EXIT_DAEMON_LOST, line)));
                }
                SessionEvent::Signal(libc::SIGCHLD) => {}
                SessionEvent::Signal(signal) => return Ok(Err(128 + signal as u8)),
            }
        }
    }

    fn on_message(&mut self, message: Received<ScoutAnswer>) {
        match message {
            Received::Notice { level, text } => self.reporter.report(level, &text),
            Received::Answer(ScoutAnswer::Directory(path)) => self.directory = Some(path.into()),
            // After the session was opened, the connection ends with the session.
            Received::Refused { .. } | Received::Answer(ScoutAnswer::Opened { .. }) => {}
        }
    }

    /// Waits for the next event.
    fn next_event(&mut self) -> Result<SessionEvent, SessionError> {
        loop {
            match self.connection.as_mut().map(Connection::receive) {
                Some(Ok(Some(message))) => return Ok(SessionEvent::Message(message)),
                Some(Err(ConnectionError::Closed(_))) => {
                    self.connection = None;
                    return Ok(SessionEvent::Lost);
                }
                Some(Err(error)) => return Err(io::Error::other(error).into()),
                Some(Ok(None)) | None => {}
            }
            let mut sources = vec![PollFd::new(self.signals.as_fd(), PollFlags::POLLIN)];
            let socket = self.connection.as_ref().map(Connection::as_fd);
            sources.extend(socket.map(|socket| PollFd::new(socket, PollFlags::POLLIN)));
            match poll(&mut sources, PollTimeout::NONE) {
                Err(Errno::EINTR) => continue,
                other => other?,
            };
            let ready = |index: usize| sources.get(index).and_then(PollFd::any).unwrap_or(false);
            let (is_signal_pending, is_socket_readable) = (ready(0), ready(1));
            // The end of the session is handled before the end of the shell, because the shell may
            // end as a result.
            if is_socket_readable && let Some(connection) = &mut self.connection {
                connection.mark_readable();
                continue;
            }
            if is_signal_pending && let Some(signal) = self.signals.read_signal()? {
                return Ok(SessionEvent::Signal(signal.ssi_signo as i32));
            }
        }
    }

    fn start_shell(&self, options: &ScoutOptions, socket: &OsStr) -> Result<Pid, SessionError> {
        let scout_path = std::env::current_exe()?;
        let mut command = Command::new(&scout_path);
        command.arg(SHELL_CHILD_ARG).arg(std::process::id().to_string()).env(SCOUT_ENV, socket);
        if let Some(rsh) = &options.rsh {
            command.env(REMOTE_SHELL_ENV, rsh);
        }
        match (options.words.is_empty(), options.runs_locally) {
            (true, _) => {
                let shell = std::env::var_os("SHELL").filter(|shell| !shell.is_empty());
                command.arg(shell.unwrap_or_else(|| "/bin/sh".into()));
            }
            (false, true) => drop(command.args(&options.words)),
            (false, false) => {
                let order_option = ["-merge", "-sort", "-rev", "-nosort"][options.order as usize];
                command.arg(scout_path).arg(order_option);
                command.args(options.stdin.then_some("-stdin"));
                command.args(options.json.then_some("-json"));
                command.arg("--").args(&options.words);
            }
        }
        let child = command.spawn()?;
        Ok(Pid::from_raw(child.id() as i32))
    }

    /// Waits until the shell has ended and returns scout's exit code.
    fn supervise_shell(&mut self, shell: Pid) -> Result<u8, SessionError> {
        let mut is_lost = false;
        loop {
            match self.next_event()? {
                SessionEvent::Signal(libc::SIGCHLD) => {
                    if let Some(code) = try_wait_shell(shell)? {
                        return Ok(if is_lost && code == 0 { EXIT_DAEMON_LOST } else { code });
                    }
                }
                // The shell and its commands handle the keys of the terminal.
                SessionEvent::Signal(libc::SIGINT | libc::SIGQUIT) => {}
                SessionEvent::Signal(signal) => {
                    // The session ends first, even if the shell does not react.
                    self.connection = None;
                    hang_up_shell(shell)?;
                    return Ok(128 + signal as u8);
                }
                SessionEvent::Message(message) => self.on_message(message),
                SessionEvent::Lost => {
                    is_lost = true;
                    let exit_description = self.daemon.wait_for_exit(DAEMON_EXIT_TIMEOUT);
                    self.remove_directory();
                    let line = format!("the session is lost: {exit_description}; leave this shell");
                    self.reporter.report(Level::Error, &line);
                }
            }
        }
    }

    fn remove_directory(&mut self) {
        if let Some(directory) = self.directory.take()
            && let Err(reason) = daemon::remove_directory(&directory)
        {
            self.reporter.report(Level::Error, &format!("not removed: {reason}"));
        }
    }
}

/// The exit code of the shell, if it has ended. If the shell stops itself (its command `suspend`),
/// scout also stops, so that the outer shell continues.
fn try_wait_shell(shell: Pid) -> nix::Result<Option<u8>> {
    match waitpid(shell, Some(WaitPidFlag::WNOHANG | WaitPidFlag::WUNTRACED))? {
        WaitStatus::Exited(_, code) => Ok(Some(code as u8)),
        WaitStatus::Signaled(_, signal, _) => Ok(Some(128 + signal as u8)),
        // If the shell is in scout's process group, the terminal stops and continues both.
        WaitStatus::Stopped(..) if getpgid(Some(shell)) != Ok(getpgrp()) => {
            raise(Signal::SIGSTOP)?;
            // Execution continues here after fg.
            let _ = killpg(shell, Signal::SIGCONT).or_else(|_| kill(shell, Signal::SIGCONT));
            Ok(None)
        }
        _ => Ok(None),
    }
}

/// Sends SIGHUP to the shell and waits for it for a short time. The shell gets the signal again
/// when scout ends.
fn hang_up_shell(shell: Pid) -> nix::Result<()> {
    for signal in [Signal::SIGHUP, Signal::SIGCONT] {
        let _ = kill(shell, signal);
    }
    let deadline = Instant::now() + SHELL_EXIT_TIMEOUT;
    while Instant::now() < deadline {
        match waitpid(shell, Some(WaitPidFlag::WNOHANG))? {
            WaitStatus::StillAlive => std::thread::sleep(Duration::from_millis(2)),
            _ => return Ok(()),
        }
    }
    Ok(())
}

/// Replaces this process with the shell, with default signal handling and a SIGHUP when scout dies.
/// `words` are scout's process id and the command. Returns an exit code only if this fails.
pub fn exec_shell(words: &[OsString]) -> u8 {
    let [parent, program, rest @ ..] = words else { return EXIT_USAGE };
    let death_signal_set = set_pdeathsig(Signal::SIGHUP);
    let unblocked = SigSet::all().thread_unblock();
    if let Err(errno) = death_signal_set.and(unblocked) {
        reporter().report(Level::Error, &format!("the shell cannot be started: {errno}"));
        return EXIT_NOT_EXECUTABLE;
    }
    if *parent != *getppid().to_string() {
        // scout died before the parent-death signal was set.
        return 128 + libc::SIGHUP as u8;
    }
    let error = Command::new(program).args(rest).exec();
    reporter().report(Level::Error, &format!("{}: {error}", crate::usage::printable(program)));
    if error.kind() == ErrorKind::NotFound { EXIT_NOT_FOUND } else { EXIT_NOT_EXECUTABLE }
}
