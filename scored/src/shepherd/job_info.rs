//! Data about the job and the shepherd that all parts of the shepherd use.

use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;

use score_proto::ids::ElementIndex;
use score_proto::job_control::{HostPlacement, JobStart, Placement};
use score_proto::message::JobSpec;
use score_sys::host_name::system_host_name;

use super::limit_enforcer::CgroupCounters;
use super::program_store::StorePaths;
use crate::raw_socket::RawSocketClient;
use crate::sys::process;

/// One process of the running stage.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ProcessKey {
    /// Index of the element in the stage, from 0.
    pub element: ElementIndex,
    /// Node number, counted over all hosts.
    pub node: u32,
}

/// The nodes of this host. Together with the elements, they define an index from 0 for each process
/// of the running stage.
#[derive(Debug, Clone, Copy, Default)]
pub struct LocalNodes {
    /// The first node.
    pub first: u32,
    /// The number of nodes.
    pub count: usize,
}

impl LocalNodes {
    /// The index of a node among the nodes of this host. None: it is a node of another host.
    pub fn process_index(self, node: u32) -> Option<usize> {
        let process = node.checked_sub(self.first)? as usize;
        (process < self.count).then_some(process)
    }

    /// The index of a process of this host.
    pub fn index(self, key: ProcessKey) -> usize {
        key.element.index() * self.count + key.node.saturating_sub(self.first) as usize
    }

    /// The process of this host with this index. None: this host has no nodes.
    pub fn key(self, index: usize) -> Option<ProcessKey> {
        let element = ElementIndex(index.checked_div(self.count)? as u32);
        Some(ProcessKey { element, node: self.first + (index % self.count) as u32 })
    }
}

/// State that does not change while the shepherd runs.
#[derive(Debug)]
pub struct ShepherdContext {
    /// The job's directory.
    pub directory: PathBuf,
    /// The directory with programs of the user's earlier jobs, if programs of this job are copied.
    pub program_folder: Option<PathBuf>,
    /// /proc of the outer PID namespace, if this process is init of an inner one.
    pub outer_proc: Option<OwnedFd>,
    /// RLIMIT_NOFILE before the shepherd raised its own limit. Processes of the job get this value.
    pub descriptor_limit: libc::rlimit,
    /// /dev/null, open for reading and writing.
    pub null: File,
    /// Files in which the kernel counts the job's resource usage.
    pub cgroup_counters: CgroupCounters,
    /// Whether this is multi-user mode.
    pub multi_user: bool,
    /// Client of the helper that opens raw sockets, because this process has no permission to do
    /// so.
    pub raw_client: Option<RawSocketClient>,
}

impl ShepherdContext {
    /// The directories for files that are copied to this host.
    pub fn paths(&self) -> StorePaths<'_> {
        StorePaths { job: &self.directory, cache: self.program_folder.as_deref() }
    }

    /// The process id of a running process of the job in the PID namespace of the host.
    pub fn outer_pid(&self, inner_pid: i32) -> Option<i32> {
        match &self.outer_proc {
            Some(proc_dir) => {
                process::outer_pid(proc_dir.as_fd(), inner_pid, super::self_pid_namespace())
            }
            None => Some(inner_pid),
        }
    }
}

/// A job whose start has been ordered.
#[derive(Debug)]
pub struct JobInfo {
    /// The order to start the job.
    pub job_start: JobStart,
    /// The job's hosts.
    pub placement: Placement,
    /// This host's block of nodes.
    pub local_host: HostPlacement,
    /// The running stage.
    pub stage: usize,
}

impl JobInfo {
    /// This host's nodes.
    pub fn local_nodes(&self) -> LocalNodes {
        LocalNodes { first: self.local_host.first_node, count: self.local_host.nodes as usize }
    }

    /// The job as submitted.
    pub fn spec(&self) -> &JobSpec {
        &self.job_start.spec
    }

    /// The name of this host in the job, or the system's host name if the job has no name for it.
    pub fn host_name(&self) -> String {
        match self.local_host.name.as_str() {
            "" => system_host_name(),
            name => name.to_owned(),
        }
    }
}
