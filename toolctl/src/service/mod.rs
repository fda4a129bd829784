//! The tool control service. It joins the messages of tools, the authority of tools over processes,
//! and the tracer. It runs in one loop of one thread, because ptrace(2) requires this. Only the
//! loop waits.
//!
//! | file | contents |
//! |---|---|
//! | `mod.rs` | the loop, and the orders of the shepherd |
//! | `clients.rs` | connections of tools |
//! | `tools.rs` | messages of tools, actions of the authority, events of the tracer |
//! | `work.rs`, `commands.rs` | the commands of Query and Update |
//! | `convert.rs` | conversion between messages and types of the tracer |
//! | `files.rs` | files in the job's directory |
//! | `ids.rs` | ids of processes and threads outside of the job's PID namespace |
//! | `start_notice.rs` | the notice at the start of a program |
//! | `stacks.rs`, `fault_stack.rs` | the commands that read stacks |
//! | `console.rs`, `console_actions.rs` | the commands of consoles, which are also tools |
//! | `relay.rs` | tools whose messages the shepherd relays |
//! | `process_files.rs` | the program and its libraries, in the file system of a process |
//!
//! **Notices.** The tracer has the queue of notices of each process. It issues one at a time, when
//! all threads are stopped. The authority decides which tool is notified, and when the process
//! continues.
//!
//! **Ids.** The authority and the tracer use ids of the service's PID namespace. They are
//! translated when a message is decoded or encoded.

mod clients;
mod commands;
mod console;
mod console_actions;
mod convert;
mod fault_stack;
mod files;
mod ids;
mod line_step;
mod process_files;
mod relay;
mod stacks;
mod start_notice;
mod tools;
mod work;

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::ffi::OsString;
use std::io::{self, Write};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStringExt;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::time::Duration;

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use nix::sys::socket::{MsgFlags, recv};
use score_proto::frame::{self, Decoder};
use score_proto::tool_command::{CommandId, ToolRequest, ToolResult};
use score_proto::toolctl::{ToolProcess, ToolctlOrder, ToolctlReport};
use score_stacks::module::ModuleCache;
use score_toolctl::tracer::{Linux, Pid, Tracer};
use score_tools::authority::{self, Authority, ConnectionId};

use clients::Clients;
use console::Consoles;
use ids::IdTranslator;
use relay::Relays;
use stacks::{StackCommands, StackScope};
use work::WorkQueues;

/// A process of the job on this host.
#[derive(Debug, Clone, Copy)]
struct RankProcess {
    pid: Pid,
    /// Its number among the processes of its element on this host.
    number: u32,
}

