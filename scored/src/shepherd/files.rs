//! Redirection to files of this host (manual, scrun(1), INPUT/OUTPUT REDIRECTION).

use std::fs::OpenOptions;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use score_proto::message::FileName;

use crate::sys::descriptor;

/// Where the files of a job without `/` in their name are, and how many processes write there.
#[derive(Debug, Clone, Copy)]
pub struct Place<'a> {
    /// The job's directory.
    pub directory: &'a Path,
    /// Processes of a parallel process on this host.
    pub processes: u32,
}

impl Place<'_> {
    fn path(&self, name: &FileName) -> PathBuf {
        // join() takes an absolute name as it is.
        self.directory.join(std::ffi::OsString::from_vec(name.0.0.clone()))
    }

    /// `NAME.NODE`: the name of one process's file where several processes write.
    fn numbered(&self, name: &FileName, node: u32) -> PathBuf {
        let mut path = self.path(name).into_os_string();
        path.push(format!(".{node}"));
        path.into()
    }

    /// `:= NAME`: every process opens it; the file that this node has written comes first.
    ///
    /// # Errors
    /// One line that names the file and the host.
    pub fn open_input(&self, name: &FileName, node: u32) -> Result<OwnedFd, String> {
        let plain = self.path(name);
        let mut options = OpenOptions::new();
        options.read(true);
        if !name.is_absolute() {
            match open(&options, &self.numbered(name, node)) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                other => return other.map_err(|error| fault(&self.numbered(name, node), &error)),
            }
        }
        open(&options, &plain).map_err(|error| fault(&plain, &error))
    }

    /// `=: NAME` and `=:: NAME`. `None`: this process is to write to /dev/null, since only the
    /// first of a host writes to an absolute name.
    ///
    /// # Errors
    /// One line that names the file and the host.
    pub fn open_output(
        &self,
        name: &FileName,
        append: bool,
        process: u32,
        node: u32,
    ) -> Result<Option<OwnedFd>, String> {
        let path = match (name.is_absolute(), self.processes) {
            (true, _) if process > 0 => return Ok(None),
            (true, _) | (false, 1) => self.path(name),
            (false, _) => self.numbered(name, node),
        };
        let mut options = OpenOptions::new();
        options.create(true).mode(0o666);
        if append {
            options.append(true);
        } else {
            options.write(true).truncate(true);
        }
        open(&options, &path).map(Some).map_err(|error| fault(&path, &error))
    }
}

/// Opens without ever waiting: a FIFO without a peer must not stop the whole job.
fn open(options: &OpenOptions, path: &Path) -> io::Result<OwnedFd> {
    let file = options.clone().custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY).open(path)?;
    descriptor::set_blocking(file.as_fd())?;
    Ok(file.into())
}

fn fault(path: &Path, error: &io::Error) -> String {
    let reason = error.to_string();
    let reason = reason.split(" (os error").next().unwrap_or_default();
    format!("host {}: {}: {reason}", host_name(), path.display())
}

/// The name of this host, for messages.
pub fn host_name() -> String {
    match nix::sys::utsname::uname() {
        Ok(name) => name.nodename().to_string_lossy().into_owned(),
        Err(_) => "localhost".to_owned(),
    }
}
