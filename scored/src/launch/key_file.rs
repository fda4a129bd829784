//! The secret in a file, for launchers that do not forward standard input. Only the user can read
//! the file. It is in a directory that all hosts share, and exists only while daemons start.

use std::fs::{self, DirBuilder, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use nix::unistd::geteuid;
use score_sys::random::random_u64;

const KEY_DIR: &str = ".score";
const PREFIX: &str = "start-";
/// The age at which a key file is stale, because the process that wrote it must have been killed.
const KEY_FILE_TTL: Duration = Duration::from_secs(3600);

/// A key file. It is removed when this value is dropped.
#[derive(Debug)]
pub struct KeyFile {
    path: PathBuf,
}

impl KeyFile {
    /// Writes a key file into a directory below the user's home directory.
    ///
    /// # Errors
    /// One line that names the path that failed.
    pub fn new(home: &Path, secret: &[u8]) -> Result<Self, String> {
        let folder = home.join(KEY_DIR);
        let path = folder.join(format!("{PREFIX}{:016x}", random_u64()));
        prepare(&folder).map_err(|error| format!("{}: {error}", folder.display()))?;
        let write = || -> io::Result<()> {
            let mut options = OpenOptions::new();
            options.write(true).create_new(true).mode(0o600).custom_flags(libc::O_NOFOLLOW);
            options.open(&path)?.write_all(secret)
        };
        let file = Self { path: path.clone() };
        write().map_err(|error| format!("{}: {error}", path.display()))?;
        Ok(file)
    }

    /// The path of the file.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for KeyFile {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.path);
        if let Some(folder) = self.path.parent() {
            // This fails if the directory is not empty.
            let _ = fs::remove_dir(folder);
        }
    }
}

/// Creates the directory, checks that only this user can write to it, and removes stale key files.
fn prepare(folder: &Path) -> io::Result<()> {
    match DirBuilder::new().mode(0o700).create(folder) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
        other => other?,
    }
    let data = fs::symlink_metadata(folder)?;
    if !data.is_dir() || data.uid() != geteuid().as_raw() || data.mode() & 0o022 != 0 {
        return Err(io::Error::other(
            "it must be a directory that belongs to you and that only you can write",
        ));
    }
    for entry in fs::read_dir(folder)?.flatten() {
        let is_key_file = entry.file_name().to_str().is_some_and(|name| name.starts_with(PREFIX));
        let age = entry.metadata().and_then(|data| data.modified());
        #[expect(clippy::disallowed_methods, reason = "files have the time of this clock")]
        let is_stale = age.is_ok_and(|time| {
            SystemTime::now().duration_since(time).is_ok_and(|age| age > KEY_FILE_TTL)
        });
        if is_key_file && is_stale {
            let _ = fs::remove_file(entry.path());
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn only_the_user_can_read_the_secret_and_it_is_removed_after_the_start() {
        let home = std::env::temp_dir().join(format!("score-test-key-{}", std::process::id()));
        fs::create_dir_all(&home).unwrap();
        let file = KeyFile::new(&home, b"secret").unwrap();
        assert_eq!(fs::read(file.path()).unwrap(), b"secret");
        assert_eq!(fs::metadata(file.path()).unwrap().mode() & 0o777, 0o600);
        drop(file);
        assert_eq!(fs::read_dir(&home).unwrap().count(), 0);
        DirBuilder::new().create(home.join(KEY_DIR)).unwrap();
        fs::set_permissions(home.join(KEY_DIR), fs::Permissions::from_mode(0o777)).unwrap();
        let error = KeyFile::new(&home, b"secret").unwrap_err();
        assert!(error.contains("only you"), "{error}");
        fs::remove_dir_all(&home).unwrap();
    }
}
