//! Compares the state that the threads of a process should have with their actual state, and makes
//! the calls that change it.

#![forbid(unsafe_code)]

use std::time::Duration;

use super::breakpoints::INT3;
use super::kernel::{Kernel, TaskState};
use super::process::{Context, Exclusive, Motion, Place, Presence, Process, Purpose, Stop};
use super::{Event, Tid};

/// If a thread does not stop within this time after an interrupt, the tracer reads its state.
pub const STATE_INTERVAL: Duration = Duration::from_millis(5);

/// The state that a thread should have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Goal {
    /// The thread executes its program.
    Run,
    /// The thread executes nothing.
    Stand,
    /// The thread is in a stop in which it can be accessed.
    Access,
    /// The thread waits for the end of the group stop, to make its step then.
    Slice,
    /// The thread moves alone, or will do so next.
    Alone,
}

impl Process {
    /// Makes calls until the threads have the states that they should have.
    pub(super) fn reconcile<K: Kernel>(&mut self, context: &mut Context<'_, K>) {
        if self.is_suspended && matches!(self.exclusive, Some((Exclusive::Pass(..), false))) {
            self.exclusive = None;
        }
        loop {
            self.serve_requests(context);
            self.begin_exclusive(context);
            if !self.drive_threads(context) {
                break;
            }
        }
        self.give_notice(context);
        if self.presence != Presence::Attached {
            self.leave(context);
        }
    }

    fn goal(&self, tid: Tid, is_held: bool) -> Goal {
        match &self.exclusive {
            Some((exclusive, true)) if exclusive.tid() == tid => return Goal::Alone,
            Some((Exclusive::Step(mover), false)) if *mover == tid && self.is_group_stopped => {
                return Goal::Slice;
            }
            Some((exclusive, false)) if exclusive.tid() == tid => return Goal::Access,
            _ => {}
        }
        if self.presence != Presence::Attached || self.is_access_requested(tid) {
            Goal::Access
        } else if self.exclusive.is_some() || self.is_suspended || is_held {
            Goal::Stand
        } else {
            Goal::Run
        }
    }

    /// Drives the threads. Returns true if a new exclusive operation must be started first.
    fn drive_threads<K: Kernel>(&mut self, context: &mut Context<'_, K>) -> bool {
        let threads: Vec<(Tid, Motion, bool)> =
            self.threads.iter().map(|(tid, it)| (*tid, it.motion, it.is_held)).collect();
        for (tid, motion, is_held) in threads {
            match (self.goal(tid, is_held), motion) {
                (Goal::Run, Motion::Stopped(stop)) if self.resume_thread(context, tid, stop) => {
                    return true;
                }
                (Goal::Stand | Goal::Access | Goal::Slice, Motion::Running)
                | (Goal::Access, Motion::Listening) => self.interrupt(context, tid),
                (Goal::Stand | Goal::Access | Goal::Slice, Motion::Stopped(stop))
                    if stop.place == Place::Call =>
                {
                    self.leave_call(context, tid);
                }
                (Goal::Slice, Motion::Stopped(stop)) if stop.place == Place::GroupStop => {
                    let result = context.kernel.listen(tid);
                    self.set_motion_after(tid, result, Motion::Listening);
                }
                _ => {}
            }
        }
        false
    }

    fn interrupt<K: Kernel>(&mut self, context: &mut Context<'_, K>, tid: Tid) {
        let now = context.kernel.now();
        let result = context.kernel.interrupt(tid);
        self.set_motion_after(tid, result, Motion::Stopping(now));
    }

    /// Moves a thread from the middle of a system call to its end, where its registers are valid.
    fn leave_call<K: Kernel>(&mut self, context: &mut Context<'_, K>, tid: Tid) {
        let now = context.kernel.now();
        let result = context.kernel.interrupt(tid).and_then(|()| context.kernel.resume(tid, 0));
        self.set_motion_after(tid, result, Motion::Stopping(now));
    }

    /// Resumes a thread. Returns true if it must pass a breakpoint first.
    fn resume_thread<K: Kernel>(
        &mut self,
        context: &mut Context<'_, K>,
        tid: Tid,
        stop: Stop,
    ) -> bool {
        if stop.place == Place::GroupStop {
            let result = context.kernel.listen(tid);
            self.set_motion_after(tid, result, Motion::Listening);
            return false;
        }
        if let Some(address) = self.breakpoint_to_pass(context, tid, stop)
            && !self.is_group_stopped
        {
            self.exclusive = Some((Exclusive::Pass(tid, address), false));
            return true;
        }
        let now = context.kernel.now();
        self.restore_siginfo(context, tid, stop);
        // If the last stop of a thread was a group stop, this thread joins it before it executes
        // anything. If the group stop is over, the stop at the interrupt shows this.
        let result = match self.is_group_stopped {
            true => context.kernel.interrupt(tid),
            false => Ok(()),
        };
        let result = result.and_then(|()| context.kernel.resume(tid, stop.signal));
        let motion = if self.is_group_stopped { Motion::Stopping(now) } else { Motion::Running };
        self.set_motion_after(tid, result, motion);
        false
    }

