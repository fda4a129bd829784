//! The tracer stops, reads and changes the processes of a job by ptrace(2). It is the only tracer
//! of these processes.
//!
//! ptrace ties a tracee to the thread that has attached it. A [`Tracer`] therefore stays in one
//! thread. A thread can have only one tracer, because the tracer reaps all children of its thread.
//! The tracer does not block: [`Tracer::handle_events`] handles the pending events of the kernel.
//! It must be called when SIGCHLD has arrived (signalfd(2)) and when [`Tracer::next_timeout`] has
//! passed. The tracer reports to its user by [`Event`]s.
//!
//! Each thread has a [`process::Motion`], which is its current state. Requests and stops change the
//! state that a thread *should* have. `drive` then puts the thread into that state. The calls that
//! resume and interrupt threads are in [`process::Threads`], which changes the state of a thread
//! with each call. The calls belong to a trait ([`kernel::Kernel`]), so that a simulation can
//! replace Linux.
//!
//! Group stops are preserved. The gang scheduler stops and continues processes by SIGSTOP and
//! SIGCONT. The tracer keeps a thread in such a stop by PTRACE_LISTEN. The kernel reports the stop
//! to the real parent of the process, and the tracer notifies no tool. If a tool continues a thread
//! during the stop, the thread continues in the next slice.

pub mod attach;
pub mod breakpoints;
mod control;
mod drive;
pub mod error;
pub mod extended;
pub mod kernel;
pub mod memory;
pub mod process;
pub mod process_data;
pub mod procfs;
pub mod registers;
mod request;
mod several_tools;
mod siginfo;
#[cfg(test)]
mod simulation;
mod stops;
mod sys;
pub mod watchpoints;

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::time::Duration;

pub use breakpoints::BreakpointKind;
pub use control::{StepOutcome, ToolState};
pub use error::{AttachError, TraceError};
pub use extended::ExtendedRegister;
pub use kernel::{Kernel, Linux};
pub use process::{MAX_MEMORY_LEN, NoticeReason, Preferences, SignalNotice, SignalSet};
pub use registers::{DebugRegisters, Gprs, Registers, SpecialRegister, SpecialRegisters};
pub use request::{Answer, Request, ThreadSnapshot, Ticket};
pub use several_tools::Pin;
pub use watchpoints::{WatchKind, WatchPolicy, WatchRange};

use process::{Context, Presence, Process};
use sys::Wait;

/// A process id.
pub type Pid = i32;
/// A thread id.
pub type Tid = i32;

/// The most events of the kernel that one call handles. A hostile process can cause events faster
/// than they can be handled.
const MAX_EVENTS: usize = 4096;
/// The events that report the creation of a task.
const CREATION_EVENTS: [i32; 3] =
    [libc::PTRACE_EVENT_CLONE, libc::PTRACE_EVENT_FORK, libc::PTRACE_EVENT_VFORK];

/// An event for the user of a tracer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// A thread has caused a notice, and all threads of its process are stopped.
    Notice(SignalNotice),
    /// The answer to a request.
    Answer {
        /// The request.
        ticket: Ticket,
        /// The result.
        result: Result<Answer, TraceError>,
    },
    /// A process has replaced its program. Breakpoints, watchpoints and memory of tools are lost.
    Exec {
        /// The process.
        pid: Pid,
    },
    /// A thread has ended, and its process has not.
    ThreadEnded {
        /// The process.
        pid: Pid,
        /// The thread.
        tid: Tid,
    },
    /// A process has ended.
    Exited {
        /// The process.
        pid: Pid,
        /// The status in the form of wait(2).
        status: i32,
    },
    /// A process is no longer traced.
    Detached {
        /// The process.
        pid: Pid,
    },
}

/// A task that the kernel has attached automatically, and that does not belong to a traced process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Guest {
    /// The task shares the memory of this process until the task's exec.
    Of(Pid),
    /// The task must be detached at its next stop.
    Unwanted,
}

/// Traces processes. See the [module](self).
#[derive(Debug, Default)]
pub struct Tracer<K = Linux> {
    kernel: K,
    processes: BTreeMap<Pid, Process>,
    /// The process of each thread.
    owners: HashMap<Tid, Pid>,
    guests: HashMap<Tid, Guest>,
    events: VecDeque<Event>,
    last_ticket: u64,
    last_pin: u64,
}

