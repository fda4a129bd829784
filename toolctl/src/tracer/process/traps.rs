//! The cause of a SIGTRAP.

#![forbid(unsafe_code)]

use super::threads::Thread;
use super::traced_memory::{BreakpointHit, TracedMemory};
use crate::tracer::Tid;
use crate::tracer::kernel::Kernel;
use crate::tracer::siginfo::{
    SI_KERNEL, SigInfo, TRAP_BRKPT, TRAP_HANDLER, TRAP_HWBKPT, TRAP_TRACE,
};
use crate::tracer::watchpoints::WatchRange;

const DR6: usize = 6;

/// The cause of a SIGTRAP.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TrapCause {
    /// A breakpoint, which exists or was just removed.
    Breakpoint(BreakpointHit),
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

impl TrapCause {
    /// Determines the cause of a thread's SIGTRAP with this siginfo. Sets a thread that has
    /// executed a breakpoint back to the breakpoint's address. `moves_alone` states whether the
    /// thread moves while all other threads are stopped.
    pub fn of<K: Kernel>(
        kernel: &mut K,
        memory: &TracedMemory,
        (tid, thread): (Tid, &Thread),
        moves_alone: bool,
        info: &SigInfo,
    ) -> Self {
        match info.code() {
            SI_KERNEL => Self::of_breakpoint(kernel, memory, tid).unwrap_or(Self::Program),
            // A single step over a system call.
            TRAP_BRKPT if moves_alone => Self::Step,
            code @ (TRAP_TRACE | TRAP_HWBKPT) => {
                let is_step = code == TRAP_TRACE && moves_alone;
                let rest = if is_step { Self::Step } else { Self::Program };
                Self::of_debug_registers(kernel, tid, thread).unwrap_or(rest)
            }
            TRAP_HANDLER => Self::Step,
            _ => Self::Program,
        }
    }

    fn of_breakpoint<K: Kernel>(kernel: &mut K, memory: &TracedMemory, tid: Tid) -> Option<Self> {
        let mut registers = kernel.registers(tid).ok()?;
        let hit = memory.hit_before(kernel, registers.rip)?;
        registers.jump(hit.address);
        kernel.set_registers(tid, &registers).ok()?;
        Some(Self::Breakpoint(hit))
    }

    fn of_debug_registers<K: Kernel>(kernel: &mut K, tid: Tid, thread: &Thread) -> Option<Self> {
        let status = kernel.debug_register(tid, DR6).unwrap_or(0);
        if status & 0b1111 != 0 {
            // Clear the register, so that later hits can be distinguished from this hit.
            _ = kernel.set_debug_register(tid, DR6, 0);
        }
        let mut hits = (0..4).filter(|register| status >> register & 1 == 1);
        if let Some((range, _)) = hits.find_map(|register| thread.watchpoints.range_of(register)) {
            return Some(Self::Watchpoint(range));
        }
        let (address, is_execution) = thread.watchpoints.direct_hit(status)?;
        Some(Self::DebugRegister(address, is_execution))
    }
}