    /// The breakpoint that a thread must pass before it continues.
    fn breakpoint_to_pass<K: Kernel>(
        &mut self,
        context: &mut Context<'_, K>,
        tid: Tid,
        stop: Stop,
    ) -> Option<u64> {
        let thread = self.threads.get_mut(&tid)?;
        let address = thread.at_breakpoint?;
        let registers = context.kernel.registers(tid).ok()?;
        if registers.rip != address || !self.breakpoints.is_inserted(address) {
            thread.at_breakpoint = None;
            return None;
        }
        if stop.signal != 0 {
            thread.at_breakpoint = None;
            thread.hit_before_handler = Some((address, registers.rsp));
            return None;
        }
        Some(address)
    }

    /// Restores the siginfo of a signal, if the kernel has lost it since the stop.
    fn restore_siginfo<K: Kernel>(&self, context: &mut Context<'_, K>, tid: Tid, stop: Stop) {
        if let Some(info) = stop.info
            && info.signal() == stop.signal
        {
            // An error means that the thread is being killed, so its signal does not matter.
            _ = context.kernel.set_siginfo(tid, &info);
        }
    }

    /// Starts the pending exclusive operation, when all other threads are stopped.
    fn begin_exclusive<K: Kernel>(&mut self, context: &mut Context<'_, K>) {
        let Some((exclusive, false)) = &self.exclusive else { return };
        let tid = exclusive.tid();
        let Some(thread) = self.threads.get(&tid).filter(|it| it.motion != Motion::Dying) else {
            return self.fail_exclusive(context);
        };
        let Some(stop) = thread.stop() else { return };
        if !self.are_others_quiet(tid) {
            return;
        }
        let Ok(registers) = context.kernel.registers(tid) else {
            return self.fail_exclusive(context);
        };
        let signal = match exclusive {
            Exclusive::Inject(_) => return self.begin_injected_call(context, registers, stop),
            Exclusive::Step(_) if stop.place == Place::GroupStop => return,
            Exclusive::Step(_) => stop.signal,
            Exclusive::Pass(_, address) if registers.rip != *address => {
                self.exclusive = None;
                return;
            }
            Exclusive::Pass(..) => 0,
        };
        if self.breakpoints.is_inserted(registers.rip)
            && let Some(original) = self.breakpoints.original(registers.rip)
        {
            self.write_breakpoint(context, registers.rip, INT3, original);
            self.breakpoints.set_lifted(Some(registers.rip));
        }
        if let Some((_, begun)) = &mut self.exclusive {
            *begun = true;
        }
        if let Some(thread) = self.threads.get_mut(&tid) {
            let place = (registers.rip, registers.rsp);
            let is_hit = thread.at_breakpoint == Some(registers.rip);
            if signal == 0 {
                // The thread passes the breakpoint now.
                thread.hit_before_handler.take_if(|hit| *hit == place);
            } else if is_hit && self.breakpoints.kind(registers.rip).is_some() {
                thread.hit_before_handler = Some(place);
                thread.at_breakpoint = None;
            }
        }
        self.restore_siginfo(context, tid, stop);
        // In a group stop the thread joins the stop before the instruction, and makes its step in
        // the next slice.
        let result = match self.is_group_stopped {
            true => context.kernel.interrupt(tid),
            false => Ok(()),
        };
        let result = result.and_then(|()| context.kernel.step(tid, signal));
        self.set_motion_after(tid, result, Motion::Stepping);
    }

    /// Ends a step or a pass, and inserts the breakpoint again.
    pub(super) fn end_exclusive<K: Kernel>(&mut self, context: &mut Context<'_, K>) {
        self.exclusive = None;
        let Some(address) = self.breakpoints.lifted() else { return };
        self.breakpoints.set_lifted(None);
        if self.breakpoints.is_inserted(address)
            && let Some(original) = self.breakpoints.original(address)
        {
            self.write_breakpoint(context, address, original, INT3);
        }
    }

    /// Ends the exclusive operation of a thread that does not exist any more.
    pub(super) fn fail_exclusive<K: Kernel>(&mut self, context: &mut Context<'_, K>) {
        if let Some((Exclusive::Inject(injection), _)) = self.exclusive.take() {
            self.fail_injection(context, *injection);
        }
        self.end_exclusive(context);
    }

    /// Issues the next notice, when all threads are stopped and the previous notice has been
    /// answered.
    fn give_notice<K: Kernel>(&mut self, context: &mut Context<'_, K>) {
        let is_moving = matches!(self.exclusive, Some((_, true)));
        if self.given.is_some() || is_moving || !self.threads.values().all(|it| it.is_quiet()) {
            return;
        }
        if let Some(notice) = self.notices.pop_front() {
            self.given = Some(notice.tid);
            self.last_given = Some(notice.tid);
            context.events.push_back(Event::Notice(notice));
        }
    }

