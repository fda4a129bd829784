//! Temporary files that exist as long as the job (manual 4.2).

use std::ffi::OsStr;
use std::fs::DirBuilder;
use std::io::ErrorKind;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::DirBuilderExt;
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};

use nix::errno::Errno;
use nix::fcntl::{OFlag, open};
use nix::sys::stat::Mode;
use nix::unistd::{Pid, getpid, unlink};

use crate::{exit, session};

/// The directory of local execution, and the process that has made it and will remove it.
static LOCAL_DIRECTORY: Mutex<Option<(PathBuf, Pid)>> = Mutex::new(None);

/// Creates or truncates a file for reading and writing.
///
/// # Errors
/// EINVAL: the name contains a slash. Otherwise the errors of open(2).
pub fn create(name: &OsStr) -> Result<OwnedFd, Errno> {
    open_retrying(name, OFlag::O_RDWR | OFlag::O_CREAT | OFlag::O_TRUNC)
}

/// Opens a file for reading and writing.
///
/// # Errors
/// Those of [`create`].
pub fn open_existing(name: &OsStr) -> Result<OwnedFd, Errno> {
    open_retrying(name, OFlag::O_RDWR)
}

/// Removes a file.
///
/// # Errors
/// EINVAL: the name contains a slash. Otherwise the errors of unlink(2).
pub fn remove(name: &OsStr) -> Result<(), Errno> {
    unlink(&path(name)?)
}

fn open_retrying(name: &OsStr, flags: OFlag) -> Result<OwnedFd, Errno> {
    let path = path(name)?;
    loop {
        match open(&path, flags | OFlag::O_CLOEXEC, Mode::S_IRUSR | Mode::S_IWUSR) {
            Err(Errno::EINTR) => {}
            result => return result,
        }
    }
}

fn path(name: &OsStr) -> Result<PathBuf, Errno> {
    if name.is_empty() {
        return Err(Errno::ENOENT);
    }
    if name.as_bytes().contains(&b'/') {
        return Err(Errno::EINVAL);
    }
    Ok(match session::get() {
        Some(session) => session.dir.join(name),
        None => local_directory()?.join(name),
    })
}

/// The private directory of a program that runs without scrun. It is made at its first use.
fn local_directory() -> Result<PathBuf, Errno> {
    let mut local = LOCAL_DIRECTORY.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some((dir, _)) = &*local {
        return Ok(dir.clone());
    }
    let dir = (0..).find_map(|attempt: u32| {
        let dir = std::env::temp_dir().join(format!("score-{}-{attempt}", getpid()));
        match DirBuilder::new().mode(0o700).create(&dir) {
            Ok(()) => Some(Ok(dir)),
            Err(e) if e.kind() == ErrorKind::AlreadyExists && attempt < 1000 => None,
            Err(e) => Some(Err(e.raw_os_error().map_or(Errno::EIO, Errno::from_raw))),
        }
    });
    let dir = dir.unwrap_or(Err(Errno::EEXIST))?;
    exit::register(remove_local_directory);
    *local = Some((dir.clone(), getpid()));
    Ok(dir)
}

extern "C" fn remove_local_directory() {
    // A forked child may have inherited the lock in the locked state, but has nothing to remove.
    let Ok(local) = LOCAL_DIRECTORY.try_lock() else { return };
    if let Some((dir, owner)) = &*local
        && *owner == getpid()
    {
        // Anything that cannot be removed is left for the cleaner of the temporary directory.
        let _ = std::fs::remove_dir_all(dir);
    }
}
