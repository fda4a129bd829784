//! System calls that a thread of the process executes for a tool.
//!
//! The thread stands in a stop in which the kernel looks for signals. Its registers are replaced by
//! those of a call, and it makes a single step on a `syscall` instruction that the process has
//! anyway. Then it has its own registers again. No byte of its stack is touched. If it was in a
//! system call, the kernel starts that call again as if nothing had been in between, as the marks
//! for this are in the registers.

#![forbid(unsafe_code)]

use nix::errno::Errno;

use super::error::TraceError;
use super::kernel::Kernel;
use super::process::{Context, Exclusive, Motion, Place, Process, Stop};
use super::registers::Registers;
use super::requests::{Answer, Ticket};
use super::siginfo::SigInfo;
use super::{Event, Tid};

/// Pages of the processor.
pub const PAGE_LEN: u64 = 4096;
/// Signals that an instruction causes. If a thread blocked them, the kernel would kill it.
const SYNCHRONOUS: [i32; 6] =
    [libc::SIGILL, libc::SIGTRAP, libc::SIGBUS, libc::SIGFPE, libc::SIGSEGV, libc::SIGSYS];
/// The results by which a system call names an error.
const ERROR_RANGE: std::ops::RangeInclusive<i64> = -4095..=-1;
/// How often a call is begun again after a signal.
const MAX_ATTEMPTS: u32 = 16;

/// `mov eax, 15; syscall`: how a signal handler returns.
const RESTORER: [u8; 7] = [0xb8, 15, 0, 0, 0, 0x0f, 0x05];
const SA_RESTORER: u64 = 0x0400_0000;
const SA_SIGINFO: u64 = 4;
/// Where the new and the former action lie in the page of a handler.
const NEW_ACTION: u64 = 64;
const FORMER_ACTION: u64 = 128;
/// The kernel's struct sigaction: handler, flags, restorer, mask.
const ACTION_LEN: usize = 32;

/// A handler for SIGTRAP that a tool has installed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TrapHandler {
    /// Address of its code.
    pub handler: u64,
    page: u64,
    former: [u8; ACTION_LEN],
}

/// What a call is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Purpose {
    /// Memory of this length.
    Allocate(u64),
    /// Memory at this address with this length is given back.
    Free(u64, u64),
    /// A page for the handler at this address.
    HandlerPage(u64),
    /// The handler at this address is installed, by means of this page.
    SetHandler(u64, u64),
    /// What was there before a handler is there again.
    RestoreHandler(TrapHandler),
}

impl Purpose {
    /// Number and arguments of the system call.
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

/// A system call of ours in a thread of the process.
#[derive(Debug)]
pub struct Injection {
    /// The thread.
    pub tid: Tid,
    /// A signal that came before the call was executed.
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
    /// A system call is to be made in a thread.
    pub(super) fn start_injection(&mut self, tid: Tid, purpose: Purpose, ticket: Option<Ticket>) {
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

    /// The thread stands with these registers, and all others stand, too.
    pub(super) fn begin_injected_call<K: Kernel>(
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
            self.write_former_action(context, &handler);
        }
        let result = context
            .kernel
            .set_signal_mask(tid, !synchronous)
            .and_then(|()| context.kernel.set_registers(tid, &call))
            .and_then(|()| context.kernel.step(tid, 0));
        self.set_motion_after(tid, result, Motion::Stepping);
    }

    /// The thread has stopped: behind the call, or at a signal before it.
    pub(super) fn end_injected_call<K: Kernel>(&mut self, context: &mut Context<'_, K>, tid: Tid) {
        let Some((Exclusive::Inject(mut injection), _)) = self.exclusive.take() else { return };
        let Ok(registers) = context.kernel.registers(tid) else {
            self.set_motion(tid, Motion::Dying);
            return self.fail_injection(context, *injection);
        };
        // If one of these is refused, the thread is being killed.
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
        self.set_motion(tid, Motion::Stopped(stop));
        // A `syscall` instruction has two bytes.
        if registers.rip == injection.place + 2 {
            self.on_injected_result(context, &injection, registers.rax);
        } else {
            self.exclusive = Some((Exclusive::Inject(injection), false));
        }
    }

