//! A job's shepherd, seen from its daemon: starting it, its last words, and what it leaves.

use std::cell::RefCell;
use std::collections::HashSet;
use std::ffi::{CString, OsString};
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStringExt;
use std::rc::Rc;
use std::time::{Duration, Instant};

use mio::Registry;
use nix::sys::socket::{AddressFamily, SockFlag, SockType, socketpair};
use nix::sys::wait::{Id, WaitPidFlag, WaitStatus, waitid};
use score_proto::frame::FrameError;
use score_proto::order::{Order, Owner, Report, Status};

use super::member::Start;
use crate::link::Link;
use crate::shepherd::{Counts, Setting};
use crate::sys::cgroup::Group;
use crate::sys::namespace::{self, Rung};
use crate::sys::process;
use crate::sys::{descriptor, prompt};
use crate::{owner, raw};

/// How long the processes of a dead shepherd without namespace may take to go.
const GOING: Duration = Duration::from_secs(2);

/// Children of this process that are still wanted: shepherds, and what brought daemons up.
pub type Family = Rc<RefCell<HashSet<i32>>>;

/// What a shepherd is told.
#[derive(Debug)]
pub struct About<'a> {
    /// The job's directory.
    pub directory: &'a str,
    /// Whom it is to become.
    pub owner: Option<&'a Owner>,
    /// The job's group, where the kernel counts.
    pub group: Option<&'a Group>,
    /// The raw sockets that it may have opened.
    pub raw: Option<raw::Plan>,
}

impl About<'_> {
    fn words(&self) -> Vec<OsString> {
        let mut words: Vec<OsString> = vec!["-directory".into(), self.directory.into()];
        let cpu = self.group.and_then(|group| group.cpu.as_ref());
        let oom = self.group.and_then(|group| group.oom.as_ref());
        let pairs = [
            ("-owner", self.owner.map(owner::write)),
            ("-cpufile", cpu.map(|path| path.clone().into_os_string())),
            ("-oomfile", oom.map(|path| path.clone().into_os_string())),
        ];
        for (option, value) in pairs {
            words.extend(value.into_iter().flat_map(|value| [option.into(), value]));
        }
        words
    }
}

/// A shepherd that has been started.
#[derive(Debug)]
pub struct Shepherd {
    pid: i32,
    family: Family,
    rung: Rung,
    /// Its socket.
    pub link: Link,
    /// That of its thread that switches.
    pub switch: Link,
    /// What its last report said.
    pub finished: Option<u64>,
}

impl Shepherd {
    /// Starts one on the first rung of the ladder that this machine allows.
    ///
    /// # Errors
    /// What the last rung was refused for.
    pub fn start(about: &About<'_>, start: Start<'_>) -> io::Result<Self> {
        let pair =
            || socketpair(AddressFamily::Unix, SockType::Stream, None, SockFlag::SOCK_CLOEXEC);
        let ((ours, theirs), (our_switch, their_switch)) = (pair()?, pair()?);
        let sockets = [&theirs, &their_switch];
        let outer_proc = OwnedFd::from(File::open("/proc")?);
        // Without one the job goes by UDP, and a line says so.
        let opener = about.raw.as_ref().and_then(|plan| raw::start(plan).ok());
        start.family.borrow_mut().extend(opener.as_ref().map(|(pid, _)| *pid));
        let opener = opener.as_ref().map(|(_, socket)| socket);
        let mut last = io::Error::from_raw_os_error(libc::EPERM);
        for rung in Rung::ladder() {
            if start.no_namespace && rung.is_namespace() {
                continue;
            }
            let outer_proc = rung.is_namespace().then_some(&outer_proc);
            let started = prompt::anywhere(|| match about.owner {
                // A program of its own: this process's memory is not for the user.
                Some(_) => start_program(*rung, about, sockets, [outer_proc, opener]),
                // What this process knows is the user's own, and a fork costs a fifth.
                None => namespace::start_fork(*rung, || work(about, sockets, outer_proc)),
            });
            match started {
                Ok(pid) => {
                    let (mut link, mut switch) = (Link::new(ours)?, Link::new(our_switch)?);
                    link.register(start.registry, start.token)?;
                    switch.register(start.registry, start.switch)?;
                    let family = start.family;
                    family.borrow_mut().insert(pid);
                    return Ok(Self { pid, family, rung: *rung, link, switch, finished: None });
                }
                Err(error) => last = error,
            }
        }
        Err(last)
    }

