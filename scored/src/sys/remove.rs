//! Removal of a tree that a user has made. No link is followed, no path is put together from names
//! found there, and depth costs neither stack nor descriptors: what lies deeper than one level is
//! first moved up, by renaming.
#![forbid(unsafe_code)]

use std::ffi::{CStr, CString};
use std::fs::{self, OpenOptions};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use nix::dir::Dir;
use nix::errno::Errno;
use nix::fcntl::{OFlag, openat, renameat};
use nix::sys::stat::{FchmodatFlags, Mode, fchmodat};
use nix::unistd::{UnlinkatFlags, unlinkat};

/// Rounds over the top folder; more than one are needed only when somebody goes on writing there.
const ROUNDS: usize = 100;

const FOLDER: OFlag =
    OFlag::O_DIRECTORY.union(OFlag::O_NOFOLLOW).union(OFlag::O_CLOEXEC).union(OFlag::O_NONBLOCK);

/// Removes a folder with all that is in it. The folder that it is in must be trusted. One that is
/// not there is no error.
///
/// # Errors
/// What could not be removed, and why.
pub fn tree(path: &Path) -> io::Result<()> {
    let mut options = OpenOptions::new();
    options.read(true).custom_flags(libc::O_DIRECTORY | libc::O_NOFOLLOW | libc::O_NONBLOCK);
    let top = match options.open(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
            // Its own owner may have shut it.
            let mode = Mode::S_IRWXU;
            fchmodat(nix::fcntl::AT_FDCWD, path, mode, FchmodatFlags::NoFollowSymlink)?;
            options.open(path)?
        }
        other => other?,
    };
    empty(&OwnedFd::from(top))?;
    match fs::remove_dir(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        other => other,
    }
}

/// Removes what is in a folder, and leaves the folder.
///
/// # Errors
/// As [`tree`].
pub fn empty(top: &OwnedFd) -> io::Result<()> {
    let mut moved = 0u64;
    for _ in 0..ROUNDS {
        let names = names(top.as_fd())?;
        if names.is_empty() {
            return Ok(());
        }
        let mut list = names;
        while let Some(name) = list.pop() {
            remove_one(top, &name, &mut moved, &mut list)
                .map_err(|error| io::Error::new(error.kind(), format!("{name:?}: {error}")))?;
        }
    }
    Err(io::Error::other("somebody goes on writing there"))
}

/// The names in a folder.
///
/// # Errors
/// As open(2), readdir(3).
pub fn names(folder: BorrowedFd<'_>) -> io::Result<Vec<CString>> {
    // A handle of its own: reading one moves its position.
    let mut dir = Dir::from_fd(openat(folder, c".", FOLDER, Mode::empty())?)?;
    let mut names = Vec::new();
    for entry in dir.iter() {
        let name = entry?.file_name().to_owned();
        if name.as_c_str() != c"." && name.as_c_str() != c".." {
            names.push(name);
        }
    }
    Ok(names)
}

