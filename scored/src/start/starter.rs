//! Starts daemons and watches the processes that brought them up.

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::process::{ChildStdin, Command, Stdio};
use std::time::{Duration, Instant};

use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};

use super::ground::Ground;
use super::key_file::KeyFile;
use super::launch::{self, Launch};
use super::queue::{Action, Queue};
use super::site::virtual_number;
use super::way::Way;
use score_proto::order::Status;

use super::{Host, Order};
use crate::sys::{descriptor, process, tie};

/// How long a daemon may take from its start until it has arrived.
const LIMIT: Duration = Duration::from_secs(30);
/// What is kept of the words of a launcher that may yet fail.
const TAIL: usize = 2048;
/// Reads of all that have something to say, in one turn.
const ROUNDS: usize = 16;
/// Longest line that is passed on.
const LINE: usize = 1024;

/// A host that has no daemon.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failure {
    /// Its position among the job's hosts.
    pub position: usize,
    /// One line for the user: host, cause, what to do.
    pub text: String,
}

/// A process that starts daemons, or is one.
struct Running {
    launch: usize,
    /// Held open: its end tells the daemon that its server has gone.
    stdin: Option<ChildStdin>,
    stderr: Option<File>,
    /// What it has said and nobody has been told yet.
    said: Vec<u8>,
}

/// Starts the daemons of an order.
pub struct Starter {
    way: Way,
    ground: Option<Ground>,
    hosts: Vec<Host>,
    secret: Vec<u8>,
    launches: Vec<Launch>,
    queue: Queue,
    limit: Duration,
    /// By process id.
    running: HashMap<i32, Running>,
    /// What launchers say on standard error.
    words: Epoll,
    more: bool,
    key_file: Option<KeyFile>,
}