impl<K: Kernel> Tracer<K> {
    /// Creates a tracer without processes.
    pub fn new(kernel: K) -> Self {
        Self {
            kernel,
            processes: BTreeMap::new(),
            owners: HashMap::new(),
            guests: HashMap::new(),
            events: VecDeque::new(),
            last_ticket: 0,
            last_pin: 0,
        }
    }

    /// Attaches to all threads of a process, without stopping it.
    ///
    /// # Errors
    /// Returns the reason if the process cannot be traced.
    pub fn attach(&mut self, pid: Pid) -> Result<(), AttachError> {
        if self.processes.contains_key(&pid) {
            return Ok(());
        }
        let process = attach::attach(&mut self.kernel, pid)?;
        for tid in process.threads.ids() {
            self.owners.insert(tid, pid);
            self.guests.remove(&tid);
        }
        self.processes.insert(pid, process);
        Ok(())
    }

    /// Restores a process to its untraced state, and stops tracing it. [`Event::Detached`] or
    /// [`Event::Exited`] follows.
    ///
    /// # Errors
    /// Returns `NoProcess` if the process is not traced.
    pub fn detach(&mut self, pid: Pid) -> Result<(), TraceError> {
        self.with(pid, |process, context| {
            process.threads.hold_all(false);
            process.begin_to_leave(context);
            Ok(())
        })
    }

    /// Whether a process is attached and is not being detached.
    pub fn is_attached(&self, pid: Pid) -> bool {
        self.processes.get(&pid).is_some_and(|it| it.presence == Presence::Attached)
    }

    /// The threads of an attached process.
    pub fn threads(&self, pid: Pid) -> Vec<Tid> {
        self.processes.get(&pid).map_or_else(Vec::new, |it| it.threads.ids().collect())
    }

    /// The thread for a request that names no thread. This is the thread of the last notice if it
    /// exists, otherwise the first thread of the process.
    ///
    /// # Errors
    /// Returns `NoProcess`.
    pub fn default_thread(&self, pid: Pid) -> Result<Tid, TraceError> {
        let process = self.processes.get(&pid).ok_or(TraceError::NoProcess(pid))?;
        let given = process.notices.last_given();
        let given = given.filter(|tid| process.threads.get(*tid).is_some());
        Ok(given.unwrap_or(pid))
    }

    /// Sets the signals that cause a notice. SIGSTOP and SIGCONT never cause a notice.
    ///
    /// # Errors
    /// Returns `NoProcess`.
    pub fn set_notify(&mut self, pid: Pid, signals: SignalSet) -> Result<(), TraceError> {
        self.with(pid, |process, _| {
            process.notices.set_notify(signals);
            Ok(())
        })
    }

    /// Sets whether new threads get watchpoints.
    ///
    /// # Errors
    /// Returns `NoProcess`.
    pub fn set_watch_policy(&mut self, pid: Pid, policy: WatchPolicy) -> Result<(), TraceError> {
        self.with(pid, |process, _| {
            process.watch_policy = policy;
            Ok(())
        })
    }

    /// Sets the preferences of the tool.
    ///
    /// # Errors
    /// Returns `NoProcess`.
    pub fn set_preferences(&mut self, pid: Pid, wanted: Preferences) -> Result<(), TraceError> {
        self.with(pid, |process, _| {
            process.resources.set_preferences(wanted);
            Ok(())
        })
    }

    /// Sends a request to a thread, or to all threads if `tid` is `None`. The answer is an event,
    /// which may be available at once.
    ///
    /// # Errors
    /// Returns the reason if the request is refused. No event follows in this case.
    pub fn request(
        &mut self,
        pid: Pid,
        tid: Option<Tid>,
        request: Request,
    ) -> Result<Ticket, TraceError> {
        let ticket = Ticket(self.last_ticket + 1);
        let now = self.kernel.now();
        self.with(pid, |process, _| process.add_request(ticket, tid, request, now))?;
        self.last_ticket = ticket.0;
        Ok(ticket)
    }

    /// Reads memory, with the original bytes of the program at breakpoints. Reads all bytes or
    /// fails. The process does not stop.
    ///
    /// # Errors
    /// Returns `NoProcess`, `Length` or `Address`.
    pub fn read_memory(
        &self,
        pid: Pid,
        address: u64,
        length: usize,
    ) -> Result<Vec<u8>, TraceError> {
        let process = self.processes.get(&pid).ok_or(TraceError::NoProcess(pid))?;
        process.memory.read(&self.kernel, address, length)
    }

