//! Injection of system calls: a thread of the process executes them for a tool.
//!
//! The thread is in a stop in which the kernel checks for signals. The tracer replaces the thread's
//! registers by those of the call. The thread then makes a single step at an existing `syscall`
//! instruction of the process. The tracer restores the registers, and never changes the stack. If
//! the thread was in a system call, the kernel restarts that call as if there had been no
//! interruption. The marks for this restart are in the registers.

#![forbid(unsafe_code)]

use nix::errno::Errno;

use super::{Context, Exclusive, Place, Process, Stop};
use crate::tracer::error::TraceError;
use crate::tracer::kernel::Kernel;
use crate::tracer::registers::Registers;
use crate::tracer::request::{Answer, Ticket};
use crate::tracer::siginfo::SigInfo;
use crate::tracer::{Pid, Tid};

/// The page size of the processor.
pub const PAGE_LEN: u64 = 4096;
/// Signals that an instruction causes. If a thread blocked them, the kernel would kill the process.
const SYNCHRONOUS: [i32; 6] =
    [libc::SIGILL, libc::SIGTRAP, libc::SIGBUS, libc::SIGFPE, libc::SIGSEGV, libc::SIGSYS];
/// The results of a system call that denote an error.
const ERROR_RANGE: std::ops::RangeInclusive<i64> = -4095..=-1;
/// The most attempts to execute a call. A signal can interrupt an attempt.
const MAX_ATTEMPTS: u32 = 16;

/// `mov eax, 15; syscall`, by which a signal handler returns.
const RESTORER: [u8; 7] = [0xb8, 15, 0, 0, 0, 0x0f, 0x05];
const SA_RESTORER: u64 = 0x0400_0000;
const SA_SIGINFO: u64 = 4;
/// The offsets of the new and the former action in the page of a handler.
const NEW_ACTION: u64 = 64;
const FORMER_ACTION: u64 = 128;
/// The size of the kernel's struct sigaction: handler, flags, restorer, mask.
const ACTION_LEN: usize = 32;

/// A handler for SIGTRAP that a tool has installed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TrapHandler {
    /// The address of its code.
    pub handler: u64,
    page: u64,
    former: [u8; ACTION_LEN],
}

impl TrapHandler {
    /// Writes the restorer, and the action for the handler at this address, to a new page.
    fn write_page<K: Kernel>(kernel: &mut K, pid: Pid, page: u64, handler: u64) -> bool {
        let action = [handler, SA_SIGINFO | SA_RESTORER, page, 0];
        let action: Vec<u8> = action.iter().flat_map(|word| word.to_ne_bytes()).collect();
        kernel.write_memory(pid, page, &RESTORER)
            && kernel.write_memory(pid, page + NEW_ACTION, &action)
    }

    /// The handler that has been installed with this page, from which the former action is read.
    fn installed<K: Kernel>(kernel: &K, pid: Pid, page: u64, handler: u64) -> Self {
        let mut former = [0; ACTION_LEN];
        kernel.read_memory(pid, page + FORMER_ACTION, &mut former);
        Self { handler, page, former }
    }

    /// Writes the former action to the address from which the call reads it.
    fn write_former_action<K: Kernel>(&self, kernel: &mut K, pid: Pid) {
        // If the program has unmapped the page, the kernel refuses the call.
        kernel.write_memory(pid, self.page + NEW_ACTION, &self.former);
    }
}

/// The purpose of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Purpose {
    /// Allocate memory of this length.
    Allocate(u64),
    /// Free memory with this address and length.
    Free(u64, u64),
    /// Allocate a page for the handler at this address.
    HandlerPage(u64),
    /// Install the handler at the first address, with the page at the second address.
    SetHandler(u64, u64),
    /// Restore the action that was in effect before this handler.
    RestoreHandler(TrapHandler),
}

impl Purpose {
    /// The number and the arguments of the system call.
    fn call(self) -> (i64, [u64; 6]) {
        let allocate = |length| {
            let access = libc::PROT_READ | libc::PROT_WRITE | libc::PROT_EXEC;
            let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
            let no_file = u64::MAX;
            (libc::SYS_mmap, [0, length, access as u64, flags as u64, no_file, 0])
        };
        let trap = libc::SIGTRAP as u64;
        let set_size = size_of::<u64>() as u64;
        match self {
            Self::Allocate(length) => allocate(length),
            Self::HandlerPage(_) => allocate(PAGE_LEN),
            Self::Free(address, length) => (libc::SYS_munmap, [address, length, 0, 0, 0, 0]),
            Self::SetHandler(_, page) => {
                let arguments = [trap, page + NEW_ACTION, page + FORMER_ACTION, set_size, 0, 0];
                (libc::SYS_rt_sigaction, arguments)
            }
            Self::RestoreHandler(TrapHandler { page, .. }) => {
                (libc::SYS_rt_sigaction, [trap, page + NEW_ACTION, 0, set_size, 0, 0])
            }
        }
    }
}

/// An injected system call.
#[derive(Debug)]
pub struct Injection {
    /// The thread.
    pub tid: Tid,
    /// A signal that arrived before the call was executed.
    pub interruption: Option<(i32, SigInfo)>,
    purpose: Purpose,
    ticket: Option<Ticket>,
    attempts: u32,
    place: u64,
    registers: Registers,
    stop: Stop,
    mask: u64,
}

