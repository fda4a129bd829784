//! Redirection to files of this host (manual, scrun(1), INPUT/OUTPUT REDIRECTION).

use std::ffi::{CStr, CString};
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

use score_proto::ids::ProcessIndex;
use score_proto::message::FileName;
use score_sys::host_name::system_host_name;

use crate::sys::spawn_args::ChildFile;

/// The directory of files whose names contain no `/`, and the number of processes that write there.
#[derive(Debug, Clone, Copy)]
pub struct RedirectContext<'a> {
    /// The job's directory.
    pub directory: &'a Path,
    /// Number of processes of one element on this host.
    pub process_count: u32,
}

impl RedirectContext<'_> {
    fn path(&self, name: &FileName) -> PathBuf {
        // join() returns an absolute name unchanged.
        self.directory.join(std::ffi::OsString::from_vec(name.0.0.clone()))
    }

    /// `NAME.NODE`: the file of one process if several processes write.
    fn path_of_node(&self, name: &FileName, node: u32) -> PathBuf {
        let mut path = self.path(name).into_os_string();
        path.push(format!(".{node}"));
        path.into()
    }

    /// The files for `:= NAME`, which every process opens. The file that this node has written is
    /// tried first.
    pub fn input(&self, name: &FileName, node: u32) -> ChildFile {
        let mut paths = vec![self.path(name)];
        if !name.is_absolute() {
            paths.insert(0, self.path_of_node(name, node));
        }
        child_file(paths, libc::O_RDONLY)
    }

    /// The file for `=: NAME` and `=:: NAME`. `None`: this process must write to /dev/null, because
    /// only the first process of a host writes to an absolute name.
    pub fn output(
        &self,
        name: &FileName,
        append: bool,
        process: ProcessIndex,
        node: u32,
    ) -> Option<ChildFile> {
        let path = match (name.is_absolute(), self.process_count) {
            (true, _) if process > ProcessIndex::FIRST => return None,
            (true, _) | (false, 1) => self.path(name),
            (false, _) => self.path_of_node(name, node),
        };
        let mode_flag = if append { libc::O_APPEND } else { libc::O_TRUNC };
        Some(child_file(vec![path], libc::O_WRONLY | libc::O_CREAT | mode_flag))
    }
}

/// A file that is opened with these flags. Opening a FIFO does not wait for its other end.
fn child_file(paths: Vec<PathBuf>, flags: i32) -> ChildFile {
    // check() has rejected NUL bytes.
    let to_c_string =
        |path: PathBuf| CString::new(path.into_os_string().into_vec()).unwrap_or_default();
    let flags = flags | libc::O_NONBLOCK | libc::O_NOCTTY;
    ChildFile { paths: paths.into_iter().map(to_c_string).collect(), flags }
}

/// The error message for a file that could not be opened: one line with host and file.
pub fn open_error(path: &CStr, errno: i32) -> String {
    let reason = nix::errno::Errno::from_raw(errno).desc();
    format!("host {}: {}: {reason}", system_host_name(), path.to_string_lossy())
}
