//! Requests that read or change a stopped thread: its registers, its watchpoints and its stack.

#![forbid(unsafe_code)]

use nix::errno::Errno;

use super::inject::PAGE_LEN;
use super::threads::{Place, Thread};
use crate::tracer::error::TraceError;
use crate::tracer::extended;
use crate::tracer::kernel::Kernel;
use crate::tracer::registers::{DebugRegisters, Registers, SpecialRegisters};
use crate::tracer::request::{Answer, Request, ThreadSnapshot};
use crate::tracer::watchpoints::{WatchError, WatchRange};
use crate::tracer::{Pid, Tid};

/// The most bytes of a stack in a snapshot.
pub const MAX_SNAPSHOT_STACK_LEN: usize = 1 << 20;
const DR6: usize = 6;
const DR7: usize = 7;

/// Reads the registers and at most `length` bytes of the stack of a thread. `is_stopped` states
/// whether the thread is stopped and can be accessed.
pub fn snapshot<K: Kernel>(
    kernel: &K,
    pid: Pid,
    (tid, is_stopped): (Tid, bool),
    length: usize,
) -> ThreadSnapshot {
    let registers = kernel.registers(tid).ok().filter(|_| is_stopped);
    let mut stack = Vec::new();
    if let Some(registers) = registers {
        stack = read_stack(kernel, pid, registers.rsp, length);
    }
    ThreadSnapshot { tid, registers, stack }
}

/// Reads a stack up to the end of its mapping.
fn read_stack<K: Kernel>(kernel: &K, pid: Pid, start: u64, length: usize) -> Vec<u8> {
    let mut bytes = vec![0; length];
    if kernel.read_memory(pid, start, &mut bytes) {
        return bytes;
    }
    let mut reached = 0;
    while reached < length {
        let to_page_end = (PAGE_LEN - (start + reached as u64) % PAGE_LEN) as usize;
        let end = (reached + to_page_end).min(length);
        let part = &mut bytes[reached..end];
        if !kernel.read_memory(pid, start + reached as u64, part) {
            break;
        }
        reached = end;
    }
    bytes.truncate(reached);
    bytes
}

fn watch_error(tid: Tid, range: WatchRange, error: WatchError) -> TraceError {
    match error {
        WatchError::Length => TraceError::Length(range.length.into()),
        WatchError::Alignment => TraceError::Address(range.address),
        WatchError::NoRegister => TraceError::NoDebugRegister(tid),
        WatchError::Overlap => TraceError::WatchpointOverlap(range.address),
    }
}

/// A stopped thread whose registers are read and changed.
pub struct ThreadAccess<'a, K> {
    kernel: &'a mut K,
    pid: Pid,
    tid: Tid,
    thread: &'a mut Thread,
}

