//! The directory that describes a job on this host to tools: `.jobs/ID` in the job's directory
//! (docs/dev/tools.md, "the directory jobs/ID"). The user may modify it. This is safe, because only
//! the user's own tools read it, and this process opens no file that it finds there.
#![forbid(unsafe_code)]

use std::ffi::{CStr, OsStr};
use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, symlink};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use nix::unistd::{getegid, geteuid, getgroups};
use score_proto::ids::ElementIndex;
use score_proto::tool_start::{self, TOOL_CONTROL_VERSION, TOOL_SOCKET};

use super::job_info::JobInfo;
use crate::sys::new_file::write_new;

/// Delay between the start of a stage and the creation of the directory, unless a tool needs it
/// earlier. The delay keeps this work out of the start of short jobs.
const WRITE_DELAY: Duration = Duration::from_millis(100);
/// The numeric id that the kernel shows for groups that a user namespace does not map.
const UNMAPPED_GROUP: u32 = 65534;

/// A program of the running stage, as its processes on this host start it.
#[derive(Debug)]
pub struct StageProgram<'a> {
    /// The paths to try, in order.
    pub candidates: Vec<&'a CStr>,
    /// Its arguments, without the name of the program.
    pub arguments: Vec<&'a CStr>,
    /// NAME=VALUE strings.
    pub environment: Vec<&'a CStr>,
    /// Its initial working directory.
    pub directory: &'a CStr,
}

/// See the [module](self).
#[derive(Debug, Default)]
pub struct ToolDirectory {
    /// Files that describe the running stage.
    written: Vec<PathBuf>,
    /// The directory, after it has been created.
    path: Option<PathBuf>,
    /// When to describe the running stage.
    due_at: Option<Instant>,
}

impl ToolDirectory {
    /// Begins a stage: removes the description of the previous one.
    pub fn begin_stage(&mut self, now: Instant) {
        self.written.drain(..).for_each(|path| _ = fs::remove_file(path));
        self.due_at = Some(now + WRITE_DELAY);
    }

    /// When to write the directory.
    pub fn deadline(&self) -> Option<Instant> {
        self.due_at
    }

    /// Whether the directory has to be written now.
    pub fn is_due(&self, now: Instant) -> bool {
        self.due_at.is_some_and(|due_at| due_at <= now)
    }

    /// Whether a tool is still running. The directory must then stay.
    pub fn has_tools(&self) -> bool {
        let status = self.path.as_ref().map(|path| path.join("tools/status"));
        let entries = status.and_then(|status| fs::read_dir(status).ok());
        entries.is_some_and(|mut entries| entries.next().is_some())
    }

    /// Cancels a write that is due later.
    pub fn close(&mut self) {
        self.due_at = None;
    }

    /// Creates the directory, and describes a stage in it.
    ///
    /// # Errors
    /// One line with the path.
    pub fn write(
        &mut self,
        job_directory: &Path,
        job: &JobInfo,
        programs: &[StageProgram<'_>],
    ) -> Result<(), String> {
        self.due_at = None;
        let path = job_directory.join(tool_start::directory_of(job.job_start.job));
        self.written.drain(..).for_each(|path| _ = fs::remove_file(path));
        let written = self.write_in(&path, job_directory, job, programs);
        self.path = Some(path.clone());
        written.map_err(|error| format!("{}: {error}", path.display()))
    }

    fn write_in(
        &mut self,
        path: &Path,
        job_directory: &Path,
        job: &JobInfo,
        programs: &[StageProgram<'_>],
    ) -> io::Result<()> {
        for name in ["toolctl_rank", "toolctl_node", "tools/status"] {
            fs::DirBuilder::new().recursive(true).mode(0o700).create(path.join(name))?;
        }
        let groups = getgroups().unwrap_or_default();
        let groups = groups.into_iter().map(nix::unistd::Gid::as_raw);
        let own_group = getegid().as_raw();
        let others = groups.filter(|group| *group != own_group && *group != UNMAPPED_GROUP);
        let groups: Vec<String> =
            std::iter::once(own_group).chain(others).map(|group| group.to_string()).collect();
        write_new(&path.join("loginuid"), geteuid().to_string().as_bytes())?;
        write_new(&path.join("loggingids"), &list(groups.iter().map(String::as_bytes)))?;
        write_new(&path.join("tools/protocol"), TOOL_CONTROL_VERSION.to_string().as_bytes())?;
        let socket = job_directory.join(TOOL_SOCKET);
        let host = path.join("toolctl_node").join(job.placement.self_host.0.to_string());
        self.link(&socket, host)?;
        for (element, program) in (0..).map(ElementIndex).zip(programs) {
            let first_rank = element.first_rank(job.placement.nodes());
            for node in job.local_host.node_range() {
                let rank = (first_rank + node).to_string();
                self.link(&socket, path.join("toolctl_rank").join(rank))?;
            }
            self.describe(path, element, program)?;
        }
        Ok(())
    }

    /// Writes the files of a parallel process.
    fn describe(
        &mut self,
        path: &Path,
        element: ElementIndex,
        program: &StageProgram<'_>,
    ) -> io::Result<()> {
        let named = |name: &str| match element {
            ElementIndex::FIRST => path.join(name),
            _ => path.join(format!("{name}.{element}")),
        };
        let to_path = |text: &CStr| PathBuf::from(OsStr::from_bytes(text.to_bytes()));
        let candidates = || program.candidates.iter().map(|path| to_path(path));
        let executable = candidates().find(|path| path.exists()).or_else(|| candidates().next());
        self.link(&executable.unwrap_or_default(), named("exe"))?;
        self.link(&to_path(program.directory), named("wdir"))?;
        for (name, strings) in [("cmdline", &program.arguments), ("environ", &program.environment)]
        {
            let file = named(name);
            write_new(&file, &list(strings.iter().map(|string| string.to_bytes())))?;
            self.written.push(file);
        }
        Ok(())
    }

    fn link(&mut self, target: &Path, name: PathBuf) -> io::Result<()> {
        match symlink(target, &name) {
            // The user has created it.
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            result => result?,
        }
        self.written.push(name);
        Ok(())
    }
}

/// A list of strings. A NUL ends each string and the list.
fn list<'a>(strings: impl Iterator<Item = &'a [u8]>) -> Vec<u8> {
    let mut text = Vec::new();
    strings.for_each(|string| {
        text.extend_from_slice(string);
        text.push(0);
    });
    text.push(0);
    text
}
