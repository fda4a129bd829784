//! Serves the files that a debugger reads: the program of the rank and its libraries, as they are
//! on the host of the rank. If this host has the same file at the same path, the stub reads the
//! file of this host.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::PathBuf;

use gdbstub::target::ext::host_io::{HostIoErrno, HostIoOpenMode, HostIoStat};
use score_proto::message::OsBytes;
use score_proto::tool_command::{FileAnswer, FileAttributes, FileQuestion, MAX_FILE_PART};
use score_stacks::address::address_of;
use score_stacks::elf::{MAX_SECTION_LEN, ReadAt};

use super::service::RankService;

/// Maximum number of files that a debugger has open at the same time.
const MAX_FILES: usize = 1024;

/// The host that has the bytes of a file.
#[derive(Debug)]
enum Place {
    /// This host has the same file.
    Here(File),
    /// Only the host of the rank has the file.
    There(RemoteFile),
}

/// A file on another host.
#[derive(Debug)]
struct RemoteFile {
    path: OsBytes,
    /// The part that was read last, and its offset in the file.
    part: Vec<u8>,
    part_at: u64,
}

#[derive(Debug)]
struct OpenFile {
    attributes: FileAttributes,
    place: Place,
}

/// The open files of one rank; see the [module](self).
#[derive(Debug)]
pub struct RankFiles {
    service: RankService,
    open: BTreeMap<u32, OpenFile>,
    last: u32,
}

/// Opens the file at this path on this host if it is the same as on the rank's host. Size and
/// modification time decide: they are equal on a shared file system, and if both hosts have
/// installed the same package.
fn same_file_here(path: &[u8], there: &FileAttributes) -> Option<File> {
    let path = OsStr::from_bytes(path);
    // Opening a FIFO would block.
    std::fs::metadata(path).ok().filter(std::fs::Metadata::is_file)?;
    let file = File::open(path).ok()?;
    let here = file.metadata().ok()?;
    let is_same = here.is_file()
        && here.len() == there.size
        && (here.mtime(), here.mtime_nsec()) == there.modified;
    is_same.then_some(file)
}

fn ask(service: &RankService, question: FileQuestion) -> Result<FileAnswer, HostIoErrno> {
    match service.ask_file(question) {
        Ok(FileAnswer::Errno(errno)) => Err(errno_of(errno)),
        Ok(answer) => Ok(answer),
        Err(_) => Err(HostIoErrno::EIO),
    }
}

fn ask_bytes(service: &RankService, question: FileQuestion) -> Result<Vec<u8>, HostIoErrno> {
    match ask(service, question)? {
        FileAnswer::Bytes(bytes) => Ok(bytes),
        _ => Err(HostIoErrno::EIO),
    }
}

/// The path of a rank's program, if this host has the same file.
pub fn program_here(service: &RankService) -> Option<PathBuf> {
    let program = ask_bytes(service, FileQuestion::Program).ok()?;
    let question = FileQuestion::Attributes(OsBytes(program.clone()));
    let FileAnswer::Attributes(there) = ask(service, question).ok()? else { return None };
    same_file_here(&program, &there)?;
    Some(OsString::from_vec(program).into())
}

impl RemoteFile {
    /// Copies the requested bytes as far as the last part contains them. Returns their number.
    fn copy(&self, at: u64, bytes: &mut [u8]) -> usize {
        let start = at.checked_sub(self.part_at).and_then(|start| usize::try_from(start).ok());
        let rest = start.and_then(|start| self.part.get(start..)).unwrap_or_default();
        let count = rest.len().min(bytes.len());
        bytes[..count].copy_from_slice(&rest[..count]);
        count
    }
}

impl RankFiles {
    /// The files of a rank.
    pub fn new(service: RankService) -> Self {
        Self { service, open: BTreeMap::new(), last: 0 }
    }

    /// The path of the program.
    pub fn program(&self) -> Result<Vec<u8>, HostIoErrno> {
        ask_bytes(&self.service, FileQuestion::Program)
    }

    /// The name of a thread.
    pub fn thread_name(&self, thread: u32) -> Vec<u8> {
        let name = ask_bytes(&self.service, FileQuestion::ThreadName(thread)).unwrap_or_default();
        name.trim_ascii_end().to_vec()
    }

    /// Opens a file for reading. Returns its number.
    pub fn open(&mut self, name: &[u8]) -> Result<u32, HostIoErrno> {
        if self.open.len() >= MAX_FILES {
            return Err(HostIoErrno::EMFILE);
        }
        let path = OsBytes(name.to_vec());
        let FileAnswer::Attributes(attributes) =
            ask(&self.service, FileQuestion::Attributes(path.clone()))?
        else {
            return Err(HostIoErrno::EIO);
        };
        let place = match same_file_here(name, &attributes) {
            Some(file) => Place::Here(file),
            None => Place::There(RemoteFile { path, part: Vec::new(), part_at: 0 }),
        };
        self.last += 1;
        self.open.insert(self.last, OpenFile { attributes, place });
        Ok(self.last)
    }

