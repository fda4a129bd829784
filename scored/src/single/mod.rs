//! The scored of one job, between scrun and the shepherd: it checks the job, makes its directory,
//! starts the shepherd, relays, and cleans up when either neighbour dies.

mod directory;
mod machine;
mod relay;

use std::ffi::CString;
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};

use nix::sys::socket::{AddressFamily, SockFlag, SockType, socketpair};

use crate::sys::namespace::{self, Rung};
use crate::sys::{descriptor, process};

/// The number of the only job that a scored in single-user mode ever has.
const JOB: u32 = 1;

/// What scrun tells on the command line.
#[derive(Debug)]
pub struct Setting {
    /// Socket to scrun.
    pub control: OwnedFd,
    /// `-nonamespace`: leave out the first rungs of the ladder.
    pub no_namespace: bool,
}

/// Runs one job.
///
/// # Errors
/// What the system refused before the job began.
pub fn run(setting: Setting) -> io::Result<()> {
    process::leave_session();
    process::default_and_block_signals()?;
    // scrun's death is seen on the socket; this also works when somebody else holds that open.
    process::die_with_parent(libc::SIGTERM);
    process::become_subreaper();
    descriptor::close_on_exec_from(3);
    relay::Relay::new(setting)?.live()
}

/// Starts the shepherd on the first rung of the ladder that this machine allows.
fn start_shepherd(directory: &str, no_namespace: bool) -> io::Result<(i32, Rung, OwnedFd)> {
    let (ours, theirs) =
        socketpair(AddressFamily::Unix, SockType::Stream, None, SockFlag::SOCK_CLOEXEC)?;
    let outer_proc = OwnedFd::from(File::open("/proc")?);
    let mut last = io::Error::from_raw_os_error(libc::EPERM);
    for rung in Rung::ladder() {
        if no_namespace && rung.is_namespace() {
            continue;
        }
        let mut words = vec![
            "scored".to_owned(),
            "-shepherd".to_owned(),
            "-control".to_owned(),
            theirs.as_raw_fd().to_string(),
            "-directory".to_owned(),
            directory.to_owned(),
            "-job".to_owned(),
            JOB.to_string(),
        ];
        let mut keep = vec![&theirs];
        if rung.is_namespace() {
            words.extend(["-proc".to_owned(), outer_proc.as_raw_fd().to_string()]);
            keep.push(&outer_proc);
        }
        let arguments: Result<Vec<CString>, _> = words.into_iter().map(CString::new).collect();
        match namespace::start_self(*rung, &arguments?, &keep) {
            Ok(pid) => return Ok((pid, *rung, ours)),
            Err(error) => last = error,
        }
    }
    Err(last)
}