    /// Writes memory, and keeps the breakpoints in it.
    ///
    /// # Errors
    /// Returns `NoProcess`, `Length`, `Address` or `SharedMemory`.
    pub fn write_memory(
        &mut self,
        pid: Pid,
        address: u64,
        bytes: &[u8],
        may_write_shared: bool,
    ) -> Result<(), TraceError> {
        self.with(pid, |process, context| {
            let kind = process.memory.range_kind(address, bytes.len());
            process.memory.write(context.kernel, (address, bytes), kind, may_write_shared)
        })
    }

    /// Sets a breakpoint.
    ///
    /// # Errors
    /// Returns `NoProcess`, `Address` or `Breakpoint`.
    pub fn set_breakpoint(
        &mut self,
        pid: Pid,
        address: u64,
        kind: BreakpointKind,
    ) -> Result<(), TraceError> {
        self.with(pid, |process, context| {
            process.memory.set_breakpoint(context.kernel, address, kind)
        })
    }

    /// Removes a breakpoint. `original` is the byte of the program at the address.
    ///
    /// # Errors
    /// Returns `NoProcess` or `Breakpoint`.
    pub fn reset_breakpoint(
        &mut self,
        pid: Pid,
        address: u64,
        original: u8,
    ) -> Result<(), TraceError> {
        self.with(pid, |process, context| process.reset_breakpoint(context, address, original))
    }

    /// Holds a thread, so that it executes nothing until it is released. Holds are not counted.
    ///
    /// # Errors
    /// Returns `NoProcess` or `NoThread`.
    pub fn hold(&mut self, pid: Pid, tid: Tid) -> Result<(), TraceError> {
        self.with(pid, |process, _| process.threads.set_held(tid, true))
    }

    /// Releases a held thread.
    ///
    /// # Errors
    /// Returns `NoProcess` or `NoThread`.
    pub fn release(&mut self, pid: Pid, tid: Tid) -> Result<(), TraceError> {
        self.with(pid, |process, _| process.threads.set_held(tid, false))
    }

    /// The state of a thread with regard to tools.
    ///
    /// # Errors
    /// Returns `NoProcess` or `NoThread`.
    pub fn tool_state(&self, pid: Pid, tid: Tid) -> Result<ToolState, TraceError> {
        self.processes.get(&pid).ok_or(TraceError::NoProcess(pid))?.tool_state(tid)
    }

    /// Sets the signal with which a thread continues from the current notice (0: none).
    ///
    /// # Errors
    /// Returns `NoProcess`, `Parameter` or `WrongState`.
    pub fn set_continuation(&mut self, pid: Pid, tid: Tid, signal: i32) -> Result<(), TraceError> {
        self.with(pid, |process, _| process.set_continuation(tid, signal))
    }

    /// Lets one thread execute one instruction. `tid` 0 stands for the thread of the current
    /// notice.
    ///
    /// # Errors
    /// Returns `NoProcess`, `NoThread` or `WrongState`.
    pub fn step(&mut self, pid: Pid, tid: Tid) -> Result<StepOutcome, TraceError> {
        self.with(pid, |process, context| process.step(context, tid))
    }

    /// Sends a signal to a thread.
    ///
    /// # Errors
    /// Returns `NoProcess`, `NoThread` or `Parameter`.
    pub fn send_signal(&mut self, pid: Pid, tid: Tid, signal: i32) -> Result<(), TraceError> {
        self.with(pid, |process, context| process.send_to_thread(context, tid, signal))
    }

    /// Sends a signal to the first thread, in the order of processor numbers, that can take it.
    ///
    /// # Errors
    /// Returns `NoProcess` or `Parameter`.
    pub fn send_signal_to_process(&mut self, pid: Pid, signal: i32) -> Result<(), TraceError> {
        self.with(pid, |process, context| process.send_to_process(context, signal))
    }

    /// Removes the breakpoints, watchpoints, holds, notices, memory and trap handler of a tool that
    /// has ended while other tools remain attached. Resets the preferences and the policy for the
    /// watchpoints of new threads.
    ///
    /// # Errors
    /// Returns `NoProcess`.
    pub fn release_all(&mut self, pid: Pid) -> Result<(), TraceError> {
        let tids = self.threads(pid);
        for tid in tids {
            let process = self.processes.get(&pid);
            let thread = process.and_then(|process| process.threads.get(tid));
            if thread.is_some_and(|thread| !thread.watchpoints.is_empty()) {
                self.reset_debug_registers(pid, tid)?;
            }
        }
        self.with(pid, |process, context| {
            process.release_all(context);
            Ok(())
        })?;
        self.release_memory(pid);
        Ok(())
    }

