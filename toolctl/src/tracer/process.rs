//! What the tracer knows of a process and its threads.

#![forbid(unsafe_code)]

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use super::breakpoints::Breakpoints;
use super::inject::{Injection, TrapHandler};
use super::kernel::Kernel;
use super::requests::PendingRequest;
use super::siginfo::SigInfo;
use super::watchpoints::Watchpoints;
use super::{Event, Pid, Tid};

/// A set of signals.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct SignalSet(u64);

impl SignalSet {
    /// With these signals. Numbers outside 1 to 64 are left out.
    pub fn of(signals: &[i32]) -> Self {
        let mut set = Self::default();
        for signal in signals {
            set.insert(*signal);
        }
        set
    }

    /// From the bits of a mask: bit 0 is signal 1.
    pub fn from_bits(bits: u64) -> Self {
        Self(bits)
    }

    /// Whether a signal is in it.
    pub fn contains(self, signal: i32) -> bool {
        (1..=64).contains(&signal) && self.0 >> (signal - 1) & 1 == 1
    }

    /// Adds a signal.
    pub fn insert(&mut self, signal: i32) {
        if (1..=64).contains(&signal) {
            self.0 |= 1 << (signal - 1);
        }
    }

    /// Takes a signal out. Whether it was there.
    pub fn remove(&mut self, signal: i32) -> bool {
        let was_there = self.contains(signal);
        if was_there {
            self.0 &= !(1 << (signal - 1));
        }
        was_there
    }
}

/// Where in the kernel a thread has stopped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Place {
    /// At an interrupt.
    Interrupt,
    /// In a group stop: SIGSTOP, SIGTSTP, SIGTTIN or SIGTTOU has stopped the process.
    GroupStop,
    /// Before the delivery of a signal.
    Delivery,
    /// At the first instruction of a signal handler, in a single step.
    Handler,
    /// In the middle of a system call: clone, fork, vfork or exec.
    Call,
}

/// A stop of a thread.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stop {
    /// Where it is.
    pub place: Place,
    /// The signal that is delivered when the thread goes on. 0: none.
    pub signal: i32,
    /// What the kernel said of this signal, if the kernel has lost it since.
    pub info: Option<SigInfo>,
}

impl Stop {
    /// Without a signal to deliver.
    pub fn at(place: Place) -> Self {
        Self { place, signal: 0, info: None }
    }
}

/// What a thread does, as far as the tracer knows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Motion {
    /// It executes its program, or sleeps in a system call.
    Running,
    /// As Running; it was interrupted at this time and will stop.
    Stopping(Duration),
    /// As Stopping; it waits in the kernel in a way that cannot be interrupted. It executes no
    /// instruction of its program before it stops.
    Halted,
    /// It executes one instruction.
    Stepping,
    /// It stands, and can be looked at.
    Stopped(Stop),
    /// It is in a group stop, and waits for its end.
    Listening,
    /// It is being killed, or has ended.
    Dying,
}

/// A thread.
#[derive(Debug)]
pub struct Thread {
    /// What it does.
    pub motion: Motion,
    /// A tool holds it.
    pub is_held: bool,
    /// The breakpoint at which it stands and whose hit was taken: it has to pass it.
    pub at_breakpoint: Option<u64>,
    /// Address and stack pointer of a breakpoint whose hit was taken before a signal handler ran:
    /// the hit after the handler's return is the same one.
    pub hit_before_handler: Option<(u64, u64)>,
    /// It has a notice in the queue, or a notice that was given.
    pub has_notice: bool,
    /// The signal with which it goes on from its notice, if a tool has set one.
    pub continuation: Option<i32>,
    /// Signals that the tracer has sent itself in place of a delivery: they give no notice.
    pub resent: SignalSet,
    /// Its debug registers.
    pub watchpoints: Watchpoints,
}

impl Thread {
    /// One that does this.
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

    /// It executes no instruction of its program.
    pub fn is_quiet(&self) -> bool {
        !matches!(self.motion, Motion::Running | Motion::Stopping(_) | Motion::Stepping)
    }

    /// The stop in which it can be looked at.
    pub fn stop(&self) -> Option<Stop> {
        match self.motion {
            Motion::Stopped(stop) if stop.place != Place::Call => Some(stop),
            _ => None,
        }
    }
}

/// Why a thread gave a notice.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NoticeReason {
    /// A signal of the set.
    Signal,
    /// A breakpoint.
    Breakpoint,
    /// A watchpoint, at a read.
    WatchRead,
    /// A watchpoint, at a write.
    WatchWrite,
    /// The end of a step.
    Step,
}

