//! The tracer's state of a process and its threads.

#![forbid(unsafe_code)]

mod inject;
mod serve_requests;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use super::breakpoints::Breakpoints;
use super::kernel::Kernel;
use super::request::PendingRequest;
use super::siginfo::SigInfo;
use super::watchpoints::Watchpoints;
use super::{Event, Pid, Tid};
pub use inject::{Injection, Purpose, TrapHandler};

/// A set of signals.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct SignalSet(u64);

impl SignalSet {
    /// The set of these signals. Ignores numbers outside of 1 to 64.
    pub fn of(signals: &[i32]) -> Self {
        let mut set = Self::default();
        for signal in signals {
            set.insert(*signal);
        }
        set
    }

    /// The set with the bits of a mask. Bit 0 is signal 1.
    pub fn from_bits(bits: u64) -> Self {
        Self(bits)
    }

    /// Whether the set contains a signal.
    pub fn contains(self, signal: i32) -> bool {
        (1..=64).contains(&signal) && self.0 >> (signal - 1) & 1 == 1
    }

    /// Adds a signal.
    pub fn insert(&mut self, signal: i32) {
        if (1..=64).contains(&signal) {
            self.0 |= 1 << (signal - 1);
        }
    }

    /// Removes a signal. Returns whether the set contained it.
    pub fn remove(&mut self, signal: i32) -> bool {
        let was_there = self.contains(signal);
        if was_there {
            self.0 &= !(1 << (signal - 1));
        }
        was_there
    }
}

/// The place in the kernel at which a thread has stopped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Place {
    /// A stop caused by an interrupt.
    Interrupt,
    /// A group stop: SIGSTOP, SIGTSTP, SIGTTIN or SIGTTOU has stopped the process.
    GroupStop,
    /// A stop before the delivery of a signal.
    Delivery,
    /// A stop at the first instruction of a signal handler, in a single step.
    Handler,
    /// A stop in the middle of a system call: clone, fork, vfork or exec.
    Call,
}

/// A stop of a thread.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stop {
    /// The place of the stop.
    pub place: Place,
    /// The signal to deliver when the thread continues. 0: none.
    pub signal: i32,
    /// The siginfo of this signal, if the kernel has lost it since the stop.
    pub info: Option<SigInfo>,
}

impl Stop {
    /// A stop without a signal to deliver.
    pub fn at(place: Place) -> Self {
        Self { place, signal: 0, info: None }
    }
}

/// The state of a thread, according to the events that the tracer has handled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Motion {
    /// The thread executes its program, or sleeps in a system call.
    Running,
    /// Like Running, but the thread was interrupted at this time and will stop.
    Stopping(Duration),
    /// Like Stopping, but the thread waits in the kernel and cannot be interrupted. It executes no
    /// instruction of its program before it stops.
    Halted,
    /// The thread executes one instruction.
    Stepping,
    /// The thread is stopped, and can be accessed.
    Stopped(Stop),
    /// The thread is in a group stop, and waits for the end of the stop.
    Listening,
    /// The thread is being killed, or has ended.
    Dying,
}

/// A thread.
#[derive(Debug)]
pub struct Thread {
    /// Its state.
    pub motion: Motion,
    /// Whether a tool holds the thread.
    pub is_held: bool,
    /// The breakpoint at which the thread is stopped and whose hit was handled. The thread must
    /// pass it.
    pub at_breakpoint: Option<u64>,
    /// The address and the stack pointer at a breakpoint whose hit was handled before a signal
    /// handler ran. The hit after the handler's return is the same hit.
    pub hit_before_handler: Option<(u64, u64)>,
    /// Whether a notice of the thread is queued or current.
    pub has_notice: bool,
    /// The signal with which the thread continues from its notice, if a tool has set one.
    pub continuation: Option<i32>,
    /// Signals that the tracer itself has sent instead of delivering them. They cause no notice.
    pub resent: SignalSet,
    /// Its debug registers.
    pub watchpoints: Watchpoints,
}

impl Thread {
    /// A thread in this state.
    pub fn new(motion: Motion) -> Self {
        Self {
            motion,
            is_held: false,
            at_breakpoint: None,
            hit_before_handler: None,
            has_notice: false,
            continuation: None,
            resent: SignalSet::default(),
            watchpoints: Watchpoints::default(),
        }
    }

    /// Whether the thread executes no instruction of its program.
    pub fn is_quiet(&self) -> bool {
        !matches!(self.motion, Motion::Running | Motion::Stopping(_) | Motion::Stepping)
    }

    /// The stop in which the thread can be accessed.
    pub fn stop(&self) -> Option<Stop> {
        match self.motion {
            Motion::Stopped(stop) if stop.place != Place::Call => Some(stop),
            _ => None,
        }
    }
}

/// The reason of a notice.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NoticeReason {
    /// A signal in the notify set.
    Signal,
    /// A breakpoint.
    Breakpoint,
    /// A watchpoint that has detected a read.
    WatchRead,
    /// A watchpoint that has detected a write.
    WatchWrite,
    /// The end of a step.
    Step,
}