impl Starter {
    /// Prepares to start an order's daemons; `ground` is for [`Way::Virtual`]. Nothing is started
    /// before [`Starter::advance`].
    ///
    /// # Errors
    /// One line that names what cannot be.
    pub(super) fn new(
        way: Way,
        order: Order,
        ground: Option<Ground>,
        limit: Option<Duration>,
    ) -> Result<Self, String> {
        let limit = limit.unwrap_or(LIMIT);
        let environment = |name: &str| std::env::var_os(name);
        let key_file = if launch::hands_on_stdin(way) {
            None
        } else {
            let home = std::env::var_os("HOME").map(PathBuf::from);
            let home = home.filter(|path| path.is_absolute()).ok_or(
                "HOME is not set: the key for daemons started by pbsdsh needs a file in a folder \
                 that all hosts share",
            )?;
            Some(KeyFile::new(&home, &order.secret)?)
        };
        let path = key_file.as_ref().map(KeyFile::path);
        let launches = launch::launches(way, &order, path, &environment)?;
        let hosts = launches.iter().map(|launch| launch.hosts.clone()).collect();
        let words = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC).map_err(|e| e.to_string())?;
        Ok(Self {
            way,
            ground,
            hosts: order.hosts,
            secret: order.secret,
            launches,
            queue: Queue::new(hosts, limit),
            limit,
            running: HashMap::new(),
            words,
            more: false,
            key_file,
        })
    }

    /// Starts what may be started now, and gives up what has taken too long. To be called at first,
    /// at [`Starter::deadline`], and after every [`Starter::arrived`] and [`Starter::ended`].
    pub fn advance(&mut self, now: Instant) -> Vec<Failure> {
        let mut failures = Vec::new();
        for action in self.queue.due(now) {
            match action {
                Action::Start(launch) => {
                    if let Err(error) = self.start(launch) {
                        let program = self.launches[launch].words[0].to_string_lossy();
                        let cause = format!("{program}: {error}");
                        for host in self.queue.ended(launch) {
                            failures.push(self.failure(host, &cause));
                        }
                    }
                }
                Action::GiveUp(launch, hosts) => {
                    let said = self.end(launch);
                    let cause = format!("it has not come within {} s{said}", self.limit.as_secs());
                    failures.extend(hosts.into_iter().map(|host| self.failure(host, &cause)));
                }
            }
        }
        self.forget_key();
        failures
    }

    /// When [`Starter::advance`] is to be called next.
    pub fn deadline(&self) -> Option<Instant> {
        self.queue.deadline()
    }

    /// The daemon of the host at this position has arrived.
    pub fn arrived(&mut self, position: usize) {
        if let Some(host) = self.hosts.iter().position(|host| host.position == position) {
            self.queue.arrived(host);
        }
        self.forget_key();
    }

    /// Nobody reads the file any more.
    fn forget_key(&mut self) {
        if self.queue.is_settled() {
            self.key_file = None;
        }
    }

    /// Ends the process that has brought up the daemon of a host which does not answer any more;
    /// a virtual host's daemon is that process.
    pub fn kill(&mut self, position: usize) {
        let host = self.hosts.iter().position(|host| host.position == position);
        for (pid, one) in &self.running {
            if let (Some(host), [only]) = (host, &self.launches[one.launch].hosts[..])
                && host == *only
            {
                process::kill(*pid, libc::SIGKILL);
            }
        }
    }

    /// The processes that have been started and not ended yet.
    pub fn processes(&self) -> impl Iterator<Item = i32> + '_ {
        self.running.keys().copied()
    }

    /// Whether every host's daemon has arrived or failed.
    pub fn is_settled(&self) -> bool {
        self.queue.is_settled()
    }

    /// Readable when [`Starter::hear`] has something to read.
    pub fn words(&self) -> BorrowedFd<'_> {
        self.words.0.as_fd()
    }

    /// Whether [`Starter::hear`] stopped before all was read: somebody talks without end.
    pub fn may_have_more(&self) -> bool {
        self.more
    }

    /// Reads what launchers and daemons say on standard error. Lines of those that are up are for
    /// the user, with the host's name; what the others say is kept, should they fail.
    pub fn hear(&mut self) -> Vec<String> {
        let mut lines = Vec::new();
        let mut events = [EpollEvent::empty(); 32];
        self.more = true;
        for _ in 0..ROUNDS {
            let Ok(count @ 1..) = self.words.wait(&mut events, EpollTimeout::ZERO) else {
                self.more = false;
                break;
            };
            for event in &events[..count] {
                let pid = event.data() as i32;
                let Some(one) = self.running.get_mut(&pid) else { continue };
                one.hear(&self.words);
                let launch = one.launch;
                if self.queue.is_up(launch) {
                    let name = self.speaker(launch);
                    let one = self.running.get_mut(&pid);
                    lines.extend(one.into_iter().flat_map(|one| one.take_lines(&name)));
                }
            }
        }
        lines
    }

    /// A child of this process has ended. None: it is none of the launchers.
    pub fn ended(&mut self, pid: i32, status: Status) -> Option<Vec<Failure>> {
        let mut one = self.running.remove(&pid)?;
        one.hear(&self.words);
        let how = match status {
            Status::Exited(code) => format!("ended with exit code {code}"),
            Status::Signaled(signal) => format!("killed by signal {signal}"),
        };
        let cause = format!("{how}{}", one.last_words());
        let lost = self.queue.ended(one.launch);
        self.forget_key();
        Some(lost.into_iter().map(|host| self.failure(host, &cause)).collect())
    }

    /// Nobody is needed any more: daemons see the end of their standard input, and launchers that
    /// still wait for them go. Whoever has time lets them ([`Starter::is_gone`]) before this value
    /// is dropped: a launcher that is killed may leave its batch system waiting.
    pub fn close(&mut self) {
        for (pid, one) in &mut self.running {
            one.stdin = None;
            if !self.queue.is_up(one.launch) {
                process::kill(*pid, libc::SIGTERM);
            }
        }
    }

    /// Whether no launcher runs.
    pub fn is_gone(&self) -> bool {
        self.running.is_empty()
    }

    fn start(&mut self, launch: usize) -> io::Result<()> {
        let Launch { words, hosts } = &self.launches[launch];
        let mut command = Command::new(&words[0]);
        command.args(&words[1..]).stdin(Stdio::piped()).stdout(Stdio::null());
        command.stderr(Stdio::piped());
        // A virtual host's daemon cleans up; a launcher takes its connections down with it.
        tie::dies_with_us(&mut command, libc::SIGTERM);
        let mut child = match (&self.ground, hosts.first()) {
            (Some(ground), Some(host)) => {
                let name = &self.hosts[*host].name;
                let number =
                    virtual_number(name).ok_or_else(|| io::Error::other("no such host"))?;
                ground.on(number, || command.spawn())??
            }
            _ => command.spawn()?,
        };
        let mut stdin = child.stdin.take();
        if let Some(stdin) = &mut stdin {
            // A pipe holds it. Who has died already is told by its end.
            let _ = stdin.write_all(&self.secret);
        }
        let pid = child.id() as i32;
        let mut stderr = child.stderr.take().map(|pipe| File::from(OwnedFd::from(pipe)));
        if let Some(pipe) = &stderr {
            let event = EpollEvent::new(EpollFlags::EPOLLIN, pid as u64);
            let heard = descriptor::set_nonblocking(pipe.as_fd());
            if heard.is_err() || self.words.add(pipe, event).is_err() {
                // It runs all the same; nobody will read its words.
                stderr = None;
            }
        }
        self.running.insert(pid, Running { launch, stdin, stderr, said: Vec::new() });
        Ok(())
    }

    /// Ends a launch that has taken too long; what it said.
    fn end(&mut self, launch: usize) -> String {
        let found = self.running.iter_mut().find(|(_, one)| one.launch == launch);
        let Some((pid, one)) = found else { return String::new() };
        one.hear(&self.words);
        let said = one.last_words();
        process::kill(*pid, libc::SIGTERM);
        said
    }

    /// Who speaks when a launch does.
    fn speaker(&self, launch: usize) -> String {
        match &self.launches[launch].hosts[..] {
            [host] => self.hosts[*host].name.clone(),
            _ => self.way.to_string(),
        }
    }

    fn failure(&self, host: usize, cause: &str) -> Failure {
        let name = &self.hosts[host].name;
        let reach = &self.hosts[host].reach;
        let advice = match self.way {
            Way::Virtual => String::new(),
            Way::Shell => format!("; this must work without a question: ssh {reach} true"),
            Way::Pbs => "; see the job's standard error, or use start=ssh".to_owned(),
            Way::GridEngine => "; the parallel environment needs control_slaves TRUE, or use \
                                start=ssh"
                .to_owned(),
            Way::Slurm | Way::Lsf => "; or use start=ssh".to_owned(),
        };
        let text = format!("{name}: no daemon could be started by {} ({cause}){advice}", self.way);
        Failure { position: self.hosts[host].position, text }
    }
}

