//! Disk usage of a job on its host. Counts the files in the job's directory, and deleted files of
//! that directory that the job's processes still hold open.

#![forbid(unsafe_code)]

use std::collections::HashSet;
use std::fs::{self, File};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use nix::fcntl::{AtFlags, OFlag, openat};
use nix::sys::stat::{FileStat, Mode, SFlag, fstatat};

use crate::sys::{process, remove};

/// Deepest nesting of directories that is scanned. Each level needs an open descriptor.
const MAX_DEPTH: usize = 128;
/// Largest number of the job's descriptors that one scan examines.
const MAX_SCANNED_FDS: usize = 1 << 16;
/// The suffix that /proc appends to the path of a deleted file.
const DELETED_SUFFIX: &[u8] = b" (deleted)";

const DIR_OPEN_FLAGS: OFlag =
    OFlag::O_DIRECTORY.union(OFlag::O_NOFOLLOW).union(OFlag::O_CLOEXEC).union(OFlag::O_NONBLOCK);

/// Device and inode number, which identify a file independently of its names.
type Inode = (u64, u64);

/// Whether a job uses no more than `limit` bytes.
pub fn is_within(directory: &Path, limit: u64) -> bool {
    // Count deleted files first. A file may get a name in the meantime (linkat(2) of an O_TMPFILE
    // file), and must count once.
    let (bytes, inodes) = deleted_open_files(directory);
    let left = limit.checked_sub(bytes);
    left.is_some_and(|left| walk(directory, left, usize::MAX, &inodes).is_some())
}

/// The bytes of files that were deleted from `directory` and that descendants of this process still
/// hold open, and the inodes of these files. Each file counts once.
fn deleted_open_files(directory: &Path) -> (u64, HashSet<Inode>) {
    let (mut sum, mut inodes) = (0u64, HashSet::new());
    // The directory's path in /proc has no symbolic links.
    let Ok(top) = File::open(directory) else { return (sum, inodes) };
    let Ok(top) = fs::read_link(format!("/proc/self/fd/{}", top.as_raw_fd())) else {
        return (sum, inodes);
    };
    let descriptors = process::descendants().into_iter();
    let descriptors = descriptors.filter_map(|pid| fs::read_dir(format!("/proc/{pid}/fd")).ok());
    for descriptor in descriptors.flatten().flatten().take(MAX_SCANNED_FDS) {
        let descriptor = descriptor.path();
        // Reading the link does not access the file system. A dead file server therefore cannot
        // block it.
        let was_in_directory = fs::read_link(&descriptor).is_ok_and(|name| {
            name.starts_with(&top) && name.as_os_str().as_bytes().ends_with(DELETED_SUFFIX)
        });
        if !was_in_directory {
            continue;
        }
        let Ok(metadata) = descriptor.metadata() else { continue };
        let is_deleted_file = metadata.is_file() && metadata.nlink() == 0;
        if is_deleted_file && inodes.insert((metadata.dev(), metadata.ino())) {
            sum = sum.saturating_add(metadata.blocks().saturating_mul(512));
        }
    }
    (sum, inodes)
}

/// The disk space that a directory takes, in bytes. Returns None if it is more than `limit`, or if
/// the tree is too deep. Counts only the first `max_files` files.
pub fn bytes_used(directory: &Path, limit: u64, max_files: usize) -> Option<u64> {
    walk(directory, limit, max_files, &HashSet::new())
}

