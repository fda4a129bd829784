//! The threads of a process, and the calls of ptrace(2) that resume and interrupt them. Each call
//! sets the state of its thread. The state is therefore that of the last call or stop.

#![forbid(unsafe_code)]

use std::collections::BTreeMap;
use std::time::Duration;

use super::notices::SignalSet;
use crate::tracer::error::TraceError;
use crate::tracer::kernel::{Kernel, TaskState};
use crate::tracer::siginfo::SigInfo;
use crate::tracer::watchpoints::{WatchRange, Watchpoints};
use crate::tracer::{Pid, Tid};

/// If a thread does not stop within this time after an interrupt, the tracer reads its state.
pub const STATE_INTERVAL: Duration = Duration::from_millis(5);
/// A new thread starts after this time, even if the kernel has not reported which thread has
/// created it. The kernel never does so after clone(2) with CLONE_UNTRACED and CLONE_PTRACE.
pub const START_TIMEOUT: Duration = Duration::from_secs(1);
const DR7: usize = 7;

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

    /// Restores the siginfo of the signal, if the kernel has lost it since the stop.
    fn restore_siginfo<K: Kernel>(&self, kernel: &mut K, tid: Tid) {
        if let Some(info) = self.info
            && info.signal() == self.signal
        {
            // An error means that the thread is being killed, so its signal does not matter.
            _ = kernel.set_siginfo(tid, &info);
        }
    }
}

/// The state of a thread, according to the events that the tracer has handled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Motion {
    /// The thread is new, and is stopped since this time. It waits for the report of the kernel
    /// which thread has created it.
    Starting(Place, Duration),
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
    /// Its state. Only [`Threads`] changes it, except for the signal to deliver.
    motion: Motion,
    /// Whether a tool holds the thread.
    is_held: bool,
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
    /// The watchpoints that a new thread gets at its first stop.
    pub inheritance: Vec<WatchRange>,
}

impl Thread {
    fn new(motion: Motion, is_held: bool) -> Self {
        Self {
            motion,
            is_held,
            at_breakpoint: None,
            hit_before_handler: None,
            has_notice: false,
            continuation: None,
            resent: SignalSet::default(),
            watchpoints: Watchpoints::default(),
            inheritance: Vec::new(),
        }
    }

    /// Its state.
    pub fn motion(&self) -> Motion {
        self.motion
    }

    /// Whether a tool holds the thread.
    pub fn is_held(&self) -> bool {
        self.is_held
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

    /// Sets the signal to deliver, if the thread is stopped before the delivery of a signal.
    pub fn set_delivered_signal(&mut self, signal: i32) {
        if let Motion::Stopped(stop) = &mut self.motion
            && stop.place == Place::Delivery
        {
            stop.signal = signal;
        }
    }
}

/// The threads of a process.
#[derive(Debug, Default)]
pub struct Threads {
    all: BTreeMap<Tid, Thread>,
    /// Whether a tool holds all threads, including new ones.
    is_held: bool,
    /// Whether the process is in a group stop, according to the last stop of a thread.
    is_group_stopped: bool,
}

impl Threads {
    /// Adds a thread to which the tracer has just attached.
    pub fn attach(&mut self, tid: Tid) {
        self.all.insert(tid, Thread::new(Motion::Running, false));
    }

    /// Adds a new thread, if it does not exist. It will stop. Returns whether it is new.
    pub fn begin(&mut self, tid: Tid, now: Duration) -> bool {
        let is_new = !self.all.contains_key(&tid);
        if is_new {
            self.all.insert(tid, Thread::new(Motion::Stopping(now), self.is_held));
        }
        is_new
    }

    /// The threads after an exec: only the thread that is stopped in this call.
    pub fn after_exec(&self, tid: Tid) -> Self {
        let is_held = self.get(tid).is_some_and(|thread| thread.is_held);
        let thread = Thread::new(Motion::Stopped(Stop::at(Place::Call)), is_held);
        Self {
            all: BTreeMap::from([(tid, thread)]),
            is_held: self.is_held,
            is_group_stopped: false,
        }
    }

    /// Removes a thread that has ended.
    pub fn remove(&mut self, tid: Tid) {
        self.all.remove(&tid);
    }

    /// A thread.
    pub fn get(&self, tid: Tid) -> Option<&Thread> {
        self.all.get(&tid)
    }

    /// A thread, to change it.
    pub fn get_mut(&mut self, tid: Tid) -> Option<&mut Thread> {
        self.all.get_mut(&tid)
    }

    /// All threads, sorted by id.
    pub fn iter(&self) -> impl Iterator<Item = (Tid, &Thread)> {
        self.all.iter().map(|(tid, thread)| (*tid, thread))
    }

