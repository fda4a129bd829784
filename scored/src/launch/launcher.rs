//! Starts daemons and watches the launcher processes.

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::process::{ChildStdin, Command, Stdio};
use std::time::{Duration, Instant};

use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};

use super::command_line::{self, Launch};
use super::key_file::KeyFile;
use super::method::LaunchMethod;
use super::queue::{LaunchAction, LaunchQueue};
use super::virtual_hosts::VirtualHosts;
use score_proto::job_control::Status;

use super::{LaunchHost, LaunchRequest, virtual_number};
use crate::sys::{descriptor, pdeathsig, process};

/// The default time from the start of a daemon until it must have connected.
const ARRIVAL_TIMEOUT: Duration = Duration::from_secs(30);
/// The number of bytes of a launcher's standard error that are kept for an error message.
const STDERR_TAIL_LEN: usize = 2048;
/// The maximum number of times that one call reads from all launchers with output.
const READS_PER_TICK: usize = 16;
/// The maximum length of a forwarded line, in bytes.
const MAX_LINE_LEN: usize = 1024;

/// A host whose daemon could not be started.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failure {
    /// The position of the host in the job.
    pub position: usize,
    /// One line for the user: host, cause and remedy.
    pub text: String,
}

/// A launcher process. For a virtual host, it is the daemon itself.
struct LauncherProcess {
    launch: usize,
    /// Kept open, because end-of-file notifies the daemon that its server has exited.
    stdin: Option<ChildStdin>,
    stderr: Option<File>,
    /// Output that has not been reported yet.
    stderr_tail: Vec<u8>,
}

/// Starts the daemons of a request.
pub struct Launcher {
    method: LaunchMethod,
    virtual_hosts: Option<VirtualHosts>,
    hosts: Vec<LaunchHost>,
    secret: Vec<u8>,
    launches: Vec<Launch>,
    queue: LaunchQueue,
    arrival_timeout: Duration,
    /// The launcher processes, by process id.
    launchers: HashMap<i32, LauncherProcess>,
    /// Readable if a launcher has written to standard error.
    stderr_epoll: Epoll,
    has_unread: bool,
    key_file: Option<KeyFile>,
}

