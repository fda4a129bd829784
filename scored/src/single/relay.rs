//! The loop of scored in single-user mode.

use std::io;
use std::os::fd::AsRawFd;
use std::time::{Duration, Instant};

use mio::unix::SourceFd;
use mio::{Events, Interest, Poll, Token};
use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use score_proto::PROTOCOL_VERSION;
use score_proto::message::{Down, JobEnd, JobSpec, Level, Up};

use super::directory::JobDirectory;
use super::{JOB, Setting, machine, start_shepherd};
use crate::job::{check, code};
use crate::link::Link;
use crate::sys::namespace::Rung;
use crate::sys::process::{self, Reap, Status};

const SCRUN: Token = Token(0);
const SHEPHERD: Token = Token(1);
const SIGNALS: Token = Token(2);

/// Bytes that may wait for a peer before the other one is not read any more. The windows keep the
/// streams far below.
const BACKLOG: usize = 4 << 20;
/// scrun's exit codes for what it cannot have: a job that is refused, a machine that does not do.
const REFUSED: u8 = 2;
const FAILED: u8 = 1;
/// How long the processes of a dead shepherd without namespace may take to go.
const GOING: Duration = Duration::from_secs(2);

struct Shepherd {
    pid: i32,
    rung: Rung,
    link: Link,
    /// Its last message.
    finished: Option<JobEnd>,
    greeted: bool,
}

/// A scored with one job at most.
pub struct Relay {
    poll: Poll,
    signals: SignalFd,
    scrun: Link,
    no_namespace: bool,
    greeted: bool,
    directory: Option<JobDirectory>,
    shepherd: Option<Shepherd>,
    /// The last message has been queued: leave when it is out.
    leaving: bool,
}

impl Relay {
    pub fn new(setting: Setting) -> io::Result<Self> {
        let poll = Poll::new()?;
        let mut scrun = Link::new(setting.control)?;
        scrun.register(poll.registry(), SCRUN)?;
        let mut wanted = SigSet::from(Signal::SIGCHLD);
        for signal in [Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP, Signal::SIGQUIT] {
            wanted.add(signal);
        }
        let flags = SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK;
        let signals = SignalFd::with_flags(&wanted, flags)?;
        let mut source = SourceFd(&signals.as_raw_fd());
        poll.registry().register(&mut source, SIGNALS, Interest::READABLE)?;
        Ok(Self {
            poll,
            signals,
            scrun,
            no_namespace: setting.no_namespace,
            greeted: false,
            directory: None,
            shepherd: None,
            leaving: false,
        })
    }