    /// The ids of all threads, sorted.
    pub fn ids(&self) -> impl Iterator<Item = Tid> {
        self.all.keys().copied()
    }

    /// Whether there is no thread.
    pub fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    /// Whether the process is in a group stop, according to the last stop of a thread.
    pub fn is_group_stopped(&self) -> bool {
        self.is_group_stopped
    }

    /// Whether all threads except `tid` execute no instruction of the program.
    pub fn are_others_quiet(&self, tid: Tid) -> bool {
        self.iter().all(|(other, thread)| other == tid || thread.is_quiet())
    }

    /// Whether all threads execute no instruction of the program.
    pub fn are_quiet(&self) -> bool {
        self.all.values().all(Thread::is_quiet)
    }

    /// Whether all threads are being killed, or have ended.
    pub fn are_dying(&self) -> bool {
        self.all.values().all(|thread| thread.motion == Motion::Dying)
    }

    /// Whether a thread waits for the end of the group stop.
    pub fn is_any_listening(&self) -> bool {
        self.all.values().any(|thread| thread.motion == Motion::Listening)
    }

    /// The threads that are stopped at any place.
    pub fn stopped(&self) -> Vec<(Tid, Stop)> {
        let stop = |(tid, thread): (Tid, &Thread)| match thread.motion {
            Motion::Stopped(stop) => Some((tid, stop)),
            _ => None,
        };
        self.iter().filter_map(stop).collect()
    }

    /// A thread that is stopped and can be accessed.
    pub fn accessible(&self) -> Option<Tid> {
        self.iter().find(|(_, thread)| thread.stop().is_some()).map(|(tid, _)| tid)
    }

    /// Whether the instruction pointer of a stopped thread is in a range.
    pub fn is_executed<K: Kernel>(&self, kernel: &K, address: u64, length: u64) -> bool {
        let range = address..address.saturating_add(length);
        self.iter().any(|(tid, thread)| {
            thread.stop().is_some() && kernel.registers(tid).is_ok_and(|it| range.contains(&it.rip))
        })
    }

    /// Holds all threads, including new ones, or releases them.
    pub fn hold_all(&mut self, is_held: bool) {
        self.is_held = is_held;
        for thread in self.all.values_mut() {
            thread.is_held = is_held;
        }
    }

    /// Holds a thread, or releases it.
    pub fn set_held(&mut self, tid: Tid, is_held: bool) -> Result<(), TraceError> {
        let thread = self.get_mut(tid).filter(|it| it.motion != Motion::Dying);
        thread.ok_or(TraceError::NoThread(tid))?.is_held = is_held;
        Ok(())
    }

    /// Undoes the changes of a tool to all threads, except for their debug registers. A thread
    /// whose notice has no answer continues with its own signal.
    pub fn release_all(&mut self) {
        self.hold_all(false);
        for thread in self.all.values_mut() {
            thread.has_notice = false;
            thread.continuation = None;
            thread.inheritance.clear();
        }
    }

    /// Drops the hits of a breakpoint that has been removed. If the breakpoint is set again, the
    /// next hit is a new one.
    pub fn forget_hits(&mut self, address: u64) {
        for thread in self.all.values_mut() {
            thread.hit_before_handler.take_if(|(place, _)| *place == address);
        }
    }

    /// Notes a stop of a thread.
    pub fn set_stopped(&mut self, tid: Tid, stop: Stop) {
        self.set_motion(tid, Motion::Stopped(stop));
    }

    /// Notes the first stop of a new thread, which waits for the report of its creation.
    pub fn set_starting(&mut self, tid: Tid, place: Place, now: Duration) {
        self.set_motion(tid, Motion::Starting(place, now));
    }

    /// Notes that a thread is being killed.
    pub fn set_dying(&mut self, tid: Tid) {
        self.set_motion(tid, Motion::Dying);
    }

    /// Notes whether the last stop of a thread was a group stop.
    pub fn set_group_stopped(&mut self, is_group_stopped: bool) {
        self.is_group_stopped = is_group_stopped;
    }

    fn set_motion(&mut self, tid: Tid, motion: Motion) {
        if let Some(thread) = self.get_mut(tid) {
            thread.motion = motion;
        }
    }

    /// Sets the state of a thread after a call for it. An error of the call means that the thread
    /// is being killed.
    fn set_motion_after(&mut self, tid: Tid, result: Result<(), nix::Error>, motion: Motion) {
        self.set_motion(tid, if result.is_ok() { motion } else { Motion::Dying });
    }

    /// Interrupts a thread.
    pub fn interrupt<K: Kernel>(&mut self, kernel: &mut K, tid: Tid) {
        let now = kernel.now();
        let result = kernel.interrupt(tid);
        self.set_motion_after(tid, result, Motion::Stopping(now));
    }

