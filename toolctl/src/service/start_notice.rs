//! The notice at the start of a program (CDTI 4.6.3). A tool can have authority before a program
//! starts if the process is held before its first instruction, as for a debugger of scrun. The
//! notice comes from a breakpoint of the service, which is removed when a thread reaches it.

use score_toolctl::tracer::{BreakpointKind, Pid, procfs};
use score_tools::wire::{Control, StartNotice};

use super::Service;

/// Entry types of the auxiliary vector; see getauxval(3).
const AT_BASE: u64 = 7;
const AT_ENTRY: u64 = 9;
/// The offset of the entry point in an ELF header.
const ELF_ENTRY_OFFSET: u64 = 24;
const SIGTRAP_BIT: u64 = 1 << (libc::SIGTRAP - 1);

impl Service {
    /// Sets the breakpoint of the start notice when a tool gets authority or changes its settings.
    /// There is no notice for a tool that does not request SIGTRAP, nor for a console, which has
    /// its own breakpoint commands.
    pub(super) fn arm_start_notice(&mut self, rank: u32, settings: &Control) {
        let Some(pid) = self.processes.get(&rank).map(|process| process.pid) else { return };
        self.disarm_start_notice(rank);
        if settings.notify_set & SIGTRAP_BIT == 0 || self.consoles.is_asking_for(rank) {
            return;
        }
        let Some(address) = self.start_address(pid, settings.start_notice) else { return };
        // If a tool has a breakpoint at this address, it is notified in any case.
        if self.tracer.breakpoints_in(pid, address, 1).is_empty()
            && self.insert_breakpoint(rank, pid, address, BreakpointKind::Normal).is_ok()
        {
            self.start_notices.insert(rank, address);
        }
    }

    /// The address of the start notice of a program. `None`, if the program has already started.
    fn start_address(&mut self, pid: Pid, place: StartNotice) -> Option<u64> {
        let words = procfs::auxiliary_vector(pid)?;
        let value =
            |number: u64| words.chunks_exact(2).find(|pair| pair[0] == number).map(|pair| pair[1]);
        let entry = value(AT_ENTRY)?;
        // A static program has no loader, so both places are its entry point.
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

    /// Removes the breakpoint of the start notice, because a thread has reached it or the notice is
    /// not wanted any more.
    pub(super) fn disarm_start_notice(&mut self, rank: u32) {
        let address = self.start_notices.remove(&rank);
        let pid = self.processes.get(&rank).map(|process| process.pid);
        if let (Some(address), Some(pid)) = (address, pid) {
            self.remove_breakpoint(rank, pid, address);
        }
    }
}