/// A notice of a thread at a signal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SignalNotice {
    /// Process.
    pub pid: Pid,
    /// Thread.
    pub tid: Tid,
    /// Signal.
    pub signal: i32,
    /// Why.
    pub reason: NoticeReason,
    /// Address of the instruction.
    pub instruction: u64,
    /// Address of the access, for watchpoints and faults; else 0.
    pub access: u64,
}

/// What happens while all other threads stand still.
#[derive(Debug)]
pub enum Exclusive {
    /// A thread passes a breakpoint.
    Pass(Tid, u64),
    /// A tool's step.
    Step(Tid),
    /// A thread executes a system call of ours.
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

/// How far a process is on its way out of the tracer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Presence {
    /// It is traced.
    Attached,
    /// It is set back to what it would be without a tracer; its threads stop for that.
    Leaving,
    /// Nothing of the tracer is left in it; threads that have stopped are detached.
    Restored,
}

/// What a tool prefers.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Preferences {
    /// Hits of fast breakpoints go to the handler.
    pub fast_breakpoints: bool,
    /// Hits of watchpoints go to the handler.
    pub fast_watchpoints: bool,
}

/// A process.
#[derive(Debug)]
pub struct Process {
    /// Its number.
    pub pid: Pid,
    /// Its threads.
    pub threads: BTreeMap<Tid, Thread>,
    /// A tool holds all threads, and those that begin.
    pub is_held: bool,
    /// What the last stop of a thread said: the process is in a group stop.
    pub is_group_stopped: bool,
    /// Its threads stand for a notice.
    pub is_suspended: bool,
    /// Signals that give a notice.
    pub notify: SignalSet,
    /// Notices that were not given yet.
    pub notices: VecDeque<SignalNotice>,
    /// The thread whose notice was given and not satisfied.
    pub given: Option<Tid>,
    /// The thread whose notice was given last.
    pub last_given: Option<Tid>,
    /// What needs all other threads to stand, and whether it has begun.
    pub exclusive: Option<(Exclusive, bool)>,
    /// Requests that wait for a thread to stop.
    pub requests: VecDeque<PendingRequest>,
    /// Threads that stand where they can be looked at, until a message of a tool is carried out.
    pub pins: BTreeSet<Tid>,
    /// Breakpoints.
    pub breakpoints: Breakpoints,
    /// Processes that execute its memory, until their exec: children of vfork(2).
    pub guests: Vec<Pid>,
    /// Memory that tools have allocated: address and length.
    pub allocations: BTreeMap<u64, u64>,
    /// The handler that a tool has installed.
    pub trap_handler: Option<TrapHandler>,
    /// What the tool prefers.
    pub preferences: Preferences,
    /// Whether it is leaving.
    pub presence: Presence,
}

/// What the functions of a process work with.
pub struct Context<'a, K> {
    /// The kernel.
    pub kernel: &'a mut K,
    /// What the user of the tracer learns.
    pub events: &'a mut VecDeque<Event>,
}

impl Process {
    /// One without threads.
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

    /// A thread that begins.
    pub fn begin_thread(&mut self, tid: Tid, now: Duration) {
        let is_held = self.is_held;
        let thread = || Thread { is_held, ..Thread::new(Motion::Stopping(now)) };
        self.threads.entry(tid).or_insert_with(thread);
    }

    /// Sets what a thread does, if it exists.
    pub fn set_motion(&mut self, tid: Tid, motion: Motion) {
        if let Some(thread) = self.threads.get_mut(&tid) {
            thread.motion = motion;
        }
    }

    /// Sets what a thread does after a call for it: a refusal means that it is being killed.
    pub fn set_motion_after(&mut self, tid: Tid, result: Result<(), nix::Error>, motion: Motion) {
        self.set_motion(tid, if result.is_ok() { motion } else { Motion::Dying });
    }

    /// Whether every thread but one executes nothing of its program.
    pub fn are_others_quiet(&self, tid: Tid) -> bool {
        self.threads.iter().all(|(other, thread)| *other == tid || thread.is_quiet())
    }

    /// Whether a thread moves while the others stand.
    pub fn is_moving_alone(&self, tid: Tid) -> bool {
        self.exclusive.as_ref().is_some_and(|(exclusive, begun)| *begun && exclusive.tid() == tid)
    }

    /// Puts a notice in the queue. All threads stand from now on.
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

    /// Writes int3, or the byte of the program, for a breakpoint. Memory that is no longer there,
    /// or that the program has changed itself, is left alone.
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
