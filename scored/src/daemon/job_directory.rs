//! The job's directory: made, held by a lock while its scored lives, removed; and the removal of
//! what dead jobs have left.

use std::ffi::OsStr;
use std::fs::{self, DirBuilder, File, OpenOptions, Permissions};
use std::hash::{BuildHasher, Hasher};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use nix::fcntl::{Flock, FlockArg};
use nix::unistd::geteuid;

use crate::sys::remove;

/// Where SCore keeps the directories of jobs when it runs as root (manual, scatter(6)).
const ROOT_BASE_DIR: &str = "/var/scored";
const PREFIX: &str = "job-";
/// How long the removal of another daemon's directory is tried.
const ORPHAN_REMOVAL_TIMEOUT: Duration = Duration::from_millis(500);

/// A job's directory. Locked as long as this lives, so that nobody takes it for a leftover.
#[derive(Debug)]
pub struct JobDirectory {
    path: PathBuf,
    base: PathBuf,
    lock: Flock<File>,
}

impl JobDirectory {
    /// Makes one in the first place that allows it; each path is announced before it is made, so
    /// that somebody else can remove it at whatever moment this process dies.
    ///
    /// # Errors
    /// One line that names every place tried and why it would not do.
    pub fn create(
        runtime_dir: Option<&OsStr>,
        announce: &mut dyn FnMut(&str),
    ) -> Result<Self, String> {
        Self::create_first(&candidate_bases(runtime_dir), announce)
    }

    /// Makes one where those of all users are; nobody but root can look into it before it is given
    /// away.
    ///
    /// # Errors
    /// As [`JobDirectory::create`].
    pub fn create_for_user(announce: &mut dyn FnMut(&str)) -> Result<Self, String> {
        Self::create_first(&[PathBuf::from(ROOT_BASE_DIR)], announce)
    }

