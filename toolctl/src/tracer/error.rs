//! The errors of tracing processes.

use std::fmt;

use nix::errno::Errno;

use super::{Pid, Tid};

/// Why a process cannot be traced, or its memory cannot be read.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum AttachError {
    /// There is no such process, or it has exited.
    NoProcess(Pid),
    /// Another process traces the process: process, tracer, name of the tracer.
    OtherTracer(Pid, Pid, String),
    /// The process belongs to another user.
    OtherUser(Pid, u32),
    /// The process is not dumpable: a set-user-ID program, an unreadable program file, or its own
    /// prctl(2).
    NotDumpable(Pid),
    /// A seccomp filter of the service forbids ptrace(2).
    Seccomp(Pid),
    /// The security module Yama forbids tracing. Contains the value of `ptrace_scope`.
    Yama(Pid, u32),
    /// The kernel refuses to trace the process for another reason.
    Refused(Pid, Errno),
}

impl fmt::Display for AttachError {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoProcess(pid) => {
                write!(out, "process {pid} does not exist or has exited; list the job's processes")
            }
            Self::OtherTracer(pid, tracer, name) => write!(
                out,
                "process {pid} is traced by process {tracer} ({name}); end that tracer first"
            ),
            Self::OtherUser(pid, uid) => write!(
                out,
                "process {pid} belongs to uid {uid}; only this user can attach a tool to it"
            ),
            Self::NotDumpable(pid) => write!(
                out,
                "process {pid} is not dumpable (set-user-ID program, unreadable program file, \
                 or PR_SET_DUMPABLE 0); start a readable copy of the program"
            ),
            Self::Seccomp(pid) => write!(
                out,
                "seccomp forbids ptrace of process {pid}; allow ptrace in the filter of the \
                 container or unit in which the daemon runs"
            ),
            Self::Yama(pid, scope) => write!(
                out,
                "Yama forbids ptrace of process {pid} (kernel.yama.ptrace_scope is {scope}); \
                 set it to 1 or 0"
            ),
            Self::Refused(pid, errno) => write!(
                out,
                "the kernel refuses ptrace of process {pid}: {errno}; ask the administrator which \
                 security module forbids it"
            ),
        }
    }
}

impl std::error::Error for AttachError {}

impl AttachError {
    /// Replaces the ids of the process and of its tracer in the error by the ids that tools use.
    /// Also sets the name of the tracer, if it has one. A tracer outside of the job has no id in
    /// this namespace.
    #[must_use]
    pub fn outside(self, pid: Pid, tracer: Option<(Pid, String)>) -> Self {
        match (self, tracer) {
            (
                Self::OtherTracer(..) | Self::Seccomp(_) | Self::Yama(..) | Self::Refused(..),
                Some((tracer, name)),
            ) => Self::OtherTracer(pid, tracer, name),
            (Self::OtherTracer(_, tracer, name), None) => Self::OtherTracer(pid, tracer, name),
            (Self::NoProcess(_), _) => Self::NoProcess(pid),
            (Self::OtherUser(_, uid), _) => Self::OtherUser(pid, uid),
            (Self::NotDumpable(_), _) => Self::NotDumpable(pid),
            (Self::Seccomp(_), None) => Self::Seccomp(pid),
            (Self::Yama(_, scope), None) => Self::Yama(pid, scope),
            (Self::Refused(_, errno), None) => Self::Refused(pid, errno),
        }
    }
}

/// Why a request for a process or thread has failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum TraceError {
    /// The process is not attached, or has exited.
    NoProcess(Pid),
    /// The process has no such thread, or the thread is exiting.
    NoThread(Tid),
    /// The request is not possible in the current state of the thread.
    WrongState(Tid, &'static str),
    /// The thread did not stop in time.
    Timeout(Tid),
    /// This address cannot be read or written.
    Address(u64),
    /// The memory is shared between processes, and the request does not permit writing it.
    SharedMemory(u64),
    /// The length is 0, too large, or not a power of two.
    Length(u64),
    /// A parameter has an invalid value.
    Parameter(&'static str),
    /// A breakpoint could not be set or removed.
    Breakpoint(u64, &'static str),
    /// No debug register is free, or the service itself uses the register.
    NoDebugRegister(Tid),
    /// The range overlaps a watchpoint of the thread.
    WatchpointOverlap(u64),
    /// The process could not allocate memory.
    NoMemory(Pid, Errno),
    /// The kernel refused the request.
    Refused(Tid, Errno),
}

impl fmt::Display for TraceError {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoProcess(pid) => write!(out, "process {pid} is not attached or has exited"),
            Self::NoThread(tid) => write!(out, "no thread {tid} in this process; list its threads"),
            Self::WrongState(tid, reason) => write!(out, "thread {tid}: {reason}"),
            Self::Timeout(tid) => write!(
                out,
                "thread {tid} did not stop in time: it waits in the kernel; ask again later"
            ),
            Self::Address(address) => write!(out, "address {address:#x} cannot be accessed"),
            Self::SharedMemory(address) => write!(
                out,
                "address {address:#x} is shared memory; set the flag that permits writing it"
            ),
            Self::Length(length) => write!(out, "length {length} is not allowed"),
            Self::Parameter(reason) => write!(out, "parameter refused: {reason}"),
            Self::Breakpoint(address, reason) => {
                write!(out, "breakpoint at {address:#x}: {reason}")
            }
            Self::NoDebugRegister(tid) => write!(
                out,
                "thread {tid} has no free debug register; remove one of its watchpoints"
            ),
            Self::WatchpointOverlap(address) => {
                write!(out, "a watchpoint of this thread overlaps {address:#x}; remove it first")
            }
            Self::NoMemory(pid, errno) => {
                write!(out, "process {pid} cannot allocate memory: {errno}; request less")
            }
            Self::Refused(tid, errno) => {
                write!(out, "thread {tid}: the kernel refused the request: {errno}")
            }
        }
    }
}

impl std::error::Error for TraceError {}
