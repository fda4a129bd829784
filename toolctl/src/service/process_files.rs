//! The files of a process of the job: its program and its libraries. A debugger that may be on
//! another host reads them.

use std::ffi::OsStr;
use std::fs::{self, OpenOptions};
use std::io;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use score_proto::ids::ElementIndex;
use score_proto::message::OsBytes;
use score_proto::tool_command::{
    CommandId, FileAnswer, FileAttributes, FileQuestion, MAX_FILE_PART, ToolResult,
};
use score_proto::toolctl::ToolProcess;
use score_toolctl::tracer::Pid;

use super::ids::IdTranslator;
use super::shepherd::{Shepherd, Target};

fn of_process(pid: Pid, name: &str) -> PathBuf {
    PathBuf::from(format!("/proc/{pid}/{name}"))
}

fn program(pid: Pid) -> io::Result<Vec<u8>> {
    Ok(fs::read_link(of_process(pid, "exe"))?.into_os_string().into_vec())
}

/// The path of a file of the process in this process's file system.
fn path_here(pid: Pid, name: &[u8]) -> PathBuf {
    // The program may have been removed, or replaced by a new file of the same name.
    if program(pid).is_ok_and(|program| program == name) {
        return of_process(pid, "exe");
    }
    let path = Path::new(OsStr::from_bytes(name));
    let inside = of_process(pid, "root").join(path.strip_prefix("/").unwrap_or(path));
    if inside.exists() { inside } else { path.to_owned() }
}

/// The attributes of a regular file. Other files are refused, because opening a pipe or a device
/// could block or have side effects.
fn attributes(path: &Path) -> io::Result<FileAttributes> {
    let found = fs::metadata(path)?;
    if found.is_dir() {
        return Err(Errno::EISDIR.into());
    }
    if !found.is_file() {
        return Err(Errno::EACCES.into());
    }
    Ok(FileAttributes {
        device: found.dev(),
        inode: found.ino(),
        mode: found.mode(),
        links: found.nlink(),
        uid: found.uid(),
        gid: found.gid(),
        size: found.size(),
        modified: (found.mtime(), found.mtime_nsec()),
    })
}

fn read(path: &Path, offset: u64, length: u32) -> io::Result<Vec<u8>> {
    attributes(path)?;
    // O_NONBLOCK, because the file may have been replaced by a pipe meanwhile.
    let file = OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(path)?;
    let mut bytes = vec![0; length.min(MAX_FILE_PART) as usize];
    let mut done = 0;
    while done < bytes.len() {
        match file.read_at(&mut bytes[done..], offset.saturating_add(done as u64)) {
            Ok(0) => break,
            Ok(count) => done += count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    bytes.truncate(done);
    Ok(bytes)
}

/// Answers a question about files for each of these processes.
pub fn answer_question(
    (element, id): (ElementIndex, CommandId),
    processes: &[ToolProcess],
    question: &FileQuestion,
    ids: &mut IdTranslator,
    shepherd: &mut Shepherd,
) {
    for process in processes {
        let answer = answer_of(process.pid, question, ids)
            .unwrap_or_else(|error| FileAnswer::Errno(error.raw_os_error().unwrap_or(libc::EIO)));
        let target = Target { element, id, node: process.node };
        shepherd.answer(target, &ToolResult::File(answer));
    }
}

fn answer_of(pid: Pid, question: &FileQuestion, ids: &mut IdTranslator) -> io::Result<FileAnswer> {
    Ok(match question {
        FileQuestion::Program => FileAnswer::Bytes(program(pid)?),
        FileQuestion::Link(OsBytes(name)) => {
            let target = fs::read_link(path_here(pid, name))?;
            FileAnswer::Bytes(target.into_os_string().into_vec())
        }
        FileQuestion::Attributes(OsBytes(name)) => {
            FileAnswer::Attributes(attributes(&path_here(pid, name))?)
        }
        FileQuestion::Read { path: OsBytes(name), offset, length } => {
            FileAnswer::Bytes(read(&path_here(pid, name), *offset, *length)?)
        }
        FileQuestion::ThreadName(outside) => {
            let tid = ids.thread_inside(pid, outside.cast_signed()).ok_or(Errno::ESRCH)?;
            FileAnswer::Bytes(fs::read(of_process(pid, &format!("task/{tid}/comm")))?)
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_read_in_parts_and_only_files() {
        let pid = std::process::id().cast_signed();
        let program = program(pid).unwrap();
        let path = path_here(pid, &program);
        assert_eq!(path, of_process(pid, "exe"));
        let size = attributes(&path).unwrap().size;
        assert_eq!(read(&path, 0, 4).unwrap(), b"\x7fELF");
        assert_eq!(read(&path, size - 3, u32::MAX).unwrap().len(), 3);
        assert!(read(&path, u64::MAX, 1).is_err());
        let errno = |name: &[u8]| {
            read(&path_here(pid, name), 0, 1).unwrap_err().raw_os_error().map(Errno::from_raw)
        };
        assert_eq!(errno(b"/usr"), Some(Errno::EISDIR));
        assert_eq!(errno(b"/dev/zero"), Some(Errno::EACCES));
        assert_eq!(errno(b"/none\xff"), Some(Errno::ENOENT));
    }
}
