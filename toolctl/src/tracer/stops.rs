//! Handling of the stops of threads.

#![forbid(unsafe_code)]

use super::breakpoints::{BreakpointKind, INT3};
use super::kernel::Kernel;
use super::process::{
    Context, Exclusive, Motion, NoticeReason, Place, Presence, Process, Stop, Thread,
};
use super::siginfo::{SI_KERNEL, SigInfo, TRAP_BRKPT, TRAP_HANDLER, TRAP_HWBKPT, TRAP_TRACE};
use super::watchpoints::{WatchKind, WatchRange};
use super::{Event, Tid};

/// Signals that stop a process.
pub const STOP_SIGNALS: [i32; 4] = [libc::SIGSTOP, libc::SIGTSTP, libc::SIGTTIN, libc::SIGTTOU];
const DR6: usize = 6;

/// The cause of a SIGTRAP.
enum Trap {
    /// A breakpoint, which exists (with its kind) or was just removed.
    Breakpoint(u64, Option<BreakpointKind>),
    /// A watchpoint.
    Watchpoint(WatchRange),
    /// A debug register that the tool has set directly: its address, and whether it is for
    /// execution.
    DebugRegister(u64, bool),
    /// A single step.
    Step,
    /// The program itself.
    Program,
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
        self.begin_thread(tid, now);
        match event {
            0 if signal == libc::SIGTRAP => self.on_trap(context, tid),
            0 => self.on_signal(context, tid, signal),
            libc::PTRACE_EVENT_STOP => self.on_interrupt(context, tid, signal),
            libc::PTRACE_EVENT_EXEC => self.on_exec(context, tid),
            _ if self.is_moving_alone(tid) => self.move_on(context, tid, 0),
            _ => self.set_motion(tid, Motion::Stopped(Stop::at(Place::Call))),
        }
    }

    /// Resumes a thread that moves alone, by a single step.
    fn move_on<K: Kernel>(&mut self, context: &mut Context<'_, K>, tid: Tid, signal: i32) {
        let result = context.kernel.step(tid, signal);
        self.set_motion_after(tid, result, Motion::Stepping);
    }

    fn on_interrupt<K: Kernel>(&mut self, context: &mut Context<'_, K>, tid: Tid, signal: i32) {
        let is_group_stop = STOP_SIGNALS.contains(&signal);
        self.is_group_stopped = is_group_stop;
        let place = if is_group_stop { Place::GroupStop } else { Place::Interrupt };
        if self.is_moving_alone(tid) {
            self.on_interrupt_alone(context, tid, place);
            return;
        }
        self.set_motion(tid, Motion::Stopped(Stop::at(place)));
        // A trap that the thread has already executed must be handled first. Otherwise the reason
        // for its instruction pointer would be lost. The thread executes no instruction before the
        // trap.
        if self.has_pending_trap(context, tid) {
            let now = context.kernel.now();
            let result = context.kernel.resume(tid, 0);
            self.set_motion_after(tid, result, Motion::Stopping(now));
        }
    }

    fn has_pending_trap<K: Kernel>(&self, context: &Context<'_, K>, tid: Tid) -> bool {
        let pending = context.kernel.pending_signals(tid).unwrap_or_default();
        pending.iter().any(|info| info.signal() == libc::SIGTRAP && info.code() > 0)
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
        let is_complete = self.has_pending_trap(context, tid);
        if is_injection || is_complete || (place == Place::Interrupt && !self.is_leaving()) {
            self.move_on(context, tid, 0);
        } else if is_pass || self.is_leaving() {
            self.end_exclusive(context);
            self.set_motion(tid, Motion::Stopped(Stop::at(place)));
        } else {
            // A step of a tool continues in the next slice.
            let result = context.kernel.listen(tid);
            self.set_motion_after(tid, result, Motion::Listening);
        }
    }

    fn is_leaving(&self) -> bool {
        self.presence != Presence::Attached
    }

    /// Handles an exec: all state of the former program is dropped.
    fn on_exec<K: Kernel>(&mut self, context: &mut Context<'_, K>, tid: Tid) {
        let mut process = Self::new(self.pid);
        process.notify = self.notify;
        process.preferences = self.preferences;
        process.presence = self.presence;
        process.is_held = self.is_held;
        process.requests = std::mem::take(&mut self.requests);
        let is_held = self.threads.get(&tid).is_some_and(|thread| thread.is_held);
        let mut thread = Thread::new(Motion::Stopped(Stop::at(Place::Call)));
        thread.is_held = is_held;
        process.threads.insert(tid, thread);
        *self = process;
        context.events.push_back(Event::Exec { pid: self.pid });
    }

    /// Handles the end of a thread.
    pub(super) fn on_thread_end<K: Kernel>(&mut self, context: &mut Context<'_, K>, tid: Tid) {
        if self.exclusive.as_ref().is_some_and(|(exclusive, _)| exclusive.tid() == tid) {
            self.fail_exclusive(context);
        }
        self.threads.remove(&tid);
        self.notices.retain(|notice| notice.tid != tid);
        if self.given == Some(tid) {
            self.given = None;
            // The end of this notice must resume the other threads.
            self.is_suspended = !self.notices.is_empty();
        }
    }

    fn on_signal<K: Kernel>(&mut self, context: &mut Context<'_, K>, tid: Tid, signal: i32) {
        let Ok(info) = context.kernel.siginfo(tid) else {
            return self.set_motion(tid, Motion::Dying);
        };
        // The scheduler stops and continues processes by these signals. Tools must not be notified
        // of them.
        let is_silent = [libc::SIGSTOP, libc::SIGCONT].contains(&signal);
        let Some(thread) = self.threads.get_mut(&tid) else { return };
        let was_resent = thread.resent.remove(signal);
        let stop = Stop { place: Place::Delivery, signal, info: None };
        let gives_notice = self.notify.contains(signal) && !was_resent && !is_silent;
        let is_leaving = self.is_leaving();
        if self.is_moving_alone(tid) {
            match &mut self.exclusive {
                Some((Exclusive::Inject(injection), _)) => {
                    injection.interruption = Some((signal, info));
                    return self.end_injected_call(context, tid);
                }
                Some((Exclusive::Step(_), _)) if !gives_notice && !is_leaving => {
                    return self.move_on(context, tid, signal);
                }
                _ => self.end_exclusive(context),
            }
        }
        self.set_motion(tid, Motion::Stopped(stop));
        if gives_notice && !is_leaving {
            let access = info.fault_address();
            self.queue_notice(context, (tid, signal), NoticeReason::Signal, access);
        }
    }

    fn on_trap<K: Kernel>(&mut self, context: &mut Context<'_, K>, tid: Tid) {
        let Ok(info) = context.kernel.siginfo(tid) else {
            return self.set_motion(tid, Motion::Dying);
        };
        let place = if info.code() == TRAP_HANDLER { Place::Handler } else { Place::Delivery };
        let stop = Stop::at(place);
        let trap = self.trap_of(context, tid, &info);
        if self.is_moving_alone(tid) {
            if matches!(self.exclusive, Some((Exclusive::Inject(_), _))) {
                if matches!(trap, Trap::Step) {
                    self.set_motion(tid, Motion::Stopped(stop));
                } else if let Some((Exclusive::Inject(injection), _)) = &mut self.exclusive {
                    injection.interruption = Some((libc::SIGTRAP, info));
                }
                return self.end_injected_call(context, tid);
            }
            let is_step = matches!(self.exclusive, Some((Exclusive::Step(_), _)));
            if is_step && matches!(trap, Trap::Program) {
                return self.on_signal(context, tid, libc::SIGTRAP);
            }
            self.end_exclusive(context);
            self.set_motion(tid, Motion::Stopped(stop));
            if let Some(thread) = self.threads.get_mut(&tid) {
                thread.at_breakpoint = None;
            }
            if matches!(trap, Trap::Step) {
                if is_step && !self.is_leaving() {
                    let step = NoticeReason::Step;
                    self.queue_notice(context, (tid, libc::SIGTRAP), step, 0);
                }
                return;
            }
        }
        self.set_motion(tid, Motion::Stopped(stop));
        match trap {
            Trap::Breakpoint(address, kind) => self.on_breakpoint(context, tid, address, kind),
            Trap::Watchpoint(range) => self.on_watchpoint(context, tid, range),
            Trap::DebugRegister(address, is_execution) => {
                let reason = match is_execution {
                    true => NoticeReason::Breakpoint,
                    false => NoticeReason::WatchWrite,
                };
                self.give_trap_notice(context, tid, reason, address);
            }
            // The remainder of a step that has ended in another way, for example when a breakpoint
            // was removed.
            Trap::Step if place == Place::Handler => {}
            Trap::Step | Trap::Program => self.on_signal(context, tid, libc::SIGTRAP),
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

    /// Determines the cause of a SIGTRAP. Sets a thread that has executed a breakpoint back to its
    /// address.
    fn trap_of<K: Kernel>(
        &mut self,
        context: &mut Context<'_, K>,
        tid: Tid,
        info: &SigInfo,
    ) -> Trap {
        match info.code() {
            SI_KERNEL => self.breakpoint_of(context, tid).unwrap_or(Trap::Program),
            // A single step over a system call.
            TRAP_BRKPT if self.is_moving_alone(tid) => Trap::Step,
            TRAP_TRACE | TRAP_HWBKPT => self.debug_status_of(context, tid, info.code()),
            TRAP_HANDLER => Trap::Step,
            _ => Trap::Program,
        }
    }

    fn breakpoint_of<K: Kernel>(&self, context: &mut Context<'_, K>, tid: Tid) -> Option<Trap> {
        let mut registers = context.kernel.registers(tid).ok()?;
        let address = registers.rip.wrapping_sub(1);
        let kind = self.breakpoints.kind(address);
        let mut byte = [0];
        let has_int3 = context.kernel.read_memory(self.pid, address, &mut byte) && byte[0] == INT3;
        let is_ours = match kind {
            // If the breakpoint's int3 is removed from memory, an int3 at its address is the
            // program's own.
            Some(_) => self.breakpoints.is_inserted(address) || !has_int3,
            None => self.breakpoints.was_removed(address) && !has_int3,
        };
        if !is_ours {
            return None;
        }
        registers.jump(address);
        context.kernel.set_registers(tid, &registers).ok()?;
        Some(Trap::Breakpoint(address, kind))
    }

    fn debug_status_of<K: Kernel>(
        &mut self,
        context: &mut Context<'_, K>,
        tid: Tid,
        code: i32,
    ) -> Trap {
        let status = context.kernel.debug_register(tid, DR6).unwrap_or(0);
        let Some(thread) = self.threads.get(&tid) else { return Trap::Program };
        let mut hits = (0..4).filter(|register| status >> register & 1 == 1);
        if status & 0b1111 != 0 {
            // Clear the register, so that later hits can be distinguished from this one.
            _ = context.kernel.set_debug_register(tid, DR6, 0);
        }
        if let Some((range, _)) = hits.find_map(|register| thread.watchpoints.range_of(register)) {
            return Trap::Watchpoint(range);
        }
        if let Some((address, is_execution)) = thread.watchpoints.direct_hit(status) {
            return Trap::DebugRegister(address, is_execution);
        }
        if code == TRAP_TRACE && self.is_moving_alone(tid) { Trap::Step } else { Trap::Program }
    }

    fn on_breakpoint<K: Kernel>(
        &mut self,
        context: &mut Context<'_, K>,
        tid: Tid,
        address: u64,
        kind: Option<BreakpointKind>,
    ) {
        let stack = context.kernel.registers(tid).map_or(0, |registers| registers.rsp);
        let has_handler = self.trap_handler.is_some() && self.preferences.fast_breakpoints;
        let Some(thread) = self.threads.get_mut(&tid) else { return };
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
        self.set_motion(tid, Motion::Stopped(Stop { place: Place::Delivery, signal, info: None }));
    }

    fn on_watchpoint<K: Kernel>(
        &mut self,
        context: &mut Context<'_, K>,
        tid: Tid,
        range: WatchRange,
    ) {
        let mut bytes = vec![0; range.length as usize];
        let is_readable = context.kernel.read_memory(self.pid, range.address, &mut bytes);
        let Some(thread) = self.threads.get_mut(&tid) else { return };
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
        if self.preferences.fast_watchpoints && self.trap_handler.is_some() {
            self.deliver_to_handler(tid);
        } else {
            self.give_trap_notice(context, tid, reason, range.address);
        }
    }
}