    /// An injection cannot be made.
    pub(super) fn fail_injection<K: Kernel>(
        &mut self,
        context: &mut Context<'_, K>,
        injection: Injection,
    ) {
        let error = TraceError::NoMemory(self.pid, Errno::EAGAIN);
        self.answer(context, injection.ticket, Err(error));
    }

    fn on_injected_result<K: Kernel>(
        &mut self,
        context: &mut Context<'_, K>,
        injection: &Injection,
        result: u64,
    ) {
        let (tid, ticket) = (injection.tid, injection.ticket);
        let errno = ERROR_RANGE
            .contains(&result.cast_signed())
            .then(|| Errno::from_raw((-result.cast_signed()) as i32));
        let answer = match (injection.purpose, errno) {
            (Purpose::Allocate(length), None) => {
                self.allocations.insert(result, length);
                Ok(Answer::Address(result))
            }
            (Purpose::Free(address, _), None) => {
                self.allocations.remove(&address);
                Ok(Answer::Done)
            }
            (Purpose::HandlerPage(handler), None) => {
                if self.write_handler_page(context, result, handler) {
                    return self.start_injection(tid, Purpose::SetHandler(handler, result), ticket);
                }
                Err(TraceError::Address(result))
            }
            (Purpose::SetHandler(handler, page), None) => {
                let mut former = [0; ACTION_LEN];
                context.kernel.read_memory(self.pid, page + FORMER_ACTION, &mut former);
                self.trap_handler = Some(TrapHandler { handler, page, former });
                Ok(Answer::Done)
            }
            (Purpose::RestoreHandler(handler), None) => {
                self.trap_handler = None;
                if !self.is_executed(context, handler.page, PAGE_LEN) {
                    let purpose = Purpose::Free(handler.page, PAGE_LEN);
                    return self.start_injection(tid, purpose, ticket);
                }
                Ok(Answer::Done)
            }
            (_, Some(errno)) => Err(TraceError::NoMemory(self.pid, errno)),
        };
        self.answer(context, ticket, answer);
    }

    fn write_handler_page<K: Kernel>(
        &self,
        context: &mut Context<'_, K>,
        page: u64,
        handler: u64,
    ) -> bool {
        let action = [handler, SA_SIGINFO | SA_RESTORER, page, 0];
        let action: Vec<u8> = action.iter().flat_map(|word| word.to_ne_bytes()).collect();
        context.kernel.write_memory(self.pid, page, &RESTORER)
            && context.kernel.write_memory(self.pid, page + NEW_ACTION, &action)
    }

    /// The former action of a handler is put where the call takes it from.
    fn write_former_action<K: Kernel>(&self, context: &mut Context<'_, K>, handler: &TrapHandler) {
        // If the program has unmapped the page, the kernel refuses the call that reads it.
        context.kernel.write_memory(self.pid, handler.page + NEW_ACTION, &handler.former);
    }

    /// Whether a thread executes code in a range.
    pub(super) fn is_executed<K: Kernel>(
        &self,
        context: &Context<'_, K>,
        address: u64,
        length: u64,
    ) -> bool {
        let range = address..address.saturating_add(length);
        self.threads.iter().any(|(tid, thread)| {
            thread.stop().is_some()
                && context.kernel.registers(*tid).is_ok_and(|it| range.contains(&it.rip))
        })
    }

    /// A thread that stands and can be looked at.
    pub(super) fn accessible_thread(&self) -> Option<Tid> {
        let mut threads = self.threads.iter();
        threads.find(|(_, thread)| thread.stop().is_some()).map(|(tid, _)| *tid)
    }

    /// Answers a request.
    pub(super) fn answer<K: Kernel>(
        &mut self,
        context: &mut Context<'_, K>,
        ticket: Option<Ticket>,
        result: Result<Answer, TraceError>,
    ) {
        if let Some(ticket) = ticket {
            context.events.push_back(Event::Answer { ticket, result });
        }
    }
}
