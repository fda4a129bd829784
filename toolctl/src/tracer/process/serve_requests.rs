//! Carries out requests that need a stopped thread. They do not block: the answer is an event.

#![forbid(unsafe_code)]

use std::time::Duration;

use super::inject::{PAGE_LEN, Purpose};
use super::{Context, Exclusive, Motion, Place, Process};
use crate::tracer::Tid;
use crate::tracer::error::TraceError;
use crate::tracer::extended;
use crate::tracer::kernel::Kernel;
use crate::tracer::registers::{DebugRegisters, Registers, SpecialRegisters};
use crate::tracer::request::{Answer, PendingRequest, Request, ThreadSnapshot, Ticket};
use crate::tracer::watchpoints::{WatchError, WatchRange};

/// A request fails if its thread does not stop within this time.
pub const REQUEST_TIMEOUT: Duration = Duration::from_secs(1);
/// The most requests of a process that wait for a thread.
pub const MAX_REQUESTS: usize = 1024;
/// The most bytes of a stack in a snapshot.
pub const MAX_SNAPSHOT_STACK_LEN: usize = 1 << 20;
const DR6: usize = 6;
const DR7: usize = 7;

fn watch_error(tid: Tid, range: WatchRange, error: WatchError) -> TraceError {
    match error {
        WatchError::Length => TraceError::Length(range.length.into()),
        WatchError::Alignment => TraceError::Address(range.address),
        WatchError::NoRegister => TraceError::NoDebugRegister(tid),
        WatchError::Overlap => TraceError::WatchpointOverlap(range.address),
    }
}

impl Process {
    /// Adds a request. Returns an error if it cannot be carried out.
    pub(in crate::tracer) fn add_request(
        &mut self,
        ticket: Ticket,
        tid: Option<Tid>,
        request: Request,
        now: Duration,
    ) -> Result<(), TraceError> {
        if let Some(tid) = tid
            && !self.threads.get(&tid).is_some_and(|it| it.motion != Motion::Dying)
        {
            return Err(TraceError::NoThread(tid));
        }
        if self.requests.len() >= MAX_REQUESTS {
            return Err(TraceError::Parameter("too many requests wait for this process"));
        }
        self.check_request(tid, &request)?;
        self.requests.push_back(PendingRequest { ticket, tid, request, since: now });
        Ok(())
    }

    fn check_request(&self, tid: Option<Tid>, request: &Request) -> Result<(), TraceError> {
        match request {
            Request::Snapshot(length) if *length > MAX_SNAPSHOT_STACK_LEN => {
                Err(TraceError::Length(*length as u64))
            }
            Request::Allocate(0) => Err(TraceError::Length(0)),
            Request::Free(address, length) => {
                let is_allocated = self.allocations.get(address).is_some_and(|allocated| {
                    allocated.next_multiple_of(PAGE_LEN)
                        == length.checked_next_multiple_of(PAGE_LEN).unwrap_or(0)
                });
                if is_allocated { Ok(()) } else { Err(TraceError::Address(*address)) }
            }
            Request::InstallTrapHandler(_) if self.trap_handler.is_some() => {
                Err(TraceError::Parameter("a trap handler is installed; remove it first"))
            }
            Request::RemoveTrapHandler(handler)
                if self.trap_handler.is_none_or(|it| it.handler != *handler) =>
            {
                Err(TraceError::Parameter("this trap handler is not installed"))
            }
            Request::Snapshot(_) => Ok(()),
            _ if tid.is_none() && !request.is_injection() => {
                Err(TraceError::Parameter("the request is for one thread"))
            }
            _ => Ok(()),
        }
    }

    /// Whether a request waits until this thread can be accessed.
    pub(in crate::tracer) fn is_access_requested(&self, tid: Tid) -> bool {
        self.pins.contains(&tid)
            || self.requests.iter().any(|pending| pending.tid.is_none_or(|wanted| wanted == tid))
    }

