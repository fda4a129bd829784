//! Handling of the stops of threads.

#![forbid(unsafe_code)]

use super::breakpoints::BreakpointKind;
use super::kernel::Kernel;
use super::process::{
    BreakpointHit, Context, Exclusive, NoticeReason, Place, Presence, Process, Stop, TrapCause,
};
use super::siginfo::TRAP_HANDLER;
use super::watchpoints::{WatchKind, WatchRange};
use super::{Event, Tid};

/// Signals that stop a process.
pub const STOP_SIGNALS: [i32; 4] = [libc::SIGSTOP, libc::SIGTSTP, libc::SIGTTIN, libc::SIGTTOU];

/// Whether a thread has executed a trap that it will report at its next stop.
fn has_pending_trap<K: Kernel>(kernel: &K, tid: Tid) -> bool {
    let pending = kernel.pending_signals(tid).unwrap_or_default();
    pending.iter().any(|info| info.signal() == libc::SIGTRAP && info.code() > 0)
}

impl Process {
    /// Handles a stop of a thread. `signal` and `event` are those of waitpid(2).
    pub(super) fn on_stop<K: Kernel>(
        &mut self,
        context: &mut Context<'_, K>,
        tid: Tid,
        signal: i32,
        event: i32,
    ) {
        let now = context.kernel.now();
        let is_new = self.threads.begin(tid, now);
        match event {
            0 if signal == libc::SIGTRAP => self.on_trap(context, tid),
            0 => self.on_signal(context, tid, signal),
            libc::PTRACE_EVENT_STOP => self.on_interrupt(context, (tid, is_new), signal),
            libc::PTRACE_EVENT_EXEC => self.on_exec(context, tid),
            _ if self.is_moving_alone(tid) => self.threads.step(context.kernel, tid, 0),
            _ => self.threads.set_stopped(tid, Stop::at(Place::Call)),
        }
    }

    fn on_interrupt<K: Kernel>(
        &mut self,
        context: &mut Context<'_, K>,
        (tid, is_new): (Tid, bool),
        signal: i32,
    ) {
        let is_group_stop = STOP_SIGNALS.contains(&signal);
        self.threads.set_group_stopped(is_group_stop);
        let place = if is_group_stop { Place::GroupStop } else { Place::Interrupt };
        if self.is_moving_alone(tid) {
            self.on_interrupt_alone(context, tid, place);
            return;
        }
        if is_new && self.has_to_wait_for_creator() {
            let now = context.kernel.now();
            return self.threads.set_starting(tid, place, now);
        }
        self.threads.set_stopped(tid, Stop::at(place));
        self.inherit(context, tid);
        // A trap that the thread has already executed must be handled first. Otherwise the reason
        // for its instruction pointer would be lost. The thread executes no instruction before the
        // trap.
        if has_pending_trap(context.kernel, tid) {
            self.threads.resume_to_trap(context.kernel, tid);
        }
    }

    fn on_interrupt_alone<K: Kernel>(
        &mut self,
        context: &mut Context<'_, K>,
        tid: Tid,
        place: Place,
    ) {
        let is_injection = matches!(self.exclusive, Some((Exclusive::Inject(_), _)));
        let is_pass = matches!(self.exclusive, Some((Exclusive::Pass(..), _)));
        // The trap of a completed step comes first.
        let is_complete = has_pending_trap(context.kernel, tid);
        if is_injection || is_complete || (place == Place::Interrupt && !self.is_leaving()) {
            self.threads.step(context.kernel, tid, 0);
        } else if is_pass || self.is_leaving() {
            self.end_exclusive(context);
            self.threads.set_stopped(tid, Stop::at(place));
        } else {
            // A step of a tool continues in the next slice.
            self.threads.listen(context.kernel, tid);
        }
    }

    fn is_leaving(&self) -> bool {
        self.presence != Presence::Attached
    }

    /// Handles an exec: all state of the former program is dropped.
    fn on_exec<K: Kernel>(&mut self, context: &mut Context<'_, K>, tid: Tid) {
        *self = self.after_exec(tid);
        context.events.push_back(Event::Exec { pid: self.pid });
    }

    /// Handles the end of a thread.
    pub(super) fn on_thread_end<K: Kernel>(&mut self, context: &mut Context<'_, K>, tid: Tid) {
        if self.exclusive.as_ref().is_some_and(|(exclusive, _)| exclusive.tid() == tid) {
            self.fail_exclusive(context);
        }
        self.threads.remove(tid);
        self.notices.remove_thread(tid);
    }

    fn on_signal<K: Kernel>(&mut self, context: &mut Context<'_, K>, tid: Tid, signal: i32) {
        let Ok(info) = context.kernel.siginfo(tid) else {
            return self.threads.set_dying(tid);
        };
        // The scheduler stops and continues processes by these signals. Tools must not be notified
        // of them.
        let is_silent = [libc::SIGSTOP, libc::SIGCONT].contains(&signal);
        let Some(thread) = self.threads.get_mut(tid) else { return };
        let was_resent = thread.resent.remove(signal);
        let stop = Stop { place: Place::Delivery, signal, info: None };
        let gives_notice = self.notices.is_notified(signal) && !was_resent && !is_silent;
        let is_leaving = self.is_leaving();
        if self.is_moving_alone(tid) {
            match &mut self.exclusive {
                Some((Exclusive::Inject(injection), _)) => {
                    injection.interruption = Some((signal, info));
                    return self.end_injected_call(context, tid);
                }
                Some((Exclusive::Step(_), _)) if !gives_notice && !is_leaving => {
                    return self.threads.step(context.kernel, tid, signal);
                }
                _ => self.end_exclusive(context),
            }
        }
        self.threads.set_stopped(tid, stop);
        if gives_notice && !is_leaving {
            let access = info.fault_address();
            self.queue_notice(context, (tid, signal), NoticeReason::Signal, access);
        }
    }

