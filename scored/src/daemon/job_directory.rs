//! The directory of a job: its creation, lock and removal. The daemon, or the keeper in multi-user
//! mode, holds the lock while the job exists. Directories that are not locked belong to dead jobs.
//! This module also removes these directories.

use std::ffi::OsStr;
use std::fs::{self, DirBuilder, File, Permissions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use nix::fcntl::{Flock, FlockArg};
use nix::unistd::geteuid;
use score_sys::random::random_u64;

use crate::sys::credentials::UserIds;
use crate::sys::{mounts, remove};

/// The parent of all jobs' directories if SCore runs as root (manual, scatter(6)).
const ROOT_BASE_DIR: &str = "/var/scored";
/// Root's directory for users' job directories that could not be emptied. It exists only while it
/// is not empty.
pub const LEFTOVERS_DIR: &str = "/var/scored/leftovers";
const PREFIX: &str = "job-";
/// How long scored tries to remove the directory of a dead daemon.
const ORPHAN_REMOVAL_TIMEOUT: Duration = Duration::from_millis(500);

/// A job's directory. This value holds the lock that protects the directory from removal as a
/// leftover.
#[derive(Debug)]
pub struct JobDirectory {
    path: PathBuf,
    base: PathBuf,
    lock: Flock<File>,
}

impl JobDirectory {
    /// Creates a directory in the first base directory that permits it. Each path is announced
    /// before the directory is created, so that another process can remove the directory if this
    /// process dies.
    ///
    /// # Errors
    /// One line that names each base directory that was tried, with its error.
    pub fn create(
        runtime_dir: Option<&OsStr>,
        announce: &mut dyn FnMut(&str),
    ) -> Result<Self, String> {
        Self::create_first(&candidate_bases(runtime_dir), announce)
    }

    /// Creates a directory in the base directory for jobs of all users. Only root can open the
    /// directory until [`JobDirectory::chown_to`] changes its owner.
    ///
    /// # Errors
    /// See [`JobDirectory::create`].
    pub fn create_for_user(announce: &mut dyn FnMut(&str)) -> Result<Self, String> {
        Self::create_first(&[PathBuf::from(ROOT_BASE_DIR)], announce)
    }

    /// Makes a user the owner of the directory and of its present contents.
    ///
    /// # Errors
    /// One line that names the path at fault.
    pub fn chown_to(&self, UserIds { uid, gid }: UserIds) -> Result<(), String> {
        let mut directories = vec![self.path.clone()];
        while let Some(directory) = directories.pop() {
            for entry in fs::read_dir(&directory).into_iter().flatten().flatten() {
                directories.extend(entry.path().is_dir().then(|| entry.path()));
                std::os::unix::fs::lchown(entry.path(), Some(uid), Some(gid))
                    .map_err(|error| format!("{}: {error}", entry.path().display()))?;
            }
        }
        std::os::unix::fs::fchown(&*self.lock, Some(uid), Some(gid))
            .map_err(|error| format!("{}: {error}", self.path.display()))
    }

    fn create_first(bases: &[PathBuf], announce: &mut dyn FnMut(&str)) -> Result<Self, String> {
        let mut errors = Vec::new();
        for base in bases {
            match prepare_base(base).and_then(|()| Self::create_in(base, announce)) {
                Ok(directory) => return Ok(directory),
                Err(error) => errors.push(format!("{}: {error}", base.display())),
            }
        }
        Err(format!("cannot create a directory for the job: {}", errors.join("; ")))
    }

    fn create_in(base: &Path, announce: &mut dyn FnMut(&str)) -> io::Result<Self> {
        for _ in 0..16 {
            let random = random_u64() as u32;
            let path = base.join(format!("{PREFIX}{}-{random:08x}", std::process::id()));
            match path.to_str() {
                Some(name) => announce(name),
                None => return Err(io::Error::other("the name is not UTF-8")),
            }
            match DirBuilder::new().mode(0o700).create(&path) {
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => continue,
                // Another scored has just removed the base directory with its last job.
                Err(error) if error.kind() == io::ErrorKind::NotFound => {
                    prepare_base(base)?;
                    continue;
                }
                other => other?,
            }
            // Before the directory is locked, another scored may remove it as a leftover. Then the
            // loop tries another name.
            match fs::set_permissions(&path, Permissions::from_mode(0o700)) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                // The umask may have cleared permission bits.
                other => other?,
            }
            if let Some(lock) = lock(&path) {
                return Ok(Self { path, base: base.to_owned(), lock });
            }
        }
        Err(io::Error::other("no unused name was found"))
    }

    /// The directory's absolute path, which is valid UTF-8.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The base directory, if it is removed together with its last job directory.
    pub fn own_base(&self) -> Option<&Path> {
        Some(self.base.as_path()).filter(|base| *base != Path::new(ROOT_BASE_DIR))
    }

    /// The last component of the path. It is unique on this host.
    pub fn name(&self) -> &str {
        self.path.file_name().and_then(OsStr::to_str).unwrap_or_default()
    }

    /// Removes the directories of dead jobs from the same base directory. Returns one line for each
    /// directory that could not be removed.
    pub fn remove_leftovers(&self) -> Vec<String> {
        remove_unlocked(&self.base)
    }

    /// Removes the directory if it is empty. A shepherd empties it unless it is killed.
    ///
    /// # Errors
    /// See rmdir(2).
    pub fn remove_if_empty(&self) -> io::Result<()> {
        fs::remove_dir(&self.path)
    }

    /// Moves the directory into [`LEFTOVERS_DIR`], to which its user has no access.
    ///
    /// # Errors
    /// See rename(2). `EBUSY`: a file system is mounted on the directory.
    pub fn set_aside(&self) -> io::Result<()> {
        set_aside(&self.path)
    }

    /// Removes the directory with its contents. Also removes the base directory if it is empty.
    ///
    /// # Errors
    /// The error of the file or directory that could not be removed.
    pub fn remove(self) -> io::Result<()> {
        remove_tree(&self.path)?;
        // This fails if other jobs have directories in it.
        self.own_base().into_iter().for_each(|base| _ = fs::remove_dir(base));
        Ok(())
    }
}

