//! The reasons why a process could not be captured, each with a remedy for the user.

use std::io;

/// The reason why a process could not be captured.
#[derive(Debug, thiserror::Error)]
pub enum CaptureError {
    /// There is no such process.
    #[error("process {pid}: no such process; find its id with ps")]
    NoSuchProcess {
        /// The process id.
        pid: i32,
    },
    /// The process has exited, and its parent has not yet waited for it.
    #[error("process {pid} has exited: it no longer has a stack")]
    Exited {
        /// The process id.
        pid: i32,
    },
    /// Another tracer traces the process.
    #[error(
        "process {pid} is traced by process {tracer} ({name}): end that tool, or let it detach"
    )]
    TracedBy {
        /// The process id.
        pid: i32,
        /// The process id of its tracer.
        tracer: i32,
        /// Name of the tracer.
        name: String,
    },
    /// The process belongs to another user.
    #[error("process {pid} belongs to user {owner}, not to user {ours}: try as its owner")]
    OtherUser {
        /// The process id.
        pid: i32,
        /// User id of the process.
        owner: u32,
        /// User id of the caller.
        ours: u32,
    },
    /// The Yama security module forbids tracing.
    #[error(
        "process {pid}: kernel.yama.ptrace_scope is {scope}, and this process is not its ancestor; \
         let the administrator set it to 0"
    )]
    Yama {
        /// The process id.
        pid: i32,
        /// The value of the setting.
        scope: u8,
    },
    /// The process does not permit dumping or tracing.
    #[error(
        "process {pid} does not permit tracing: it has made itself undumpable, has changed its \
         user, or its program file cannot be read; try as root"
    )]
    NotDumpable {
        /// The process id.
        pid: i32,
    },
    /// The kernel refuses for a reason other than those above.
    #[error(
        "process {pid}: the kernel refuses to trace it ({source}); allow ptrace in the filter of \
         system calls (seccomp) or in the security module of this process or its container"
    )]
    Refused {
        /// The process id.
        pid: i32,
        /// The error of the kernel.
        source: io::Error,
    },
    /// The process has another architecture.
    #[error("process {pid} runs 32-bit code: only 64-bit programs can be shown")]
    NotX86_64 {
        /// The process id.
        pid: i32,
    },
    /// The list of mappings could not be read.
    #[error("process {pid}: /proc/{pid}/maps cannot be read: {source}")]
    Mappings {
        /// The process id.
        pid: i32,
        /// The reason.
        source: io::Error,
    },
    /// The thread for the tracer could not be started.
    #[error("process {pid}: no thread can be started to trace it: {source}; raise `ulimit -u`")]
    Thread {
        /// The process id.
        pid: i32,
        /// The reason.
        source: io::Error,
    },
    /// The tracer ended early.
    #[error("process {pid}: its tracer ended early; the process continues; try again")]
    Interrupted {
        /// The process id.
        pid: i32,
    },
}

impl CaptureError {
    /// The same error with other ids, such as those of the host. `pid` replaces the process id.
    /// `tracer` is the id and name of the tracer, if there is one.
    #[must_use]
    pub fn with_ids(self, pid: i32, tracer: Option<(i32, String)>) -> Self {
        match (self, tracer) {
            (
                Self::TracedBy { .. } | Self::Yama { .. } | Self::Refused { .. },
                Some((tracer, name)),
            ) => Self::TracedBy { pid, tracer, name },
            (Self::TracedBy { tracer, name, .. }, None) => Self::TracedBy { pid, tracer, name },
            (Self::NoSuchProcess { .. }, _) => Self::NoSuchProcess { pid },
            (Self::Exited { .. }, _) => Self::Exited { pid },
            (Self::OtherUser { owner, ours, .. }, _) => Self::OtherUser { pid, owner, ours },
            (Self::Yama { scope, .. }, None) => Self::Yama { pid, scope },
            (Self::NotDumpable { .. }, _) => Self::NotDumpable { pid },
            (Self::Refused { source, .. }, None) => Self::Refused { pid, source },
            (Self::NotX86_64 { .. }, _) => Self::NotX86_64 { pid },
            (Self::Mappings { source, .. }, _) => Self::Mappings { pid, source },
            (Self::Thread { source, .. }, _) => Self::Thread { pid, source },
            (Self::Interrupted { .. }, _) => Self::Interrupted { pid },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_shows_the_given_ids_and_prefers_a_tracer_to_other_causes() {
        let yama = || CaptureError::Yama { pid: 3, scope: 1 };
        let text = yama().with_ids(4711, None).to_string();
        assert!(text.starts_with("process 4711: kernel.yama.ptrace_scope is 1"), "{text}");
        let text = yama().with_ids(4711, Some((4712, "strace".to_owned()))).to_string();
        assert!(text.starts_with("process 4711 is traced by process 4712 (strace)"), "{text}");
    }
}
