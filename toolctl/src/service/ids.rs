//! Translation of process and thread ids. The service is in the PID namespace of the job, and tools
//! are outside of it (docs/dev/tools.md, R19). Each thread has an id in both namespaces.

use std::collections::BTreeMap;
use std::fs;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::PathBuf;

use score_stacks::capture::CaptureError;
use score_toolctl::tracer::{AttachError, Pid, Tid};

/// Translates ids. If the job has no PID namespace, the ids are the same.
#[derive(Debug, Default)]
pub struct IdTranslator {
    /// /proc of the outer namespace.
    outer: Option<OuterProc>,
}

#[derive(Debug)]
struct OuterProc {
    directory: OwnedFd,
    /// The inode of this process's PID namespace.
    namespace: u64,
    /// The outer ids of the job's processes, by inner id.
    processes: BTreeMap<Pid, Pid>,
}

/// The inode of the PID namespace of a process.
fn namespace_of(directory: &str) -> Option<u64> {
    let link = fs::read_link(format!("{directory}/ns/pid")).ok()?;
    link.to_str()?.strip_prefix("pid:[")?.strip_suffix(']')?.parse().ok()
}

/// A field of the status file in a task's directory of /proc.
fn field(directory: &str, name: &str) -> Option<String> {
    let status = fs::read(format!("{directory}/status")).ok()?;
    let status = String::from_utf8_lossy(&status);
    let value = status.lines().find_map(|line| line.strip_prefix(name))?;
    Some(value.trim().to_owned())
}

/// The id of a task in its own namespace, read from its directory in the outer /proc.
fn inner_id(directory: &str) -> Option<i32> {
    field(directory, "NSpid:")?.split_whitespace().last()?.parse().ok()
}

fn numbers_in(directory: &str) -> Vec<i32> {
    let Ok(entries) = fs::read_dir(directory) else { return Vec::new() };
    let names = entries.flatten().filter_map(|entry| entry.file_name().into_string().ok());
    names.filter_map(|name| name.parse().ok()).collect()
}

impl OuterProc {
    fn path(&self) -> String {
        format!("/proc/self/fd/{}", self.directory.as_raw_fd())
    }

    /// The outer id of a process.
    fn process(&mut self, pid: Pid) -> Option<Pid> {
        if let Some(outer) = self.processes.get(&pid) {
            return Some(*outer);
        }
        let base = self.path();
        self.processes.clear();
        for outer in numbers_in(&base) {
            let directory = format!("{base}/{outer}");
            if namespace_of(&directory) == Some(self.namespace)
                && let Some(inner) = inner_id(&directory)
            {
                self.processes.insert(inner, outer);
            }
        }
        self.processes.get(&pid).copied()
    }
}

impl IdTranslator {
    /// Creates a translator. `descriptor` is the outer /proc. If it is not a directory, the
    /// translator leaves ids unchanged.
    pub fn new(descriptor: OwnedFd) -> Self {
        let path = PathBuf::from(format!("/proc/self/fd/{}", descriptor.as_raw_fd()));
        let is_directory = fs::metadata(&path).is_ok_and(|it| it.is_dir());
        let namespace = namespace_of("/proc/self").filter(|_| is_directory);
        let outer = namespace.map(|namespace| OuterProc {
            directory: descriptor,
            namespace,
            processes: BTreeMap::new(),
        });
        Self { outer }
    }

    /// Drops the cached id of a process that has started or exited, because ids are reused.
    pub fn forget(&mut self, pid: Pid) {
        if let Some(outer) = &mut self.outer {
            outer.processes.remove(&pid);
        }
    }

    /// The id of a rank's process for tools.
    pub fn process_outside(&mut self, pid: Pid) -> Option<Pid> {
        match &mut self.outer {
            Some(outer) => outer.process(pid),
            None => Some(pid),
        }
    }

    /// The tracer of a process: its id for tools, and its name. A tracer outside of the job has no
    /// id in this namespace.
    pub fn tracer_outside(&mut self, pid: Pid) -> Option<(Pid, String)> {
        let outside = self.process_outside(pid)?;
        let base = self.outer.as_ref().map_or_else(|| "/proc".to_owned(), OuterProc::path);
        let tracer: Pid = field(&format!("{base}/{outside}"), "TracerPid:")?.parse().ok()?;
        let name = field(&format!("{base}/{tracer}"), "Name:").unwrap_or_default();
        (tracer > 0).then_some((tracer, name))
    }

    /// Replaces the ids in the error of an attach by the ids for tools.
    pub fn explain_attach(&mut self, pid: Pid, error: AttachError) -> AttachError {
        let outside = self.process_outside(pid).unwrap_or(pid);
        error.outside(outside, self.tracer_outside(pid))
    }

    /// Replaces the ids in the error of reading stacks by the ids for tools.
    pub fn explain_capture(&mut self, pid: Pid, error: CaptureError) -> CaptureError {
        let outside = self.process_outside(pid).unwrap_or(pid);
        error.with_ids(outside, self.tracer_outside(pid))
    }

    /// The id of a thread for tools.
    pub fn thread_outside(&mut self, pid: Pid, tid: Tid) -> Option<Tid> {
        let Some(outer) = &mut self.outer else { return Some(tid) };
        let process = outer.process(pid)?;
        if tid == pid {
            return Some(process);
        }
        let tasks = format!("{}/{process}/task", outer.path());
        numbers_in(&tasks)
            .into_iter()
            .find(|task| inner_id(&format!("{tasks}/{task}")) == Some(tid))
    }

    /// The ids of all threads of a process: inner id and id for tools.
    pub fn threads_outside(&mut self, pid: Pid, tids: &[Tid]) -> Vec<(Tid, Tid)> {
        let Some(outer) = &mut self.outer else {
            return tids.iter().map(|it| (*it, *it)).collect();
        };
        let Some(process) = outer.process(pid) else { return Vec::new() };
        let tasks = format!("{}/{process}/task", outer.path());
        let tasks = numbers_in(&tasks)
            .into_iter()
            .filter_map(|task| Some((inner_id(&format!("{tasks}/{task}"))?, task)));
        tasks.filter(|(inner, _)| tids.contains(inner)).collect()
    }

    /// The inner id of a thread that a tool has named. `None`, if the process has no such thread.
    pub fn thread_inside(&mut self, pid: Pid, named: Tid) -> Option<Tid> {
        match &mut self.outer {
            None => Some(named),
            Some(outer) => {
                let process = outer.process(pid)?;
                inner_id(&format!("{}/{process}/task/{named}", outer.path()))
            }
        }
    }
}
