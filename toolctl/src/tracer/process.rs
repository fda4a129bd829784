//! The tracer's state of a process.
//!
//! | file | contents |
//! |---|---|
//! | `process/threads.rs` | the threads, and the calls that resume and interrupt them |
//! | `process/notices.rs` | the notices, and the suspension that they cause |
//! | `process/traced_memory.rs` | the memory, with breakpoints |
//! | `process/traps.rs` | the cause of a SIGTRAP |
//! | `process/request_queue.rs` | the requests that wait for a thread to stop |
//! | `process/serve_requests.rs`, `process/thread_access.rs` | carrying out requests |
//! | `process/inject.rs` | system calls that a thread executes for a tool |
//! | `process/tool_resources.rs` | the memory and the trap handler that such calls have made |
//! | `process/new_threads.rs` | the watchpoints of new threads |

#![forbid(unsafe_code)]

mod inject;
mod new_threads;
mod notices;
mod request_queue;
mod serve_requests;
mod thread_access;
mod threads;
mod tool_resources;
mod traced_memory;
mod traps;

use std::collections::VecDeque;

use super::error::TraceError;
use super::kernel::Kernel;
use super::request::{Answer, Ticket};
use super::watchpoints::WatchPolicy;
use super::{Event, Pid, Tid};
pub use inject::{Injection, Purpose, TrapHandler};
pub use notices::{NoticeQueue, NoticeReason, SignalNotice, SignalSet};
pub use request_queue::RequestQueue;
pub use threads::{Motion, Place, Stop, Thread, Threads};
pub use tool_resources::{Preferences, ToolResources};
pub(in crate::tracer) use traced_memory::checked_buffer;
pub use traced_memory::{BreakpointHit, MAX_MEMORY_LEN, TracedMemory};
pub use traps::TrapCause;

/// An operation during which all other threads are stopped.
#[derive(Debug)]
pub enum Exclusive {
    /// A thread passes a breakpoint.
    Pass(Tid, u64),
    /// A thread makes a step for a tool.
    Step(Tid),
    /// A thread executes a system call for the tracer.
    Inject(Box<Injection>),
}

impl Exclusive {
    /// The thread that moves.
    pub fn tid(&self) -> Tid {
        match self {
            Self::Pass(tid, _) | Self::Step(tid) => *tid,
            Self::Inject(injection) => injection.tid,
        }
    }
}

/// The progress of detaching a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Presence {
    /// The process is traced.
    Attached,
    /// The threads are being stopped, and the process is being restored to its untraced state.
    Leaving,
    /// The process is restored. The tracer detaches each thread when it stops.
    Restored,
}

/// A process.
#[derive(Debug)]
pub struct Process {
    /// Its process id.
    pub pid: Pid,
    /// Its threads.
    pub threads: Threads,
    /// Its notices.
    pub notices: NoticeQueue,
    /// Its memory, with breakpoints.
    pub memory: TracedMemory,
    /// The exclusive operation, and whether it has begun.
    pub exclusive: Option<(Exclusive, bool)>,
    /// The requests that wait for a thread to stop.
    pub requests: RequestQueue,
    /// The memory and the trap handler of tools in it.
    pub resources: ToolResources,
    /// Whether new threads get watchpoints.
    pub watch_policy: WatchPolicy,
    /// Whether the process is being detached.
    pub presence: Presence,
}

/// The environment of the functions of a process.
pub struct Context<'a, K> {
    /// The kernel.
    pub kernel: &'a mut K,
    /// The events for the user of the tracer.
    pub events: &'a mut VecDeque<Event>,
}

impl<K> Context<'_, K> {
    /// Answers a request, if there is one.
    pub fn answer(&mut self, ticket: Option<Ticket>, result: Result<Answer, TraceError>) {
        if let Some(ticket) = ticket {
            self.events.push_back(Event::Answer { ticket, result });
        }
    }
}

impl Process {
    /// Creates a process without threads.
    pub fn new(pid: Pid) -> Self {
        Self {
            pid,
            threads: Threads::default(),
            notices: NoticeQueue::default(),
            memory: TracedMemory::new(pid),
            exclusive: None,
            requests: RequestQueue::default(),
            resources: ToolResources::default(),
            watch_policy: WatchPolicy::default(),
            presence: Presence::Attached,
        }
    }

    /// The process after an exec, in which `tid` is stopped. All state of the former program is
    /// dropped.
    pub fn after_exec(&mut self, tid: Tid) -> Self {
        Self {
            pid: self.pid,
            threads: self.threads.after_exec(tid),
            notices: self.notices.after_exec(),
            memory: TracedMemory::new(self.pid),
            exclusive: None,
            requests: self.requests.after_exec(),
            resources: self.resources.after_exec(),
            watch_policy: self.watch_policy,
            presence: self.presence,
        }
    }

    /// Whether a thread moves while the others are stopped.
    pub fn is_moving_alone(&self, tid: Tid) -> bool {
        self.exclusive.as_ref().is_some_and(|(exclusive, begun)| *begun && exclusive.tid() == tid)
    }

    /// Queues a notice. All threads are suspended from now on.
    pub fn queue_notice<K: Kernel>(
        &mut self,
        context: &Context<'_, K>,
        (tid, signal): (Tid, i32),
        reason: NoticeReason,
        access: u64,
    ) {
        let instruction = context.kernel.registers(tid).map_or(0, |registers| registers.rip);
        let Some(thread) = self.threads.get_mut(tid) else { return };
        thread.has_notice = true;
        thread.continuation = None;
        let pid = self.pid;
        self.notices.push(SignalNotice { pid, tid, signal, reason, instruction, access });
    }
}
