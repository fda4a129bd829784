//! Access to the files of the job's directory. The kernel resolves the paths (openat2(2)), so that
//! no file outside of the directory can be reached, even by symbolic links of the user.

use std::fs::{self, File};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};

use nix::fcntl::{OFlag, OpenHow, ResolveFlag, openat2};
use score_tools::wire::{
    CommandCode, FileContents, FileContentsHead, FileNames, FileStat, JobFilePath,
};

/// The most bytes of all names in an answer.
const MAX_NAME_BYTES: usize = 65_024;

/// Opens a file below the directory with these open flags.
fn open(directory: &Path, path: &JobFilePath, flags: OFlag) -> Result<File, CommandCode> {
    let base = File::open(directory).map_err(|_| CommandCode::FileNotFound)?;
    let how = OpenHow::new()
        .flags(flags | OFlag::O_CLOEXEC)
        .resolve(ResolveFlag::RESOLVE_BENEATH | ResolveFlag::RESOLVE_NO_MAGICLINKS);
    let name = Path::new(std::ffi::OsStr::from_bytes(path.as_bytes()));
    let file: OwnedFd = openat2(base, name, how).map_err(|_| CommandCode::FileNotFound)?;
    Ok(file.into())
}

/// The names in the directory, as many as fit into an answer.
pub fn names(directory: &PathBuf) -> (CommandCode, FileNames) {
    let Ok(entries) = fs::read_dir(directory) else {
        return (CommandCode::FileNotFound, FileNames { names: Vec::new() });
    };
    let mut names: Vec<Vec<u8>> =
        entries.flatten().map(|entry| entry.file_name().into_vec()).collect();
    names.sort_unstable();
    let mut len = 0;
    let fitting = names.iter().take_while(|name| {
        len += name.len() + 1;
        len <= MAX_NAME_BYTES
    });
    let fitting = fitting.count();
    let code = match fitting == names.len() {
        true => CommandCode::Success,
        false => CommandCode::AllocationError,
    };
    names.truncate(fitting);
    (code, FileNames { names })
}

/// The result of stat(2) for a file.
pub fn stat(directory: &Path, path: &JobFilePath) -> Result<FileStat, CommandCode> {
    let file = open(directory, path, OFlag::O_PATH)?;
    let it = file.metadata().map_err(|_| CommandCode::FileNotFound)?;
    let signed = |number: u64| i64::try_from(number).unwrap_or(i64::MAX);
    Ok(FileStat {
        device: it.dev(),
        inode: it.ino(),
        links: it.nlink(),
        mode: it.mode(),
        uid: it.uid(),
        gid: it.gid(),
        special_device: it.rdev(),
        size: signed(it.size()),
        block_size: signed(it.blksize()),
        blocks: signed(it.blocks()),
        accessed: [it.atime(), it.atime_nsec()],
        modified: [it.mtime(), it.mtime_nsec()],
        changed: [it.ctime(), it.ctime_nsec()],
    })
}

/// A part of a file. It is shorter at the end of the file.
pub fn contents(
    directory: &Path,
    path: &JobFilePath,
    offset: u64,
    number: u64,
) -> Result<FileContents<'static>, CommandCode> {
    // Opening a FIFO or some devices could block the service, so only regular files are opened.
    let place = open(directory, path, OFlag::O_PATH)?;
    if !place.metadata().is_ok_and(|it| it.is_file()) {
        return Err(CommandCode::FileNotFound);
    }
    let file = open(directory, path, OFlag::O_RDONLY | OFlag::O_NONBLOCK)?;
    let mut bytes = vec![0; usize::try_from(number).unwrap_or(0)];
    let mut read = 0;
    while read < bytes.len() {
        match file.read_at(&mut bytes[read..], offset.saturating_add(read as u64)) {
            Ok(0) => break,
            Ok(count) => read += count,
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            Err(_) => return Err(CommandCode::ParameterError),
        }
    }
    bytes.truncate(read);
    Ok(FileContents { head: FileContentsHead {}, bytes: bytes.into() })
}
