//! File systems that are mounted in the directory of a job. A user can mount a file system there by
//! a set-user-ID program such as fusermount. Its server may never answer, and its files may be the
//! user's files elsewhere. Therefore no function of this module opens a file of such a file system.
#![forbid(unsafe_code)]

use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use nix::NixPath;
use nix::errno::Errno;
use nix::fcntl::{OFlag, OpenHow, ResolveFlag, openat, openat2};
use nix::mount::{MntFlags, umount2};
use nix::sys::stat::Mode;

/// The maximum number of file systems that one call detaches. The next call detaches others.
const MAX_DETACHED: usize = 1024;
/// The entries of a user's directory are reached without links and without leaving the directory.
const RESOLVE: ResolveFlag = ResolveFlag::RESOLVE_BENEATH.union(ResolveFlag::RESOLVE_NO_SYMLINKS);
const PATH_FLAGS: OFlag = OFlag::O_PATH.union(OFlag::O_NOFOLLOW).union(OFlag::O_CLOEXEC);
const DIR_FLAGS: OFlag =
    OFlag::O_DIRECTORY.union(OFlag::O_NOFOLLOW).union(OFlag::O_CLOEXEC).union(OFlag::O_NONBLOCK);

/// Opens a directory for reading. Follows no link and enters no mounted file system.
///
/// # Errors
/// See open(2). `EXDEV`: a file system is mounted there.
pub fn open_directory_at<P: NixPath + ?Sized>(parent: impl AsFd, name: &P) -> nix::Result<OwnedFd> {
    let how = OpenHow::new().flags(DIR_FLAGS).resolve(ResolveFlag::RESOLVE_NO_XDEV);
    match openat2(&parent, name, how) {
        // Before Linux 5.6.
        Err(Errno::ENOSYS) => openat(&parent, name, DIR_FLAGS, Mode::empty()),
        result => result,
    }
}

/// The same as [`open_directory_at`], by an absolute path. The parent directory must be trusted.
///
/// # Errors
/// See [`open_directory_at`].
pub fn open_directory(path: &Path) -> io::Result<File> {
    let (parent, name) = split(path)?;
    Ok(open_directory_at(open_trusted(parent)?, name)?.into())
}

/// Detaches the file systems that are mounted on a directory of a user or below it. Processes can
/// use the files that they have opened there. Only root may have write permission for the parent
/// directory.
///
/// # Errors
/// See umount(2). `EPERM`: this process is not root.
pub fn detach_below(directory: &Path) -> io::Result<()> {
    let (parent, name) = split(directory)?;
    // The kernel reports paths without links.
    let parent_path = fs::canonicalize(parent)?;
    let parent = open_trusted(&parent_path)?;
    let directory = parent_path.join(name);
    let table = fs::read("/proc/self/mountinfo")?;
    let mut mount_points: Vec<PathBuf> =
        mount_points(&table).filter(|point| point.starts_with(&directory)).collect();
    // The outer file systems come first, because all inner ones are detached with them.
    mount_points.sort_by_key(|point| point.as_os_str().len());
    for point in mount_points.iter().take(MAX_DETACHED) {
        match point.strip_prefix(&parent_path).map(|point| detach(&parent, point)) {
            // The file system is detached already, or the user has moved its directory.
            Ok(Err(Errno::ENOENT | Errno::ENOTDIR | Errno::EINVAL)) => {}
            Ok(Err(Errno::ELOOP | Errno::EXDEV)) => {}
            Ok(Err(error)) => return Err(error.into()),
            Ok(Ok(())) | Err(_) => {}
        }
    }
    Ok(())
}

/// Detaches the file system that is mounted at a path below `parent`.
fn detach(parent: &File, point: &Path) -> nix::Result<()> {
    let inside = |flags, resolve| OpenHow::new().flags(flags).resolve(resolve);
    let outer = point.parent().filter(|outer| !outer.as_os_str().is_empty());
    let how = inside(PATH_FLAGS | OFlag::O_DIRECTORY, RESOLVE | ResolveFlag::RESOLVE_NO_XDEV);
    let outer = openat2(parent, outer.unwrap_or(Path::new(".")), how)?;
    let name = Path::new(point.file_name().unwrap_or_default());
    // `O_PATH` opens the root of the file system without a request to its server.
    let root = openat2(outer, name, inside(PATH_FLAGS, RESOLVE))?;
    // The user could replace a directory of the path by a link. The descriptor has no such path.
    let by_descriptor = format!("/proc/self/fd/{}", root.as_raw_fd());
    umount2(by_descriptor.as_str(), MntFlags::MNT_DETACH)
}