/// Removes a file, or a folder; folders that were in it are in `top` then, and on the list.
fn remove_one(
    top: &OwnedFd,
    name: &CStr,
    moved: &mut u64,
    list: &mut Vec<CString>,
) -> io::Result<()> {
    match unlinkat(top, name, UnlinkatFlags::NoRemoveDir) {
        Ok(()) | Err(Errno::ENOENT) => return Ok(()),
        Err(Errno::EISDIR | Errno::EPERM) => {}
        Err(error) => return Err(error.into()),
    }
    let folder = match openat(top, name, FOLDER, Mode::empty()) {
        Err(Errno::EACCES) => {
            open_up(top.as_fd(), name)?;
            openat(top, name, FOLDER, Mode::empty())?
        }
        other => other?,
    };
    for inner in names(folder.as_fd())? {
        let up = remove_inner(&folder, &inner, top, moved).or_else(|error| {
            if error.raw_os_error() != Some(libc::EACCES) {
                return Err(error);
            }
            // The folder or what is in it is shut: its owner may open both.
            open_up(top.as_fd(), name)?;
            let _ = open_up(folder.as_fd(), &inner);
            remove_inner(&folder, &inner, top, moved)
        })?;
        list.extend(up);
    }
    match unlinkat(top, name, UnlinkatFlags::RemoveDir) {
        // Something new is in it: the next round finds it.
        Ok(()) | Err(Errno::ENOENT | Errno::ENOTEMPTY | Errno::EEXIST) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// Removes a file of an inner folder, or moves a folder of it up; the name that it has then.
fn remove_inner(
    folder: &OwnedFd,
    name: &CStr,
    top: &OwnedFd,
    moved: &mut u64,
) -> io::Result<Option<CString>> {
    match unlinkat(folder, name, UnlinkatFlags::NoRemoveDir) {
        Ok(()) | Err(Errno::ENOENT) => return Ok(None),
        Err(Errno::EISDIR | Errno::EPERM) => {}
        Err(error) => return Err(error.into()),
    }
    loop {
        *moved += 1;
        let up = CString::new(format!(".removed-{moved}"))?;
        match renameat(folder, name, top, up.as_c_str()) {
            Ok(()) => return Ok(Some(up)),
            Err(Errno::ENOENT) => return Ok(None),
            // The name is taken.
            Err(Errno::ENOTEMPTY | Errno::EEXIST | Errno::ENOTDIR) => {}
            Err(error) => return Err(error.into()),
        }
    }
}

fn open_up(folder: BorrowedFd<'_>, name: &CStr) -> io::Result<()> {
    Ok(fchmodat(folder, name, Mode::S_IRWXU, FchmodatFlags::NoFollowSymlink)?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::Permissions;
    use std::os::unix::fs::{PermissionsExt, symlink};
    use std::path::PathBuf;

    fn scratch(name: &str) -> PathBuf {
        let path = std::env::temp_dir().join(format!("score-remove-{name}-{}", std::process::id()));
        let _ = tree(&path);
        fs::create_dir(&path).unwrap();
        path
    }

    #[test]
    fn a_tree_goes_whole_and_what_its_links_point_to_stays() {
        let base = scratch("links");
        let outside = base.join("outside");
        fs::create_dir(&outside).unwrap();
        fs::write(outside.join("keep"), "x").unwrap();
        let job = base.join("job");
        fs::create_dir_all(job.join("a/b/c")).unwrap();
        fs::write(job.join("a/b/c/file"), "x").unwrap();
        fs::write(job.join(".removed-1"), "x").unwrap();
        symlink(&outside, job.join("link")).unwrap();
        symlink(&outside, job.join("a/b/link")).unwrap();
        symlink("/nowhere", job.join("a/dangling")).unwrap();
        fs::set_permissions(job.join("a/b/c"), Permissions::from_mode(0o000)).unwrap();
        fs::set_permissions(job.join("a/b"), Permissions::from_mode(0o500)).unwrap();
        tree(&job).unwrap();
        assert!(!job.exists() && outside.join("keep").exists());
        let mode = fs::metadata(&outside).unwrap().permissions().mode();
        assert_eq!(mode & 0o700, 0o700);
        tree(&base).unwrap();
        tree(&base).unwrap();
    }

    #[test]
    fn a_link_in_place_of_the_folder_is_not_followed() {
        let base = scratch("top");
        fs::create_dir(base.join("real")).unwrap();
        fs::write(base.join("real/keep"), "x").unwrap();
        symlink("real", base.join("link")).unwrap();
        assert!(tree(&base.join("link")).is_err());
        assert!(base.join("real/keep").exists());
        tree(&base).unwrap();
    }

    #[test]
    fn two_thousand_levels_are_no_danger() {
        let base = scratch("deep");
        let mut folder = OwnedFd::from(fs::File::open(&base).unwrap());
        for _ in 0..2_000 {
            nix::sys::stat::mkdirat(&folder, c"d", Mode::S_IRWXU).unwrap();
            folder = openat(&folder, c"d", FOLDER, Mode::empty()).unwrap();
        }
        drop(folder);
        tree(&base).unwrap();
        assert!(!base.exists());
    }
}
