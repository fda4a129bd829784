//! The notice at the start of a program (CDTI 4.6.3). A tool can have authority before a program
//! starts if the process is held before its first instruction, as for a debugger of scrun. The
//! notice comes from a breakpoint. The service removes this breakpoint when a thread reaches it.

use std::collections::BTreeMap;

use score_toolctl::tracer::{BreakpointKind, Linux, Pid, Tracer, procfs};
use score_tools::wire::{Control, StartNotice};

use super::Service;
use super::breakpoints::ReportedBreakpoints;
use super::shepherd::Shepherd;

/// Entry types of the auxiliary vector; see getauxval(3).
const AT_BASE: u64 = 7;
const AT_ENTRY: u64 = 9;
/// The offset of the entry point in an ELF header.
const ELF_ENTRY_OFFSET: u64 = 24;
const SIGTRAP_BIT: u64 = 1 << (libc::SIGTRAP - 1);

/// The breakpoints of the start notices of ranks that have not started: their addresses, by rank.
#[derive(Debug, Default)]
pub struct StartNotices(BTreeMap<u32, u64>);

impl StartNotices {
    /// Sets the breakpoint, if the program of the process has not started.
    pub fn arm(
        &mut self,
        rank: u32,
        pid: Pid,
        place: StartNotice,
        tracer: &mut Tracer<Linux>,
        shepherd: &mut Shepherd,
    ) {
        let Some(address) = start_address(tracer, pid, place) else { return };
        let mut breakpoints = ReportedBreakpoints::new(tracer, shepherd);
        // If a tool has a breakpoint at this address, the tool is notified in any case.
        if !breakpoints.contains(pid, address)
            && breakpoints.insert(rank, pid, address, BreakpointKind::Normal).is_ok()
        {
            self.0.insert(rank, address);
        }
    }

    /// Removes the breakpoint from the process of a rank.
    pub fn disarm(
        &mut self,
        rank: u32,
        pid: Option<Pid>,
        tracer: &mut Tracer<Linux>,
        shepherd: &mut Shepherd,
    ) {
        if let (Some(address), Some(pid)) = (self.0.remove(&rank), pid) {
            ReportedBreakpoints::new(tracer, shepherd).remove(rank, pid, address);
        }
    }

    /// Notes that a process has no breakpoints any more.
    pub fn forget(&mut self, rank: u32) {
        self.0.remove(&rank);
    }

    /// Whether the breakpoint of a rank is at this address.
    pub fn is_at(&self, rank: u32, address: u64) -> bool {
        self.0.get(&rank) == Some(&address)
    }
}

/// The address of the start notice of a program. `None`, if the program has already started.
fn start_address(tracer: &Tracer<Linux>, pid: Pid, place: StartNotice) -> Option<u64> {
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
            tracer.read_memory_into(pid, field, &mut offset).ok()?;
            base.wrapping_add(u64::from_ne_bytes(offset))
        }
    };
    let stands_at_start = procfs::instruction_of(pid, pid)? == first;
    stands_at_start.then_some(match place {
        StartNotice::DynamicLoader => first,
        StartNotice::EntryPoint => entry,
    })
}

impl Service {
    /// Sets the breakpoint of the start notice when a tool gets authority or changes its settings.
    /// There is no notice for a tool that does not request SIGTRAP, nor for a console, which has
    /// its own breakpoint commands.
    pub(super) fn arm_start_notice(&mut self, rank: u32, settings: &Control) {
        let Some(pid) = self.processes.pid(rank) else { return };
        self.disarm_start_notice(rank);
        if settings.notify_set & SIGTRAP_BIT == 0 || self.consoles.is_asking_for(rank) {
            return;
        }
        let (place, tracer) = (settings.start_notice, &mut self.tracer);
        self.start_notices.arm(rank, pid, place, tracer, &mut self.shepherd);
    }

    /// Removes the breakpoint of the start notice, because a thread has reached it or the notice is
    /// not wanted any more.
    pub(super) fn disarm_start_notice(&mut self, rank: u32) {
        let pid = self.processes.pid(rank);
        self.start_notices.disarm(rank, pid, &mut self.tracer, &mut self.shepherd);
    }
}