impl Launcher {
    /// Prepares to start the daemons of a request. [`Launcher::advance`] starts them.
    /// `virtual_hosts` is set for [`LaunchMethod::Virtual`].
    ///
    /// # Errors
    /// One line that names the invalid part.
    pub(super) fn new(
        method: LaunchMethod,
        request: LaunchRequest,
        virtual_hosts: Option<VirtualHosts>,
        arrival_timeout: Option<Duration>,
    ) -> Result<Self, String> {
        let arrival_timeout = arrival_timeout.unwrap_or(ARRIVAL_TIMEOUT);
        let environment = |name: &str| std::env::var_os(name);
        let key_file = if command_line::forwards_stdin(method) {
            None
        } else {
            let home = std::env::var_os("HOME").map(PathBuf::from);
            let home = home.filter(|path| path.is_absolute()).ok_or(
                "HOME is not set: the key for daemons started by pbsdsh needs a file in a \
                 directory that all hosts share; set HOME to such a directory",
            )?;
            Some(KeyFile::new(&home, &request.secret)?)
        };
        let path = key_file.as_ref().map(KeyFile::path);
        let launches = command_line::launches(method, &request, path, &environment)?;
        let hosts = launches.iter().map(|launch| launch.hosts.clone()).collect();
        let stderr_epoll =
            Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC).map_err(|e| e.to_string())?;
        Ok(Self {
            method,
            virtual_hosts,
            hosts: request.hosts,
            secret: request.secret,
            launches,
            queue: LaunchQueue::new(hosts, arrival_timeout),
            arrival_timeout,
            launchers: HashMap::new(),
            stderr_epoll,
            has_unread: false,
            key_file,
        })
    }

    /// Starts the launches that may start now, and gives up launches whose time-out has passed.
    /// Call it first, at [`Launcher::deadline`], and after each call of [`Launcher::on_arrived`]
    /// and [`Launcher::on_child_ended`].
    pub fn advance(&mut self, now: Instant) -> Vec<Failure> {
        let mut failures = Vec::new();
        for action in self.queue.next_actions(now) {
            match action {
                LaunchAction::Start(launch) => {
                    if let Err(error) = self.start(launch) {
                        let program = self.launches[launch].arguments[0].to_string_lossy();
                        let cause = format!("{program}: {error}");
                        for host in self.queue.on_ended(launch) {
                            failures.push(self.failure(host, &cause));
                        }
                    }
                }
                LaunchAction::GiveUp(launch, hosts) => {
                    let output = self.terminate(launch);
                    let cause = format!(
                        "it did not arrive within {} s{output}",
                        self.arrival_timeout.as_secs()
                    );
                    failures.extend(hosts.into_iter().map(|host| self.failure(host, &cause)));
                }
            }
        }
        self.remove_key_file_if_done();
        failures
    }

    /// The time of the next call of [`Launcher::advance`].
    pub fn deadline(&self) -> Option<Instant> {
        self.queue.deadline()
    }

    /// Records that the daemon of the host at this position has arrived.
    pub fn on_arrived(&mut self, position: usize) {
        if let Some(host) = self.hosts.iter().position(|host| host.position == position) {
            self.queue.on_arrived(host);
        }
        self.remove_key_file_if_done();
    }

    /// Removes the key file once no daemon needs it.
    fn remove_key_file_if_done(&mut self) {
        if self.queue.is_done() {
            self.key_file = None;
        }
    }

    /// Kills the launcher of a host whose daemon does not answer any more. For a virtual host, this
    /// kills the daemon itself.
    pub fn kill(&mut self, position: usize) {
        let host = self.hosts.iter().position(|host| host.position == position);
        for (pid, launcher) in &self.launchers {
            if let (Some(host), [single_host]) = (host, &self.launches[launcher.launch].hosts[..])
                && host == *single_host
            {
                process::kill(*pid, libc::SIGKILL);
            }
        }
    }

    /// The process ids of the launchers that still run.
    pub fn processes(&self) -> impl Iterator<Item = i32> + '_ {
        self.launchers.keys().copied()
    }

    /// Whether the daemon of each host has arrived or failed.
    pub fn is_done(&self) -> bool {
        self.queue.is_done()
    }

    /// A descriptor that is readable if [`Launcher::read_stderr`] has something to read.
    pub fn stderr_fd(&self) -> BorrowedFd<'_> {
        self.stderr_epoll.0.as_fd()
    }

    /// Whether [`Launcher::read_stderr`] stopped before it had read all output. It stops if a
    /// launcher writes endlessly.
    pub fn may_have_more(&self) -> bool {
        self.has_unread
    }

    /// Reads the standard error of launchers and daemons. Returns the lines of launches whose hosts
    /// have all arrived, with the name of the host. Other output is kept for an error message.
    pub fn read_stderr(&mut self) -> Vec<String> {
        let mut lines = Vec::new();
        let mut events = [EpollEvent::empty(); 32];
        self.has_unread = true;
        for _ in 0..READS_PER_TICK {
            let Ok(count @ 1..) = self.stderr_epoll.wait(&mut events, EpollTimeout::ZERO) else {
                self.has_unread = false;
                break;
            };
            for event in &events[..count] {
                let pid = event.data() as i32;
                let Some(launcher) = self.launchers.get_mut(&pid) else { continue };
                launcher.read_output(&self.stderr_epoll);
                let launch = launcher.launch;
                if self.queue.is_complete(launch) {
                    let name = self.output_prefix(launch);
                    let launcher = self.launchers.get_mut(&pid);
                    lines.extend(
                        launcher
                            .into_iter()
                            .flat_map(|launcher| launcher.take_prefixed_lines(&name)),
                    );
                }
            }
        }
        lines
    }

    /// Handles the exit of a child of this process. Returns `None` if the child is not a launcher.
    pub fn on_child_ended(&mut self, pid: i32, status: Status) -> Option<Vec<Failure>> {
        let mut launcher = self.launchers.remove(&pid)?;
        launcher.read_output(&self.stderr_epoll);
        let ending = match status {
            Status::Exited(code) => format!("ended with exit code {code}"),
            Status::Signaled(signal) => format!("killed by signal {signal}"),
        };
        let cause = format!("{ending}{}", launcher.output_tail());
        let missing = self.queue.on_ended(launcher.launch);
        self.remove_key_file_if_done();
        Some(missing.into_iter().map(|host| self.failure(host, &cause)).collect())
    }

    /// Ends all daemons by closing their standard input, and terminates launchers that still wait
    /// for daemons. If there is time, the caller should wait for [`Launcher::all_exited`] before it
    /// drops this value, because a killed launcher may leave its batch system waiting.
    pub fn close(&mut self) {
        for (pid, launcher) in &mut self.launchers {
            launcher.stdin = None;
            if !self.queue.is_complete(launcher.launch) {
                process::kill(*pid, libc::SIGTERM);
            }
        }
    }

    /// Whether no launcher runs.
    pub fn all_exited(&self) -> bool {
        self.launchers.is_empty()
    }

    fn start(&mut self, launch: usize) -> io::Result<()> {
        let Launch { arguments, hosts } = &self.launches[launch];
        let mut command = Command::new(&arguments[0]);
        command.args(&arguments[1..]).stdin(Stdio::piped()).stdout(Stdio::null());
        command.stderr(Stdio::piped());
        // SIGTERM lets the daemon of a virtual host clean up, and a launcher close its connections.
        pdeathsig::set_pdeathsig(&mut command, libc::SIGTERM);
        let mut child = match (&self.virtual_hosts, hosts.first()) {
            (Some(virtual_hosts), Some(host)) => {
                let name = &self.hosts[*host].name;
                let number =
                    virtual_number(name).ok_or_else(|| io::Error::other("no such host"))?;
                virtual_hosts.run_in_host(number, || command.spawn())??
            }
            _ => command.spawn()?,
        };
        let mut stdin = child.stdin.take();
        if let Some(stdin) = &mut stdin {
            // The secret fits into the pipe, so this does not block. An error means that the
            // process has died already, and its exit is reported separately.
            let _ = stdin.write_all(&self.secret);
        }
        let pid = child.id() as i32;
        let mut stderr = child.stderr.take().map(|pipe| File::from(OwnedFd::from(pipe)));
        if let Some(pipe) = &stderr {
            let event = EpollEvent::new(EpollFlags::EPOLLIN, pid as u64);
            let nonblocking = descriptor::set_nonblocking(pipe.as_fd());
            if nonblocking.is_err() || self.stderr_epoll.add(pipe, event).is_err() {
                // The process runs nevertheless, but its output is not read.
                stderr = None;
            }
        }
        self.launchers
            .insert(pid, LauncherProcess { launch, stdin, stderr, stderr_tail: Vec::new() });
        Ok(())
    }

    /// Terminates a launch whose time-out has passed. Returns its output.
    fn terminate(&mut self, launch: usize) -> String {
        let found = self.launchers.iter_mut().find(|(_, launcher)| launcher.launch == launch);
        let Some((pid, launcher)) = found else { return String::new() };
        launcher.read_output(&self.stderr_epoll);
        let output = launcher.output_tail();
        process::kill(*pid, libc::SIGTERM);
        output
    }

    /// The prefix of a launch's output lines.
    fn output_prefix(&self, launch: usize) -> String {
        match &self.launches[launch].hosts[..] {
            [host] => self.hosts[*host].name.clone(),
            _ => self.method.to_string(),
        }
    }

    fn failure(&self, host: usize, cause: &str) -> Failure {
        let name = &self.hosts[host].name;
        let launch_name = &self.hosts[host].launch_name;
        let advice = match self.method {
            LaunchMethod::Virtual => String::new(),
            LaunchMethod::Shell => {
                format!("; this must work without a question: ssh {launch_name} true")
            }
            LaunchMethod::Pbs => "; see the job's standard error, or use start=ssh".to_owned(),
            LaunchMethod::GridEngine => {
                "; the parallel environment needs control_slaves TRUE, or use \
                                start=ssh"
                    .to_owned()
            }
            LaunchMethod::Slurm | LaunchMethod::Lsf => "; or use start=ssh".to_owned(),
        };
        let text =
            format!("{name}: no daemon could be started by {} ({cause}){advice}", self.method);
        Failure { position: self.hosts[host].position, text }
    }
}

