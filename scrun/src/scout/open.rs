//! Opening a session: a scored brings the hosts up, then the user's shell runs until it ends, and
//! the session with it.

use super::options::Options;
use super::{names, on, reporter};
use crate::inside;
use crate::notice::Reporter;
use crate::options::table::FOR_SCORED;
use crate::options::{Given, Options as JobOptions};
use crate::session::daemon::{self, Daemon};
use crate::session::state::DAEMON_LOST;
use crate::site::{Site, bintype};
use crate::usage::{NOT_EXECUTABLE, NOT_FOUND, Place, Refusal, USAGE};
use crate::{networks, nodes};
use nix::errno::Errno;
use nix::libc;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::prctl::set_pdeathsig;
use nix::sys::signal::{SigSet, Signal, kill, killpg, raise};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::{Pid, getpgid, getpgrp, getppid};
use score_proto::PROTOCOL_VERSION;
use score_proto::env::{REMOTE_SHELL, SCOUT};
use score_proto::login::{self, LOGIN, Ups};
use score_proto::message::{Down, HostSpec, Level, Up};
use std::ffi::{OsStr, OsString};
use std::io::{self, ErrorKind, IsTerminal, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

/// First word of the process that becomes the shell.
pub const INNER: &str = "-shell";

/// How long the shell may take to go when scout has to.
const SHELL_EXIT: Duration = Duration::from_millis(500);
/// The same for scored.
const DAEMON_EXIT: Duration = Duration::from_secs(2);

/// Opens a session, runs the shell or command in it, and gives its exit code.
///
/// # Errors
/// What keeps the session from being opened.
pub fn run(options: &Options) -> Result<u8, Refusal> {
    refuse_nested(options)?;
    let reporter = reporter();
    let hosts = hosts(options, &reporter)?;
    let failed = |error: &dyn std::fmt::Display| Refusal::plain(DAEMON_LOST, error.to_string());
    let signals = take_signals().map_err(|errno| failed(&errno))?;
    let rsh: Option<(&str, &OsStr)> = options.rsh.as_deref().map(|rsh| (REMOTE_SHELL, rsh));
    let variables: Vec<_> = rsh.into_iter().collect();
    let (daemon, socket) =
        daemon::start(&for_scored(options), &variables).map_err(|error| failed(&error))?;
    let mut scout = Scout {
        reporter,
        socket: Some(socket),
        decoder: Ups::default(),
        signals,
        daemon,
        directory: None,
    };
    let result = scout.serve(options, &hosts);
    // Before anything else: the end of this socket is the end of the session.
    drop(scout.socket.take());
    scout.daemon.see_off(DAEMON_EXIT);
    scout.remove_directory();
    result.map_err(|error| match error {
        Fault::Refused(refusal) => refusal,
        Fault::System(error) => failed(&error),
    })
}

/// A shell inside a shell is rarely meant.
fn refuse_nested(options: &Options) -> Result<(), Refusal> {
    let Some(path) = inside::named().filter(|_| !options.force) else { return Ok(()) };
    // A session that is gone is none.
    let Ok(login) = inside::login(Path::new(&path)) else { return Ok(()) };
    let line = format!(
        "this is inside a scout session on {}; leave it first, or say -force",
        on(&login.hosts)
    );
    Err(Refusal::plain(USAGE, line))
}

/// The hosts that the options mean, as for scrun.
fn hosts(options: &Options, reporter: &Reporter) -> Result<Vec<HostSpec>, Refusal> {
    let given = |(key, value): &(&str, String)| Given {
        key: (*key).to_owned(),
        value: Some(value.clone()),
        place: Place::Nowhere,
    };
    let wanted = JobOptions { given: options.hosts.iter().map(given).collect() };
    let links = networks::links(&wanted);
    let site = Site::of_process();
    let mut say = |line: &str| reporter.say(Level::Warning, line);
    let hosts = site.at_hand(&wanted, &mut say)?.unwrap_or_default();
    let spec = |mut host: score_hosts::Host| {
        if site.is_this(&host) {
            host.processors.get_or_insert_with(|| (site.processors)());
            host.bintype.get_or_insert_with(bintype);
        }
        nodes::spec(&host, (1, links), &site)
    };
    Ok(hosts.into_iter().map(spec).collect())
}

/// How daemons start: more words for scored.
fn for_scored(options: &Options) -> Vec<String> {
    let given = options.hosts.iter().filter(|(name, _)| FOR_SCORED.contains(name));
    let timeout = options.timeout.map(|limit| ["-timeout".into(), limit.as_secs().to_string()]);
    let words = given.map(|(name, value)| [format!("-{name}"), value.clone()]);
    words.chain(timeout).flatten().collect()
}

/// Signals are read from a descriptor; those of the terminal's keys are the shell's affair, and so
/// are stops.
fn take_signals() -> nix::Result<SignalFd> {
    let wanted =
        [Signal::SIGCHLD, Signal::SIGHUP, Signal::SIGINT, Signal::SIGQUIT, Signal::SIGTERM];
    let wanted: SigSet = wanted.into_iter().collect();
    let mut blocked = wanted;
    // A line of scout's own may be written while the shell has the terminal.
    blocked.add(Signal::SIGTTOU);
    blocked.thread_block()?;
    SignalFd::with_flags(&wanted, SfdFlags::SFD_NONBLOCK | SfdFlags::SFD_CLOEXEC)
}

enum Fault {
    Refused(Refusal),
    System(io::Error),
}

impl From<io::Error> for Fault {
    fn from(error: io::Error) -> Self {
        Fault::System(error)
    }
}

impl From<Errno> for Fault {
    fn from(errno: Errno) -> Self {
        Fault::System(errno.into())
    }
}

/// What has come.
enum News {
    Up(Up),
    /// scored is gone.
    Lost,
    Signal(i32),
}

struct Scout {
    reporter: Reporter,
    /// To scored, while it is there.
    socket: Option<UnixStream>,
    decoder: Ups,
    signals: SignalFd,
    daemon: Daemon,
    /// The session's directory: scored removes it, unless it dies.
    directory: Option<PathBuf>,
}

impl Scout {
    fn serve(&mut self, options: &Options, hosts: &[HostSpec]) -> Result<u8, Fault> {
        self.ask(hosts)?;
        let path = match self.wait_until_open()? {
            Ok(path) => path,
            Err(code) => return Ok(code),
        };
        if options.words.is_empty() && io::stdin().is_terminal() {
            let names = names::joined(hosts.iter().map(|host| host.name.as_str()));
            let line = format!("session on {names}: exit or ^D ends it");
            self.reporter.say(Level::Error, &line);
        }
        let pid = self.start_shell(options, &path)?;
        self.look_after(pid)
    }

    fn ask(&mut self, hosts: &[HostSpec]) -> Result<(), Fault> {
        let mut bytes = Vec::new();
        let hello = Down::Hello { version: PROTOCOL_VERSION };
        for message in [hello, Down::Open(hosts.to_vec())] {
            login::encode(LOGIN, &message, &mut bytes).map_err(io::Error::other)?;
        }
        match &mut self.socket {
            Some(socket) => Ok(socket.write_all(&bytes)?),
            None => Ok(()),
        }
    }

    /// The session's socket, or the exit code when there will be none.
    fn wait_until_open(&mut self) -> Result<Result<OsString, u8>, Fault> {
        loop {
            match self.next()? {
                News::Up(Up::Opened { socket }) => return Ok(Ok(socket.into())),
                News::Up(Up::Refused { reason, code }) => {
                    return Err(Fault::Refused(Refusal::plain(code, reason)));
                }
                News::Up(up) => self.heard(up)?,
                News::Lost => {
                    let how = self.daemon.see_off(DAEMON_EXIT);
                    let line = format!("the session was not opened: {how}");
                    return Err(Fault::Refused(Refusal::plain(DAEMON_LOST, line)));
                }
                News::Signal(libc::SIGCHLD) => {}
                News::Signal(signal) => return Ok(Err(128 + signal as u8)),
            }
        }
    }

    fn heard(&mut self, up: Up) -> Result<(), Fault> {
        match up {
            Up::Notice { level, text } => self.reporter.say(level, &text),
            Up::Directory(path) => self.directory = Some(path.into()),
            Up::Hello { version } if version != PROTOCOL_VERSION => {
                let line = format!("scored speaks protocol {version}, scout {PROTOCOL_VERSION}");
                return Err(Fault::Refused(Refusal::plain(DAEMON_LOST, line)));
            }
            _ => {}
        }
        Ok(())
    }

    /// Waits for the next thing that happens.
    fn next(&mut self) -> Result<News, Fault> {
        loop {
            if let Some(heard) = self.decoder.next().map_err(io::Error::other)? {
                return Ok(News::Up(heard.message));
            }
            let mut sources = vec![PollFd::new(self.signals.as_fd(), PollFlags::POLLIN)];
            let socket = self.socket.as_ref().map(UnixStream::as_fd);
            sources.extend(socket.map(|socket| PollFd::new(socket, PollFlags::POLLIN)));
            match poll(&mut sources, PollTimeout::NONE) {
                Err(Errno::EINTR) => continue,
                other => other?,
            };
            let ready = |at: usize| sources.get(at).and_then(PollFd::any).unwrap_or(false);
            let (signalled, said) = (ready(0), ready(1));
            // The session's end before that of the shell, which may be a consequence.
            if said && let Some(socket) = &mut self.socket {
                let mut chunk = [0; 16 * 1024];
                match socket.read(&mut chunk) {
                    Ok(count @ 1..) => self.decoder.push(&chunk[..count]),
                    Err(error) if error.kind() == ErrorKind::Interrupted => {}
                    Ok(0) | Err(_) => {
                        self.socket = None;
                        return Ok(News::Lost);
                    }
                }
                continue;
            }
            if signalled && let Some(signal) = self.signals.read_signal()? {
                return Ok(News::Signal(signal.ssi_signo as i32));
            }
        }
    }

    fn start_shell(&self, options: &Options, socket: &OsStr) -> Result<Pid, Fault> {
        let own = std::env::current_exe()?;
        let mut command = Command::new(&own);
        command.arg(INNER).arg(std::process::id().to_string()).env(SCOUT, socket);
        if let Some(rsh) = &options.rsh {
            command.env(REMOTE_SHELL, rsh);
        }
        match (options.words.is_empty(), options.local) {
            (true, _) => {
                let shell = std::env::var_os("SHELL").filter(|shell| !shell.is_empty());
                command.arg(shell.unwrap_or_else(|| "/bin/sh".into()));
            }
            (false, true) => drop(command.args(&options.words)),
            (false, false) => {
                let merge = ["-merge", "-sort", "-rev", "-nosort"][options.order as usize];
                command.arg(own).arg(merge);
                command.args(options.stdin.then_some("-stdin"));
                command.args(options.json.then_some("-json"));
                command.arg("--").args(&options.words);
            }
        }
        let child = command.spawn()?;
        Ok(Pid::from_raw(child.id() as i32))
    }

    /// Until the shell has ended; gives scout's exit code.
    fn look_after(&mut self, shell: Pid) -> Result<u8, Fault> {
        let mut lost = false;
        loop {
            match self.next()? {
                News::Signal(libc::SIGCHLD) => {
                    if let Some(code) = look(shell)? {
                        return Ok(if lost && code == 0 { DAEMON_LOST } else { code });
                    }
                }
                // The keys of the terminal are for the shell and what runs in it.
                News::Signal(libc::SIGINT | libc::SIGQUIT) => {}
                News::Signal(signal) => {
                    // The session ends first, whatever the shell does.
                    self.socket = None;
                    send_away(shell)?;
                    return Ok(128 + signal as u8);
                }
                News::Up(up) => self.heard(up)?,
                News::Lost => {
                    lost = true;
                    let how = self.daemon.see_off(DAEMON_EXIT);
                    self.remove_directory();
                    let line = format!("the session is lost: {how}; leave this shell");
                    self.reporter.say(Level::Error, &line);
                }
            }
        }
    }

    fn remove_directory(&mut self) {
        if let Some(directory) = self.directory.take()
            && let Err(why) = daemon::remove_directory(&directory)
        {
            self.reporter.say(Level::Error, &format!("left behind: {why}"));
        }
    }
}

/// What has become of the shell: its exit code, if it has ended. A shell that stops itself (its
/// command `suspend`) stops scout, too, so that the shell outside goes on.
fn look(shell: Pid) -> nix::Result<Option<u8>> {
    match waitpid(shell, Some(WaitPidFlag::WNOHANG | WaitPidFlag::WUNTRACED))? {
        WaitStatus::Exited(_, code) => Ok(Some(code as u8)),
        WaitStatus::Signaled(_, signal, _) => Ok(Some(128 + signal as u8)),
        // In scout's own group the terminal stops and continues both.
        WaitStatus::Stopped(..) if getpgid(Some(shell)) != Ok(getpgrp()) => {
            raise(Signal::SIGSTOP)?;
            // It goes on from here after fg.
            let _ = killpg(shell, Signal::SIGCONT).or_else(|_| kill(shell, Signal::SIGCONT));
            Ok(None)
        }
        _ => Ok(None),
    }
}

/// Tells the shell to go, and waits for a moment; it gets the signal again when scout ends.
fn send_away(shell: Pid) -> nix::Result<()> {
    for signal in [Signal::SIGHUP, Signal::SIGCONT] {
        let _ = kill(shell, signal);
    }
    let end = Instant::now() + SHELL_EXIT;
    while Instant::now() < end {
        match waitpid(shell, Some(WaitPidFlag::WNOHANG))? {
            WaitStatus::StillAlive => std::thread::sleep(Duration::from_millis(2)),
            _ => return Ok(()),
        }
    }
    Ok(())
}

/// Becomes the shell: with ordinary signals, and a hangup when scout dies. `words` are scout's
/// process id and the command. Gives an exit code only when that fails.
pub fn become_shell(words: &[OsString]) -> u8 {
    let [parent, program, rest @ ..] = words else { return USAGE };
    let tied = set_pdeathsig(Signal::SIGHUP);
    let unblocked = SigSet::all().thread_unblock();
    if let Err(errno) = tied.and(unblocked) {
        reporter().say(Level::Error, &format!("the shell cannot be started: {errno}"));
        return NOT_EXECUTABLE;
    }
    if *parent != *getppid().to_string() {
        // scout has died before it could be watched.
        return 128 + libc::SIGHUP as u8;
    }
    let error = Command::new(program).args(rest).exec();
    reporter().say(Level::Error, &format!("{}: {error}", crate::usage::shown(program)));
    if error.kind() == ErrorKind::NotFound { NOT_FOUND } else { NOT_EXECUTABLE }
}