    /// Closes a file.
    pub fn close(&mut self, number: u32) -> Result<(), HostIoErrno> {
        self.open.remove(&number).map(drop).ok_or(HostIoErrno::EBADF)
    }

    /// Reads a part of a file.
    pub fn read(&mut self, number: u32, at: u64, bytes: &mut [u8]) -> Result<usize, HostIoErrno> {
        let file = self.open.get_mut(&number).ok_or(HostIoErrno::EBADF)?;
        let size = file.attributes.size;
        let there = match &mut file.place {
            Place::Here(file) => {
                return FileExt::read_at(file, bytes, at).map_err(|error| io_errno_of(&error));
            }
            Place::There(there) => there,
        };
        let wanted = (bytes.len() as u64).min(size.saturating_sub(at)) as usize;
        let bytes = &mut bytes[..wanted];
        if there.copy(at, bytes) < wanted {
            let path = there.path.clone();
            let question = FileQuestion::Read { path, offset: at, length: MAX_FILE_PART };
            there.part = ask_bytes(&self.service, question)?;
            there.part_at = at;
        }
        Ok(there.copy(at, bytes))
    }

    /// The attributes of a file.
    pub fn attributes(&self, number: u32) -> Result<HostIoStat, HostIoErrno> {
        let found = self.open.get(&number).ok_or(HostIoErrno::EBADF)?.attributes;
        // The protocol has only 32 bits for most attributes.
        let modified = found.modified.0 as u32;
        Ok(HostIoStat {
            st_dev: found.device as u32,
            st_ino: found.inode as u32,
            st_mode: HostIoOpenMode::from_bits_truncate(found.mode),
            st_nlink: found.links as u32,
            st_uid: found.uid,
            st_gid: found.gid,
            st_rdev: 0,
            st_size: found.size,
            st_blksize: 4096,
            st_blocks: found.size.div_ceil(512),
            st_atime: modified,
            st_mtime: modified,
            st_ctime: modified,
        })
    }

    /// The link-time address of a symbol in the file at this path.
    pub fn symbol(&mut self, path: &[u8], name: &str) -> Option<u64> {
        let number = self.open(path).ok()?;
        let address = address_of(&ReadableFile { files: RefCell::new(self), number }, name);
        self.open.remove(&number);
        address
    }

    /// The target of a symbolic link.
    pub fn link(&self, name: &[u8]) -> Result<Vec<u8>, HostIoErrno> {
        ask_bytes(&self.service, FileQuestion::Link(OsBytes(name.to_vec())))
    }
}

/// An open file of a rank, to be searched for symbols.
struct ReadableFile<'a> {
    files: RefCell<&'a mut RankFiles>,
    number: u32,
}

impl ReadAt for ReadableFile<'_> {
    fn read_at(&self, offset: u64, len: u64) -> Option<Vec<u8>> {
        let mut files = self.files.borrow_mut();
        let size = files.open.get(&self.number)?.attributes.size;
        if len > MAX_SECTION_LEN || offset.checked_add(len)? > size {
            return None;
        }
        let mut bytes = vec![0; usize::try_from(len).ok()?];
        let mut done = 0;
        while done < bytes.len() {
            let at = offset + done as u64;
            match files.read(self.number, at, &mut bytes[done..]).ok()? {
                0 => return None,
                count => done += count,
            }
        }
        Some(bytes)
    }
}

fn io_errno_of(error: &io::Error) -> HostIoErrno {
    errno_of(error.raw_os_error().unwrap_or(libc::EIO))
}

fn errno_of(errno: i32) -> HostIoErrno {
    match errno {
        libc::ENOENT => HostIoErrno::ENOENT,
        libc::EACCES | libc::EPERM => HostIoErrno::EACCES,
        libc::ENOTDIR => HostIoErrno::ENOTDIR,
        libc::EISDIR => HostIoErrno::EISDIR,
        libc::EINVAL => HostIoErrno::EINVAL,
        _ => HostIoErrno::EIO,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_of_this_host_is_read_only_if_it_equals_the_file_of_the_rank() {
        let path = std::env::current_exe().unwrap();
        let path = path.as_os_str().as_bytes();
        let found = std::fs::metadata(OsStr::from_bytes(path)).unwrap();
        let there = FileAttributes {
            device: 0,
            inode: 0,
            mode: 0,
            links: 1,
            uid: 0,
            gid: 0,
            size: found.len(),
            modified: (found.mtime(), found.mtime_nsec()),
        };
        assert!(same_file_here(path, &there).is_some());
        let longer = FileAttributes { size: found.len() + 1, ..there };
        let later = FileAttributes { modified: (found.mtime(), found.mtime_nsec() + 1), ..there };
        for other in [longer, later] {
            assert!(same_file_here(path, &other).is_none());
        }
        assert!(same_file_here(b"/none", &there).is_none());
        assert!(same_file_here(b"/dev/zero", &FileAttributes { size: 0, ..there }).is_none());
    }
}