impl Process {
    /// Prepares a system call in a thread.
    pub(in crate::tracer) fn start_injection(
        &mut self,
        tid: Tid,
        purpose: Purpose,
        ticket: Option<Ticket>,
    ) {
        let injection = Injection {
            tid,
            interruption: None,
            purpose,
            ticket,
            attempts: 0,
            place: 0,
            registers: Registers::default(),
            stop: Stop::at(Place::Interrupt),
            mask: 0,
        };
        self.exclusive = Some((Exclusive::Inject(Box::new(injection)), false));
    }

    /// Starts the call. The thread is stopped with these registers, and all other threads are
    /// stopped.
    pub(in crate::tracer) fn begin_injected_call<K: Kernel>(
        &mut self,
        context: &mut Context<'_, K>,
        registers: Registers,
        mut stop: Stop,
    ) {
        let pid = self.pid;
        let Some((Exclusive::Inject(injection), begun)) = &mut self.exclusive else { return };
        let tid = injection.tid;
        let place = context.kernel.syscall_instruction(pid);
        let mask = context.kernel.signal_mask(tid);
        let (Some(place), Ok(mask), true, true) =
            (place, mask, registers.is_64_bit(), injection.attempts < MAX_ATTEMPTS)
        else {
            return self.fail_exclusive(context);
        };
        if stop.signal != 0 && stop.info.is_none() {
            stop.info = context.kernel.siginfo(tid).ok();
        }
        (injection.place, injection.registers, injection.stop) = (place, registers, stop);
        injection.mask = mask;
        injection.attempts += 1;
        let purpose = injection.purpose;
        let (number, arguments) = purpose.call();
        let mut call = registers;
        call.jump(place);
        call.rax = number as u64;
        [call.rdi, call.rsi, call.rdx, call.r10, call.r8, call.r9] = arguments;
        let synchronous = SYNCHRONOUS.iter().fold(0, |bits, signal| bits | 1 << (signal - 1));
        *begun = true;
        if let Purpose::RestoreHandler(handler) = purpose {
            handler.write_former_action(context.kernel, pid);
        }
        let result = context
            .kernel
            .set_signal_mask(tid, !synchronous)
            .and_then(|()| context.kernel.set_registers(tid, &call));
        match result {
            Ok(()) => self.threads.step(context.kernel, tid, 0),
            Err(_) => self.threads.set_dying(tid),
        }
    }

    /// Handles the stop of the thread, which is after the call or at a signal before it.
    pub(in crate::tracer) fn end_injected_call<K: Kernel>(
        &mut self,
        context: &mut Context<'_, K>,
        tid: Tid,
    ) {
        let Some((Exclusive::Inject(mut injection), _)) = self.exclusive.take() else { return };
        let Ok(registers) = context.kernel.registers(tid) else {
            self.threads.set_dying(tid);
            return self.fail_injection(context, *injection);
        };
        // An error of one of these calls means that the thread is being killed.
        _ = context.kernel.set_registers(tid, &injection.registers);
        _ = context.kernel.set_signal_mask(tid, injection.mask);
        let mut stop = Stop { place: Place::Delivery, ..injection.stop };
        if let Some((signal, info)) = injection.interruption.take() {
            if stop.signal == 0 {
                (stop.signal, stop.info) = (signal, Some(info));
            } else {
                _ = context.kernel.send_signal(self.pid, tid, signal);
            }
        }
        self.threads.set_stopped(tid, stop);
        // A `syscall` instruction has two bytes.
        if registers.rip == injection.place + 2 {
            self.on_injected_result(context, &injection, registers.rax);
        } else {
            self.exclusive = Some((Exclusive::Inject(injection), false));
        }
    }

    /// Answers the request of an injection that cannot be done.
    pub(in crate::tracer) fn fail_injection<K: Kernel>(
        &mut self,
        context: &mut Context<'_, K>,
        injection: Injection,
    ) {
        let error = TraceError::NoMemory(self.pid, Errno::EAGAIN);
        context.answer(injection.ticket, Err(error));
    }

    fn on_injected_result<K: Kernel>(
        &mut self,
        context: &mut Context<'_, K>,
        injection: &Injection,
        result: u64,
    ) {
        let (pid, tid, ticket) = (self.pid, injection.tid, injection.ticket);
        let errno = ERROR_RANGE
            .contains(&result.cast_signed())
            .then(|| Errno::from_raw((-result.cast_signed()) as i32));
        let answer = match (injection.purpose, errno) {
            (Purpose::Allocate(length), None) => {
                self.resources.add_memory(result, length);
                Ok(Answer::Address(result))
            }
            (Purpose::Free(address, _), None) => {
                self.resources.remove_memory(address);
                Ok(Answer::Done)
            }
            (Purpose::HandlerPage(handler), None) => {
                if TrapHandler::write_page(context.kernel, pid, result, handler) {
                    return self.start_injection(tid, Purpose::SetHandler(handler, result), ticket);
                }
                Err(TraceError::Address(result))
            }
            (Purpose::SetHandler(handler, page), None) => {
                let installed = TrapHandler::installed(context.kernel, pid, page, handler);
                self.resources.set_trap_handler(Some(installed));
                Ok(Answer::Done)
            }
            (Purpose::RestoreHandler(handler), None) => {
                self.resources.set_trap_handler(None);
                if !self.threads.is_executed(context.kernel, handler.page, PAGE_LEN) {
                    let purpose = Purpose::Free(handler.page, PAGE_LEN);
                    return self.start_injection(tid, purpose, ticket);
                }
                Ok(Answer::Done)
            }
            (_, Some(errno)) => Err(TraceError::NoMemory(pid, errno)),
        };
        context.answer(ticket, answer);
    }
}