/// A notice of a thread that has stopped at a signal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SignalNotice {
    /// Process.
    pub pid: Pid,
    /// Thread.
    pub tid: Tid,
    /// Signal.
    pub signal: i32,
    /// The reason.
    pub reason: NoticeReason,
    /// The address of the instruction.
    pub instruction: u64,
    /// The address of the access, for watchpoints and faults. Otherwise 0.
    pub access: u64,
}

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

/// The preferences of a tool.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Preferences {
    /// Whether hits of fast breakpoints go to the trap handler.
    pub fast_breakpoints: bool,
    /// Whether hits of watchpoints go to the trap handler.
    pub fast_watchpoints: bool,
}

/// A process.
#[derive(Debug)]
pub struct Process {
    /// Its process id.
    pub pid: Pid,
    /// Its threads.
    pub threads: BTreeMap<Tid, Thread>,
    /// Whether a tool holds all threads, including new ones.
    pub is_held: bool,
    /// Whether the process is in a group stop, according to the last stop of a thread.
    pub is_group_stopped: bool,
    /// Whether its threads are suspended for a notice.
    pub is_suspended: bool,
    /// The signals that cause a notice.
    pub notify: SignalSet,
    /// The notices that were not issued yet.
    pub notices: VecDeque<SignalNotice>,
    /// The thread of the current notice, which has not been answered.
    pub given: Option<Tid>,
    /// The thread of the last notice that was issued.
    pub last_given: Option<Tid>,
    /// The exclusive operation, and whether it has begun.
    pub exclusive: Option<(Exclusive, bool)>,
    /// The requests that wait for a thread to stop.
    pub requests: VecDeque<PendingRequest>,
    /// The threads that remain stopped and accessible while a message of a tool is carried out.
    pub pins: BTreeSet<Tid>,
    /// Its breakpoints.
    pub breakpoints: Breakpoints,
    /// Tasks that share its memory until their exec: children of vfork(2).
    pub guests: Vec<Pid>,
    /// Memory that tools have allocated: address and length.
    pub allocations: BTreeMap<u64, u64>,
    /// The trap handler that a tool has installed.
    pub trap_handler: Option<TrapHandler>,
    /// The preferences of the tool.
    pub preferences: Preferences,
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

impl Process {
    /// Creates a process without threads.
    pub fn new(pid: Pid) -> Self {
        Self {
            pid,
            threads: BTreeMap::new(),
            is_held: false,
            is_group_stopped: false,
            is_suspended: false,
            notify: SignalSet::default(),
            notices: VecDeque::new(),
            given: None,
            last_given: None,
            exclusive: None,
            requests: VecDeque::new(),
            pins: BTreeSet::new(),
            breakpoints: Breakpoints::default(),
            guests: Vec::new(),
            allocations: BTreeMap::new(),
            trap_handler: None,
            preferences: Preferences::default(),
            presence: Presence::Attached,
        }
    }

    /// Adds a new thread.
    pub fn begin_thread(&mut self, tid: Tid, now: Duration) {
        let is_held = self.is_held;
        let thread = || Thread { is_held, ..Thread::new(Motion::Stopping(now)) };
        self.threads.entry(tid).or_insert_with(thread);
    }

    /// Sets the state of a thread, if it exists.
    pub fn set_motion(&mut self, tid: Tid, motion: Motion) {
        if let Some(thread) = self.threads.get_mut(&tid) {
            thread.motion = motion;
        }
    }

    /// Sets the state of a thread after a call for it. An error of the call means that the thread
    /// is being killed.
    pub fn set_motion_after(&mut self, tid: Tid, result: Result<(), nix::Error>, motion: Motion) {
        self.set_motion(tid, if result.is_ok() { motion } else { Motion::Dying });
    }

    /// Whether all threads except `tid` execute no instruction of the program.
    pub fn are_others_quiet(&self, tid: Tid) -> bool {
        self.threads.iter().all(|(other, thread)| *other == tid || thread.is_quiet())
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
        let Some(thread) = self.threads.get_mut(&tid) else { return };
        thread.has_notice = true;
        thread.continuation = None;
        self.is_suspended = true;
        let pid = self.pid;
        let notice = SignalNotice { pid, tid, signal, reason, instruction, access };
        self.notices.push_back(notice);
    }

    /// Replaces the byte `from` at a breakpoint by `to`: int3 or the byte of the program. Does
    /// nothing if the memory does not exist any more, or if the program has changed the byte
    /// itself. Returns whether it was written.
    pub fn write_breakpoint<K: Kernel>(
        &self,
        context: &mut Context<'_, K>,
        address: u64,
        from: u8,
        to: u8,
    ) -> bool {
        let mut byte = [0];
        context.kernel.read_memory(self.pid, address, &mut byte)
            && byte[0] == from
            && context.kernel.write_memory(self.pid, address, &[to])
    }
}
