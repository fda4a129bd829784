//! The daemon's handle of a job's shepherd: starts, signals and reaps it.

use std::cell::RefCell;
use std::collections::HashSet;
use std::ffi::{CString, OsString};
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStringExt;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::rc::Rc;
use std::time::{Duration, Instant};

use mio::{Registry, Token};
use score_client::FramedSocket;
use score_keeper::record::Action;
use score_proto::job_control::{Owner, Status};

use super::keeper_client::{KeptJob, ShepherdOutcome};
use crate::shepherd::{CgroupCounters, ShepherdOptions};
use crate::sys::cgroup::Group;
use crate::sys::namespace::{self, Containment};
use crate::sys::process;
use crate::sys::{descriptor, realtime};
use crate::{owner_arg, raw_socket};

/// How long the processes of a dead shepherd without a namespace may take to exit.
const KILL_TIMEOUT: Duration = Duration::from_secs(2);

/// Children of this process that are still needed, such as shepherds, supervisors and launchers.
pub type KnownChildren = Rc<RefCell<HashSet<i32>>>;

/// The arguments of a shepherd.
#[derive(Debug)]
pub struct ShepherdArgs<'a> {
    /// The job's directory.
    pub directory: &'a str,
    /// The directory with the programs of the user's earlier jobs.
    pub program_folder: Option<&'a Path>,
    /// The user that the shepherd becomes, in multi-user mode.
    pub owner: Option<&'a Owner>,
    /// The job's cgroup. The shepherd is started in its version 2 group, and joins the other groups
    /// itself, because this process must not wait for the kernel.
    pub group: Option<&'a Group>,
    /// The raw sockets that a helper opens for the shepherd on request.
    pub raw_socket_grant: Option<raw_socket::RawSocketGrant>,
}

impl ShepherdArgs<'_> {
    fn to_args(&self) -> Vec<OsString> {
        let mut args: Vec<OsString> = vec!["-directory".into(), self.directory.into()];
        let cpu = self.group.and_then(|group| group.cpu_file.as_ref());
        let oom = self.group.and_then(|group| group.oom_file.as_ref());
        let program_folder = self.program_folder;
        let pairs = [
            ("-programs", program_folder.map(|path| path.as_os_str().to_owned())),
            ("-owner", self.owner.map(owner_arg::write)),
            ("-cpufile", cpu.map(|path| path.clone().into_os_string())),
            ("-oomfile", oom.map(|path| path.clone().into_os_string())),
        ];
        for (option, value) in pairs {
            args.extend(value.into_iter().flat_map(|value| [option.into(), value]));
        }
        let membership_files = self.group.iter().flat_map(|group| group.membership_files());
        args.extend(membership_files.flat_map(|file| ["-cgroup".into(), file.into_os_string()]));
        args
    }
}

/// A shepherd that is a child of this process.
#[derive(Debug)]
pub struct ChildShepherd {
    pid: i32,
    known_children: KnownChildren,
    containment: Containment,
}

impl ChildShepherd {
    /// Starts a shepherd with its two sockets, in the first kind of containment that this machine
    /// permits.
    ///
    /// # Errors
    /// The error for the last kind of containment.
    pub fn start(
        shepherd_args: &ShepherdArgs<'_>,
        sockets: [&OwnedFd; 2],
        no_namespace: bool,
        known_children: &KnownChildren,
    ) -> io::Result<Self> {
        let outer_proc = OwnedFd::from(File::open("/proc")?);
        // If there is no helper for raw sockets, the job uses UDP and prints a notice.
        let opener = shepherd_args.raw_socket_grant.as_ref().and_then(|grant| {
            let owner = shepherd_args.owner?.into();
            raw_socket::start(grant, owner).ok()
        });
        known_children.borrow_mut().extend(opener.as_ref().map(|(pid, _)| *pid));
        let opener = opener.as_ref().map(|(_, socket)| socket);
        let mut last_error = io::Error::from_raw_os_error(libc::EPERM);
        for containment in Containment::candidates() {
            if no_namespace && containment.is_namespace() {
                continue;
            }
            let outer_proc = containment.is_namespace().then_some(&outer_proc);
            let result = realtime::run_unpinned(|| match shepherd_args.owner {
                // The shepherd executes a program, because the user must not be able to read this
                // process's memory.
                Some(_) => {
                    start_program(*containment, shepherd_args, sockets, [outer_proc, opener])
                }
                // All data of this process belongs to the user, and a fork is faster than an
                // execution.
                None => namespace::start_fork(*containment, || {
                    run_forked(shepherd_args, sockets, outer_proc)
                }),
            });
            match result {
                Ok(pid) => {
                    known_children.borrow_mut().insert(pid);
                    let known_children = known_children.clone();
                    return Ok(Self { pid, known_children, containment: *containment });
                }
                Err(error) => last_error = error,
            }
        }
        Err(last_error)
    }