/// Removes the directory of a job whose daemon was killed, unless a process still holds its lock.
/// Retries for [`ORPHAN_REMOVAL_TIMEOUT`], because the job's processes may still be exiting.
pub fn remove_orphaned(path: &str) {
    let path = Path::new(path);
    let has_job_prefix = path.file_name().is_some_and(has_job_prefix);
    let deadline = Instant::now() + ORPHAN_REMOVAL_TIMEOUT;
    while has_job_prefix && path.is_dir() && Instant::now() < deadline {
        if let Some(_lock) = lock(path)
            && remove_tree(path).is_ok()
        {
            if let Some(base) = path.parent().filter(|base| *base != Path::new(ROOT_BASE_DIR)) {
                // This fails if other jobs have directories in it.
                let _ = fs::remove_dir(base);
            }
            return;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Removes the directories of dead jobs from root's base directory. Directories of users are moved
/// into [`LEFTOVERS_DIR`] instead. Returns one line for each directory that could not be removed or
/// moved.
pub fn remove_leftovers_of_root() -> Vec<String> {
    remove_unlocked(Path::new(ROOT_BASE_DIR))
}

/// Whether the job directory with this name does not exist or no process has locked it.
pub fn is_dead(name: &str) -> bool {
    let path = Path::new(ROOT_BASE_DIR).join(name);
    is_missing(&path) || lock(&path).is_some()
}

/// Whether a directory does not exist. Does not access a file system that is mounted on it.
fn is_missing(path: &Path) -> bool {
    mounts::open_directory(path).is_err_and(|error| error.kind() == io::ErrorKind::NotFound)
}

fn remove_unlocked(base: &Path) -> Vec<String> {
    let Ok(entries) = fs::read_dir(base) else { return Vec::new() };
    let mut errors = Vec::new();
    for entry in entries.flatten() {
        let path = entry.path();
        if !has_job_prefix(&entry.file_name()) {
            continue;
        }
        if mounts::open_directory(&path).is_err_and(|error| is_mount_error(&error)) {
            // Otherwise the directory could be neither locked nor moved.
            let _ = mounts::detach_below(&path);
        }
        // This cannot lock the directory of a running job, not even of a job of the caller.
        let Some(lock) = lock(&path) else { continue };
        let removed = match lock.metadata() {
            Ok(metadata) if metadata.uid() != geteuid().as_raw() && geteuid().is_root() => {
                // Root's scored in single-user mode also moves the directory. The next service
                // removes it.
                set_aside(&path)
            }
            _ => remove_tree(&path),
        };
        if let Err(error) = removed {
            errors.push(format!("{}: {error}", path.display()));
        }
    }
    errors
}

/// Whether a directory was not opened because a file system is mounted on it.
fn is_mount_error(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::CrossesDevices
}

fn candidate_bases(runtime_dir: Option<&OsStr>) -> Vec<PathBuf> {
    let mut bases = Vec::new();
    if geteuid().is_root() {
        bases.push(PathBuf::from(ROOT_BASE_DIR));
    }
    if let Some(dir) = runtime_dir.map(Path::new)
        && dir.is_absolute()
        && fs::metadata(dir).is_ok_and(|metadata| metadata.uid() == geteuid().as_raw())
    {
        bases.push(dir.join("scored"));
    }
    bases.push(PathBuf::from(format!("/tmp/scored-{}", geteuid())));
    bases
}

/// Creates the base directory for job directories, and checks that this user owns it.
fn prepare_base(base: &Path) -> io::Result<()> {
    for _ in 0..16 {
        match try_prepare_base(base) {
            // Another process has just removed the base directory with its last job.
            Err(error) if error.kind() == io::ErrorKind::NotFound && parent_exists(base) => {}
            other => return other,
        }
    }
    try_prepare_base(base)
}

fn parent_exists(base: &Path) -> bool {
    base.parent().is_some_and(Path::is_dir)
}

fn try_prepare_base(base: &Path) -> io::Result<()> {
    // Users must be able to enter their own directories in root's base directory.
    let mode = if base == Path::new(ROOT_BASE_DIR) { 0o711 } else { 0o700 };
    match DirBuilder::new().mode(mode).create(base) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
        other => other?,
    }
    let metadata = fs::symlink_metadata(base)?;
    if !metadata.is_dir() {
        return Err(io::Error::other("not a directory"));
    }
    if metadata.uid() != geteuid().as_raw() {
        return Err(io::Error::other("owned by another user"));
    }
    if metadata.mode() & 0o777 != mode {
        fs::set_permissions(base, Permissions::from_mode(mode))?;
    }
    Ok(())
}

/// Whether this is the name of a job's directory.
pub fn has_job_prefix(name: &OsStr) -> bool {
    name.to_str().is_some_and(|name| name.starts_with(PREFIX))
}

/// Moves a directory into [`LEFTOVERS_DIR`]. The caller holds its lock.
fn set_aside(path: &Path) -> io::Result<()> {
    let target = Path::new(LEFTOVERS_DIR).join(path.file_name().unwrap_or_default());
    for _ in 0..16 {
        prepare_base(Path::new(LEFTOVERS_DIR))?;
        match fs::rename(path, &target) {
            // Another daemon has just removed `LEFTOVERS_DIR`, because it was empty.
            Err(error) if error.kind() == io::ErrorKind::NotFound && !is_missing(path) => {}
            result => return result,
        }
    }
    Err(io::Error::other(format!("{LEFTOVERS_DIR}: removed repeatedly by other daemons")))
}

/// Locks a directory, if no other process has locked it and its path still refers to it.
fn lock(path: &Path) -> Option<Flock<File>> {
    let file = mounts::open_directory(path).ok()?;
    let locked = Flock::lock(file, FlockArg::LockExclusiveNonblock).ok()?;
    let path_metadata = mounts::open_directory(path).ok()?.metadata().ok()?;
    let locked_metadata = locked.metadata().ok()?;
    (path_metadata.ino() == locked_metadata.ino() && path_metadata.dev() == locked_metadata.dev())
        .then_some(locked)
}

/// Removes a tree, even if a program has removed the permissions of its own directories.
fn remove_tree(path: &Path) -> io::Result<()> {
    remove::tree(path)
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;

    fn scratch(name: &str) -> PathBuf {
        let path = std::env::temp_dir().join(format!("score-test-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&path);
        fs::create_dir(&path).unwrap();
        path
    }

    #[test]
    fn leftovers_of_dead_jobs_are_removed_and_directories_of_live_jobs_stay() {
        let base = scratch("leftovers");
        let live = JobDirectory::create_in(&base, &mut |_| {}).unwrap();
        let dead = JobDirectory::create_in(&base, &mut |_| {}).unwrap();
        let dead_path = dead.path().to_owned();
        fs::create_dir(dead_path.join("closed")).unwrap();
        fs::write(dead_path.join("closed/file"), "x").unwrap();
        fs::set_permissions(dead_path.join("closed"), Permissions::from_mode(0o000)).unwrap();
        drop(dead);
        let current = JobDirectory::create_in(&base, &mut |_| {}).unwrap();
        assert_eq!(current.remove_leftovers(), Vec::<String>::new());
        assert!(!dead_path.exists() && live.path().exists() && current.path().exists());
        current.remove().unwrap();
        assert!(base.exists());
        live.remove().unwrap();
        assert!(!base.exists());
    }

    #[test]
    fn a_directory_is_created_while_another_daemon_removes_leftovers() {
        let base = scratch("race");
        let is_done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !is_done.load(Ordering::Relaxed) {
                    remove_unlocked(&base);
                }
            });
            let create_and_remove = |_| {
                JobDirectory::create_in(&base, &mut |_| {}).and_then(JobDirectory::remove).err()
            };
            let errors: Vec<_> = (0..5000).filter_map(create_and_remove).collect();
            is_done.store(true, Ordering::Relaxed);
            assert!(errors.is_empty(), "{errors:?}");
        });
        assert!(!base.exists());
    }

    #[test]
    fn a_base_that_is_a_symlink_is_not_trusted() {
        let base = scratch("symlink");
        let link = base.join("link");
        std::os::unix::fs::symlink("/tmp", &link).unwrap();
        assert!(prepare_base(&link).is_err());
        fs::remove_dir_all(&base).unwrap();
    }
}
