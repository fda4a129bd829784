//! Changes of a process that a tool requests and that take effect at once: breakpoints, running and
//! stopping of threads, signals.

#![forbid(unsafe_code)]

use super::Tid;
use super::breakpoints::{BreakpointKind, INT3, MAX_BREAKPOINTS};
use super::error::TraceError;
use super::kernel::Kernel;
use super::memory::{self, RangeKind};
use super::process::{Context, Exclusive, Motion, Place, Process};
use super::procfs::{self, Status, ThreadStat};

/// The most bytes of one read or write.
pub const MAX_MEMORY_LEN: usize = 65_024;

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
    /// Reads memory, with the original bytes of the program at breakpoints.
    pub(super) fn read<K: Kernel>(
        &self,
        kernel: &K,
        address: u64,
        length: usize,
    ) -> Result<Vec<u8>, TraceError> {
        let mut bytes = checked_buffer(length)?;
        if !kernel.read_memory(self.pid, address, &mut bytes) {
            return Err(TraceError::Address(address));
        }
        self.breakpoints.hide(address, &mut bytes);
        Ok(bytes)
    }

    /// Writes memory, and keeps the breakpoints in it. `kind` is the kind of the range according to
    /// the memory map.
    pub(super) fn write<K: Kernel>(
        &mut self,
        kernel: &mut K,
        (address, bytes): (u64, &[u8]),
        kind: RangeKind,
        may_write_shared: bool,
    ) -> Result<(), TraceError> {
        let mut former = checked_buffer(bytes.len())?;
        match kind {
            RangeKind::Unmapped => return Err(TraceError::Address(address)),
            RangeKind::Shared if !may_write_shared => {
                return Err(TraceError::SharedMemory(address));
            }
            RangeKind::Shared | RangeKind::Private => {}
        }
        // Memory that cannot be read could not be restored if the write failed halfway.
        if !kernel.read_memory(self.pid, address, &mut former) {
            return Err(TraceError::Address(address));
        }
        let (written, originals) = self.breakpoints.overlay(address, bytes);
        if !kernel.write_memory(self.pid, address, &written) {
            // A part may have been written.
            kernel.write_memory(self.pid, address, &former);
            return Err(TraceError::Address(address));
        }
        self.breakpoints.set_originals(&originals);
        Ok(())
    }

    /// Sets a breakpoint.
    pub(super) fn set_breakpoint<K: Kernel>(
        &mut self,
        kernel: &mut K,
        address: u64,
        kind: BreakpointKind,
    ) -> Result<(), TraceError> {
        match self.breakpoints.kind(address) {
            Some(former) if former == kind => return Ok(()),
            Some(_) => {
                let reason = "a breakpoint of the other kind is there; remove it first";
                return Err(TraceError::Breakpoint(address, reason));
            }
            None if self.breakpoints.count() >= MAX_BREAKPOINTS => {
                let reason = "the process has too many breakpoints; remove some";
                return Err(TraceError::Breakpoint(address, reason));
            }
            None => {}
        }
        let mut byte = [0];
        if !kernel.read_memory(self.pid, address, &mut byte) {
            return Err(TraceError::Address(address));
        }
        self.breakpoints.add(address, byte[0], kind);
        if self.breakpoints.is_inserted(address) && !kernel.write_memory(self.pid, address, &[INT3])
        {
            self.breakpoints.remove(address);
            let reason = "the memory cannot be written";
            return Err(TraceError::Breakpoint(address, reason));
        }
        Ok(())
    }

    /// Removes a breakpoint. `original` is the byte of the program at the address.
    pub(super) fn reset_breakpoint<K: Kernel>(
        &mut self,
        context: &mut Context<'_, K>,
        address: u64,
        original: u8,
    ) -> Result<(), TraceError> {
        match self.breakpoints.original(address) {
            None => Err(TraceError::Breakpoint(address, "there is none")),
            Some(byte) if byte != original => {
                let reason = "the given byte differs from the byte of the program";
                Err(TraceError::Breakpoint(address, reason))
            }
            Some(_) => {
                self.remove_breakpoint(context, address, original);
                Ok(())
            }
        }
    }

    /// Removes a breakpoint that exists.
    pub(super) fn remove_breakpoint<K: Kernel>(
        &mut self,
        context: &mut Context<'_, K>,
        address: u64,
        original: u8,
    ) {
        if self.breakpoints.is_inserted(address) {
            // If the program has changed or unmapped the byte, the tracer does not write it.
            self.write_breakpoint(context, address, INT3, original);
        }
        self.breakpoints.remove(address);
        for thread in self.threads.values_mut() {
            // If the breakpoint is set again, the next hit is a new one.
            thread.hit_before_handler.take_if(|(place, _)| *place == address);
        }
    }

    /// Removes the bytes of all breakpoints from memory, or inserts them again.
    pub(super) fn lift_all<K: Kernel>(&mut self, context: &mut Context<'_, K>, is_lifted: bool) {
        if self.breakpoints.are_all_lifted() == is_lifted {
            return;
        }
        let places = self.breakpoints.all();
        self.breakpoints.set_all_lifted(false);
        for (address, original) in places {
            if self.breakpoints.is_inserted(address) {
                let (from, to) = if is_lifted { (INT3, original) } else { (original, INT3) };
                self.write_breakpoint(context, address, from, to);
            }
        }
        self.breakpoints.set_all_lifted(is_lifted);
    }

    /// Holds a thread, or releases it.
    pub(super) fn set_held(&mut self, tid: Tid, is_held: bool) -> Result<(), TraceError> {
        let thread = self.threads.get_mut(&tid).filter(|it| it.motion != Motion::Dying);
        thread.ok_or(TraceError::NoThread(tid))?.is_held = is_held;
        Ok(())
    }

    /// The state of a thread with regard to tools.
    pub(super) fn tool_state(&self, tid: Tid) -> Result<ToolState, TraceError> {
        let thread = self.threads.get(&tid).ok_or(TraceError::NoThread(tid))?;
        Ok(match (thread.is_held, self.is_suspended) {
            (false, false) => ToolState::Active,
            (true, false) => ToolState::Hold,
            (false, true) => ToolState::Suspend,
            (true, true) => ToolState::HoldSuspend,
        })
    }

    /// The thread of the current notice, if `tid` is this thread or 0.
    fn given_thread(&self, tid: Tid) -> Result<Tid, TraceError> {
        let reason = "it is not the thread that gave the last notice";
        match self.given {
            Some(given) if tid == 0 || tid == given => Ok(given),
            _ => Err(TraceError::WrongState(tid, reason)),
        }
    }

    /// Sets the signal with which a thread continues from its notice.
    pub(super) fn set_continuation(&mut self, tid: Tid, signal: i32) -> Result<(), TraceError> {
        check_signal(signal, 0)?;
        let tid = self.given_thread(tid)?;
        let thread = self.threads.get_mut(&tid).ok_or(TraceError::NoThread(tid))?;
        thread.continuation = Some(signal);
        Ok(())
    }

    /// Marks the current notice as answered.
    pub(super) fn satisfy<K: Kernel>(&mut self, context: &mut Context<'_, K>) {
        let Some(tid) = self.given.take() else { return };
        let Some(thread) = self.threads.get_mut(&tid) else { return };
        thread.has_notice = false;
        let signal = thread.continuation.take().unwrap_or(0);
        let Motion::Stopped(stop) = &mut thread.motion else { return };
        if stop.place == Place::Delivery {
            stop.signal = signal;
        } else if signal != 0 {
            // This stop has no signal that could be replaced by the continuation signal, so it is
            // sent.
            thread.resent.insert(signal);
            _ = context.kernel.send_signal(self.pid, tid, signal);
        }
    }

    /// Continues the process from the current notice, or issues the next notice.
    pub(super) fn continue_process<K: Kernel>(
        &mut self,
        context: &mut Context<'_, K>,
        tid: Tid,
    ) -> Result<(), TraceError> {
        self.given_thread(tid)?;
        self.satisfy(context);
        self.is_suspended = !self.notices.is_empty();
        Ok(())
    }

    /// Like [`Self::continue_process`], for a tool that releases control. A process without a
    /// notice is only resumed.
    pub(super) fn release_control<K: Kernel>(
        &mut self,
        context: &mut Context<'_, K>,
    ) -> Result<(), TraceError> {
        if !self.notices.is_empty() {
            return Err(TraceError::PendingNotice(self.pid));
        }
        self.satisfy(context);
        // A step that has not begun is cancelled.
        if matches!(self.exclusive, Some((Exclusive::Step(_), false))) {
            self.exclusive = None;
        }
        self.is_suspended = false;
        Ok(())
    }

    /// The thread of a step: `tid`, or the thread of the current notice if `tid` is 0.
    fn step_thread(&self, tid: Tid) -> Tid {
        match (tid, self.given) {
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
        let thread = self.threads.get(&tid).ok_or(TraceError::NoThread(tid))?;
        let wrong = |reason| Err(TraceError::WrongState(tid, reason));
        if !self.is_suspended {
            return wrong("its process is not suspended: no notice has been given");
        }
        if self.exclusive.is_some() {
            return wrong("a step, or a system call for a tool, is in progress");
        }
        if thread.is_held {
            return wrong("it is held; release it first");
        }
        if matches!(thread.motion, Motion::Halted | Motion::Dying) {
            return wrong("it waits in the kernel, and cannot make a step");
        }
        let goes_to_handler = self.given == Some(tid) && thread.continuation.unwrap_or(0) != 0;
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
        if !self.notices.is_empty() {
            return Ok(StepOutcome::NoticePending);
        }
        self.exclusive = Some((Exclusive::Step(tid), false));
        Ok(StepOutcome::Started)
    }

    /// Sends a signal to a thread. It remains pending if it cannot be delivered now.
    pub(super) fn send_to_thread<K: Kernel>(
        &mut self,
        context: &mut Context<'_, K>,
        tid: Tid,
        signal: i32,
    ) -> Result<(), TraceError> {
        check_signal(signal, 1)?;
        if !self.threads.contains_key(&tid) {
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
        for (tid, thread) in &self.threads {
            let blocked = Status::read(*tid).map_or(u64::MAX, |status| status.signals("SigBlk"));
            let can_take =
                (!thread.is_held && blocked >> (signal - 1) & 1 == 0) || signal == libc::SIGKILL;
            let stat = ThreadStat::read(self.pid, *tid);
            if let Some(stat) = stat
                && can_take
                && !matches!(stat.state, b'Z' | b'X')
            {
                candidates.push((stat.processor, *tid));
            }
        }
        candidates.sort_unstable();
        match candidates.first() {
            Some((_, tid)) => self.send_to_thread(context, *tid, signal),
            None => Ok(()),
        }
    }

    /// Undoes the changes of a tool to the process, except for memory and trap handler. Used for a
    /// tool that has ended while other tools remain attached.
    pub(super) fn release_all<K: Kernel>(&mut self, context: &mut Context<'_, K>) {
        for (address, original) in self.breakpoints.all() {
            self.remove_breakpoint(context, address, original);
        }
        self.notify = super::SignalSet::default();
        self.notices.clear();
        self.given = None;
        self.is_suspended = false;
        match self.exclusive {
            Some((Exclusive::Step(_), false)) => self.exclusive = None,
            // The step ends without a notice.
            Some((Exclusive::Step(tid), true)) => {
                let address = self.breakpoints.lifted().unwrap_or(0);
                self.exclusive = Some((Exclusive::Pass(tid, address), true));
            }
            _ => {}
        }
        self.is_held = false;
        for thread in self.threads.values_mut() {
            thread.is_held = false;
            // A signal whose notice will not be answered is delivered, as without a tool.
            if let (Motion::Stopped(stop), Some(signal)) =
                (&mut thread.motion, thread.continuation.take())
                && stop.place == Place::Delivery
            {
                stop.signal = signal;
            }
            thread.has_notice = false;
        }
    }

    /// The kind of a range according to the memory map.
    pub(super) fn range_kind(&self, address: u64, length: usize) -> RangeKind {
        let map = procfs::memory_map(self.pid).unwrap_or_default();
        memory::range_kind(&map, address, length as u64)
    }
}

/// Allocates a buffer for one read or write, after checking its length.
pub(super) fn checked_buffer(length: usize) -> Result<Vec<u8>, TraceError> {
    if length == 0 || length > MAX_MEMORY_LEN {
        return Err(TraceError::Length(length as u64));
    }
    Ok(vec![0; length])
}
