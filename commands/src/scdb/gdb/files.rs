//! Files of the host, as a debugger reads them: the program of the rank and its libraries, as the
//! rank sees them.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs::{self, File};
use std::io;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};

use gdbstub::target::ext::host_io::{HostIoErrno, HostIoOpenMode, HostIoStat};

/// Files that a debugger has open at the same time.
const MAX_FILES: usize = 1024;

/// See the [module](self).
#[derive(Debug)]
pub struct HostFiles {
    process: u32,
    open: BTreeMap<u32, File>,
    last: u32,
}

impl HostFiles {
    /// As this process sees them.
    pub fn new(process: u32) -> Self {
        Self { process, open: BTreeMap::new(), last: 0 }
    }

    fn of_process(&self, name: &str) -> PathBuf {
        PathBuf::from(format!("/proc/{}/{name}", self.process))
    }

    /// The path of the program.
    pub fn program(&self) -> io::Result<Vec<u8>> {
        Ok(fs::read_link(self.of_process("exe"))?.into_os_string().into_vec())
    }

    /// The path here of a file of the process.
    fn path(&self, name: &[u8]) -> PathBuf {
        // The program may have been removed, or replaced by a new one of the same name.
        if self.program().is_ok_and(|program| program == name) {
            return self.of_process("exe");
        }
        let path = Path::new(OsStr::from_bytes(name));
        let inside = self.of_process("root").join(path.strip_prefix("/").unwrap_or(path));
        if inside.exists() { inside } else { path.to_owned() }
    }

    /// Opens a file for reading. Returns the number by which it is read.
    pub fn open(&mut self, name: &[u8]) -> Result<u32, HostIoErrno> {
        if self.open.len() >= MAX_FILES {
            return Err(HostIoErrno::EMFILE);
        }
        let path = self.path(name);
        let attributes = fs::metadata(&path).map_err(|error| errno_of(&error))?;
        // Opening a pipe or a device would wait, or do something.
        if attributes.is_dir() {
            return Err(HostIoErrno::EISDIR);
        }
        if !attributes.is_file() {
            return Err(HostIoErrno::EACCES);
        }
        let file = File::open(path).map_err(|error| errno_of(&error))?;
        self.last += 1;
        self.open.insert(self.last, file);
        Ok(self.last)
    }

    fn file(&self, number: u32) -> Result<&File, HostIoErrno> {
        self.open.get(&number).ok_or(HostIoErrno::EBADF)
    }

    /// Closes a file.
    pub fn close(&mut self, number: u32) -> Result<(), HostIoErrno> {
        self.open.remove(&number).map(drop).ok_or(HostIoErrno::EBADF)
    }

    /// Reads a part of a file.
    pub fn read(&self, number: u32, offset: u64, bytes: &mut [u8]) -> Result<usize, HostIoErrno> {
        self.file(number)?.read_at(bytes, offset).map_err(|error| errno_of(&error))
    }

    /// What is known about a file.
    pub fn attributes(&self, number: u32) -> Result<HostIoStat, HostIoErrno> {
        let found = self.file(number)?.metadata().map_err(|error| errno_of(&error))?;
        // The protocol has 32 bits for most of it.
        Ok(HostIoStat {
            st_dev: found.dev() as u32,
            st_ino: found.ino() as u32,
            st_mode: HostIoOpenMode::from_bits_truncate(found.mode()),
            st_nlink: found.nlink() as u32,
            st_uid: found.uid(),
            st_gid: found.gid(),
            st_rdev: found.rdev() as u32,
            st_size: found.size(),
            st_blksize: found.blksize(),
            st_blocks: found.blocks(),
            st_atime: found.atime() as u32,
            st_mtime: found.mtime() as u32,
            st_ctime: found.ctime() as u32,
        })
    }

    /// Where a link leads.
    pub fn link(&self, name: &[u8]) -> Result<Vec<u8>, HostIoErrno> {
        let target = fs::read_link(self.path(name)).map_err(|error| errno_of(&error))?;
        Ok(target.into_os_string().into_vec())
    }
}

fn errno_of(error: &io::Error) -> HostIoErrno {
    match error.kind() {
        io::ErrorKind::NotFound => HostIoErrno::ENOENT,
        io::ErrorKind::PermissionDenied => HostIoErrno::EACCES,
        io::ErrorKind::NotADirectory => HostIoErrno::ENOTDIR,
        io::ErrorKind::InvalidInput => HostIoErrno::EINVAL,
        _ => HostIoErrno::EIO,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_read_by_number_and_only_files() {
        let mut files = HostFiles::new(std::process::id());
        let program = files.program().unwrap();
        let number = files.open(&program).unwrap();
        let mut magic = [0; 4];
        assert_eq!((files.read(number, 0, &mut magic).unwrap(), &magic), (4, b"\x7fELF"));
        let attributes = files.attributes(number).unwrap();
        assert!(attributes.st_size > 1000);
        assert!(attributes.st_mode.contains(HostIoOpenMode::S_IFREG));
        files.close(number).unwrap();
        assert!(matches!(files.close(number), Err(HostIoErrno::EBADF)));
        assert!(matches!(files.read(number, 0, &mut magic), Err(HostIoErrno::EBADF)));
        assert!(matches!(files.open(b"/usr"), Err(HostIoErrno::EISDIR)));
        assert!(matches!(files.open(b"/dev/zero"), Err(HostIoErrno::EACCES)));
        assert!(matches!(files.open(b"/none\xff"), Err(HostIoErrno::ENOENT)));
        assert_eq!(files.link(b"/proc/self/exe").unwrap_or_default(), program);
    }
}