    /// Moves a thread from the middle of a system call to its end, where its registers are valid.
    pub fn leave_call<K: Kernel>(&mut self, kernel: &mut K, tid: Tid) {
        let now = kernel.now();
        let result = kernel.interrupt(tid).and_then(|()| kernel.resume(tid, 0));
        self.set_motion_after(tid, result, Motion::Stopping(now));
    }

    /// Lets a thread wait for the end of the group stop in which it is.
    pub fn listen<K: Kernel>(&mut self, kernel: &mut K, tid: Tid) {
        let result = kernel.listen(tid);
        self.set_motion_after(tid, result, Motion::Listening);
    }

    /// Resumes a thread from a stop.
    pub fn resume<K: Kernel>(&mut self, kernel: &mut K, tid: Tid, stop: Stop) {
        let now = kernel.now();
        stop.restore_siginfo(kernel, tid);
        let result = self.join_group_stop(kernel, tid);
        let result = result.and_then(|()| kernel.resume(tid, stop.signal));
        let motion = if self.is_group_stopped { Motion::Stopping(now) } else { Motion::Running };
        self.set_motion_after(tid, result, motion);
    }

    /// Resumes a thread that has a pending trap. It stops at the trap before it executes anything.
    pub fn resume_to_trap<K: Kernel>(&mut self, kernel: &mut K, tid: Tid) {
        let now = kernel.now();
        let result = kernel.resume(tid, 0);
        self.set_motion_after(tid, result, Motion::Stopping(now));
    }

    /// Resumes a thread from a stop for one instruction, with a signal (0: none). In a group stop
    /// the thread joins the stop before the instruction, and makes its step in the next slice.
    pub fn begin_step<K: Kernel>(&mut self, kernel: &mut K, tid: Tid, stop: Stop, signal: i32) {
        stop.restore_siginfo(kernel, tid);
        let result = self.join_group_stop(kernel, tid);
        let result = result.and_then(|()| kernel.step(tid, signal));
        self.set_motion_after(tid, result, Motion::Stepping);
    }

    /// Resumes a thread for one instruction, with a signal (0: none).
    pub fn step<K: Kernel>(&mut self, kernel: &mut K, tid: Tid, signal: i32) {
        let result = kernel.step(tid, signal);
        self.set_motion_after(tid, result, Motion::Stepping);
    }

    /// If the last stop of a thread was a group stop, this thread has to join it before it executes
    /// anything. If the group stop is over, the stop at the interrupt shows this.
    fn join_group_stop<K: Kernel>(&self, kernel: &mut K, tid: Tid) -> Result<(), nix::Error> {
        match self.is_group_stopped {
            true => kernel.interrupt(tid),
            false => Ok(()),
        }
    }

    /// Detaches a stopped thread, and removes it.
    pub fn detach<K: Kernel>(&mut self, kernel: &mut K, pid: Pid, (tid, stop): (Tid, Stop)) {
        let Some(thread) = self.all.remove(&tid) else { return };
        if !thread.watchpoints.is_empty() {
            _ = kernel.set_debug_register(tid, DR7, 0);
        }
        let mut signal = match thread.continuation {
            Some(signal) if thread.has_notice => signal,
            _ => stop.signal,
        };
        Stop { signal, ..stop }.restore_siginfo(kernel, tid);
        if signal != 0 && stop.place != Place::Delivery {
            _ = kernel.send_signal(pid, tid, signal);
            signal = 0;
        }
        // An error means that the thread is being killed.
        _ = kernel.detach(tid, signal);
    }

    /// The time at which [`Self::check_waiting`] has work to do.
    pub fn deadline(&self) -> Option<Duration> {
        let waiting = self.all.values().filter_map(|thread| match thread.motion {
            Motion::Stopping(since) => Some(since + STATE_INTERVAL),
            Motion::Starting(_, since) => Some(since + START_TIMEOUT),
            _ => None,
        });
        waiting.min()
    }

    /// Reads the states of the threads that have not stopped after an interrupt. Ends the wait of
    /// new threads that have waited for too long.
    pub fn check_waiting<K: Kernel>(&mut self, kernel: &K, pid: Pid, now: Duration) {
        for (tid, thread) in &mut self.all {
            thread.motion = match thread.motion {
                Motion::Stopping(since) if now >= since + STATE_INTERVAL => {
                    match kernel.task_state(pid, *tid) {
                        TaskState::Waiting => Motion::Halted,
                        TaskState::Ended => Motion::Dying,
                        TaskState::Active => Motion::Stopping(now),
                    }
                }
                Motion::Starting(place, since) if now >= since + START_TIMEOUT => {
                    Motion::Stopped(Stop::at(place))
                }
                motion => motion,
            };
        }
    }
}