impl Drop for Launcher {
    /// Terminates the remaining launchers. SIGTERM lets daemons clean up.
    fn drop(&mut self) {
        for pid in self.launchers.keys() {
            process::kill(*pid, libc::SIGTERM);
        }
    }
}

impl LauncherProcess {
    /// Reads the available output and keeps the end of it.
    fn read_output(&mut self, epoll: &Epoll) {
        let Some(pipe) = &mut self.stderr else { return };
        let mut buffer = [0; 4096];
        // The number of reads is limited. The next call reads more from a process that writes
        // endlessly.
        for _ in 0..4 {
            match pipe.read(&mut buffer) {
                Ok(0) => {}
                Ok(count) => {
                    self.stderr_tail.extend_from_slice(&buffer[..count]);
                    let excess =
                        self.stderr_tail.len().saturating_sub(STDERR_TAIL_LEN.max(MAX_LINE_LEN));
                    self.stderr_tail.drain(..excess);
                    continue;
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                Err(_) => {}
            }
            let _ = epoll.delete(&*pipe);
            self.stderr = None;
            return;
        }
    }

    /// Takes the complete lines, prefixed with the name of their source.
    fn take_prefixed_lines(&mut self, name: &str) -> Vec<String> {
        let end =
            self.stderr_tail.iter().rposition(|byte| *byte == b'\n').map_or(0, |index| index + 1);
        let end =
            if self.stderr_tail.len() - end > MAX_LINE_LEN { self.stderr_tail.len() } else { end };
        let complete: Vec<u8> = self.stderr_tail.drain(..end).collect();
        let text = String::from_utf8_lossy(&complete).into_owned();
        let lines = text.lines().map(str::trim_end).filter(|line| !line.is_empty());
        lines.map(|line| format!("{name}: {}", printable(line))).collect()
    }

    /// The last lines, for a message about the end of the launcher.
    fn output_tail(&self) -> String {
        let text = String::from_utf8_lossy(&self.stderr_tail);
        let lines: Vec<&str> =
            text.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
        let last = &lines[lines.len().saturating_sub(3)..];
        if last.is_empty() { String::new() } else { format!(": {}", printable(&last.join("; "))) }
    }
}

/// Removes control characters, because text from another host must not control the user's terminal.
fn printable(text: &str) -> String {
    text.chars().filter(|letter| !letter.is_control()).collect()
}
