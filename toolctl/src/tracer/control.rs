//! Changes of a process that a tool requests and that take effect at once: removal of breakpoints,
//! running and stopping of threads, signals.

#![forbid(unsafe_code)]

use super::Tid;
use super::error::TraceError;
use super::kernel::Kernel;
use super::process::{Context, Exclusive, Motion, Place, Preferences, Process};
use super::procfs::{Status, ThreadStat};
use super::watchpoints::WatchPolicy;

/// The state of a thread with regard to tools.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ToolState {
    /// The thread is neither held nor suspended.
    Active,
    /// The thread is held.
    Hold,
    /// The thread is suspended for a notice.
    Suspend,
    /// The thread is held and suspended.
    HoldSuspend,
}

/// The outcome of a step request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StepOutcome {
    /// The thread makes its step. A notice follows.
    Started,
    /// Another notice was pending and is issued instead of the step.
    NoticePending,
}

/// Checks that a signal number is between `lowest` and 64.
fn check_signal(signal: i32, lowest: i32) -> Result<(), TraceError> {
    if (lowest..=64).contains(&signal) {
        return Ok(());
    }
    Err(TraceError::Parameter("a signal number is 1 to 64"))
}

impl Process {
    /// Removes a breakpoint. `original` is the byte of the program at the address.
    pub(super) fn reset_breakpoint<K: Kernel>(
        &mut self,
        context: &mut Context<'_, K>,
        address: u64,
        original: u8,
    ) -> Result<(), TraceError> {
        self.memory.check_reset(address, original)?;
        self.remove_breakpoint(context, address, original);
        Ok(())
    }

    /// Removes a breakpoint that exists.
    pub(super) fn remove_breakpoint<K: Kernel>(
        &mut self,
        context: &mut Context<'_, K>,
        address: u64,
        original: u8,
    ) {
        self.memory.remove_breakpoint(context.kernel, address, original);
        self.threads.forget_hits(address);
    }

    /// The state of a thread with regard to tools.
    pub(super) fn tool_state(&self, tid: Tid) -> Result<ToolState, TraceError> {
        let thread = self.threads.get(tid).ok_or(TraceError::NoThread(tid))?;
        Ok(match (thread.is_held(), self.notices.is_suspended()) {
            (false, false) => ToolState::Active,
            (true, false) => ToolState::Hold,
            (false, true) => ToolState::Suspend,
            (true, true) => ToolState::HoldSuspend,
        })
    }

    /// Sets the signal with which a thread continues from its notice.
    pub(super) fn set_continuation(&mut self, tid: Tid, signal: i32) -> Result<(), TraceError> {
        check_signal(signal, 0)?;
        let tid = self.notices.given_thread(tid)?;
        let thread = self.threads.get_mut(tid).ok_or(TraceError::NoThread(tid))?;
        thread.continuation = Some(signal);
        Ok(())
    }

    /// Marks the current notice as answered.
    pub(super) fn satisfy<K: Kernel>(&mut self, context: &mut Context<'_, K>) {
        let Some(tid) = self.notices.take_given() else { return };
        let Some(thread) = self.threads.get_mut(tid) else { return };
        thread.has_notice = false;
        let signal = thread.continuation.take().unwrap_or(0);
        let Motion::Stopped(stop) = thread.motion() else { return };
        if stop.place == Place::Delivery {
            thread.set_delivered_signal(signal);
        } else if signal != 0 {
            // This stop has no signal that the continuation signal could replace, so the tracer
            // sends the continuation signal.
            thread.resent.insert(signal);
            _ = context.kernel.send_signal(self.pid, tid, signal);
        }
    }

    /// The thread of a step: `tid`, or the thread of the current notice if `tid` is 0.
    fn step_thread(&self, tid: Tid) -> Tid {
        match (tid, self.notices.given()) {
            (0, Some(given)) => given,
            (tid, _) => tid,
        }
    }

