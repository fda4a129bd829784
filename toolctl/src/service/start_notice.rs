//! The notice at the start of a program (CDTI 4.6.3). A tool has authority before a program starts
//! if the process is held before its first instruction, as a debugger of scrun has it held. The
//! notice is that of a breakpoint, which is ours and is removed when a thread comes to it.

use score_toolctl::tracer::{BreakpointKind, Pid, procfs};
use score_tools::wire::{Control, StartNotice};

use super::Service;

/// Numbers of the auxiliary vector: getauxval(3).
const AT_BASE: u64 = 7;
const AT_ENTRY: u64 = 9;
/// Offset of the entry point in the header of an ELF file.
const ELF_ENTRY_OFFSET: u64 = 24;
const SIGTRAP_BIT: u64 = 1 << (libc::SIGTRAP - 1);

impl Service {
    /// A tool has got authority, or has changed its settings. A tool that wants no SIGTRAP gets no
    /// notice; nor does a console, which has commands for breakpoints.
    pub(super) fn arm_start_notice(&mut self, rank: u32, settings: &Control) {
        let Some(pid) = self.processes.get(&rank).map(|process| process.pid) else { return };
        self.disarm_start_notice(rank);
        if settings.notify_set & SIGTRAP_BIT == 0 || self.consoles.is_asking_for(rank) {
            return;
        }
        let Some(address) = self.start_address(pid, settings.start_notice) else { return };
        // A tool that has a breakpoint there is notified in any case.
        if self.tracer.breakpoints_in(pid, address, 1).is_empty()
            && self.insert_breakpoint(rank, pid, address, BreakpointKind::Normal).is_ok()
        {
            self.start_notices.insert(rank, address);
        }
    }

    /// Where a program that has not started gives its notice. None: it has started.
    fn start_address(&mut self, pid: Pid, place: StartNotice) -> Option<u64> {
        let words = procfs::auxiliary_vector(pid)?;
        let value =
            |number: u64| words.chunks_exact(2).find(|pair| pair[0] == number).map(|pair| pair[1]);
        let entry = value(AT_ENTRY)?;
        // A static program has no loader: both places are its entry point.
        let first = match value(AT_BASE).filter(|base| *base != 0) {
            None => entry,
            Some(base) => {
                let mut offset = [0; 8];
                let field = base.wrapping_add(ELF_ENTRY_OFFSET);
                self.tracer.read_memory_into(pid, field, &mut offset).ok()?;
                base.wrapping_add(u64::from_ne_bytes(offset))
            }
        };
        let stands_at_start = procfs::instruction_of(pid, pid)? == first;
        stands_at_start.then_some(match place {
            StartNotice::DynamicLoader => first,
            StartNotice::EntryPoint => entry,
        })
    }

    /// A thread has come to the place, or nobody wants the notice any more.
    pub(super) fn disarm_start_notice(&mut self, rank: u32) {
        let address = self.start_notices.remove(&rank);
        let pid = self.processes.get(&rank).map(|process| process.pid);
        if let (Some(address), Some(pid)) = (address, pid) {
            self.remove_breakpoint(rank, pid, address);
        }
    }
}
