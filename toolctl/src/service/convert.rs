//! Conversion of registers, codes and notices between messages and the tracer.

use nix::errno::Errno;
use score_toolctl::tracer::error::{AttachError, TraceError};
use score_toolctl::tracer::{
    Answer, DebugRegisters, ExtendedRegister, NoticeReason, SignalNotice, SpecialRegister,
    SpecialRegisters, WatchKind, WatchPolicy,
};
use score_tools::authority;
use score_tools::wire::{
    self, CommandAnswer, CommandCode, DEBUG_REGISTERS, FloatRegister, FloatRegistersHead,
    SPECIAL_REGISTERS, SignalReason,
};

/// The command code for an error of the tracer.
pub fn code_of(error: TraceError) -> CommandCode {
    match error {
        TraceError::NoProcess(_) => CommandCode::ProcessExiting,
        TraceError::NoThread(_) | TraceError::WrongState(..) => CommandCode::ThreadInvalid,
        TraceError::Timeout(_) => CommandCode::Timeout,
        TraceError::Address(_) | TraceError::SharedMemory(_) => CommandCode::AddressError,
        TraceError::Length(_) => CommandCode::LengthError,
        TraceError::Breakpoint(..) => CommandCode::BreakpointFailed,
        TraceError::NoDebugRegister(_) => CommandCode::HardwareUnavailable,
        TraceError::WatchpointOverlap(_) => CommandCode::WatchConflict,
        TraceError::NoMemory(..) => CommandCode::MemoryUnavailable,
        TraceError::Refused(_, Errno::ESRCH) => CommandCode::ThreadInvalid,
        _ => CommandCode::ParameterError,
    }
}

/// The errno value for a refused attach.
pub fn errno_of(error: &AttachError) -> u32 {
    let errno = match error {
        AttachError::NoProcess(_) => Errno::ESRCH,
        AttachError::Refused(_, errno) => *errno,
        _ => Errno::EPERM,
    };
    (errno as i32).cast_unsigned()
}

/// Converts a notice of the tracer for the authority and tools. The thread id is still that of this
/// namespace.
pub fn notice(notice: &SignalNotice) -> wire::SignalNotice {
    wire::SignalNotice {
        signal: notice.signal.cast_unsigned(),
        thread: notice.tid.cast_unsigned(),
        instruction: notice.instruction,
        access: notice.access,
        reason: match notice.reason {
            NoticeReason::Signal => SignalReason::Generic,
            NoticeReason::Breakpoint => SignalReason::Breakpoint,
            NoticeReason::WatchRead => SignalReason::ReadWatchpoint,
            NoticeReason::WatchWrite => SignalReason::WriteWatchpoint,
            NoticeReason::Step => SignalReason::StepCompleted,
        },
        execute_mode: 0,
        restart: [0; 4],
    }
}

/// Converts the kind of a watchpoint.
pub fn watch_kind(kind: wire::WatchType) -> WatchKind {
    match kind {
        wire::WatchType::Read => WatchKind::Read,
        wire::WatchType::Write => WatchKind::Write,
        wire::WatchType::ReadWrite => WatchKind::ReadWrite,
    }
}

/// Converts the policy for the watchpoints of new threads.
pub fn watch_policy(policy: wire::WatchPolicy) -> WatchPolicy {
    match policy {
        wire::WatchPolicy::Propagate => WatchPolicy::Propagate,
        wire::WatchPolicy::NoPropagate => WatchPolicy::NoPropagate,
    }
}

/// The register in the XSAVE area, and its size in bytes.
pub fn float_register(register: FloatRegister) -> (ExtendedRegister, usize) {
    match register {
        FloatRegister::X87(number) => (ExtendedRegister::X87(number.into()), 10),
        FloatRegister::Xmm(number) => (ExtendedRegister::Xmm(number.into()), 16),
        FloatRegister::Ymm(number) => (ExtendedRegister::Ymm(number.into()), 32),
        FloatRegister::Zmm(number) => (ExtendedRegister::Zmm(number.into()), 64),
        FloatRegister::Mask(number) => (ExtendedRegister::Mask(number.into()), 8),
    }
}