fn split(path: &Path) -> io::Result<(&Path, &OsStr)> {
    let both = path.parent().zip(path.file_name());
    both.ok_or_else(|| io::ErrorKind::InvalidInput.into())
}

fn open_trusted(directory: &Path) -> io::Result<File> {
    File::options().read(true).custom_flags(libc::O_PATH | libc::O_DIRECTORY).open(directory)
}

/// The mount points in the text of /proc/PID/mountinfo.
fn mount_points(table: &[u8]) -> impl Iterator<Item = PathBuf> {
    let field = |line: &[u8]| Some(unescape(line.split(|byte| *byte == b' ').nth(4)?));
    table.split(|byte| *byte == b'\n').filter_map(field)
}

/// Replaces the octal numbers of white space and backslashes by these characters.
fn unescape(mut field: &[u8]) -> PathBuf {
    let mut path = Vec::new();
    while let Some((first, rest)) = field.split_first() {
        let digits = rest.get(..3).filter(|_| *first == b'\\');
        let digits = digits.and_then(|digits| std::str::from_utf8(digits).ok());
        let code = digits.and_then(|digits| u8::from_str_radix(digits, 8).ok());
        path.push(code.unwrap_or(*first));
        field = if code.is_some() { &rest[3..] } else { rest };
    }
    OsString::from_vec(path).into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use nix::mount::{MsFlags, mount};

    #[test]
    fn mount_points_are_read_with_their_special_characters() {
        let table = b"36 35 98:0 /mnt1 /var/a\\040b rw,noatime shared:1 - ext3 /dev/root rw\n\
                      37 35 0:3 / /c\\134\\012d\\x rw - tmpfs none rw\nshort line\n";
        let expected = ["/var/a b", "/c\\\nd\\x"].map(PathBuf::from);
        assert_eq!(mount_points(table).collect::<Vec<_>>(), expected);
    }

    #[test]
    fn all_file_systems_in_a_directory_are_detached_and_those_of_links_remain() {
        let base = std::env::temp_dir().join(format!("score-mounts-{}", std::process::id()));
        let (job, other) = (base.join("job"), base.join("job-other"));
        for path in [job.join("a"), job.join("with space"), other.clone()] {
            fs::create_dir_all(path).unwrap();
        }
        let none = None::<&str>;
        let mount_at =
            |path: &Path| mount(Some("none"), path, Some("tmpfs"), MsFlags::empty(), none);
        if let Err(error) = mount_at(&other) {
            fs::remove_dir_all(&base).unwrap();
            return eprintln!("SKIPPED mounts: {error}");
        }
        fs::write(other.join("keep"), "x").unwrap();
        std::os::unix::fs::symlink(&other, job.join("link")).unwrap();
        let outer = job.join("a");
        // Two file systems at one place, one inside of another, and one on the directory itself.
        mount_at(&outer).unwrap();
        mount_at(&outer).unwrap();
        fs::create_dir(outer.join("inner")).unwrap();
        mount_at(&outer.join("inner")).unwrap();
        mount_at(&job.join("with space")).unwrap();
        let error = open_directory(&outer).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::EXDEV));
        mount_at(&job).unwrap();
        detach_below(&job).unwrap();
        let table = fs::read("/proc/self/mountinfo").unwrap();
        let left: Vec<_> = mount_points(&table).filter(|point| point.starts_with(&base)).collect();
        assert_eq!(left, std::slice::from_ref(&other));
        assert!(open_directory(&outer).is_ok() && open_directory(&job.join("link")).is_err());
        assert!(other.join("keep").exists());
        detach_below(&other).unwrap();
        fs::remove_dir_all(&base).unwrap();
    }
}
