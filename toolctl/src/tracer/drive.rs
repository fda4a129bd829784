//! Compares the state that the threads of a process should have with their actual state, and makes
//! the calls that change it.

#![forbid(unsafe_code)]

use std::time::Duration;

use super::kernel::Kernel;
use super::process::{Context, Exclusive, Motion, Place, Presence, Process, Stop};
use super::{Event, Tid};

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
        if self.notices.is_suspended()
            && matches!(self.exclusive, Some((Exclusive::Pass(..), false)))
        {
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
            Some((Exclusive::Step(mover), false))
                if *mover == tid && self.threads.is_group_stopped() =>
            {
                return Goal::Slice;
            }
            Some((exclusive, false)) if exclusive.tid() == tid => return Goal::Access,
            _ => {}
        }
        if self.presence != Presence::Attached || self.requests.is_access_requested(tid) {
            Goal::Access
        } else if self.exclusive.is_some() || self.notices.is_suspended() || is_held {
            Goal::Stand
        } else {
            Goal::Run
        }
    }

    /// Drives the threads. Returns true if a new exclusive operation must be started first.
    fn drive_threads<K: Kernel>(&mut self, context: &mut Context<'_, K>) -> bool {
        let threads: Vec<(Tid, Motion, bool)> =
            self.threads.iter().map(|(tid, it)| (tid, it.motion(), it.is_held())).collect();
        for (tid, motion, is_held) in threads {
            match (self.goal(tid, is_held), motion) {
                (Goal::Run, Motion::Stopped(stop)) if self.resume_thread(context, tid, stop) => {
                    return true;
                }
                (Goal::Stand | Goal::Access | Goal::Slice, Motion::Running)
                | (Goal::Access, Motion::Listening) => {
                    self.threads.interrupt(context.kernel, tid);
                }
                (Goal::Stand | Goal::Access | Goal::Slice, Motion::Stopped(stop))
                    if stop.place == Place::Call =>
                {
                    self.threads.leave_call(context.kernel, tid);
                }
                (Goal::Slice, Motion::Stopped(stop)) if stop.place == Place::GroupStop => {
                    self.threads.listen(context.kernel, tid);
                }
                _ => {}
            }
        }
        false
    }

    /// Resumes a thread. Returns true if it must pass a breakpoint first.
    fn resume_thread<K: Kernel>(
        &mut self,
        context: &mut Context<'_, K>,
        tid: Tid,
        stop: Stop,
    ) -> bool {
        if stop.place == Place::GroupStop {
            self.threads.listen(context.kernel, tid);
            return false;
        }
        if let Some(address) = self.breakpoint_to_pass(context, tid, stop)
            && !self.threads.is_group_stopped()
        {
            self.exclusive = Some((Exclusive::Pass(tid, address), false));
            return true;
        }
        self.threads.resume(context.kernel, tid, stop);
        false
    }

    /// The breakpoint that a thread must pass before it continues.
    fn breakpoint_to_pass<K: Kernel>(
        &mut self,
        context: &mut Context<'_, K>,
        tid: Tid,
        stop: Stop,
    ) -> Option<u64> {
        let thread = self.threads.get_mut(tid)?;
        let address = thread.at_breakpoint?;
        let registers = context.kernel.registers(tid).ok()?;
        if registers.rip != address || !self.memory.breakpoints().is_inserted(address) {
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

    /// Starts the pending exclusive operation, when all other threads are stopped.
    fn begin_exclusive<K: Kernel>(&mut self, context: &mut Context<'_, K>) {
        let Some((exclusive, false)) = &self.exclusive else { return };
        let tid = exclusive.tid();
        let Some(thread) = self.threads.get(tid).filter(|it| it.motion() != Motion::Dying) else {
            return self.fail_exclusive(context);
        };
        let Some(stop) = thread.stop() else { return };
        if !self.threads.are_others_quiet(tid) {
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
        self.memory.lift(context.kernel, registers.rip);
        if let Some((_, begun)) = &mut self.exclusive {
            *begun = true;
        }
        if let Some(thread) = self.threads.get_mut(tid) {
            let place = (registers.rip, registers.rsp);
            let is_hit = thread.at_breakpoint == Some(registers.rip);
            if signal == 0 {
                // The thread passes the breakpoint now.
                thread.hit_before_handler.take_if(|hit| *hit == place);
            } else if is_hit && self.memory.breakpoints().kind(registers.rip).is_some() {
                thread.hit_before_handler = Some(place);
                thread.at_breakpoint = None;
            }
        }
        self.threads.begin_step(context.kernel, tid, stop, signal);
    }

    /// Ends a step or a pass, and inserts the breakpoint again.
    pub(super) fn end_exclusive<K: Kernel>(&mut self, context: &mut Context<'_, K>) {
        self.exclusive = None;
        self.memory.insert_lifted(context.kernel);
    }

    /// Ends an exclusive operation that cannot be completed.
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
        if !is_moving
            && self.threads.are_quiet()
            && let Some(notice) = self.notices.issue()
        {
            context.events.push_back(Event::Notice(notice));
        }
    }

    /// The time at which [`Self::on_timeout`] has work to do.
    pub(super) fn deadline(&self) -> Option<Duration> {
        self.threads.deadline().into_iter().chain(self.requests.deadline()).min()
    }

    /// Checks threads that do not stop or start, and requests that wait for them.
    pub(super) fn on_timeout<K: Kernel>(&mut self, context: &mut Context<'_, K>) {
        let now = context.kernel.now();
        self.threads.check_waiting(context.kernel, self.pid, now);
        self.expire_requests(context, now);
    }

    /// Starts to restore the process to its untraced state.
    pub(super) fn begin_to_leave<K: Kernel>(&mut self, context: &mut Context<'_, K>) {
        self.presence = Presence::Leaving;
        // These notices will not be answered. Their signals are delivered.
        self.notices.drop_pending();
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
            && self.threads.get(tid).is_some_and(|it| it.motion() == Motion::Listening)
        {
            self.end_exclusive(context);
            self.threads.interrupt(context.kernel, tid);
        }
    }

    fn leave<K: Kernel>(&mut self, context: &mut Context<'_, K>) {
        if self.presence == Presence::Leaving {
            if self.exclusive.is_some()
                || !self.threads.are_quiet()
                || self.threads.is_any_listening()
            {
                return;
            }
            if self.begin_clean_up(context) {
                return self.reconcile(context);
            }
            for (address, original) in self.memory.breakpoints().all() {
                self.memory.remove_breakpoint(context.kernel, address, original);
            }
            self.fail_requests(context);
            self.presence = Presence::Restored;
        }
        for thread in self.threads.stopped() {
            self.threads.detach(context.kernel, self.pid, thread);
        }
    }

    /// Whether no thread of the process is traced any more.
    pub(super) fn has_left(&self) -> bool {
        self.presence == Presence::Restored && self.threads.are_dying()
    }

    /// Starts to remove the memory and the handler of tools from the process. Returns false if all
    /// are removed, or if no thread can be accessed.
    fn begin_clean_up<K: Kernel>(&mut self, context: &Context<'_, K>) -> bool {
        let Some(tid) = self.threads.accessible() else { return false };
        let (threads, kernel) = (&self.threads, &*context.kernel);
        let is_executed = |address, length| threads.is_executed(kernel, address, length);
        let Some(purpose) = self.resources.take_next(is_executed) else { return false };
        self.start_injection(tid, purpose, None);
        true
    }
}
