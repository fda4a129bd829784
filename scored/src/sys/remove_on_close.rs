//! A directory that is removed when the process that uses it exits, even if that process is killed.
//! Another process waits for the exit and removes the directory.

use std::io::{self, Read};
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

use nix::fcntl::OFlag;
use nix::unistd::pipe2;

use super::credentials::UserIds;
use super::{descriptor, process, realtime, remove, remove_as_user};

/// Starts a process that removes a directory as soon as the returned descriptor is closed. The
/// process has the rights of `owner`, or of the caller if there is no other owner. It then also
/// removes the parent directory `base`, if it is empty. Returns the process id and the descriptor.
/// The caller must have one thread only.
///
/// # Errors
/// The errors of pipe(2) and fork(2).
pub fn start(
    path: &Path,
    owner: Option<UserIds>,
    base: Option<&Path>,
) -> io::Result<(i32, OwnedFd)> {
    let (reader, writer) = pipe2(OFlag::O_CLOEXEC)?;
    let work = || {
        descriptor::close_all_but(&[&reader]);
        let Ok(reader) = reader.as_fd().try_clone_to_owned() else { return 1 };
        // No process writes to the pipe. The read returns when the writer is closed.
        let _ = std::fs::File::from(reader).read(&mut [0]);
        let removed = match owner {
            Some(owner) => remove_as_user::remove(path, owner),
            None => remove::tree(path),
        };
        // Fails while `base` contains other directories.
        base.into_iter().for_each(|base| _ = std::fs::remove_dir(base));
        i32::from(removed.is_err())
    };
    let pid = realtime::run_as_normal(|| process::start_child(work))?;
    Ok((pid, writer))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::{Duration, Instant};

    #[test]
    fn the_directory_exists_as_long_as_the_descriptor() {
        let path = std::env::temp_dir().join(format!("score-on-close-{}", std::process::id()));
        std::fs::create_dir(&path).unwrap();
        std::fs::write(path.join("file"), "x").unwrap();
        let (_, writer) = start(&path, None, None).unwrap();
        std::thread::sleep(Duration::from_millis(50));
        assert!(path.join("file").exists());
        drop(writer);
        let end = Instant::now() + Duration::from_secs(20);
        while path.exists() {
            assert!(Instant::now() < end, "the directory stays");
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}
