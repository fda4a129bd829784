//! The tool control service. It joins the messages of tools, the authority of tools over processes,
//! and the tracer. It runs in one loop of one thread, because ptrace(2) requires this. Only the
//! loop waits.
//!
//! | file | contents |
//! |---|---|
//! | `mod.rs` | the loop, and the handling of orders |
//! | `shepherd.rs` | the socket of the shepherd: orders and reports |
//! | `clients.rs` | connections of tools |
//! | `tools.rs` | messages of tools, actions of the authority, events of the tracer |
//! | `attaches.rs` | Attach messages that wait |
//! | `work.rs`, `commands.rs` | the commands of Query and Update |
//! | `queries.rs`, `files.rs` | the data of processes, threads and files of the job |
//! | `convert.rs` | conversion between messages and types of the tracer |
//! | `rank_processes.rs` | the running processes, by rank and by process id |
//! | `ids.rs` | ids of processes and threads outside of the job's PID namespace |
//! | `breakpoints.rs` | breakpoints, which the shepherd also lists |
//! | `start_notice.rs` | the notice at the start of a program |
//! | `stacks.rs`, `fault_stack.rs` | the commands that read stacks |
//! | `console.rs` | consoles, which are also tools |
//! | `console_actions.rs`, `line_step.rs` | the commands of consoles |
//! | `console_points.rs` | the breakpoints and watchpoints of consoles |
//! | `relay.rs` | tools whose messages the shepherd relays |
//! | `process_files.rs` | the program and its libraries, in the file system of a process |
//!
//! **Notices.** The tracer has the queue of notices of each process. It issues one at a time, when
//! all threads are stopped. The authority decides which tool is notified, and when the process
//! continues.
//!
//! **Ids.** The authority and the tracer use ids of the service's PID namespace. They are
//! translated when a message is decoded or encoded.

mod attaches;
mod breakpoints;
mod clients;
mod commands;
mod console;
mod console_actions;
mod console_points;
mod convert;
mod fault_stack;
mod files;
mod ids;
mod line_step;
mod process_files;
mod queries;
mod rank_processes;
mod relay;
mod shepherd;
mod stacks;
mod start_notice;
mod tools;
mod work;

use std::ffi::OsString;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStringExt;
use std::time::Duration;

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use score_proto::ids::ElementIndex;
use score_proto::tool_command::{CommandId, ToolRequest, ToolResult};
use score_proto::toolctl::{ToolProcess, ToolctlOrder};
use score_toolctl::tracer::{Linux, Tracer};
use score_tools::authority::{self, Authority, ConnectionId};

use attaches::AttachQueue;
use breakpoints::ReportedBreakpoints;
use clients::Clients;
use console::Consoles;
use ids::IdTranslator;
use queries::Queries;
use rank_processes::RankProcesses;
use relay::Relays;
use shepherd::Shepherd;
use stacks::{StackCommands, StackScope};
use start_notice::StartNotices;
use work::WorkQueues;

/// See the [module](self).
pub struct Service {
    shepherd: Shepherd,
    signals: SignalFd,
    clients: Clients,
    ids: IdTranslator,
    authority: Authority,
    tracer: Tracer<Linux>,
    works: WorkQueues,
    attaches: AttachQueue,
    processes: RankProcesses,
    queries: Queries,
    stacks: StackCommands,
    consoles: Consoles,
    start_notices: StartNotices,
    relays: Relays,
}

/// The owner of a ready descriptor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Source {
    Signals,
    Shepherd,
    Listener,
    Client(ConnectionId),
}

impl Service {
    /// Creates the service. `descriptors` are the socket of the shepherd, the listening socket for
    /// tools, and /proc of the outer PID namespace.
    ///
    /// # Errors
    /// Returns the errors of signalfd(2).
    pub fn new(descriptors: [OwnedFd; 3]) -> io::Result<Self> {
        let mask = SigSet::from(Signal::SIGCHLD);
        mask.thread_block()?;
        let flags = SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK;
        let [shepherd, listener, outer_proc] = descriptors;
        Ok(Self {
            shepherd: Shepherd::new(shepherd),
            signals: SignalFd::with_flags(&mask, flags)?,
            clients: Clients::new(listener),
            ids: IdTranslator::new(outer_proc),
            authority: Authority::new(0, nix::unistd::geteuid().as_raw()),
            tracer: Tracer::new(Linux),
            works: WorkQueues::default(),
            attaches: AttachQueue::default(),
            processes: RankProcesses::default(),
            queries: Queries::default(),
            stacks: StackCommands::default(),
            consoles: Consoles::default(),
            start_notices: StartNotices::default(),
            relays: Relays::default(),
        })
    }

    /// Runs the service until the shepherd ends it.
    ///
    /// # Errors
    /// Returns an error if the shepherd's socket or a system call of the loop has failed.
    pub fn run(mut self) -> io::Result<()> {
        loop {
            let ready = self.wait()?;
            for (source, flags) in ready {
                match source {
                    Source::Signals => while matches!(self.signals.read_signal(), Ok(Some(_))) {},
                    Source::Shepherd if !self.receive_orders()? => return Ok(()),
                    Source::Shepherd => {}
                    Source::Listener => self.accept(),
                    Source::Client(id) => self.serve_client(id, flags),
                }
                self.settle();
            }
            while self.tracer.handle_events() {
                self.settle();
            }
            self.settle();
            self.report_tools()?;
            let is_free = |pid| self.tracer.has_no_trace_of(pid);
            if self.shepherd.is_ending() && self.processes.pids().all(is_free) {
                return Ok(());
            }
            if self.shepherd.take_leave() {
                // A tool that has connected meanwhile has no answer yet, so the service must not
                // exit.
                self.accept();
                if self.clients.is_empty() && self.consoles.is_empty() {
                    return Ok(());
                }
                self.report_tools()?;
            }
        }
    }