/// The same as [`bytes_used`], without the files that have these inodes.
fn walk(
    directory: &Path,
    limit: u64,
    mut max_files: usize,
    excluded: &HashSet<Inode>,
) -> Option<u64> {
    let Ok(top) = File::open(directory).map(OwnedFd::from) else { return Some(0) };
    let mut open_dirs = Vec::new();
    open_dirs.extend(remove::names(top.as_fd()).ok().map(|names| (top, names)));
    let mut sum = 0u64;
    while let Some((dir, names)) = open_dirs.last_mut() {
        let Some(name) = names.pop() else {
            open_dirs.pop();
            continue;
        };
        if max_files == 0 {
            break;
        }
        max_files -= 1;
        let Ok(stat) = fstatat(&*dir, name.as_c_str(), AtFlags::AT_SYMLINK_NOFOLLOW) else {
            continue;
        };
        if !excluded.contains(&(stat.st_dev, stat.st_ino)) {
            sum = sum.saturating_add(disk_bytes(&stat));
        }
        if sum > limit {
            return None;
        }
        if SFlag::from_bits_truncate(stat.st_mode & SFlag::S_IFMT.bits()) == SFlag::S_IFDIR
            && let Ok(subdir) = openat(&*dir, name.as_c_str(), DIR_OPEN_FLAGS, Mode::empty())
        {
            if open_dirs.len() == MAX_DEPTH {
                return None;
            }
            open_dirs.extend(remove::names(subdir.as_fd()).ok().map(|names| (subdir, names)));
        }
    }
    Some(sum)
}

fn disk_bytes(stat: &FileStat) -> u64 {
    u64::try_from(stat.st_blocks).unwrap_or(0).saturating_mul(512)
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use std::io::Read;
    use std::path::PathBuf;
    use std::process::{Command, Stdio};

    /// A new directory.
    pub fn scratch_dir(name: &str) -> PathBuf {
        let path = std::env::temp_dir().join(format!("score-limits-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&path);
        fs::create_dir(&path).unwrap();
        path
    }

    #[test]
    fn files_in_subdirectories_are_counted_and_too_deep_files_exceed_any_limit() {
        let base = scratch_dir("disk");
        let mut inner = base.clone();
        inner.extend(["a"; 20]);
        fs::create_dir_all(&inner).unwrap();
        let is_within = |limit| bytes_used(&base, limit, 200).is_some();
        assert!(is_within(1 << 20));
        fs::write(inner.join("file"), vec![1; 2 << 20]).unwrap();
        assert!(!is_within(1 << 20));
        assert!(is_within(4 << 20) && bytes_used(&base, u64::MAX, 200).unwrap() >= 2 << 20);
        assert!(bytes_used(&base, u64::MAX, 3).unwrap() < 1 << 20);
        inner.extend(["b"; MAX_DEPTH]);
        fs::create_dir_all(&inner).unwrap();
        assert!(!is_within(1 << 40));
        fs::remove_dir_all(&base).unwrap();
    }

    #[test]
    fn a_deleted_file_counts_once_while_it_is_held_open() {
        let base = scratch_dir("held");
        let other_dir = scratch_dir("held-other");
        // Two processes hold one file, twice each. A file in another directory does not belong to
        // the job.
        let script = format!(
            "cd {}; exec 3>a 4>&3 5>{}/b 6<&0; rm a {}/b; head -c 3000000 /dev/zero >&3; \
             head -c 3000000 /dev/zero >&5; cat <&6 & echo there; exec cat",
            base.display(),
            other_dir.display(),
            other_dir.display(),
        );
        let mut holder = Command::new("/bin/sh");
        holder.args(["-c", &script]).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut holder = holder.spawn().unwrap();
        holder.stdout.as_mut().unwrap().read_exact(&mut [0; 6]).unwrap();
        let (bytes, inodes) = deleted_open_files(&base);
        assert!((3_000_000..4_000_000).contains(&bytes) && inodes.len() == 1, "{bytes}");
        assert!(bytes_used(&base, u64::MAX, 200).unwrap() < 1 << 20);
        assert!(!is_within(&base, 2 << 20) && is_within(&base, 4 << 20));
        // A file that has a name also counts.
        fs::write(base.join("c"), vec![1; 2 << 20]).unwrap();
        assert!(!is_within(&base, 4 << 20) && is_within(&base, 6 << 20));
        drop(holder.stdin.take());
        holder.wait().unwrap();
        [base, other_dir].iter().for_each(|path| fs::remove_dir_all(path).unwrap());
    }
}
