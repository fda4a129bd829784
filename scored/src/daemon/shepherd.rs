//! A job's shepherd, seen from its daemon: starting it, its last words, and what it leaves.

use std::cell::RefCell;
use std::collections::HashSet;
use std::ffi::{CString, OsString};
use std::fs::File;
use std::io;
use std::iter;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStringExt;
use std::rc::Rc;
use std::time::{Duration, Instant};

use nix::sys::socket::{AddressFamily, SockFlag, SockType, socketpair};
use nix::sys::wait::{Id, WaitPidFlag, WaitStatus, waitid};
use score_proto::order::{Owner, Status};

use super::member::Start;
use crate::link::Link;
use crate::owner;
use crate::shepherd::{Counts, Setting};
use crate::sys::cgroup::Group;
use crate::sys::descriptor;
use crate::sys::namespace::{self, Rung};
use crate::sys::process;

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
    /// What its last report said.
    pub finished: Option<u64>,
}

impl Shepherd {
    /// Starts one on the first rung of the ladder that this machine allows.
    ///
    /// # Errors
    /// What the last rung was refused for.
    pub fn start(about: &About<'_>, start: Start<'_>) -> io::Result<Self> {
        let (ours, theirs) =
            socketpair(AddressFamily::Unix, SockType::Stream, None, SockFlag::SOCK_CLOEXEC)?;
        let outer_proc = OwnedFd::from(File::open("/proc")?);
        let mut last = io::Error::from_raw_os_error(libc::EPERM);
        for rung in Rung::ladder() {
            if start.no_namespace && rung.is_namespace() {
                continue;
            }
            let outer_proc = rung.is_namespace().then_some(&outer_proc);
            let started = match about.owner {
                // A program of its own: this process's memory is not for the user.
                Some(_) => start_program(*rung, about, &theirs, outer_proc),
                // What this process knows is the user's own, and a fork costs a fifth.
                None => namespace::start_fork(*rung, || work(about, &theirs, outer_proc)),
            };
            match started {
                Ok(pid) => {
                    let mut link = Link::new(ours)?;
                    link.register(start.registry, start.token)?;
                    let family = start.family;
                    family.borrow_mut().insert(pid);
                    return Ok(Self { pid, family, rung: *rung, link, finished: None });
                }
                Err(error) => last = error,
            }
        }
        Err(last)
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
        let status = process::wait_for(self.pid).map(|reaped| reaped.status);
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
    control: &OwnedFd,
    outer_proc: Option<&OwnedFd>,
) -> io::Result<i32> {
    let number = control.as_raw_fd().to_string();
    let fixed = ["scored", "-shepherd", "-control", &number].map(OsString::from);
    let mut words: Vec<OsString> = fixed.into_iter().chain(about.words()).collect();
    let mut keep = vec![control];
    if let Some(outer_proc) = outer_proc {
        words.extend(["-proc".into(), outer_proc.as_raw_fd().to_string().into()]);
        keep.push(outer_proc);
    }
    let arguments: Result<Vec<CString>, _> =
        words.into_iter().map(|word| CString::new(word.into_vec())).collect();
    namespace::start_self(rung, &arguments?, &keep)
}

/// What a forked shepherd does; its exit code.
fn work(about: &About<'_>, control: &OwnedFd, outer_proc: Option<&OwnedFd>) -> i32 {
    let run = || {
        let control = control.try_clone()?;
        let outer_proc = outer_proc.map(OwnedFd::try_clone).transpose()?;
        descriptor::close_all_but(&iter::once(&control).chain(&outer_proc).collect::<Vec<_>>());
        crate::shepherd::run(Setting {
            control,
            directory: about.directory.into(),
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