    /// Removes the remnants of a killed tracer from a process: breakpoints, given by address and
    /// original byte, and debug registers. A thread may have executed such a breakpoint and been
    /// frozen before its SIGTRAP. The tracer sets such a thread back to the address of the
    /// breakpoint.
    ///
    /// # Errors
    /// Returns `NoProcess`.
    pub fn remove_leftovers(
        &mut self,
        pid: Pid,
        breakpoints: &[(u64, u8)],
    ) -> Result<(), TraceError> {
        self.with(pid, |process, context| {
            for (address, original) in breakpoints {
                process.memory.add_leftover(*address, *original);
                process.remove_breakpoint(context, *address, *original);
            }
            Ok(())
        })?;
        for tid in self.threads(pid) {
            // A thread that has ended meanwhile needs no reset.
            _ = self.request(pid, Some(tid), Request::SetDebug(DebugRegisters::default()));
        }
        Ok(())
    }

    fn reset_debug_registers(&mut self, pid: Pid, tid: Tid) -> Result<(), TraceError> {
        let process = self.processes.get(&pid).ok_or(TraceError::NoProcess(pid))?;
        let watchpoints = process.threads.get(tid).map(|it| it.watchpoints.clone());
        for range in watchpoints.iter().flat_map(|it| it.ranges()) {
            self.request(pid, Some(tid), Request::ResetWatchpoint(range.address))?;
        }
        let nothing = DebugRegisters::default();
        self.request(pid, Some(tid), Request::SetDebug(nothing)).map(drop)
    }

    /// The next event.
    pub fn next_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    /// The time until [`Self::handle_events`] must be called even without a SIGCHLD.
    pub fn next_timeout(&self) -> Option<Duration> {
        let deadline = self.processes.values().filter_map(|it| it.deadline()).min()?;
        Some(deadline.saturating_sub(self.kernel.now()))
    }

    /// Handles pending events of the kernel. Returns whether there may be more.
    pub fn handle_events(&mut self) -> bool {
        let mut count = 0;
        while count < MAX_EVENTS
            && let Some((tid, wait)) = self.kernel.next_event()
        {
            count += 1;
            self.on_wait(tid, wait);
        }
        let pids: Vec<Pid> = self.processes.keys().copied().collect();
        let now = self.kernel.now();
        for pid in pids {
            if self.processes.get(&pid).and_then(|it| it.deadline()).is_some_and(|it| it <= now) {
                // An error only means that the process has been detached meanwhile.
                _ = self.with(pid, |process, context| {
                    process.on_timeout(context);
                    Ok(())
                });
            }
        }
        count == MAX_EVENTS
    }