    /// The process id of the shepherd.
    pub fn pid(&self) -> i32 {
        self.pid
    }

    /// Whether the shepherd has exited. It stays a zombie until it is reaped.
    pub fn has_ended(&self) -> bool {
        process::has_exited(self.pid)
    }

    /// Kills the shepherd. All processes in its PID namespace die with it. SIGCHLD reports the end.
    /// The caller must not wait for the end, because the user can delay it: the namespace exists as
    /// long as a process outside traces one of its processes.
    pub fn kill(&self) {
        process::kill(self.pid, libc::SIGKILL);
    }

    /// Forgets a killed shepherd that has not exited, because this process exits without waiting
    /// for it.
    pub fn forget(self) {
        self.known_children.borrow_mut().remove(&self.pid);
    }

    /// Reaps a shepherd that has exited or has not become its user yet. Returns its status.
    pub fn reap(self) -> Option<Status> {
        let reaped = realtime::run_as_normal(|| process::wait_for(self.pid));
        let status = reaped.map(|reaped| reaped.status);
        self.known_children.borrow_mut().remove(&self.pid);
        status
    }

    /// Whether processes of the job may have become children of this process.
    pub fn may_leave_orphans(&self) -> bool {
        !self.containment.is_namespace()
    }
}

#[cfg(test)]
impl ChildShepherd {
    /// A shepherd without a process, for tests that use its sockets.
    pub fn without_process() -> Self {
        let known_children = KnownChildren::default();
        Self { pid: 0, known_children, containment: Containment::PidNamespace }
    }
}

/// The process of a shepherd, by mode.
#[derive(Debug)]
pub enum ShepherdProcess {
    /// Single-user mode: a child of this daemon.
    Child(ChildShepherd),
    /// Multi-user mode: a child of the keeper.
    Kept(KeptJob),
}

/// A shepherd that has been started.
#[derive(Debug)]
pub struct ShepherdHandle {
    process: ShepherdProcess,
    /// The control socket. It carries [`score_proto::job_control::ShepherdOrder`] and
    /// [`score_proto::job_control::ShepherdReport`].
    pub control_link: FramedSocket,
    /// The socket of the switch thread. It carries [`score_proto::job_control::SwitchOrder`] and
    /// [`score_proto::job_control::SwitchReport`].
    pub switch_link: FramedSocket,
    /// The elapsed time in the shepherd's last report.
    pub elapsed_ns: Option<u64>,
}

impl ShepherdHandle {
    /// Creates the sockets and calls `start` with the shepherd's ends of them.
    ///
    /// # Errors
    /// See socketpair(2) and epoll_ctl(2), or the error of `start`.
    pub fn start<E: From<io::Error>>(
        registry: &Registry,
        [token, switch_token]: [Token; 2],
        start: impl FnOnce([&OwnedFd; 2]) -> Result<ShepherdProcess, E>,
    ) -> Result<Self, E> {
        let pair = || UnixStream::pair().map(|(local, child)| (local.into(), child.into()));
        let ((local, child), (local_switch, child_switch)) = (pair()?, pair()?);
        let process = start([&child, &child_switch])?;
        let (mut control_link, mut switch_link) =
            (FramedSocket::new(local)?, FramedSocket::new(local_switch)?);
        control_link.register(registry, token)?;
        switch_link.register(registry, switch_token)?;
        Ok(Self { process, control_link, switch_link, elapsed_ns: None })
    }

    /// Marks both sockets as readable.
    pub fn mark_readable(&mut self) {
        self.control_link.mark_readable();
        self.switch_link.mark_readable();
    }

    /// Whether either socket may hold a report without a further report of mio.
    pub fn may_have_more(&self) -> bool {
        self.control_link.may_have_more() || self.switch_link.may_have_more()
    }

    /// Writes as much of the queues as the sockets accept.
    pub fn flush(&mut self, registry: &Registry) {
        for link in [&mut self.control_link, &mut self.switch_link] {
            link.flush();
            link.update_interest(registry);
        }
    }

    /// The process id of the shepherd, if it is a child of this process.
    pub fn child_pid(&self) -> Option<i32> {
        match &self.process {
            ShepherdProcess::Child(child) => Some(child.pid()),
            ShepherdProcess::Kept(_) => None,
        }
    }