    /// Carries out the requests that can be carried out now.
    pub(in crate::tracer) fn serve_requests<K: Kernel>(&mut self, context: &mut Context<'_, K>) {
        let mut index = 0;
        while let Some(pending) = self.requests.get(index) {
            let can_start = match (pending.request.is_injection(), pending.tid) {
                (true, _) => self.exclusive.is_none(),
                (false, Some(tid)) => {
                    // A request for a thread that does not exist any more is also answered.
                    self.threads
                        .get(&tid)
                        .is_none_or(|it| it.stop().is_some() || it.motion == Motion::Dying)
                        && !self.is_moving_alone(tid)
                }
                (false, None) => self.threads.values().all(|thread| {
                    thread.stop().is_some()
                        || matches!(thread.motion, Motion::Halted | Motion::Dying)
                }),
            };
            if !can_start {
                index += 1;
                continue;
            }
            let Some(pending) = self.requests.remove(index) else { return };
            self.serve(context, pending);
        }
    }

    fn serve<K: Kernel>(&mut self, context: &mut Context<'_, K>, pending: PendingRequest) {
        let (ticket, first) = (Some(pending.ticket), self.threads.keys().next().copied());
        let purpose = match (&pending.request, self.trap_handler) {
            (Request::Allocate(length), _) => Some(Purpose::Allocate(*length)),
            (Request::Free(address, length), _) => Some(Purpose::Free(*address, *length)),
            (Request::InstallTrapHandler(handler), _) => Some(Purpose::HandlerPage(*handler)),
            (Request::RemoveTrapHandler(_), Some(handler)) => {
                Some(Purpose::RestoreHandler(handler))
            }
            _ => None,
        };
        if let Some(purpose) = purpose {
            let tid = self.accessible_thread().or(pending.tid).or(first).unwrap_or(self.pid);
            return self.start_injection(tid, purpose, ticket);
        }
        let answer = match (pending.request, pending.tid) {
            (Request::Snapshot(length), None) => {
                let tids: Vec<Tid> = self.threads.keys().copied().collect();
                let all = tids.into_iter().map(|tid| self.snapshot(context, tid, length));
                Ok(Answer::Snapshot(all.collect()))
            }
            (Request::Snapshot(length), Some(tid)) => {
                Ok(Answer::Snapshot(vec![self.snapshot(context, tid, length)]))
            }
            (request, Some(tid)) => self.serve_thread(context, tid, request),
            (_, None) => Err(TraceError::Parameter("the request is for one thread")),
        };
        self.answer(context, ticket, answer);
    }

    fn snapshot<K: Kernel>(
        &self,
        context: &Context<'_, K>,
        tid: Tid,
        length: usize,
    ) -> ThreadSnapshot {
        let is_stopped = self.threads.get(&tid).is_some_and(|thread| thread.stop().is_some());
        let registers = context.kernel.registers(tid).ok().filter(|_| is_stopped);
        let mut stack = Vec::new();
        if let Some(registers) = registers {
            stack = self.read_stack(context, registers.rsp, length);
        }
        ThreadSnapshot { tid, registers, stack }
    }

    /// Reads a stack up to the end of its mapping.
    fn read_stack<K: Kernel>(
        &self,
        context: &Context<'_, K>,
        start: u64,
        length: usize,
    ) -> Vec<u8> {
        let mut bytes = vec![0; length];
        if context.kernel.read_memory(self.pid, start, &mut bytes) {
            return bytes;
        }
        let mut reached = 0;
        while reached < length {
            let to_page_end = (PAGE_LEN - (start + reached as u64) % PAGE_LEN) as usize;
            let end = (reached + to_page_end).min(length);
            let part = &mut bytes[reached..end];
            if !context.kernel.read_memory(self.pid, start + reached as u64, part) {
                break;
            }
            reached = end;
        }
        bytes.truncate(reached);
        bytes
    }

