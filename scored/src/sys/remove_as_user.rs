//! Removal of a job's directory with the rights of its user, by processes of its own: the number of
//! files is up to the user, so the daemon must not wait for it, and root must remove nothing that
//! the user could not.

use std::fs::{self, File};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use nix::sys::stat::{Mode, fchmod};
use nix::unistd::{Gid, Uid, setgroups, setresgid, setresuid};

use super::{descriptor, process, realtime, remove};

/// Starts to remove a directory and everything in it. Only root may be able to write to the
/// directory that contains it. Returns the process that does it, a child of the caller; the caller
/// must have one thread only. Files that the user may not remove stay, and so does the directory.
///
/// # Errors
/// As fork(2).
pub fn start(path: &Path, owner: (u32, u32)) -> io::Result<i32> {
    let work = || {
        process::die_with_parent(libc::SIGKILL);
        descriptor::close_all_but(&[]);
        i32::from(remove(path, owner).is_err())
    };
    realtime::run_as_normal(|| process::start_child(work))
}

/// Removes a directory as [`start`], in a process that has nothing else to do.
///
/// # Errors
/// What could not be removed.
pub fn remove(path: &Path, (uid, gid): (u32, u32)) -> io::Result<()> {
    let flags = libc::O_DIRECTORY | libc::O_NOFOLLOW | libc::O_NONBLOCK;
    // No lock is taken: the user might hold one for ever.
    let directory = match File::options().read(true).custom_flags(flags).open(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        result => result?,
    };
    // The user may stop or kill the process that has the user's rights: then this one waits or
    // gives up, and the daemon goes on.
    let pid = process::start_child(|| {
        let emptied = become_user(uid, gid).and_then(|()| {
            // A change of the user clears this, so it is set after it.
            process::die_with_parent(libc::SIGKILL);
            empty(&directory)
        });
        i32::from(emptied.is_err())
    })?;
    process::wait_for(pid);
    match fs::remove_dir(path) {
        // Another daemon has removed it at the same time.
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        result => result,
    }
}

fn become_user(uid: u32, gid: u32) -> io::Result<()> {
    let (uid, gid) = (Uid::from_raw(uid), Gid::from_raw(gid));
    setgroups(&[])?;
    setresgid(gid, gid, gid)?;
    Ok(setresuid(uid, uid, uid)?)
}

fn empty(directory: &File) -> io::Result<()> {
    // A program may have removed the permissions of its own directory.
    fchmod(directory, Mode::S_IRWXU)?;
    remove::empty(&OwnedFd::from(directory.try_clone()?))
}
