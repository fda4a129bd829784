//! A job's shepherd, seen from its daemon: starting it, its last words, and what it leaves.

use std::ffi::CString;
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::time::{Duration, Instant};

use mio::{Registry, Token};
use nix::sys::socket::{AddressFamily, SockFlag, SockType, socketpair};
use nix::sys::wait::{Id, WaitPidFlag, WaitStatus, waitid};
use score_proto::order::Status;

use crate::link::Link;
use crate::sys::namespace::{self, Rung};
use crate::sys::process::{self, Reap};

/// How long the processes of a dead shepherd without namespace may take to go.
const GOING: Duration = Duration::from_secs(2);

/// A shepherd that has been started.
#[derive(Debug)]
pub struct Shepherd {
    pid: i32,
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
    pub fn start(
        directory: &str,
        no_namespace: bool,
        registry: &Registry,
        token: Token,
    ) -> io::Result<Self> {
        let (ours, theirs) =
            socketpair(AddressFamily::Unix, SockType::Stream, None, SockFlag::SOCK_CLOEXEC)?;
        let outer_proc = OwnedFd::from(File::open("/proc")?);
        let mut last = io::Error::from_raw_os_error(libc::EPERM);
        for rung in Rung::ladder() {
            if no_namespace && rung.is_namespace() {
                continue;
            }
            let control = theirs.as_raw_fd().to_string();
            let mut words =
                vec!["scored", "-shepherd", "-control", &control, "-directory", directory];
            let mut keep = vec![&theirs];
            let proc_number = outer_proc.as_raw_fd().to_string();
            if rung.is_namespace() {
                words.extend(["-proc", &proc_number]);
                keep.push(&outer_proc);
            }
            let arguments: Result<Vec<CString>, _> = words.into_iter().map(CString::new).collect();
            match namespace::start_self(*rung, &arguments?, &keep) {
                Ok(pid) => {
                    let mut link = Link::new(ours)?;
                    link.register(registry, token)?;
                    return Ok(Self { pid, rung: *rung, link, finished: None });
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
        reclaim(self.rung);
        status
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
