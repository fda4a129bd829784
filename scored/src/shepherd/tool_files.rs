//! Files for all tools of a job (`scrun -tool-files`) or for one tool (`start_tool --files`). They
//! arrive as one archive, like a program of the job. The shepherd unpacks them into a directory of
//! the job, with the rights and within the limits of the job's user.
//!
//! The shepherd creates nothing outside of that directory, even if the archive is hostile. It
//! checks the list of files first ([`FileTree::check`]). The kernel resolves each path below the
//! directory without following links.
#![forbid(unsafe_code)]

use std::ffi::{OsStr, OsString};
use std::fs::{DirBuilder, File};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, FileExt};
use std::path::{Path, PathBuf};

use nix::fcntl::{OFlag, OpenHow, ResolveFlag, openat2};
use nix::sys::stat::{Mode, fchmod, mkdirat};
use nix::sys::statvfs::statvfs;
use nix::unistd::symlinkat;
use score_proto::file_tree::{FileTree, TREE_PREFIX, TreeEntry, TreeEntryKind};
use score_proto::message::FileDigest;

/// Number of bytes of a file that are copied at once.
const COPY_LEN: usize = 1 << 20;
/// Number of entries that are created in one tick of the loop.
const MAX_ENTRIES_PER_TICK: usize = 256;
/// Mode bits of every directory. The user must be able to remove its entries.
const MIN_DIRECTORY_MODE: u16 = 0o700;

/// How paths are resolved: below the directory, through no symbolic link, on the same file system.
const RESOLVE: ResolveFlag = ResolveFlag::RESOLVE_BENEATH
    .union(ResolveFlag::RESOLVE_NO_SYMLINKS)
    .union(ResolveFlag::RESOLVE_NO_XDEV);

/// Files for tools.
#[derive(Debug)]
pub struct ToolFiles {
    /// The option in error messages.
    pub option: &'static str,
    /// The path of the archive.
    pub archive: PathBuf,
    /// Hash and size of the archive.
    pub content: FileDigest,
    /// The path of the directory. None: this host only passes the archive on.
    pub directory: Option<PathBuf>,
}

/// Files for tools, from the time at which their archive is requested.
#[derive(Debug)]
pub struct ArrivingFiles {
    files: ToolFiles,
    state: FilesState,
}

#[derive(Debug)]
enum FilesState {
    Arriving,
    Unpacking(Unpacker),
    Unpacked,
}

impl ArrivingFiles {
    /// Files whose archive has not arrived.
    pub fn new(files: ToolFiles) -> Self {
        Self { files, state: FilesState::Arriving }
    }

    /// Hash and size of the archive.
    pub fn content(&self) -> FileDigest {
        self.files.content
    }

    /// The path of the archive.
    pub fn archive(&self) -> &Path {
        &self.files.archive
    }

    /// Whether [`ArrivingFiles::unpack`] has to be called again soon.
    pub fn is_unpacking(&self) -> bool {
        matches!(self.state, FilesState::Unpacking(_))
    }

    /// Whether everything is unpacked, or nothing has to be unpacked here.
    pub fn is_unpacked(&self) -> bool {
        matches!(self.state, FilesState::Unpacked)
    }

    /// Continues to unpack the complete archive, for a bounded number of bytes.
    ///
    /// # Errors
    /// One line that begins with the option.
    pub fn unpack(&mut self, archive: &File, budget: usize) -> Result<(), String> {
        let option = self.files.option;
        let next = match &mut self.state {
            FilesState::Arriving => self.begin_to_unpack(archive),
            FilesState::Unpacking(unpacker) => match unpacker.pump(budget) {
                Ok(true) => Ok(FilesState::Unpacked),
                Ok(false) => return Ok(()),
                Err(reason) => Err(reason),
            },
            FilesState::Unpacked => return Ok(()),
        };
        self.state = next.map_err(|reason| format!("{option}: {reason}"))?;
        Ok(())
    }

    fn begin_to_unpack(&self, archive: &File) -> Result<FilesState, String> {
        let Some(directory) = &self.files.directory else { return Ok(FilesState::Unpacked) };
        let archive = archive.try_clone().map_err(|error| error.to_string())?;
        let unpacker = Unpacker::begin(archive, self.files.content.size, directory.clone())?;
        Ok(FilesState::Unpacking(unpacker))
    }
}

