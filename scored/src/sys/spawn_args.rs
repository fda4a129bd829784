//! The parameters for the start of a process of the user.

use std::ffi::{CStr, CString};
use std::os::fd::BorrowedFd;

use nix::sched::CpuSet;

/// The descriptor of a process's control socket.
pub const CONTROL_FD: i32 = 3;
/// The descriptor of the PMI socket of an MPI program.
pub const PMI_FD: i32 = 4;

/// A program and its arguments.
#[derive(Debug)]
pub struct Program {
    /// Paths to try in order, as execvp(3) does.
    candidates: Vec<CString>,
    /// argv, including argv[0].
    arguments: Vec<CString>,
}

impl Program {
    /// A program. The first of `candidates` that exists is executed.
    pub fn new(candidates: Vec<CString>, arguments: Vec<CString>) -> Self {
        Self { candidates, arguments }
    }

    /// The candidates and the arguments.
    pub fn parts(&self) -> (&[CString], &[CString]) {
        (&self.candidates, &self.arguments)
    }
}

/// A file that the child itself opens. If the open blocks for ever, for example on a network file
/// system whose server is down, it blocks only the child, and a signal ends the child.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ChildFile {
    /// Candidates. The child opens the first one that exists.
    pub paths: Vec<CString>,
    /// Flags of open(2). O_NONBLOCK applies only to the open itself.
    pub flags: i32,
}

/// Source of a descriptor of the child.
#[derive(Debug, Clone, Copy)]
pub enum FdSource<'a> {
    /// A descriptor of this process, whose number must be above [`PMI_FD`].
    Fd(BorrowedFd<'a>),
    /// A file that the child opens.
    File(&'a ChildFile),
}

/// Settings that differ between the processes of a job.
#[derive(Debug)]
pub struct SpawnArgs<'a> {
    /// The program.
    pub program: &'a Program,
    /// NAME=VALUE strings.
    pub environment: &'a [&'a CStr],
    /// Working directory.
    pub directory: &'a CStr,
    /// Descriptors 0, 1, 2 and [`CONTROL_FD`] of the process.
    pub descriptors: [FdSource<'a>; 4],
    /// Descriptor [`PMI_FD`] of the process, if it has one.
    pub pmi_socket: Option<BorrowedFd<'a>>,
    /// RLIMIT_NOFILE of the process.
    pub descriptor_limit: libc::rlimit,
    /// Whether the kernel kills the process when this process exits. Needed if there is no PID
    /// namespace.
    pub die_with_parent: bool,
    /// Initial affinity of the process, if any.
    pub cpu_set: Option<&'a CpuSet>,
    /// Whether the process stops with SIGSTOP before the first instruction of its program.
    pub hold: bool,
}