    /// Changes the state of a process, and then brings its threads into their new states.
    fn with<T>(
        &mut self,
        pid: Pid,
        work: impl FnOnce(&mut Process, &mut Context<'_, K>) -> Result<T, TraceError>,
    ) -> Result<T, TraceError> {
        let process = self.processes.get_mut(&pid).ok_or(TraceError::NoProcess(pid))?;
        let mut context = Context { kernel: &mut self.kernel, events: &mut self.events };
        let result = work(process, &mut context);
        process.reconcile(&mut context);
        if process.has_left() {
            let process = self.processes.remove(&pid);
            self.forget_process(pid, process);
            self.events.push_back(Event::Detached { pid });
        }
        result
    }

    fn forget_process(&mut self, pid: Pid, process: Option<Process>) {
        self.owners.retain(|_, owner| *owner != pid);
        let Some(process) = process else { return };
        for guest in process.memory.guests() {
            self.guests.insert(*guest, Guest::Unwanted);
            // The guest is detached at this stop. An error means that it has ended.
            _ = self.kernel.interrupt(*guest);
        }
    }

    fn on_wait(&mut self, tid: Tid, wait: Wait) {
        match wait {
            Wait::Ended(status) => self.on_end(tid, status),
            Wait::Stopped(signal, event) => {
                if let Some(pid) = self.owner_of(tid) {
                    let created = self.created_thread(pid, tid, event);
                    _ = self.with(pid, |process, context| {
                        if let Some(created) = created {
                            process.on_creation(context, tid, created);
                        }
                        process.on_stop(context, tid, signal, event);
                        Ok(())
                    });
                    self.follow_exec(pid, event);
                } else {
                    self.on_guest_stop(tid, signal, event);
                }
            }
        }
    }

    /// After an exec only the first thread exists, even if another thread has called execve(2).
    fn follow_exec(&mut self, pid: Pid, event: i32) {
        if event == libc::PTRACE_EVENT_EXEC {
            self.owners.retain(|tid, owner| *owner != pid || *tid == pid);
        }
    }

    /// The thread of the same process that a thread has created, if the event reports a creation.
    fn created_thread(&mut self, pid: Pid, creator: Tid, event: i32) -> Option<Tid> {
        if !CREATION_EVENTS.contains(&event) {
            return None;
        }
        let tid = self.kernel.created_task(creator).ok()?;
        (self.owner_of(tid) == Some(pid)).then_some(tid)
    }

    /// The process of a thread. Adds a new thread of a traced process.
    fn owner_of(&mut self, tid: Tid) -> Option<Pid> {
        if let Some(pid) = self.owners.get(&tid) {
            return Some(*pid);
        }
        if self.guests.contains_key(&tid) {
            return None;
        }
        let pid = self.kernel.parentage(tid)?.process;
        let process = self.processes.get(&pid)?;
        // A thread that appears while its process is being detached is detached as a guest.
        if process.presence == Presence::Restored {
            return None;
        }
        self.owners.insert(tid, pid);
        Some(pid)
    }

    fn on_end(&mut self, tid: Tid, status: i32) {
        if let Some(guest) = self.guests.remove(&tid) {
            self.end_guest(tid, guest);
        }
        let Some(pid) = self.owners.remove(&tid) else { return };
        if tid != pid {
            _ = self.with(pid, |process, context| {
                process.on_thread_end(context, tid);
                context.events.push_back(Event::ThreadEnded { pid, tid });
                Ok(())
            });
            // If the first thread had ended before the attach, no further event follows.
            if self.processes.get(&pid).is_none_or(|process| !process.threads.is_empty()) {
                return;
            }
        }
        let Some(mut process) = self.processes.remove(&pid) else { return };
        let mut context = Context { kernel: &mut self.kernel, events: &mut self.events };
        process.fail_exclusive(&mut context);
        process.fail_requests(&mut context);
        self.forget_process(pid, Some(process));
        self.events.push_back(Event::Exited { pid, status });
    }

    /// Handles a stop of a guest, which is a child that the kernel has attached automatically.
    fn on_guest_stop(&mut self, tid: Tid, signal: i32, event: i32) {
        let guest = match self.guests.get(&tid) {
            Some(guest) => *guest,
            None => self.admit_guest(tid),
        };
        let is_done = guest == Guest::Unwanted || event == libc::PTRACE_EVENT_EXEC;
        let passed = if event == 0 { signal } else { 0 };
        // An error of any of these calls means that the task is being killed. The report of its end
        // follows.
        _ = if is_done {
            self.guests.remove(&tid);
            self.end_guest(tid, guest);
            self.kernel.detach(tid, passed)
        } else if event == libc::PTRACE_EVENT_STOP && signal != libc::SIGTRAP {
            self.kernel.listen(tid)
        } else {
            self.kernel.resume(tid, passed)
        };
    }

    /// Handles a new task. If the task shares memory with a traced process, removes breakpoints
    /// from this memory until the task's exec or end, because a breakpoint would kill the task. If
    /// the task has a copy of the memory, removes breakpoints from the copy.
    fn admit_guest(&mut self, tid: Tid) -> Guest {
        let Some(parentage) = self.kernel.parentage(tid) else { return Guest::Unwanted };
        let pids: Vec<Pid> = self.processes.keys().copied().collect();
        if let Some(pid) = pids.iter().find(|pid| self.kernel.shares_memory(**pid, tid)) {
            self.guests.insert(tid, Guest::Of(*pid));
            _ = self.with(*pid, |process, context| {
                process.memory.add_guest(context.kernel, tid);
                Ok(())
            });
            return Guest::Of(*pid);
        }
        let parent = self.processes.get(&parentage.parent);
        let candidates: Vec<&Process> =
            parent.map_or_else(|| self.processes.values().collect(), |parent| vec![parent]);
        for process in candidates {
            process.memory.restore_copy(&mut self.kernel, parentage.process);
        }
        Guest::Unwanted
    }

    fn end_guest(&mut self, tid: Tid, guest: Guest) {
        let Guest::Of(pid) = guest else { return };
        _ = self.with(pid, |process, context| {
            process.memory.remove_guest(context.kernel, tid);
            Ok(())
        });
    }
}