    /// Gives it to a user, with what is in it by now.
    ///
    /// # Errors
    /// One line.
    pub fn chown_to(&self, (uid, gid): (u32, u32)) -> Result<(), String> {
        let mut folders = vec![self.path.clone()];
        while let Some(folder) = folders.pop() {
            for entry in fs::read_dir(&folder).into_iter().flatten().flatten() {
                folders.extend(entry.path().is_dir().then(|| entry.path()));
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
        Err(format!("no directory for the job can be made: {}", errors.join("; ")))
    }

    fn create_in(base: &Path, announce: &mut dyn FnMut(&str)) -> io::Result<Self> {
        for _ in 0..16 {
            let random = std::hash::RandomState::new().build_hasher().finish() as u32;
            let path = base.join(format!("{PREFIX}{}-{random:08x}", std::process::id()));
            match path.to_str() {
                Some(name) => announce(name),
                None => return Err(io::Error::other("the name is not UTF-8")),
            }
            match DirBuilder::new().mode(0o700).create(&path) {
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => continue,
                // The last job of another scored has just ended.
                Err(error) if error.kind() == io::ErrorKind::NotFound => {
                    prepare_base(base)?;
                    continue;
                }
                other => other?,
            }
            // The umask may have taken bits away.
            fs::set_permissions(&path, Permissions::from_mode(0o700))?;
            // Between mkdir and lock another start may take it for a leftover: then once more.
            if let Some(lock) = lock(&path) {
                return Ok(Self { path, base: base.to_owned(), lock });
            }
        }
        Err(io::Error::other("every name that was tried is taken"))
    }

    /// Its absolute path, which is valid UTF-8.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Its last part, which no other job on this host has.
    pub fn name(&self) -> &str {
        self.path.file_name().and_then(OsStr::to_str).unwrap_or_default()
    }

    /// Removes what dead jobs have left beside it; what cannot be removed is named.
    pub fn remove_leftovers(&self) -> Vec<String> {
        remove_unlocked(&self.base)
    }

    /// Removes it with everything in it, and the folder of jobs when it was the last one there.
    ///
    /// # Errors
    /// What could not be removed.
    pub fn remove(self) -> io::Result<()> {
        remove_tree(&self.path)?;
        if self.base != Path::new(ROOT_BASE_DIR) {
            // Refused while other jobs are in it.
            let _ = fs::remove_dir(&self.base);
        }
        Ok(())
    }
}

/// Removes the directory of a job whose daemon was killed, unless somebody still holds it. Its
/// processes are dying: tried for a moment.
pub fn remove_orphaned(path: &str) {
    let path = Path::new(path);
    let has_job_prefix =
        path.file_name().and_then(OsStr::to_str).is_some_and(|name| name.starts_with(PREFIX));
    let deadline = Instant::now() + ORPHAN_REMOVAL_TIMEOUT;
    while has_job_prefix && path.is_dir() && Instant::now() < deadline {
        if let Some(_lock) = lock(path)
            && remove_tree(path).is_ok()
        {
            if let Some(base) = path.parent().filter(|base| *base != Path::new(ROOT_BASE_DIR)) {
                // Refused while other jobs are in it.
                let _ = fs::remove_dir(base);
            }
            return;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Removes what the jobs of dead daemons have left where root keeps such; what cannot be removed
/// is named.
pub fn remove_leftovers_of_root() -> Vec<String> {
    remove_unlocked(Path::new(ROOT_BASE_DIR))
}

/// Whether no daemon holds the job's directory of this name, or there is none.
pub fn is_dead(name: &str) -> bool {
    let path = Path::new(ROOT_BASE_DIR).join(name);
    fs::symlink_metadata(&path).is_err() || lock(&path).is_some()
}

fn remove_unlocked(base: &Path) -> Vec<String> {
    let Ok(entries) = fs::read_dir(base) else { return Vec::new() };
    let mut errors = Vec::new();
    for entry in entries.flatten() {
        let path = entry.path();
        let has_job_prefix =
            entry.file_name().to_str().is_some_and(|name| name.starts_with(PREFIX));
        // One that lives cannot be locked, our own neither.
        if has_job_prefix
            && let Some(_lock) = lock(&path)
            && let Err(error) = remove_tree(&path)
        {
            errors.push(format!("{}: {error}", path.display()));
        }
    }
    errors
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

/// Makes the folder that holds the jobs' directories, and trusts it only if it is ours alone.
fn prepare_base(base: &Path) -> io::Result<()> {
    for _ in 0..16 {
        match try_prepare_base(base) {
            // Whoever was the last one there has removed it meanwhile.
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
    // Users must reach their own below root's.
    let mode = if base == Path::new(ROOT_BASE_DIR) { 0o711 } else { 0o700 };
    match DirBuilder::new().mode(mode).create(base) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
        other => other?,
    }
    let metadata = fs::symlink_metadata(base)?;
    if !metadata.is_dir() {
        return Err(io::Error::other("it is no directory"));
    }
    if metadata.uid() != geteuid().as_raw() {
        return Err(io::Error::other("it belongs to another user"));
    }
    if metadata.mode() & 0o777 != mode {
        fs::set_permissions(base, Permissions::from_mode(mode))?;
    }
    Ok(())
}

/// Locks a directory that nobody else holds and that is still there.
fn lock(path: &Path) -> Option<Flock<File>> {
    let flags = libc::O_DIRECTORY | libc::O_NOFOLLOW;
    let file = OpenOptions::new().read(true).custom_flags(flags).open(path).ok()?;
    let locked = Flock::lock(file, FlockArg::LockExclusiveNonblock).ok()?;
    let path_metadata = fs::symlink_metadata(path).ok()?;
    let locked_metadata = locked.metadata().ok()?;
    (path_metadata.ino() == locked_metadata.ino() && path_metadata.dev() == locked_metadata.dev())
        .then_some(locked)
}

/// Removes a tree, also one in which a program has taken permissions away from its own folders.
fn remove_tree(path: &Path) -> io::Result<()> {
    remove::tree(path)
}

#[cfg(test)]
mod tests {
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
    fn a_base_that_is_a_symlink_is_not_trusted() {
        let base = scratch("symlink");
        let link = base.join("link");
        std::os::unix::fs::symlink("/tmp", &link).unwrap();
        assert!(prepare_base(&link).is_err());
        fs::remove_dir_all(&base).unwrap();
    }
}