impl Drop for Starter {
    /// Whoever is still there is asked to go: daemons clean up first.
    fn drop(&mut self) {
        for pid in self.running.keys() {
            process::kill(*pid, libc::SIGTERM);
        }
    }
}

impl Running {
    /// Reads what is there; keeps the end of it.
    fn hear(&mut self, words: &Epoll) {
        let Some(pipe) = &mut self.stderr else { return };
        let mut buffer = [0; 4096];
        // Bounded: who talks without end is heard again in the next turn.
        for _ in 0..4 {
            match pipe.read(&mut buffer) {
                Ok(0) => {}
                Ok(count) => {
                    self.said.extend_from_slice(&buffer[..count]);
                    let excess = self.said.len().saturating_sub(TAIL.max(LINE));
                    self.said.drain(..excess);
                    continue;
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                Err(_) => {}
            }
            let _ = words.delete(&*pipe);
            self.stderr = None;
            return;
        }
    }

    /// The complete lines that wait, after the name of who says them.
    fn take_lines(&mut self, name: &str) -> Vec<String> {
        let end = self.said.iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1);
        let end = if self.said.len() - end > LINE { self.said.len() } else { end };
        let complete: Vec<u8> = self.said.drain(..end).collect();
        let text = String::from_utf8_lossy(&complete).into_owned();
        let lines = text.lines().map(str::trim_end).filter(|line| !line.is_empty());
        lines.map(|line| format!("{name}: {}", printable(line))).collect()
    }

    /// The last lines, for a message about its end.
    fn last_words(&self) -> String {
        let text = String::from_utf8_lossy(&self.said);
        let lines: Vec<&str> =
            text.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
        let last = &lines[lines.len().saturating_sub(3)..];
        if last.is_empty() { String::new() } else { format!(": {}", printable(&last.join("; "))) }
    }
}

/// Without what could steer a terminal: it comes from another host.
fn printable(text: &str) -> String {
    text.chars().filter(|letter| !letter.is_control()).collect()
}