/// See the [module](self).
pub struct Service {
    /// The socket of the shepherd.
    shepherd: UnixStream,
    decoder: Decoder,
    signals: SignalFd,
    clients: Clients,
    ids: IdTranslator,
    authority: Authority,
    tracer: Tracer<Linux>,
    works: WorkQueues,
    /// The Attach messages whose processes are not traced yet.
    seizing: VecDeque<(ConnectionId, Vec<u32>)>,
    /// The running processes, by rank.
    processes: BTreeMap<u32, RankProcess>,
    ranks: HashMap<Pid, u32>,
    host: u32,
    directory: PathBuf,
    modules: ModuleCache,
    stacks: StackCommands,
    consoles: Consoles,
    /// The addresses of the start notices of ranks that have not started.
    start_notices: BTreeMap<u32, u64>,
    relays: Relays,
    /// Whether the shepherd has sent the job and its processes.
    serves_tools: bool,
    /// The last report to the shepherd on whether tools are connected.
    has_tools: bool,
    /// Whether the shepherd has requested that this process exits, unless a tool has connected.
    may_leave: bool,
    /// Whether the job ends.
    is_ending: bool,
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
            shepherd: shepherd.into(),
            decoder: Decoder::default(),
            signals: SignalFd::with_flags(&mask, flags)?,
            clients: Clients::new(listener),
            ids: IdTranslator::new(outer_proc),
            authority: Authority::new(0, nix::unistd::geteuid().as_raw()),
            tracer: Tracer::new(Linux),
            works: WorkQueues::default(),
            seizing: VecDeque::new(),
            processes: BTreeMap::new(),
            ranks: HashMap::new(),
            host: 0,
            directory: PathBuf::new(),
            modules: ModuleCache::default(),
            stacks: StackCommands::default(),
            consoles: Consoles::default(),
            start_notices: BTreeMap::new(),
            relays: Relays::default(),
            serves_tools: false,
            has_tools: false,
            may_leave: false,
            is_ending: false,
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
            let is_free = |process: &RankProcess| self.tracer.has_no_trace_of(process.pid);
            if self.is_ending && self.processes.values().all(is_free) {
                return Ok(());
            }
            if self.may_leave {
                // A tool that has connected meanwhile has no answer yet, so the service must not
                // exit.
                self.accept();
                if self.clients.is_empty() && self.consoles.is_empty() {
                    return Ok(());
                }
                self.may_leave = false;
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
        if let Some(listener) = self.clients.listener().filter(|_| self.serves_tools) {
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
        let mut buffer = vec![0; 64 << 10];
        loop {
            match recv(self.shepherd.as_raw_fd(), &mut buffer, MsgFlags::MSG_DONTWAIT) {
                Ok(0) => return Ok(false),
                Ok(len) => self.decoder.push(&buffer[..len]),
                Err(Errno::EAGAIN) => break,
                Err(Errno::EINTR) => {}
                Err(errno) => return Err(errno.into()),
            }
        }
        while let Some(order) = self.decoder.next().map_err(io::Error::other)? {
            self.on_order(order)?;
        }
        Ok(true)
    }

    fn on_order(&mut self, order: ToolctlOrder) -> io::Result<()> {
        match order {
            ToolctlOrder::Job(job) => {
                self.host = job.host;
                self.consoles.set_job(job.job);
                self.directory = OsString::from_vec(job.directory.0).into();
                self.authority = Authority::new(job.job, nix::unistd::geteuid().as_raw());
            }
            ToolctlOrder::Started { rank, number, pid } => {
                self.ids.forget(pid);
                self.processes.insert(rank, RankProcess { pid, number });
                self.ranks.insert(pid, rank);
                self.feed(authority::Event::Started { rank });
            }
            ToolctlOrder::Exited { rank, status } => {
                if let Some(process) = self.processes.remove(&rank) {
                    self.ranks.remove(&process.pid);
                    self.ids.forget(process.pid);
                }
                self.feed(authority::Event::Exited { rank, status });
            }
            ToolctlOrder::RemoveBreakpoints { rank, breakpoints } => {
                self.remove_breakpoints(rank, &breakpoints);
            }
            ToolctlOrder::ServeTools => self.serves_tools = true,
            ToolctlOrder::JobTime { ns } => self.on_job_time(ns),
            ToolctlOrder::Leave => self.may_leave = true,
            ToolctlOrder::End => self.is_ending = true,
            ToolctlOrder::Command { element, id, processes, body, wait_ms: _ } => {
                self.on_command((element, id), &processes, &body)?;
            }
        }
        Ok(())
    }

    fn on_command(
        &mut self,
        command: (u32, CommandId),
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
                self.on_file_question(command, processes, &question);
                return Ok(());
            }
            None => {
                let text = "unknown command: use tools of the same release as scored-toolctl";
                return self.answer(command, processes, &ToolResult::Failed(text.to_owned()));
            }
        };
        let (tracer, ids) = (&mut self.tracer, &mut self.ids);
        let reports = self.stacks.begin(command, processes, scope, tracer, ids);
        self.report(&reports)
    }

    /// Sends the same answer to a command for all of its processes.
    fn answer(
        &mut self,
        (element, id): (u32, CommandId),
        processes: &[ToolProcess],
        result: &ToolResult,
    ) -> io::Result<()> {
        let body = result.encode();
        let answer = |node| ToolctlReport::Answer { element, id, node, body: body.clone() };
        let reports: Vec<_> = processes.iter().map(|process| answer(process.node)).collect();
        self.report(&reports)
    }

    /// Sends reports to the shepherd. This may block, but the shepherd always reads.
    fn report(&mut self, reports: &[ToolctlReport]) -> io::Result<()> {
        let mut bytes = Vec::new();
        for report in reports {
            frame::encode(report, &mut bytes).map_err(io::Error::other)?;
        }
        self.shepherd.write_all(&bytes)
    }

    /// Requests from the shepherd the time for which the job has been running.
    fn ask_time(&mut self) {
        // If the shepherd has ended, the loop detects it.
        _ = self.report(&[ToolctlReport::TimeQuestion]);
    }

    /// Removes the breakpoints that a killed service has left. The tracer reports when it has
    /// detached from the process.
    fn remove_breakpoints(&mut self, rank: u32, breakpoints: &[(u64, u8)]) {
        let Some(RankProcess { pid, .. }) = self.processes.get(&rank).copied() else { return };
        // If attaching fails, the process has ended or has another tracer. It remains in the
        // shepherd's list.
        if self.tracer.attach(pid).is_ok() {
            _ = self.tracer.remove_leftovers(pid, breakpoints);
            _ = self.tracer.detach(pid);
        }
    }

    /// Reports a change of breakpoints. The shepherd keeps the list of breakpoints in case this
    /// process is killed.
    fn report_breakpoint(&mut self, report: ToolctlReport) {
        // If the shepherd has ended, the loop detects it.
        _ = self.report(&[report]);
    }

    /// Reports to the shepherd whether tools are connected. The shepherd does not end this process
    /// while tools are connected.
    fn report_tools(&mut self) -> io::Result<()> {
        let has_tools = !self.clients.is_empty() || !self.consoles.is_empty();
        if std::mem::replace(&mut self.has_tools, has_tools) != has_tools {
            self.report(&[ToolctlReport::HasTools(has_tools)])?;
        }
        Ok(())
    }
}