/// The limit of the disk usage of a job on this host.
#[derive(Debug, Clone, Copy)]
pub struct DiskLimit {
    /// The limit in bytes.
    pub bytes: u64,
    /// The bytes that the job uses.
    pub used: u64,
}

/// The disk space that files for tools need.
#[derive(Debug, Clone, Copy)]
pub struct NeededRoom {
    /// The size of the archive.
    pub size: u64,
    /// The number of copies of the unpacked files in this host's part of the job: 0 or 1.
    pub own_copies: u64,
    /// The number of copies on this host's disk, which virtual hosts share.
    pub copies: u64,
}

impl NeededRoom {
    /// Checks whether there is enough disk space. The job's directory is on the disk.
    ///
    /// # Errors
    /// One line with the amounts.
    pub fn check(&self, job_directory: &Path, limit: Option<DiskLimit>) -> Result<(), String> {
        // The archive and its unpacked files exist at the same time.
        let with_archive = |copies: u64| self.size.saturating_mul(copies + 1);
        let mb = |bytes: u64| bytes.div_ceil(1 << 20);
        let needed = with_archive(self.own_copies);
        if let Some(DiskLimit { bytes, used }) = limit
            && bytes.saturating_sub(used) < needed
        {
            let used = match used {
                0 => String::new(),
                _ => format!(", of which it uses {} MB", mb(used)),
            };
            return Err(format!(
                "{} MB are needed temporarily, and the job has a disklimit of {} MB{used}",
                mb(needed),
                mb(bytes)
            ));
        }
        let needed = with_archive(self.copies);
        let path = job_directory.display();
        let free = statvfs(job_directory).map_err(|errno| format!("{path}: {errno}"))?;
        let free = free.blocks_available().saturating_mul(free.fragment_size());
        match needed > free {
            true => Err(format!(
                "{} MB are needed temporarily in {path}, where {} MB are free",
                mb(needed),
                mb(free)
            )),
            false => Ok(()),
        }
    }
}

/// A file that is being written.
#[derive(Debug)]
struct OpenFile {
    file: File,
    mode: u16,
    left: u64,
}

/// Files for tools, while they are unpacked.
#[derive(Debug)]
pub struct Unpacker {
    archive: File,
    /// Offset of the next bytes of file contents in the archive.
    offset: u64,
    entries: std::vec::IntoIter<TreeEntry>,
    directory: OwnedFd,
    path: PathBuf,
    open: Option<OpenFile>,
    /// Directories whose modes are set at the end.
    modes: Vec<(OsString, u16)>,
}

impl Unpacker {
    /// Reads the list of an archive of this size, and creates the directory `path`.
    ///
    /// # Errors
    /// One line: the archive is invalid, or the directory cannot be created.
    pub fn begin(archive: File, size: u64, path: PathBuf) -> Result<Self, String> {
        let (tree, offset) = read_list(&archive, size)?;
        let made = DirBuilder::new().mode(0o700).create(&path).and_then(|()| File::open(&path));
        let directory = made.map_err(|error| format!("{}: {error}", path.display()))?;
        Ok(Self {
            archive,
            offset,
            entries: tree.entries.into_iter(),
            directory: directory.into(),
            path,
            open: None,
            modes: Vec::new(),
        })
    }

    /// Continues to unpack, for a bounded number of bytes and entries. Returns whether everything
    /// is unpacked.
    ///
    /// # Errors
    /// One line with the path at fault.
    pub fn pump(&mut self, mut budget: usize) -> Result<bool, String> {
        for _ in 0..MAX_ENTRIES_PER_TICK {
            let copied = self.copy(&mut budget);
            copied.map_err(|error| format!("{}: {error}", self.path.display()))?;
            if self.open.is_some() {
                return Ok(false);
            }
            let Some(entry) = self.entries.next() else {
                // Subdirectories first.
                for (path, mode) in std::mem::take(&mut self.modes).into_iter().rev() {
                    self.set_mode(&path, mode).map_err(|error| self.failure(&path, &error))?;
                }
                return Ok(true);
            };
            let path = OsStr::from_bytes(&entry.path.0).to_owned();
            self.create(&path, entry.kind).map_err(|error| self.failure(&path, &error))?;
        }
        Ok(false)
    }