    /// Checks whether a thread can execute one instruction alone.
    pub(super) fn check_step<K: Kernel>(
        &self,
        context: &Context<'_, K>,
        tid: Tid,
    ) -> Result<(), TraceError> {
        let tid = self.step_thread(tid);
        let thread = self.threads.get(tid).ok_or(TraceError::NoThread(tid))?;
        let wrong = |reason| Err(TraceError::WrongState(tid, reason));
        if !self.notices.is_suspended() {
            return wrong("its process is not suspended: no notice has been given");
        }
        if self.exclusive.is_some() {
            return wrong("a step, or a system call for a tool, is in progress");
        }
        if thread.is_held() {
            return wrong("it is held; release it first");
        }
        if matches!(thread.motion(), Motion::Halted | Motion::Dying) {
            return wrong("it waits in the kernel, and cannot make a step");
        }
        let goes_to_handler =
            self.notices.given() == Some(tid) && thread.continuation.unwrap_or(0) != 0;
        let sleeps = thread.stop().is_some()
            && context.kernel.registers(tid).is_ok_and(|it| it.is_in_interrupted_call());
        if sleeps && !goes_to_handler {
            return wrong("it sleeps in a system call, and cannot make a step");
        }
        Ok(())
    }

    /// Lets one thread of a suspended process execute one instruction.
    pub(super) fn step<K: Kernel>(
        &mut self,
        context: &mut Context<'_, K>,
        tid: Tid,
    ) -> Result<StepOutcome, TraceError> {
        let tid = self.step_thread(tid);
        self.check_step(context, tid)?;
        self.satisfy(context);
        if self.notices.has_pending() {
            return Ok(StepOutcome::NoticePending);
        }
        self.exclusive = Some((Exclusive::Step(tid), false));
        Ok(StepOutcome::Started)
    }

    /// Sends a signal to a thread. The signal remains pending if it cannot be delivered now.
    pub(super) fn send_to_thread<K: Kernel>(
        &mut self,
        context: &mut Context<'_, K>,
        tid: Tid,
        signal: i32,
    ) -> Result<(), TraceError> {
        check_signal(signal, 1)?;
        if self.threads.get(tid).is_none() {
            return Err(TraceError::NoThread(tid));
        }
        let result = context.kernel.send_signal(self.pid, tid, signal);
        result.map_err(|errno| match errno {
            nix::Error::ESRCH => TraceError::NoThread(tid),
            errno => TraceError::Refused(tid, errno),
        })
    }

    /// Sends a signal to the first thread, in the order of processor numbers, that can take it.
    /// Does nothing if there is none.
    pub(super) fn send_to_process<K: Kernel>(
        &mut self,
        context: &mut Context<'_, K>,
        signal: i32,
    ) -> Result<(), TraceError> {
        check_signal(signal, 1)?;
        let mut candidates: Vec<(u32, Tid)> = Vec::new();
        for (tid, thread) in self.threads.iter() {
            let blocked = Status::read(tid).map_or(u64::MAX, |status| status.signals("SigBlk"));
            let can_take =
                (!thread.is_held() && blocked >> (signal - 1) & 1 == 0) || signal == libc::SIGKILL;
            let stat = ThreadStat::read(self.pid, tid);
            if let Some(stat) = stat
                && can_take
                && !matches!(stat.state, b'Z' | b'X')
            {
                candidates.push((stat.processor, tid));
            }
        }
        candidates.sort_unstable();
        match candidates.first() {
            Some((_, tid)) => self.send_to_thread(context, *tid, signal),
            None => Ok(()),
        }
    }

    /// Undoes the changes of a tool to the process, except for debug registers, memory and trap
    /// handler. Used for a tool that has ended while other tools remain attached.
    pub(super) fn release_all<K: Kernel>(&mut self, context: &mut Context<'_, K>) {
        for (address, original) in self.memory.breakpoints().all() {
            self.remove_breakpoint(context, address, original);
        }
        self.notices.clear();
        match self.exclusive {
            Some((Exclusive::Step(_), false)) => self.exclusive = None,
            // The step ends without a notice.
            Some((Exclusive::Step(tid), true)) => {
                let address = self.memory.breakpoints().lifted().unwrap_or(0);
                self.exclusive = Some((Exclusive::Pass(tid, address), true));
            }
            _ => {}
        }
        self.threads.release_all();
        self.resources.set_preferences(Preferences::default());
        self.watch_policy = WatchPolicy::default();
    }
}
