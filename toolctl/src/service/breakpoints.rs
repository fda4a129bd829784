//! Breakpoints that are reported to the shepherd. A breakpoint is in the shepherd's list before it
//! is in the text of the program, and until it has been removed from the text. If this process is
//! killed, the next service removes the breakpoints of the list.

use score_proto::toolctl::ToolctlReport;
use score_toolctl::tracer::error::TraceError;
use score_toolctl::tracer::{BreakpointKind, Linux, Pid, Tracer};
use score_tools::wire::CommandCode;

use super::convert;
use super::shepherd::Shepherd;

/// Sets and removes breakpoints in the processes of ranks.
pub struct ReportedBreakpoints<'a> {
    tracer: &'a mut Tracer<Linux>,
    shepherd: &'a mut Shepherd,
}

impl<'a> ReportedBreakpoints<'a> {
    /// The breakpoints of the processes that the tracer traces. The shepherd has their list.
    pub fn new(tracer: &'a mut Tracer<Linux>, shepherd: &'a mut Shepherd) -> Self {
        Self { tracer, shepherd }
    }

    /// Whether there is a breakpoint at an address.
    pub fn contains(&self, pid: Pid, address: u64) -> bool {
        !self.tracer.breakpoints_in(pid, address, 1).is_empty()
    }

    /// Sets a breakpoint.
    pub fn insert(
        &mut self,
        rank: u32,
        pid: Pid,
        address: u64,
        kind: BreakpointKind,
    ) -> Result<(), TraceError> {
        let mut byte = [0];
        self.tracer.read_memory_into(pid, address, &mut byte)?;
        let [original] = byte;
        self.shepherd.report_breakpoint(ToolctlReport::BreakpointSet { rank, address, original });
        let result = self.tracer.set_breakpoint(pid, address, kind);
        if result.is_err() && !self.contains(pid, address) {
            self.shepherd.report_breakpoint(ToolctlReport::BreakpointReset { rank, address });
        }
        result
    }

    /// Removes a breakpoint. `original` is the byte of the program at the address.
    pub fn reset(
        &mut self,
        rank: u32,
        pid: Pid,
        address: u64,
        original: u8,
    ) -> Result<(), TraceError> {
        self.tracer.reset_breakpoint(pid, address, original)?;
        self.shepherd.report_breakpoint(ToolctlReport::BreakpointReset { rank, address });
        Ok(())
    }

    /// Like [`Self::reset`], with the four original bytes of the program at the address. They are
    /// compared if four bytes can be read.
    pub fn reset_instruction(
        &mut self,
        rank: u32,
        pid: Pid,
        address: u64,
        instruction: [u8; 4],
    ) -> Result<(), CommandCode> {
        let mut there = [0; 4];
        let is_read = self.tracer.read_memory_into(pid, address, &mut there).is_ok();
        if is_read && there != instruction {
            return Err(CommandCode::BreakpointFailed);
        }
        self.reset(rank, pid, address, instruction[0]).map_err(convert::code_of)
    }

    /// Removes the breakpoint at an address, if there is one.
    pub fn remove(&mut self, rank: u32, pid: Pid, address: u64) {
        for (address, original) in self.tracer.breakpoints_in(pid, address, 1) {
            // An error means that the process has ended.
            _ = self.reset(rank, pid, address, original);
        }
    }

    /// Removes the breakpoints that a killed service has left. The tracer reports when it has
    /// detached from the process.
    pub fn remove_leftovers(&mut self, pid: Pid, breakpoints: &[(u64, u8)]) {
        // If attaching fails, the process has ended or has another tracer. The breakpoints remain
        // in the shepherd's list.
        if self.tracer.attach(pid).is_ok() {
            _ = self.tracer.remove_leftovers(pid, breakpoints);
            _ = self.tracer.detach(pid);
        }
    }

    /// Reports the bytes of the program at the breakpoints in a range, which has been written.
    pub fn report_written(&mut self, rank: u32, pid: Pid, address: u64, length: u32) {
        for (address, original) in self.tracer.breakpoints_in(pid, address, length) {
            let report = ToolctlReport::BreakpointSet { rank, address, original };
            self.shepherd.report_breakpoint(report);
        }
    }
}
