//! Removes a directory tree that a user has created. No link is followed, no mounted file system is
//! entered, and no path is built from names in the tree. Deep trees need neither more stack nor
//! more descriptors: directories below the first level are renamed into the top directory first.
#![forbid(unsafe_code)]

use std::ffi::{CStr, CString};
use std::fs;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

use nix::dir::Dir;
use nix::errno::Errno;
use nix::fcntl::renameat;
use nix::sys::stat::{FchmodatFlags, Mode, fchmodat};
use nix::unistd::{UnlinkatFlags, unlinkat};

use super::mounts;

/// Largest number of passes over the top directory. More than one is needed only if a process keeps
/// writing there.
const MAX_PASSES: usize = 100;

/// Removes a directory and its content. Its parent directory must be trusted. A missing directory
/// is not an error.
///
/// # Errors
/// The first entry that could not be removed, and the reason.
pub fn tree(path: &Path) -> io::Result<()> {
    let top = match mounts::open_directory(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
            // Its owner may have removed the permissions.
            let mode = Mode::S_IRWXU;
            fchmodat(nix::fcntl::AT_FDCWD, path, mode, FchmodatFlags::NoFollowSymlink)?;
            mounts::open_directory(path)?
        }
        result => result?,
    };
    empty(&OwnedFd::from(top))?;
    match fs::remove_dir(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        result => result,
    }
}

/// Removes the content of a directory, but not the directory itself.
///
/// # Errors
/// The errors of [`tree`].
pub fn empty(top: &OwnedFd) -> io::Result<()> {
    let mut move_count = 0u64;
    for _ in 0..MAX_PASSES {
        let names = names(top.as_fd())?;
        if names.is_empty() {
            return Ok(());
        }
        let (name_count, mut error_count, mut first_error) = (names.len(), 0, None);
        let mut pending = names;
        while let Some(name) = pending.pop() {
            // An entry that cannot be removed must not prevent the removal of others.
            if let Err(error) = remove_one(top, &name, &mut move_count, &mut pending) {
                error_count += 1;
                first_error
                    .get_or_insert(io::Error::new(error.kind(), format!("{name:?}: {error}")));
            }
        }
        if error_count >= name_count {
            return first_error.map_or(Ok(()), Err);
        }
    }
    Err(io::Error::other("a process keeps writing there"))
}

/// The names in a directory.
///
/// # Errors
/// The errors of open(2) and readdir(3).
pub fn names(dir_fd: BorrowedFd<'_>) -> io::Result<Vec<CString>> {
    // A separate descriptor, because reading changes the position of a descriptor.
    let mut dir = Dir::from_fd(mounts::open_directory_at(dir_fd, c".")?)?;
    let mut names = Vec::new();
    for entry in dir.iter() {
        let name = entry?.file_name().to_owned();
        if name.as_c_str() != c"." && name.as_c_str() != c".." {
            names.push(name);
        }
    }
    Ok(names)
}

/// Removes a file or a directory. Moves subdirectories to `top` and adds them to `pending`.
fn remove_one(
    top: &OwnedFd,
    name: &CStr,
    move_count: &mut u64,
    pending: &mut Vec<CString>,
) -> io::Result<()> {
    match unlinkat(top, name, UnlinkatFlags::NoRemoveDir) {
        Ok(()) | Err(Errno::ENOENT) => return Ok(()),
        Err(Errno::EISDIR | Errno::EPERM) => {}
        Err(error) => return Err(error.into()),
    }
    let dir_fd = match mounts::open_directory_at(top, name) {
        Err(Errno::EACCES) => {
            make_accessible(top.as_fd(), name)?;
            mounts::open_directory_at(top, name)?
        }
        Err(Errno::EXDEV) => {
            let reason = "a file system is mounted there";
            return Err(io::Error::new(io::ErrorKind::CrossesDevices, reason));
        }
        result => result?,
    };
    let mut first_error = None;
    for entry_name in names(dir_fd.as_fd())? {
        let removed = remove_or_move_up(&dir_fd, &entry_name, top, move_count).or_else(|error| {
            if error.raw_os_error() != Some(libc::EACCES) {
                return Err(error);
            }
            // The directory or its entry lacks permissions, which its owner may restore.
            make_accessible(top.as_fd(), name)?;
            let _ = make_accessible(dir_fd.as_fd(), &entry_name);
            remove_or_move_up(&dir_fd, &entry_name, top, move_count)
        });
        match removed {
            Ok(moved_name) => pending.extend(moved_name),
            Err(error) => _ = first_error.get_or_insert(error),
        }
    }
    match unlinkat(top, name, UnlinkatFlags::RemoveDir) {
        // The directory has a new entry, which the next pass finds.
        Ok(()) | Err(Errno::ENOENT | Errno::ENOTEMPTY | Errno::EEXIST) => {
            first_error.map_or(Ok(()), Err)
        }
        Err(error) => Err(error.into()),
    }
}