    /// Runs until the job is over and everything is reclaimed.
    pub fn live(mut self) -> io::Result<()> {
        let mut events = Events::with_capacity(16);
        loop {
            let timeout = self.has_more().then_some(Duration::ZERO);
            match self.poll.poll(&mut events, timeout) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                other => other?,
            }
            let mut signalled = false;
            for event in &events {
                match (event.token(), &mut self.shepherd) {
                    (SCRUN, _) => self.scrun.mark_readable(),
                    (SHEPHERD, Some(shepherd)) => shepherd.link.mark_readable(),
                    _ => signalled = true,
                }
            }
            self.hear_scrun();
            self.hear_shepherd();
            if signalled && self.take_signals() {
                self.abort();
                return Ok(());
            }
            self.scrun.flush();
            if self.scrun.is_closed() {
                self.abort();
                return Ok(());
            }
            if let Some(shepherd) = &mut self.shepherd {
                shepherd.link.flush();
            }
            if self.leaving && self.scrun.backlog() == 0 {
                return Ok(());
            }
        }
    }

    /// Something can be done without waiting: a link was left half-read for its peer's sake.
    fn has_more(&self) -> bool {
        let Some(shepherd) = &self.shepherd else { return self.scrun.may_have_more() };
        let down = self.scrun.may_have_more() && shepherd.link.backlog() < BACKLOG;
        let up = shepherd.link.may_have_more() && self.scrun.backlog() < BACKLOG;
        down || up
    }

    fn refuse(&mut self, code: u8, reason: String) {
        self.scrun.queue(&Up::Refused { reason, code });
        self.leaving = true;
    }

    fn hear_scrun(&mut self) {
        while !self.leaving && self.shepherd.as_ref().is_none_or(|s| s.link.backlog() < BACKLOG) {
            match self.scrun.receive::<Down>() {
                Ok(Some(Down::Hello { version })) => {
                    self.scrun.queue(&Up::Hello { version: PROTOCOL_VERSION });
                    self.greeted = version == PROTOCOL_VERSION;
                    if !self.greeted {
                        let reason = format!(
                            "scrun speaks version {version} of the protocol and scored version \
                             {PROTOCOL_VERSION}: they come from different installations"
                        );
                        self.refuse(FAILED, reason);
                    }
                }
                Ok(Some(_)) if !self.greeted => {
                    return self.refuse(FAILED, "scrun did not say hello".to_owned());
                }
                Ok(Some(Down::Submit(spec))) => self.submit(spec),
                Ok(Some(message)) => {
                    if let Some(shepherd) = &mut self.shepherd {
                        shepherd.link.queue(&message);
                    }
                }
                Ok(None) => return,
                Err(error) => {
                    self.abort_job();
                    return self.refuse(FAILED, format!("from scrun: {error}"));
                }
            }
        }
    }

    fn submit(&mut self, spec: JobSpec) {
        if self.shepherd.is_some() {
            let text = "a scored in single-user mode runs one job only".to_owned();
            self.scrun.queue(&Up::Notice { level: Level::Error, text });
            return;
        }
        if let Err(reason) = check::check(&spec, &machine::look()) {
            return self.refuse(REFUSED, reason);
        }
        if let Err(reason) = self.accept(spec) {
            self.abort_job();
            self.refuse(FAILED, reason);
        }
    }

    fn accept(&mut self, spec: JobSpec) -> Result<(), String> {
        let runtime_dir = std::env::var_os("XDG_RUNTIME_DIR");
        let scrun = &mut self.scrun;
        let directory = JobDirectory::create(runtime_dir.as_deref(), &mut |dir| {
            scrun.queue(&Up::Directory(dir.to_owned()));
            scrun.flush();
        })?;
        let dir = directory.path().to_string_lossy().into_owned();
        self.directory = Some(directory);
        let (pid, rung, socket) = start_shepherd(&dir, self.no_namespace)
            .map_err(|error| format!("the job's shepherd cannot be started: {error}"))?;
        let mut link = Link::new(socket).map_err(|error| error.to_string())?;
        link.register(self.poll.registry(), SHEPHERD).map_err(|error| error.to_string())?;
        link.queue(&Down::Hello { version: PROTOCOL_VERSION });
        link.queue(&Down::Submit(spec));
        link.flush();
        self.scrun.queue(&Up::Accepted { job: JOB, dir });
        self.shepherd = Some(Shepherd { pid, rung, link, finished: None, greeted: false });
        // While the shepherd starts: what earlier jobs could not remove themselves.
        for fault in self.directory.iter().flat_map(JobDirectory::remove_leftovers) {
            let text = format!("left by an earlier job, and cannot be removed: {fault}");
            self.scrun.queue(&Up::Notice { level: Level::Warning, text });
        }
        Ok(())
    }

    fn hear_shepherd(&mut self) {
        let Some(shepherd) = &mut self.shepherd else { return };
        while self.scrun.backlog() < BACKLOG {
            match shepherd.link.receive::<Up>() {
                Ok(Some(Up::Hello { version })) => shepherd.greeted = version == PROTOCOL_VERSION,
                Ok(Some(Up::Finished(end))) => shepherd.finished = Some(end),
                Ok(Some(message)) => self.scrun.queue(&message),
                Ok(None) => break,
                Err(_) => {
                    process::kill(shepherd.pid, libc::SIGKILL);
                    break;
                }
            }
        }
        if shepherd.link.is_closed() {
            self.bury_shepherd();
        }
    }

    /// The shepherd's socket is closed: it has ended, or is about to.
    fn bury_shepherd(&mut self) {
        let Some(shepherd) = self.shepherd.take() else { return };
        if shepherd.finished.is_none() {
            // A namespace's init that has lost its socket can do nothing useful any more.
            process::kill(shepherd.pid, libc::SIGKILL);
        }
        let status = process::wait_for(shepherd.pid).map(|reaped| reaped.status);
        reclaim(shepherd.rung);
        let end = match shepherd.finished {
            Some(end) => end,
            None => self.explain(status),
        };
        self.remove_directory();
        self.scrun.queue(&Up::Finished(end));
        self.leaving = true;
    }

    fn explain(&mut self, status: Option<Status>) -> JobEnd {
        let cause = match status {
            Some(Status::Signaled(signal)) => format!("killed by {}", code::signal_name(signal)),
            Some(Status::Exited(code)) => format!("exit code {code}"),
            None => "unknown cause".to_owned(),
        };
        let text = format!("the job's shepherd has died ({cause}): every process has been killed");
        self.scrun.queue(&Up::Notice { level: Level::Error, text });
        let code = status.map_or(FAILED, code::of_status).max(1);
        JobEnd { code, usage: Vec::new(), elapsed_ns: 0 }
    }

    /// Reads pending signals; true when one of them asks to end.
    fn take_signals(&mut self) -> bool {
        let mut end = false;
        while let Ok(Some(signal)) = self.signals.read_signal() {
            end |= signal.ssi_signo == libc::SIGTERM as u32;
        }
        // A shepherd that was killed shows on its socket, too; but not while something it has
        // started still holds the other end.
        if let Some(shepherd) = &mut self.shepherd
            && has_ended(shepherd.pid)
        {
            // Its last words may have come after mio's last report.
            shepherd.link.mark_readable();
            self.hear_shepherd();
            self.bury_shepherd();
        }
        end
    }

    /// Ends the job without telling anybody.
    fn abort(&mut self) {
        self.abort_job();
    }

    fn abort_job(&mut self) {
        if let Some(shepherd) = self.shepherd.take() {
            process::kill(shepherd.pid, libc::SIGKILL);
            process::wait_for(shepherd.pid);
            reclaim(shepherd.rung);
        }
        self.remove_directory();
    }

    fn remove_directory(&mut self) {
        let Some(directory) = self.directory.take() else { return };
        let path = directory.path().to_owned();
        if let Err(error) = directory.remove() {
            let text = format!("{} cannot be removed: {error}", path.display());
            self.scrun.queue(&Up::Notice { level: Level::Warning, text });
        }
    }
}

/// Whether this child has ended; it stays to be waited for.
fn has_ended(pid: i32) -> bool {
    use nix::sys::wait::{Id, WaitPidFlag, WaitStatus, waitid};
    let flags = WaitPidFlag::WEXITED | WaitPidFlag::WNOHANG | WaitPidFlag::WNOWAIT;
    match waitid(Id::Pid(nix::unistd::Pid::from_raw(pid)), flags) {
        Ok(WaitStatus::StillAlive) => false,
        Ok(_) => true,
        Err(_) => true,
    }
}

/// Ends what a dead shepherd has left. A namespace has ended with it; on the last rung the orphans
/// have become our children.
fn reclaim(rung: Rung) {
    if rung.is_namespace() {
        return;
    }
    let end = Instant::now() + GOING;
    while Instant::now() < end {
        for pid in process::descendants() {
            process::kill(pid, libc::SIGKILL);
        }
        match process::reap() {
            Reap::One(_) => {}
            Reap::NoChildren => return,
            Reap::AllRunning => std::thread::sleep(Duration::from_millis(1)),
        }
    }
}
