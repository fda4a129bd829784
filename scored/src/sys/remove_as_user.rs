//! Removes a job's directory with the rights of its user, in separate processes. The user
//! determines the number of files, so that the daemon must not wait for the removal. Root must
//! remove nothing that the user could not remove.

use std::fs::{self, File};
use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::time::Duration;

use nix::sys::stat::{Mode, fchmod};
use nix::unistd::{Gid, Uid, setgroups, setresgid, setresuid};

use super::credentials::UserIds;
use super::pidfd::PidFd;
use super::{descriptor, mounts, process, realtime, remove};

/// The process with the user's rights is killed after this time, because its user may have stopped
/// it.
const EMPTY_TIMEOUT: Duration = Duration::from_secs(60);

/// Starts to remove a directory and everything in it. Only root may have write permission for its
/// parent directory. Returns the process id of the child that removes the directory. The child ends
/// after all processes of the removal. The caller must have one thread only. Files that the user
/// may not remove stay, and the directory with them.
///
/// # Errors
/// The errors of fork(2).
pub fn start(path: &Path, owner: UserIds) -> io::Result<i32> {
    let work = || {
        process::die_with_parent(libc::SIGKILL);
        descriptor::close_all_but(&[]);
        i32::from(remove(path, owner).is_err())
    };
    realtime::run_as_normal(|| process::start_child(work))
}

/// Removes a directory like [`start`], in a process that has no other work.
///
/// # Errors
/// The reason why the directory could not be removed.
pub fn remove(path: &Path, owner: UserIds) -> io::Result<()> {
    // Otherwise the directory could not be removed. Fails if this process is not root.
    let _ = mounts::detach_below(path);
    // Takes no lock, because the user might hold one for ever.
    let directory = match mounts::open_directory(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        result => result?,
    };
    // The user may stop or kill the process with the user's rights. Then this process waits or
    // gives up, and the daemon continues.
    let pid = process::start_child(|| {
        let emptied = become_user(owner).and_then(|()| {
            // Set after the change of the user, which clears it.
            process::die_with_parent(libc::SIGKILL);
            empty(&directory)
        });
        i32::from(emptied.is_err())
    })?;
    if let Ok(process) = PidFd::open(pid)
        && !process.wait_for_exit(EMPTY_TIMEOUT)
    {
        let _ = process.send_signal(libc::SIGKILL);
    }
    // A killed process does not end while a file system that the user has mounted meanwhile does
    // not answer. This process then stays, so that no further process is started for the user.
    process::wait_for(pid);
    match fs::remove_dir(path) {
        // Another daemon has removed the directory at the same time.
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        result => result,
    }
}

fn become_user(owner: UserIds) -> io::Result<()> {
    let (uid, gid) = (Uid::from_raw(owner.uid), Gid::from_raw(owner.gid));
    setgroups(&[])?;
    setresgid(gid, gid, gid)?;
    setresuid(uid, uid, uid)?;
    // This process still contains the memory of its parent, which holds keys. The user must not
    // read it by ptrace or from a core dump. The change of ids has undone an earlier call.
    process::forbid_dumps();
    Ok(())
}

fn empty(directory: &File) -> io::Result<()> {
    // A program may have removed the permissions of its own directory.
    fchmod(directory, Mode::S_IRWXU)?;
    remove::empty(&OwnedFd::from(directory.try_clone()?))
}