/// Removes an entry of a subdirectory if it is a file. Moves it to `top` if it is a directory, and
/// then returns its new name.
fn remove_or_move_up(
    dir_fd: &OwnedFd,
    name: &CStr,
    top: &OwnedFd,
    move_count: &mut u64,
) -> io::Result<Option<CString>> {
    match unlinkat(dir_fd, name, UnlinkatFlags::NoRemoveDir) {
        Ok(()) | Err(Errno::ENOENT) => return Ok(None),
        Err(Errno::EISDIR | Errno::EPERM) => {}
        Err(error) => return Err(error.into()),
    }
    loop {
        *move_count += 1;
        let moved_name = CString::new(format!(".removed-{move_count}"))?;
        match renameat(dir_fd, name, top, moved_name.as_c_str()) {
            Ok(()) => return Ok(Some(moved_name)),
            Err(Errno::ENOENT) => return Ok(None),
            // The name is taken.
            Err(Errno::ENOTEMPTY | Errno::EEXIST | Errno::ENOTDIR) => {}
            Err(error) => return Err(error.into()),
        }
    }
}

fn make_accessible(dir_fd: BorrowedFd<'_>, name: &CStr) -> io::Result<()> {
    Ok(fchmodat(dir_fd, name, Mode::S_IRWXU, FchmodatFlags::NoFollowSymlink)?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::Permissions;
    use std::os::unix::fs::{PermissionsExt, symlink};
    use std::path::PathBuf;

    fn scratch_dir(name: &str) -> PathBuf {
        let path = std::env::temp_dir().join(format!("score-remove-{name}-{}", std::process::id()));
        let _ = tree(&path);
        fs::create_dir(&path).unwrap();
        path
    }

    // Promise (several users): Root removes files that users leave, and follows no link of theirs.
    #[test]
    fn a_directory_tree_is_removed_and_the_targets_of_its_links_remain() {
        let base = scratch_dir("links");
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

    // Promise of `a_directory_tree_is_removed_and_the_targets_of_its_links_remain`.
    #[test]
    fn a_link_in_place_of_the_directory_is_not_followed() {
        let base = scratch_dir("top");
        fs::create_dir(base.join("real")).unwrap();
        fs::write(base.join("real/keep"), "x").unwrap();
        symlink("real", base.join("link")).unwrap();
        assert!(tree(&base.join("link")).is_err());
        assert!(base.join("real/keep").exists());
        tree(&base).unwrap();
    }

    #[test]
    fn the_files_of_a_mounted_file_system_and_its_directory_remain() {
        let base = scratch_dir("mounted");
        let mounted = base.join("a/mounted");
        for path in [mounted.clone(), base.join("a/deep/er")] {
            fs::create_dir_all(path).unwrap();
        }
        let none = None::<&str>;
        let flags = nix::mount::MsFlags::empty();
        if let Err(error) = nix::mount::mount(Some("none"), &mounted, Some("tmpfs"), flags, none) {
            tree(&base).unwrap();
            return eprintln!("SKIPPED mounts: {error}");
        }
        fs::write(mounted.join("keep"), "x").unwrap();
        assert!(tree(&base).is_err());
        assert!(mounted.join("keep").exists() && !base.join("a/deep").exists());
        let error = tree(&base.join("a")).unwrap_err();
        assert!(error.to_string().contains("a file system is mounted there"), "{error}");
        mounts::detach_below(&base).unwrap();
        tree(&base).unwrap();
        assert!(!base.exists());
    }

    // Promise of `a_directory_tree_is_removed_and_the_targets_of_its_links_remain`.
    #[test]
    fn a_tree_of_two_thousand_levels_is_removed() {
        let base = scratch_dir("deep");
        let mut dir_fd = OwnedFd::from(fs::File::open(&base).unwrap());
        for _ in 0..2_000 {
            nix::sys::stat::mkdirat(&dir_fd, c"d", Mode::S_IRWXU).unwrap();
            dir_fd = mounts::open_directory_at(&dir_fd, c"d").unwrap();
        }
        drop(dir_fd);
        tree(&base).unwrap();
        assert!(!base.exists());
    }
}