    /// Resumes a shepherd that its user has stopped with a signal.
    pub fn resume(&self) {
        match &self.process {
            ShepherdProcess::Child(child) => process::kill(child.pid(), libc::SIGCONT),
            ShepherdProcess::Kept(job) => _ = job.act(Action::Continue),
        }
    }

    /// Like [`ShepherdHandle::resume`], but only in single-user mode.
    pub fn resume_child(&self) {
        if let ShepherdProcess::Child(child) = &self.process {
            process::kill(child.pid(), libc::SIGCONT);
        }
    }

    /// Whether the shepherd has ended.
    pub fn has_ended(&self) -> bool {
        match &self.process {
            ShepherdProcess::Child(child) => child.has_ended(),
            ShepherdProcess::Kept(job) => job.has_ended(),
        }
    }

    /// Kills the shepherd (see [`ChildShepherd::kill`]).
    pub fn kill(&self) {
        match &self.process {
            ShepherdProcess::Child(child) => child.kill(),
            ShepherdProcess::Kept(job) => _ = job.act(Action::KillShepherd),
        }
    }

    /// Forgets a killed shepherd that has not exited, because this daemon exits without waiting for
    /// it.
    pub fn forget(self) {
        if let ShepherdProcess::Child(child) = self.process {
            child.forget();
        }
    }

    /// Returns the result of a shepherd that has ended, and kills its remaining processes.
    pub fn reap(self) -> ShepherdOutcome {
        match self.process {
            ShepherdProcess::Child(child) => {
                let known_children =
                    child.may_leave_orphans().then(|| child.known_children.clone());
                let status = child.reap();
                known_children.iter().for_each(|known| kill_orphans(&known.borrow()));
                ShepherdOutcome { status, killed_for_memory: false }
            }
            ShepherdProcess::Kept(job) => job.outcome(),
        }
    }
}

fn start_program(
    containment: Containment,
    shepherd_args: &ShepherdArgs<'_>,
    sockets: [&OwnedFd; 2],
    optional_sockets: [Option<&OwnedFd>; 2],
) -> io::Result<i32> {
    let [control, switch_fd] = sockets.map(|socket| socket.as_raw_fd().to_string());
    let fixed = ["scored", "-shepherd", "-control", &control, "-switch", &switch_fd];
    let fixed = fixed.map(OsString::from).into_iter();
    let mut args: Vec<OsString> = fixed.chain(shepherd_args.to_args()).collect();
    let mut inherited_sockets = sockets.to_vec();
    for (option, socket) in ["-proc", "-raw"].into_iter().zip(optional_sockets) {
        let Some(socket) = socket else { continue };
        args.extend([option.into(), socket.as_raw_fd().to_string().into()]);
        inherited_sockets.push(socket);
    }
    let arguments: Result<Vec<CString>, _> =
        args.into_iter().map(|arg| CString::new(arg.into_vec())).collect();
    let cgroup_dir = shepherd_args.group.and_then(Group::start_dir).map(File::open).transpose()?;
    namespace::start_self(containment, &arguments?, &inherited_sockets, cgroup_dir.as_ref())
}

/// Runs a shepherd in a forked process. Returns its exit code.
fn run_forked(
    shepherd_args: &ShepherdArgs<'_>,
    sockets: [&OwnedFd; 2],
    outer_proc: Option<&OwnedFd>,
) -> i32 {
    let run = || {
        let (control, switch_fd) = (sockets[0].try_clone()?, sockets[1].try_clone()?);
        let outer_proc = outer_proc.map(OwnedFd::try_clone).transpose()?;
        let kept_fds = [&control, &switch_fd].into_iter().chain(&outer_proc);
        descriptor::close_all_but(&kept_fds.collect::<Vec<_>>());
        crate::shepherd::run(ShepherdOptions {
            control,
            switch_socket: switch_fd,
            directory: shepherd_args.directory.into(),
            program_folder: shepherd_args.program_folder.map(Path::to_owned),
            raw_socket_helper: None,
            outer_proc,
            owner: None,
            membership_files: Vec::new(),
            cgroup_counters: CgroupCounters::default(),
        })
    };
    match run() {
        Ok(()) => 0,
        Err(error) => {
            eprintln!("scored: {error}");
            1
        }
    }
}

/// Kills the processes of a dead shepherd. If there is no namespace, they have become children of
/// this process. A namespace ends with its shepherd.
pub fn kill_orphans(known_children: &HashSet<i32>) {
    let deadline = Instant::now() + KILL_TIMEOUT;
    while process::kill_descendants_except(known_children) && Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(1));
    }
}