    fn serve_thread<K: Kernel>(
        &mut self,
        context: &mut Context<'_, K>,
        tid: Tid,
        request: Request,
    ) -> Result<Answer, TraceError> {
        let refused = |errno| match errno {
            nix::Error::ESRCH => TraceError::NoThread(tid),
            errno => TraceError::Refused(tid, errno),
        };
        let kernel = &mut *context.kernel;
        let mut registers = kernel.registers(tid).map_err(refused)?;
        match request {
            Request::GetGeneral => return Ok(Answer::General(registers.general())),
            Request::SetGeneral(values) => registers.set_general(&values),
            Request::SetOneGeneral(number, value) => {
                if !registers.set_one_general(number, value) {
                    return Err(TraceError::Parameter("no register has this number"));
                }
            }
            Request::GetSpecial => return self.special_registers(context, tid, registers),
            Request::SetSpecial(special) => {
                registers.set_special(&special.base);
                let mut area = kernel.extended_state(tid).map_err(refused)?;
                extended::set_control(&mut area, &special);
                kernel.set_extended_state(tid, &area).map_err(refused)?;
            }
            Request::SetOneSpecial(register, value) => {
                if !registers.set_one_special(register, value) {
                    let mut area = kernel.extended_state(tid).map_err(refused)?;
                    extended::set_one_control(&mut area, register, value)?;
                    kernel.set_extended_state(tid, &area).map_err(refused)?;
                }
            }
            Request::GetExtended => {
                let area = kernel.extended_state(tid).map_err(refused)?;
                let features = extended::features(&area);
                return Ok(Answer::Extended(area, features));
            }
            Request::SetExtended(area) => {
                kernel
                    .set_extended_state(tid, &area)
                    .map_err(|_| TraceError::Parameter("the kernel refuses this XSAVE area"))?;
            }
            Request::SetOneExtended(register, value) => {
                let mut area = kernel.extended_state(tid).map_err(refused)?;
                extended::set_register(&mut area, register, &value)?;
                kernel.set_extended_state(tid, &area).map_err(refused)?;
            }
            request => return self.serve_debug(context, tid, request),
        }
        context.kernel.set_registers(tid, &registers).map_err(|errno| match errno {
            nix::Error::ESRCH => TraceError::NoThread(tid),
            _ => TraceError::Parameter("the kernel refuses this value of a register"),
        })?;
        Ok(Answer::Done)
    }

    fn special_registers<K: Kernel>(
        &self,
        context: &Context<'_, K>,
        tid: Tid,
        base: Registers,
    ) -> Result<Answer, TraceError> {
        let stop = self.threads.get(&tid).and_then(|thread| thread.stop());
        // The kernel's siginfo is that of the stop. After an injected call it is that of the call's
        // step, so the saved one is used.
        let info = match stop {
            Some(stop) if stop.place == Place::Delivery && stop.signal != 0 => {
                stop.info.or_else(|| context.kernel.siginfo(tid).ok())
            }
            _ => None,
        };
        let area = context.kernel.extended_state(tid);
        let area = area.map_err(|errno| TraceError::Refused(tid, errno))?;
        let mut special = SpecialRegisters { base, ..SpecialRegisters::default() };
        extended::read_control(&area, &mut special);
        special.fault_address = info.map_or(0, |info| info.fault_address());
        Ok(Answer::Special(Box::new(special)))
    }