    /// The time at which [`Self::on_timeout`] has work to do.
    pub(super) fn deadline(&self) -> Option<Duration> {
        let interrupted = self.threads.values().filter_map(|thread| match thread.motion {
            Motion::Stopping(since) => Some(since + STATE_INTERVAL),
            _ => None,
        });
        interrupted.chain(self.request_deadline()).min()
    }

    /// Checks threads that do not stop, and requests that wait for them.
    pub(super) fn on_timeout<K: Kernel>(&mut self, context: &mut Context<'_, K>) {
        let now = context.kernel.now();
        for (tid, thread) in &mut self.threads {
            let Motion::Stopping(since) = thread.motion else { continue };
            if now < since + STATE_INTERVAL {
                continue;
            }
            thread.motion = match context.kernel.task_state(self.pid, *tid) {
                TaskState::Waiting => Motion::Halted,
                TaskState::Ended => Motion::Dying,
                TaskState::Active => Motion::Stopping(now),
            };
        }
        self.expire_requests(context, now);
    }

    /// Starts to restore the process to its untraced state.
    pub(super) fn begin_to_leave<K: Kernel>(&mut self, context: &mut Context<'_, K>) {
        self.presence = Presence::Leaving;
        // These notices will not be answered. Their signals are delivered.
        self.notices.clear();
        if let Some((exclusive, begun)) = &self.exclusive
            && !matches!(exclusive, Exclusive::Inject(_))
        {
            match begun {
                true => _ = context.kernel.interrupt(exclusive.tid()),
                false => self.exclusive = None,
            }
        }
        // A thread that joined a group stop during its step would wait for the next slice. Its step
        // ends here instead.
        let mover = self.exclusive.as_ref().map(|(exclusive, _)| exclusive.tid());
        if let Some(tid) = mover
            && self.threads.get(&tid).is_some_and(|it| it.motion == Motion::Listening)
        {
            self.end_exclusive(context);
            self.interrupt(context, tid);
        }
    }

    fn leave<K: Kernel>(&mut self, context: &mut Context<'_, K>) {
        if self.presence == Presence::Leaving {
            let is_quiet = self.threads.values().all(|thread| thread.is_quiet());
            if self.exclusive.is_some() || !is_quiet || self.is_being_interrupted() {
                return;
            }
            if self.begin_clean_up(context) {
                return self.reconcile(context);
            }
            for (address, original) in self.breakpoints.all() {
                if self.breakpoints.is_inserted(address) {
                    self.write_breakpoint(context, address, INT3, original);
                }
                self.breakpoints.remove(address);
            }
            self.fail_requests(context);
            self.presence = Presence::Restored;
        }
        let stopped: Vec<(Tid, Stop)> = self
            .threads
            .iter()
            .filter_map(|(tid, thread)| match thread.motion {
                Motion::Stopped(stop) => Some((*tid, stop)),
                _ => None,
            })
            .collect();
        for (tid, stop) in stopped {
            self.detach_thread(context, tid, stop);
        }
    }

    /// Whether a thread is still listening: it was interrupted and will stop.
    fn is_being_interrupted(&self) -> bool {
        self.threads.values().any(|it| matches!(it.motion, Motion::Listening))
    }

    fn detach_thread<K: Kernel>(&mut self, context: &mut Context<'_, K>, tid: Tid, stop: Stop) {
        let Some(thread) = self.threads.remove(&tid) else { return };
        if !thread.watchpoints.is_empty() {
            _ = context.kernel.set_debug_register(tid, 7, 0);
        }
        let mut signal = match thread.continuation {
            Some(signal) if thread.has_notice => signal,
            _ => stop.signal,
        };
        self.restore_siginfo(context, tid, Stop { signal, ..stop });
        if signal != 0 && stop.place != Place::Delivery {
            _ = context.kernel.send_signal(self.pid, tid, signal);
            signal = 0;
        }
        // An error means that the thread is being killed.
        _ = context.kernel.detach(tid, signal);
    }

    /// Whether no thread of the process is traced any more.
    pub(super) fn has_left(&self) -> bool {
        self.presence == Presence::Restored
            && self.threads.values().all(|thread| thread.motion == Motion::Dying)
    }

    /// Starts to remove the memory and the handler of tools from the process. Returns false if
    /// nothing is left.
    fn begin_clean_up<K: Kernel>(&mut self, context: &Context<'_, K>) -> bool {
        let Some(tid) = self.accessible_thread() else { return false };
        let purpose = if let Some(handler) = self.trap_handler.take() {
            Purpose::RestoreHandler(handler)
        } else if let Some((address, length)) = self.allocations.pop_first() {
            if self.is_executed(context, address, length) {
                return self.begin_clean_up(context);
            }
            Purpose::Free(address, length)
        } else {
            return false;
        };
        self.start_injection(tid, purpose, None);
        true
    }
}