impl<'a, K: Kernel> ThreadAccess<'a, K> {
    /// Access to a thread of a process.
    pub fn new(kernel: &'a mut K, pid: Pid, (tid, thread): (Tid, &'a mut Thread)) -> Self {
        Self { kernel, pid, tid, thread }
    }

    fn refusal(&self, errno: Errno) -> TraceError {
        match errno {
            Errno::ESRCH => TraceError::NoThread(self.tid),
            errno => TraceError::Refused(self.tid, errno),
        }
    }

    fn extended_state(&self) -> Result<Vec<u8>, TraceError> {
        self.kernel.extended_state(self.tid).map_err(|errno| self.refusal(errno))
    }

    fn set_extended_state(&mut self, area: &[u8]) -> Result<(), TraceError> {
        let result = self.kernel.set_extended_state(self.tid, area);
        result.map_err(|errno| self.refusal(errno))
    }

    /// Carries out a request.
    pub fn serve(mut self, request: Request) -> Result<Answer, TraceError> {
        let tid = self.tid;
        let mut registers = self.kernel.registers(tid).map_err(|errno| self.refusal(errno))?;
        match request {
            Request::GetGeneral => return Ok(Answer::General(registers.general())),
            Request::SetGeneral(values) => registers.set_general(&values),
            Request::SetOneGeneral(number, value) => {
                if !registers.set_one_general(number, value) {
                    return Err(TraceError::Parameter("no register has this number"));
                }
            }
            Request::GetSpecial => return self.special_registers(registers),
            Request::SetSpecial(special) => {
                registers.set_special(&special.base);
                let mut area = self.extended_state()?;
                extended::set_control(&mut area, &special);
                self.set_extended_state(&area)?;
            }
            Request::SetOneSpecial(register, value) => {
                if !registers.set_one_special(register, value) {
                    let mut area = self.extended_state()?;
                    extended::set_one_control(&mut area, register, value)?;
                    self.set_extended_state(&area)?;
                }
            }
            Request::GetExtended => {
                let area = self.extended_state()?;
                let features = extended::features(&area);
                return Ok(Answer::Extended(area, features));
            }
            Request::SetExtended(area) => {
                self.kernel
                    .set_extended_state(tid, &area)
                    .map_err(|_| TraceError::Parameter("the kernel refuses this XSAVE area"))?;
            }
            Request::SetOneExtended(register, value) => {
                let mut area = self.extended_state()?;
                extended::set_register(&mut area, register, &value)?;
                self.set_extended_state(&area)?;
            }
            request => return self.serve_debug(request),
        }
        self.kernel.set_registers(tid, &registers).map_err(|errno| match errno {
            Errno::ESRCH => TraceError::NoThread(tid),
            _ => TraceError::Parameter("the kernel refuses this value of a register"),
        })?;
        Ok(Answer::Done)
    }

    fn special_registers(&self, base: Registers) -> Result<Answer, TraceError> {
        // The kernel has the siginfo of the last stop. After an injected call this is the end of
        // the call's step, so the saved siginfo is used.
        let info = match self.thread.stop() {
            Some(stop) if stop.place == Place::Delivery && stop.signal != 0 => {
                stop.info.or_else(|| self.kernel.siginfo(self.tid).ok())
            }
            _ => None,
        };
        let area = self.kernel.extended_state(self.tid);
        let area = area.map_err(|errno| TraceError::Refused(self.tid, errno))?;
        let mut special = SpecialRegisters { base, ..SpecialRegisters::default() };
        extended::read_control(&area, &mut special);
        special.fault_address = info.map_or(0, |info| info.fault_address());
        Ok(Answer::Special(Box::new(special)))
    }

    fn serve_debug(&mut self, request: Request) -> Result<Answer, TraceError> {
        let tid = self.tid;
        let mut wanted = self.thread.watchpoints.clone();
        let mut contents = wanted.contents();
        match request {
            Request::GetDebug => {
                contents.status = self.kernel.debug_register(tid, DR6).unwrap_or(0);
                return Ok(Answer::Debug(contents));
            }
            Request::SetDebug(registers) => contents = registers,
            Request::SetOneDebug(number @ 0..=3, value) => contents.addresses[number] = value,
            Request::SetOneDebug(6, value) => contents.status = value,
            Request::SetOneDebug(7, value) => contents.control = value,
            Request::SetWatchpoint(range) => {
                let mut bytes = vec![0; range.length.min(32) as usize];
                let is_readable = self.kernel.read_memory(self.pid, range.address, &mut bytes);
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
            _ = self.kernel.set_debug_register(tid, DR6, contents.status);
        }
        self.load_debug_registers(&wanted.contents())?;
        self.thread.watchpoints = wanted;
        Ok(Answer::Done)
    }

    /// Changes the debug registers. If the kernel refuses the change, restores the former values.
    fn load_debug_registers(&mut self, wanted: &DebugRegisters) -> Result<(), TraceError> {
        let tid = self.tid;
        let former = self.thread.watchpoints.contents();
        let mut load = |registers: &DebugRegisters| {
            // An address must be changed only while its register is disabled.
            self.kernel.set_debug_register(tid, DR7, 0)?;
            for (number, address) in registers.addresses.iter().enumerate() {
                self.kernel.set_debug_register(tid, number, *address)?;
            }
            self.kernel.set_debug_register(tid, DR7, registers.control)
        };
        load(wanted).map_err(|errno| {
            _ = load(&former);
            match errno {
                Errno::ESRCH => TraceError::NoThread(tid),
                Errno::ENOSPC => TraceError::NoDebugRegister(tid),
                _ => TraceError::Parameter("the kernel refuses these debug registers"),
            }
        })
    }
}