    fn failure(&self, path: &OsStr, error: &io::Error) -> String {
        format!("{}: {error}", self.path.join(path).display())
    }

    fn open(&self, path: &OsStr, flags: OFlag, mode: u16) -> io::Result<OwnedFd> {
        let how = OpenHow::new()
            .flags(flags | OFlag::O_CLOEXEC | OFlag::O_NOFOLLOW)
            .mode(Mode::from_bits_truncate(mode.into()))
            .resolve(RESOLVE);
        let path = if path.is_empty() { OsStr::new(".") } else { path };
        Ok(openat2(&self.directory, path, how)?)
    }

    fn create(&mut self, path: &OsStr, kind: TreeEntryKind) -> io::Result<()> {
        let (parent, name) = match path.as_bytes().iter().rposition(|byte| *byte == b'/') {
            Some(slash) => (&path.as_bytes()[..slash], &path.as_bytes()[slash + 1..]),
            None => (&[][..], path.as_bytes()),
        };
        let name = OsStr::from_bytes(name);
        let parent = || self.open(OsStr::from_bytes(parent), OFlag::O_PATH | OFlag::O_DIRECTORY, 0);
        match kind {
            TreeEntryKind::Directory { mode } => {
                mkdirat(parent()?, name, Mode::S_IRWXU)?;
                self.modes.push((path.to_owned(), mode | MIN_DIRECTORY_MODE));
            }
            TreeEntryKind::Link { target } => {
                symlinkat(OsStr::from_bytes(&target.0), parent()?, name)?;
            }
            TreeEntryKind::File { mode, size } => {
                let flags = OFlag::O_CREAT | OFlag::O_EXCL | OFlag::O_WRONLY;
                let file = File::from(self.open(path, flags, 0o600)?);
                self.open = Some(OpenFile { file, mode, left: size });
            }
        }
        Ok(())
    }

    /// Copies bytes of the open file, and closes the file after the last byte.
    fn copy(&mut self, budget: &mut usize) -> io::Result<()> {
        let Some(open) = &mut self.open else { return Ok(()) };
        let mut bytes = Vec::new();
        while open.left > 0 && *budget > 0 {
            let count = open.left.min(COPY_LEN as u64) as usize;
            bytes.resize(count, 0);
            self.archive.read_exact_at(&mut bytes, self.offset)?;
            io::Write::write_all(&mut open.file, &bytes)?;
            self.offset += count as u64;
            open.left -= count as u64;
            *budget = budget.saturating_sub(count);
        }
        if open.left == 0 {
            fchmod(&open.file, Mode::from_bits_truncate(open.mode.into()))?;
            self.open = None;
        }
        Ok(())
    }

    fn set_mode(&self, path: &OsStr, mode: u16) -> io::Result<()> {
        let directory = self.open(path, OFlag::O_RDONLY | OFlag::O_DIRECTORY, 0)?;
        Ok(fchmod(directory, Mode::from_bits_truncate(mode.into()))?)
    }
}

/// The list of an archive, and the offset of its file contents.
fn read_list(archive: &File, size: u64) -> Result<(FileTree, u64), String> {
    let mut prefix = [0; TREE_PREFIX];
    archive.read_exact_at(&mut prefix, 0).map_err(|error| error.to_string())?;
    let length = FileTree::list_length(prefix).map_err(|error| error.to_string())?;
    let offset = (TREE_PREFIX + length) as u64;
    let contents =
        size.checked_sub(offset).ok_or("the list of files is longer than the archive")?;
    let mut list = vec![0; length];
    archive.read_exact_at(&mut list, TREE_PREFIX as u64).map_err(|error| error.to_string())?;
    let tree = FileTree::decode(&list, contents).map_err(|error| error.to_string())?;
    Ok((tree, offset))
}

#[cfg(test)]
#[path = "tool_files_tests.rs"]
mod tests;