    /// Queues an order, on the socket that it is for.
    pub fn order(&mut self, order: &Order) {
        match order {
            Order::Stop { .. } | Order::Run { .. } => self.switch.queue(order),
            _ => self.link.queue(order),
        }
    }

    /// There may be something on either socket.
    pub fn mark_readable(&mut self) {
        self.link.mark_readable();
        self.switch.mark_readable();
    }

    /// Whether [`Shepherd::hear`] may find more without a further report of mio's.
    pub fn may_have_more(&self) -> bool {
        self.link.may_have_more() || self.switch.may_have_more()
    }

    /// The next report.
    ///
    /// # Errors
    /// It does not speak our protocol.
    pub fn hear(&mut self) -> Result<Option<Report>, FrameError> {
        match self.switch.receive()? {
            Some(report) => Ok(Some(report)),
            None => self.link.receive(),
        }
    }

    /// Writes as much of the queues as the sockets take.
    pub fn flush(&mut self, registry: &Registry) {
        for link in [&mut self.link, &mut self.switch] {
            link.flush();
            link.watch(registry);
        }
    }

    /// Its process number.
    pub fn pid(&self) -> i32 {
        self.pid
    }

    /// Whether it has ended; it stays to be waited for.
    pub fn has_ended(&self) -> bool {
        let flags = WaitPidFlag::WEXITED | WaitPidFlag::WNOHANG | WaitPidFlag::WNOWAIT;
        let found = waitid(Id::Pid(nix::unistd::Pid::from_raw(self.pid)), flags);
        !matches!(found, Ok(WaitStatus::StillAlive))
    }

    /// Kills it and everything below it, if it has not ended of itself; how it ended.
    pub fn bury(self) -> Option<Status> {
        if self.finished.is_none() {
            // A namespace's init that has lost its socket can do nothing useful any more.
            process::kill(self.pid, libc::SIGKILL);
        }
        let reaped = prompt::aside(|| process::wait_for(self.pid));
        let status = reaped.map(|reaped| reaped.status);
        self.family.borrow_mut().remove(&self.pid);
        if !self.rung.is_namespace() {
            reclaim(&self.family.borrow());
        }
        status
    }
}

fn start_program(
    rung: Rung,
    about: &About<'_>,
    sockets: [&OwnedFd; 2],
    more: [Option<&OwnedFd>; 2],
) -> io::Result<i32> {
    let [control, switch] = sockets.map(|socket| socket.as_raw_fd().to_string());
    let fixed = ["scored", "-shepherd", "-control", &control, "-switch", &switch];
    let fixed = fixed.map(OsString::from).into_iter();
    let mut words: Vec<OsString> = fixed.chain(about.words()).collect();
    let mut keep = sockets.to_vec();
    for (option, socket) in ["-proc", "-raw"].into_iter().zip(more) {
        let Some(socket) = socket else { continue };
        words.extend([option.into(), socket.as_raw_fd().to_string().into()]);
        keep.push(socket);
    }
    let arguments: Result<Vec<CString>, _> =
        words.into_iter().map(|word| CString::new(word.into_vec())).collect();
    namespace::start_self(rung, &arguments?, &keep)
}

/// What a forked shepherd does; its exit code.
fn work(about: &About<'_>, sockets: [&OwnedFd; 2], outer_proc: Option<&OwnedFd>) -> i32 {
    let run = || {
        let (control, switch) = (sockets[0].try_clone()?, sockets[1].try_clone()?);
        let outer_proc = outer_proc.map(OwnedFd::try_clone).transpose()?;
        let kept = [&control, &switch].into_iter().chain(&outer_proc);
        descriptor::close_all_but(&kept.collect::<Vec<_>>());
        crate::shepherd::run(Setting {
            control,
            switch,
            directory: about.directory.into(),
            raw: None,
            outer_proc,
            owner: None,
            counts: Counts::default(),
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

/// Ends what a dead shepherd has left. A namespace has ended with it; on the last rung the orphans
/// have become our children.
fn reclaim(family: &HashSet<i32>) {
    let end = Instant::now() + GOING;
    while Instant::now() < end {
        let orphans = process::descendants_but(family);
        if orphans.is_empty() {
            return;
        }
        for pid in orphans {
            process::kill(pid, libc::SIGKILL);
            process::reap_one(pid);
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}