    /// Waits for events. Returns the ready descriptors.
    fn wait(&self) -> io::Result<Vec<(Source, PollFlags)>> {
        let mut sources = vec![Source::Signals, Source::Shepherd];
        let mut fds = vec![
            PollFd::new(self.signals.as_fd(), PollFlags::POLLIN),
            PollFd::new(self.shepherd.as_fd(), PollFlags::POLLIN),
        ];
        // The tool that caused the start of this service connects before the orders arrive.
        if let Some(listener) = self.clients.listener().filter(|_| self.shepherd.serves_tools()) {
            sources.push(Source::Listener);
            fds.push(PollFd::new(listener, PollFlags::POLLIN));
        }
        for (id, fd, flags) in self.clients.interests() {
            sources.push(Source::Client(id));
            fds.push(PollFd::new(fd, flags));
        }
        let timeouts = self.tracer.next_timeout().into_iter().chain(self.relays.next_timeout());
        let timeout = match timeouts.min() {
            // Rounded up, because otherwise the loop would spin until the timeout.
            Some(timeout) => PollTimeout::try_from(timeout + Duration::from_millis(1)),
            None => Ok(PollTimeout::NONE),
        };
        match poll(&mut fds, timeout.unwrap_or(PollTimeout::MAX)) {
            Ok(_) | Err(Errno::EINTR) => {}
            Err(errno) => return Err(errno.into()),
        }
        let ready = sources.into_iter().zip(&fds).filter_map(|(source, fd)| {
            fd.revents().filter(|flags| !flags.is_empty()).map(|flags| (source, flags))
        });
        Ok(ready.collect())
    }

    /// Handles the orders of the shepherd. Returns false if the shepherd has ended.
    fn receive_orders(&mut self) -> io::Result<bool> {
        if !self.shepherd.receive()? {
            return Ok(false);
        }
        while let Some(order) = self.shepherd.next_order()? {
            self.on_order(order)?;
        }
        Ok(true)
    }

    fn on_order(&mut self, order: ToolctlOrder) -> io::Result<()> {
        match order {
            ToolctlOrder::Job(job) => {
                // Messages of tools have 64 bits for the number of the job.
                let job_number = job.job.0.into();
                self.consoles.set_job(job_number);
                let directory = OsString::from_vec(job.directory.0);
                self.queries.set_job(job.host, directory.into());
                self.authority = Authority::new(job_number, nix::unistd::geteuid().as_raw());
            }
            ToolctlOrder::Started { rank, number, pid } => {
                self.ids.forget(pid);
                self.processes.insert(rank, number, pid);
                self.feed(authority::Event::Started { rank });
            }
            ToolctlOrder::Exited { rank, status } => {
                if let Some(pid) = self.processes.remove(rank) {
                    self.ids.forget(pid);
                }
                self.feed(authority::Event::Exited { rank, status });
            }
            ToolctlOrder::RemoveBreakpoints { rank, breakpoints } => {
                if let Some(pid) = self.processes.pid(rank) {
                    self.breakpoints().remove_leftovers(pid, &breakpoints);
                }
            }
            ToolctlOrder::JobTime { ns } => self.on_job_time(ns),
            // The connection to the shepherd handles these orders.
            ToolctlOrder::ServeTools | ToolctlOrder::Leave | ToolctlOrder::End => {}
            ToolctlOrder::Command { element, id, processes, body, wait_ms: _ } => {
                self.on_command((element, id), &processes, &body)?;
            }
        }
        Ok(())
    }

    fn on_command(
        &mut self,
        command: (ElementIndex, CommandId),
        processes: &[ToolProcess],
        body: &[u8],
    ) -> io::Result<()> {
        let scope = match ToolRequest::decode(body) {
            Some(ToolRequest::Stacks { lines }) => StackScope::AllThreads { lines },
            Some(ToolRequest::FaultStack) => StackScope::AfterFault,
            Some(ToolRequest::Threads(detail)) => StackScope::Threads(detail),
            Some(ToolRequest::Console { session, action }) => {
                self.on_console_action(command, processes, session, &action);
                return Ok(());
            }
            Some(ToolRequest::Relay { session, action }) => {
                self.on_relay_action(command, processes, session, action);
                return Ok(());
            }
            Some(ToolRequest::File(question)) => {
                let (ids, shepherd) = (&mut self.ids, &mut self.shepherd);
                process_files::answer_question(command, processes, &question, ids, shepherd);
                return Ok(());
            }
            None => {
                let text = "unknown command: use tools of the same release as scored-toolctl";
                let failed = ToolResult::Failed(text.to_owned());
                return self.shepherd.answer_all(command, processes, &failed);
            }
        };
        let (tracer, ids) = (&mut self.tracer, &mut self.ids);
        let reports = self.stacks.begin(command, processes, scope, tracer, ids);
        self.shepherd.report(&reports)
    }

    /// The breakpoints of the processes.
    fn breakpoints(&mut self) -> ReportedBreakpoints<'_> {
        ReportedBreakpoints::new(&mut self.tracer, &mut self.shepherd)
    }

    /// Reports to the shepherd whether tools are connected.
    fn report_tools(&mut self) -> io::Result<()> {
        let has_tools = !self.clients.is_empty() || !self.consoles.is_empty();
        self.shepherd.report_tools(has_tools)
    }
}