    fn serve_debug<K: Kernel>(
        &mut self,
        context: &mut Context<'_, K>,
        tid: Tid,
        request: Request,
    ) -> Result<Answer, TraceError> {
        let pid = self.pid;
        let Some(thread) = self.threads.get_mut(&tid) else {
            return Err(TraceError::NoThread(tid));
        };
        let mut wanted = thread.watchpoints.clone();
        let mut contents = wanted.contents();
        match request {
            Request::GetDebug => {
                contents.status = context.kernel.debug_register(tid, DR6).unwrap_or(0);
                return Ok(Answer::Debug(contents));
            }
            Request::SetDebug(registers) => contents = registers,
            Request::SetOneDebug(number @ 0..=3, value) => contents.addresses[number] = value,
            Request::SetOneDebug(6, value) => contents.status = value,
            Request::SetOneDebug(7, value) => contents.control = value,
            Request::SetWatchpoint(range) => {
                let mut bytes = vec![0; range.length.min(32) as usize];
                let is_readable = context.kernel.read_memory(pid, range.address, &mut bytes);
                wanted.add(range, bytes).map_err(|error| watch_error(tid, range, error))?;
                if !is_readable {
                    return Err(TraceError::Address(range.address));
                }
            }
            Request::ResetWatchpoint(address) if !wanted.remove(address) => {
                return Err(TraceError::Address(address));
            }
            Request::ResetWatchpoint(_) => {}
            _ => return Err(TraceError::Parameter("no debug register has this number")),
        }
        if matches!(request, Request::SetDebug(_) | Request::SetOneDebug(..)) {
            wanted.set_direct(contents).map_err(|_| TraceError::NoDebugRegister(tid))?;
            _ = context.kernel.set_debug_register(tid, DR6, contents.status);
        }
        load_debug_registers(context, tid, &thread.watchpoints.contents(), &wanted.contents())?;
        thread.watchpoints = wanted;
        Ok(Answer::Done)
    }

    /// The time at which the oldest request times out.
    pub(in crate::tracer) fn request_deadline(&self) -> Option<Duration> {
        let oldest = self.requests.iter().map(|pending| pending.since).min();
        oldest.map(|since| since + REQUEST_TIMEOUT)
    }

    /// Answers requests that have timed out.
    pub(in crate::tracer) fn expire_requests<K: Kernel>(
        &mut self,
        context: &mut Context<'_, K>,
        now: Duration,
    ) {
        let expired = |pending: &PendingRequest| now >= pending.since + REQUEST_TIMEOUT;
        while let Some(index) = self.requests.iter().position(expired) {
            let Some(pending) = self.requests.remove(index) else { return };
            let error = TraceError::Timeout(pending.tid.unwrap_or(self.pid));
            self.answer(context, Some(pending.ticket), Err(error));
        }
        // A thread that does not stop cannot execute a system call for a tool.
        if let Some((Exclusive::Inject(injection), false)) = &self.exclusive
            && self.threads.get(&injection.tid).is_none_or(|it| it.motion == Motion::Halted)
        {
            self.fail_exclusive(context);
        }
    }

    /// Answers all requests, because the process is being detached or has ended.
    pub(in crate::tracer) fn fail_requests<K: Kernel>(&mut self, context: &mut Context<'_, K>) {
        let error = TraceError::NoProcess(self.pid);
        for pending in std::mem::take(&mut self.requests) {
            self.answer(context, Some(pending.ticket), Err(error));
        }
    }
}

/// Changes the debug registers of a thread. If the kernel refuses the change, restores the former
/// values.
fn load_debug_registers<K: Kernel>(
    context: &mut Context<'_, K>,
    tid: Tid,
    former: &DebugRegisters,
    wanted: &DebugRegisters,
) -> Result<(), TraceError> {
    let kernel = &mut *context.kernel;
    let mut load = |registers: &DebugRegisters| {
        // An address must be changed only while its register is disabled.
        kernel.set_debug_register(tid, DR7, 0)?;
        for (number, address) in registers.addresses.iter().enumerate() {
            kernel.set_debug_register(tid, number, *address)?;
        }
        kernel.set_debug_register(tid, DR7, registers.control)
    };
    load(wanted).map_err(|errno| {
        _ = load(former);
        match errno {
            nix::Error::ESRCH => TraceError::NoThread(tid),
            nix::Error::ENOSPC => TraceError::NoDebugRegister(tid),
            _ => TraceError::Parameter("the kernel refuses these debug registers"),
        }
    })
}