    fn on_trap<K: Kernel>(&mut self, context: &mut Context<'_, K>, tid: Tid) {
        let Ok(info) = context.kernel.siginfo(tid) else {
            return self.threads.set_dying(tid);
        };
        let place = if info.code() == TRAP_HANDLER { Place::Handler } else { Place::Delivery };
        let stop = Stop::at(place);
        let moves_alone = self.is_moving_alone(tid);
        let Some(thread) = self.threads.get(tid) else { return };
        let trap = TrapCause::of(context.kernel, &self.memory, (tid, thread), moves_alone, &info);
        if moves_alone {
            if matches!(self.exclusive, Some((Exclusive::Inject(_), _))) {
                if matches!(trap, TrapCause::Step) {
                    self.threads.set_stopped(tid, stop);
                } else if let Some((Exclusive::Inject(injection), _)) = &mut self.exclusive {
                    injection.interruption = Some((libc::SIGTRAP, info));
                }
                return self.end_injected_call(context, tid);
            }
            let is_step = matches!(self.exclusive, Some((Exclusive::Step(_), _)));
            if is_step && matches!(trap, TrapCause::Program) {
                return self.on_signal(context, tid, libc::SIGTRAP);
            }
            self.end_exclusive(context);
            self.threads.set_stopped(tid, stop);
            if let Some(thread) = self.threads.get_mut(tid) {
                thread.at_breakpoint = None;
            }
            if matches!(trap, TrapCause::Step) {
                if is_step && !self.is_leaving() {
                    let step = NoticeReason::Step;
                    self.queue_notice(context, (tid, libc::SIGTRAP), step, 0);
                }
                return;
            }
        }
        self.threads.set_stopped(tid, stop);
        match trap {
            TrapCause::Breakpoint(hit) => self.on_breakpoint(context, tid, hit),
            TrapCause::Watchpoint(range) => self.on_watchpoint(context, tid, range),
            TrapCause::DebugRegister(address, is_execution) => {
                let reason = match is_execution {
                    true => NoticeReason::Breakpoint,
                    false => NoticeReason::WatchWrite,
                };
                self.give_trap_notice(context, tid, reason, address);
            }
            // The remainder of a step that has ended in another way, for example when a breakpoint
            // was removed.
            TrapCause::Step if place == Place::Handler => {}
            TrapCause::Step | TrapCause::Program => self.on_signal(context, tid, libc::SIGTRAP),
        }
    }

    fn give_trap_notice<K: Kernel>(
        &mut self,
        context: &mut Context<'_, K>,
        tid: Tid,
        reason: NoticeReason,
        access: u64,
    ) {
        if !self.is_leaving() {
            self.queue_notice(context, (tid, libc::SIGTRAP), reason, access);
        }
    }

    fn on_breakpoint<K: Kernel>(
        &mut self,
        context: &mut Context<'_, K>,
        tid: Tid,
        BreakpointHit { address, kind }: BreakpointHit,
    ) {
        let stack = context.kernel.registers(tid).map_or(0, |registers| registers.rsp);
        let has_handler = self.resources.handles_breakpoints();
        let Some(thread) = self.threads.get_mut(tid) else { return };
        let earlier_hit = thread.hit_before_handler.take();
        // The breakpoint was removed after the thread has executed it. The thread continues at its
        // address.
        let Some(kind) = kind else { return };
        thread.at_breakpoint = Some(address);
        if earlier_hit == Some((address, stack)) {
            return;
        }
        if kind == BreakpointKind::Fast && has_handler {
            self.deliver_to_handler(tid);
            return;
        }
        self.give_trap_notice(context, tid, NoticeReason::Breakpoint, 0);
    }

    /// Makes the thread continue with SIGTRAP, for the handler that the tool has installed.
    fn deliver_to_handler(&mut self, tid: Tid) {
        let signal = libc::SIGTRAP;
        self.threads.set_stopped(tid, Stop { place: Place::Delivery, signal, info: None });
    }

    fn on_watchpoint<K: Kernel>(
        &mut self,
        context: &mut Context<'_, K>,
        tid: Tid,
        range: WatchRange,
    ) {
        let mut bytes = vec![0; range.length as usize];
        let is_readable = context.kernel.read_memory(self.pid, range.address, &mut bytes);
        let Some(thread) = self.threads.get_mut(tid) else { return };
        let register = (0..4).find(|register| {
            thread.watchpoints.range_of(*register).is_some_and(|found| found.0 == range)
        });
        let before = register.and_then(|register| thread.watchpoints.range_of(register));
        let has_changed = is_readable && before.is_some_and(|(_, before)| before != bytes);
        if is_readable {
            thread.watchpoints.set_bytes(range.address, bytes);
        }
        let reason = match range.kind {
            WatchKind::Write => NoticeReason::WatchWrite,
            // The processor has no watchpoints for reads only, so a hit with changed bytes is a
            // write.
            WatchKind::Read if has_changed => return,
            WatchKind::ReadWrite if has_changed => NoticeReason::WatchWrite,
            WatchKind::Read | WatchKind::ReadWrite => NoticeReason::WatchRead,
        };
        if self.resources.handles_watchpoints() {
            self.deliver_to_handler(tid);
        } else {
            self.give_trap_notice(context, tid, reason, range.address);
        }
    }
}