/// Converts a special register. `None` for the address of the last fault, which cannot be set.
pub fn special_register(register: wire::SpecialRegister) -> Option<SpecialRegister> {
    Some(match register {
        wire::SpecialRegister::Rip => SpecialRegister::Rip,
        wire::SpecialRegister::Eflags => SpecialRegister::Eflags,
        wire::SpecialRegister::Cs => SpecialRegister::Cs,
        wire::SpecialRegister::Ss => SpecialRegister::Ss,
        wire::SpecialRegister::Ds => SpecialRegister::Ds,
        wire::SpecialRegister::Es => SpecialRegister::Es,
        wire::SpecialRegister::Fs => SpecialRegister::Fs,
        wire::SpecialRegister::Gs => SpecialRegister::Gs,
        wire::SpecialRegister::FsBase => SpecialRegister::FsBase,
        wire::SpecialRegister::GsBase => SpecialRegister::GsBase,
        wire::SpecialRegister::OrigRax => SpecialRegister::OrigRax,
        wire::SpecialRegister::Mxcsr => SpecialRegister::Mxcsr,
        wire::SpecialRegister::X87Control => SpecialRegister::X87Control,
        wire::SpecialRegister::X87Status => SpecialRegister::X87Status,
        wire::SpecialRegister::FaultAddress => return None,
    })
}

fn special_values(special: &SpecialRegisters) -> [u64; SPECIAL_REGISTERS] {
    let base = &special.base;
    [
        base.rip,
        base.eflags,
        base.cs,
        base.ss,
        base.ds,
        base.es,
        base.fs,
        base.gs,
        base.fs_base,
        base.gs_base,
        base.orig_rax,
        special.mxcsr.into(),
        special.x87_control.into(),
        special.x87_status.into(),
        special.fault_address,
    ]
}

/// Converts all special registers of a message.
pub fn special_registers(
    values: &[u64; SPECIAL_REGISTERS],
) -> Result<SpecialRegisters, CommandCode> {
    let too_large = CommandCode::ParameterError;
    let [
        rip,
        eflags,
        cs,
        ss,
        ds,
        es,
        fs,
        gs,
        fs_base,
        gs_base,
        orig_rax,
        mxcsr,
        x87_control,
        x87_status,
        fault_address,
    ] = *values;
    let mut special = SpecialRegisters {
        mxcsr: u32::try_from(mxcsr).map_err(|_| too_large)?,
        x87_control: u16::try_from(x87_control).map_err(|_| too_large)?,
        x87_status: u16::try_from(x87_status).map_err(|_| too_large)?,
        fault_address,
        ..SpecialRegisters::default()
    };
    let base = &mut special.base;
    (base.rip, base.eflags, base.orig_rax) = (rip, eflags, orig_rax);
    (base.cs, base.ss, base.ds, base.es, base.fs, base.gs) = (cs, ss, ds, es, fs, gs);
    (base.fs_base, base.gs_base) = (fs_base, gs_base);
    Ok(special)
}

/// Converts all debug registers of a message.
pub fn debug_registers(values: &[u64; DEBUG_REGISTERS]) -> DebugRegisters {
    let [d0, d1, d2, d3, _, _, status, control] = *values;
    DebugRegisters { addresses: [d0, d1, d2, d3], status, control }
}

/// Converts an answer of the tracer. `None`, if it has no data for the tool.
pub fn answer(answer: Answer) -> Option<CommandAnswer<'static>> {
    Some(match answer {
        Answer::General(values) => {
            CommandAnswer::GetGeneralRegisters(wire::GeneralRegisters { values })
        }
        Answer::Special(special) => {
            let values = special_values(&special);
            CommandAnswer::GetSpecialRegisters(wire::SpecialRegisters { values })
        }
        Answer::Extended(area, features) => {
            let head = FloatRegistersHead { features };
            CommandAnswer::GetFloatRegisters(wire::WithBytes { head, bytes: area.into() })
        }
        Answer::Debug(registers) => {
            let [d0, d1, d2, d3] = registers.addresses;
            let values = [d0, d1, d2, d3, 0, 0, registers.status, registers.control];
            CommandAnswer::GetDebugRegisters(wire::DebugRegisters { values })
        }
        Answer::Address(address) => {
            CommandAnswer::AllocateMemory(wire::AllocatedMemory { address })
        }
        Answer::Done | Answer::Snapshot(_) => return None,
    })
}

/// The command for the authority, if the request decides when threads continue.
pub fn authority_command(request: &wire::CommandRequest) -> Option<authority::AuthorityCommand> {
    use authority::AuthorityCommand;
    use wire::CommandRequest;
    Some(match request {
        CommandRequest::SetContinuationSignal(it) => {
            AuthorityCommand::SetContinuationSignal(it.signal)
        }
        CommandRequest::ContinueProcess(_) => AuthorityCommand::Continue,
        CommandRequest::StepThread(_) => AuthorityCommand::Step,
        CommandRequest::SuspendProcess(_) => AuthorityCommand::Suspend,
        CommandRequest::ReleaseControl(it) => AuthorityCommand::Release(it.notify),
        _ => return None,
    })
}
