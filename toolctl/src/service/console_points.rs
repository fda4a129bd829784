//! The breakpoints and watchpoints of consoles. A console names them by a location of the program.

use score_proto::tool_command::Location;
use score_stacks::location::{Place, Purpose};
use score_toolctl::tracer::error::TraceError;
use score_toolctl::tracer::{
    Answer, BreakpointKind, Linux, Request, Tracer, WatchKind, WatchRange,
};

use super::breakpoints::ReportedBreakpoints;
use super::console::{Consoles, PendingWatch, RequestUse};
use super::shepherd::{Shepherd, Target};

/// The longest memory of one watchpoint, in bytes: four debug registers.
const MAX_WATCHED_LEN: u64 = 32;

/// The text of an error of the tracer. It contains no ids, so that the texts of different processes
/// can be merged.
pub(super) fn reason_of(error: TraceError) -> String {
    match error {
        TraceError::NoProcess(_) => "it has ended".to_owned(),
        TraceError::Timeout(_) => "a thread waits in the kernel and does not stop".to_owned(),
        TraceError::Breakpoint(_, reason) => reason.to_owned(),
        TraceError::NoDebugRegister(_) => {
            "no debug register is free; clear a watchpoint".to_owned()
        }
        TraceError::WatchpointOverlap(_) => {
            "a watchpoint exists there already; clear it".to_owned()
        }
        TraceError::WrongState(_, reason) => reason.to_owned(),
        error => error.to_string(),
    }
}

/// The memory range of a watchpoint.
fn watched_range(Place { address, len }: Place) -> Result<WatchRange, String> {
    let len = match len {
        // For an address without a length, watch the longest aligned word.
        0 => [8, 4, 2, 1].into_iter().find(|len| address.is_multiple_of(*len)).unwrap_or(1),
        len => len,
    };
    let is_possible =
        len.is_power_of_two() && len <= MAX_WATCHED_LEN && address.is_multiple_of(len);
    match u32::try_from(len) {
        Ok(length) if is_possible => Ok(WatchRange { address, length, kind: WatchKind::Write }),
        _ => Err(format!(
            "it has {len} bytes: only 1, 2, 4, 8, 16 or 32 aligned bytes can be watched; \
             watch a part of it by *ADDRESS"
        )),
    }
}

impl Consoles {
    /// Sets breakpoints at a location.
    pub(super) fn break_at(
        &mut self,
        (session, rank): (u64, u32),
        location: &Location,
        tracer: &mut Tracer<Linux>,
        shepherd: &mut Shepherd,
    ) -> Result<(), String> {
        let Some(process) = self.process(session, rank) else { return Ok(()) };
        if process.breakpoints.contains_key(location) {
            return Ok(());
        }
        let pid = process.pid;
        let places = self.locations.find(pid, location, Purpose::Code)?;
        let mut breakpoints = ReportedBreakpoints::new(tracer, shepherd);
        let mut set = Vec::new();
        for Place { address, .. } in places {
            if let Err(error) = breakpoints.insert(rank, pid, address, BreakpointKind::Normal) {
                set.into_iter().for_each(|address| breakpoints.remove(rank, pid, address));
                return Err(reason_of(error));
            }
            set.push(address);
        }
        if let Some(process) = self.process(session, rank) {
            process.breakpoints.insert(location.clone(), set);
        }
        Ok(())
    }

    /// Sets a watchpoint in all existing threads. Returns false if the watchpoint exists. Otherwise
    /// [`Self::on_watched`] returns the watchpoint when all threads have answered.
    pub(super) fn watch(
        &mut self,
        (session, rank): (u64, u32),
        target: Target,
        location: &Location,
        tracer: &mut Tracer<Linux>,
    ) -> Result<bool, String> {
        let Some(process) = self.process(session, rank) else { return Ok(true) };
        let pid = process.pid;
        if process.watchpoints.contains_key(location) {
            return Ok(false);
        }
        let places = self.locations.find(pid, location, Purpose::Data)?;
        let place = places.first().ok_or("there is nothing to watch")?;
        let range = watched_range(*place)?;
        self.last_watch += 1;
        let number = self.last_watch;
        let mut pending =
            PendingWatch { target, location: location.clone(), threads: 0, failure: None };
        let mut tickets = Vec::new();
        for tid in tracer.threads(pid) {
            match tracer.request(pid, Some(tid), Request::SetWatchpoint(range)) {
                Ok(ticket) => tickets.push(ticket),
                // The thread has just ended.
                Err(TraceError::NoThread(_)) => {}
                Err(error) => pending.failure = Some(reason_of(error)),
            }
        }
        pending.threads = tickets.len();
        if tickets.is_empty() {
            return Err(pending.failure.unwrap_or_else(|| "it has ended".to_owned()));
        }
        if let Some(process) = self.process(session, rank) {
            process.watchpoints.insert(location.clone(), range.address);
        }
        self.watches.insert(number, pending);
        for ticket in tickets {
            self.expect(ticket, session, rank, RequestUse::Watch(number));
        }
        Ok(true)
    }

    /// Notes whether a thread has got a watchpoint. Returns the watchpoint after the answer of the
    /// last thread.
    pub(super) fn on_watched(
        &mut self,
        number: u64,
        result: &Result<Answer, TraceError>,
    ) -> Option<PendingWatch> {
        let pending = self.watches.get_mut(&number)?;
        pending.threads = pending.threads.saturating_sub(1);
        match result {
            Ok(_) | Err(TraceError::NoThread(_)) => {}
            Err(error) => pending.failure = Some(reason_of(*error)),
        }
        if pending.threads > 0 { None } else { self.watches.remove(&number) }
    }

    /// Removes the breakpoints and watchpoints of a location, or all of them. Returns whether there
    /// were any.
    pub(super) fn clear(
        &mut self,
        (session, rank): (u64, u32),
        location: Option<&Location>,
        tracer: &mut Tracer<Linux>,
        shepherd: &mut Shepherd,
    ) -> bool {
        let Some(process) = self.process(session, rank) else { return false };
        let pid = process.pid;
        let is_kept = |other: &Location| location.is_some_and(|location| location != other);
        let (mut breakpoints, mut watchpoints) = (Vec::new(), Vec::new());
        process.breakpoints.retain(|other, addresses| {
            let is_kept = is_kept(other);
            if !is_kept {
                breakpoints.append(addresses);
            }
            is_kept
        });
        process.watchpoints.retain(|other, address| {
            let is_kept = is_kept(other);
            if !is_kept {
                watchpoints.push(*address);
            }
            is_kept
        });
        // Another location may contain the same address.
        let still: Vec<u64> = process.breakpoints.values().flatten().copied().collect();
        let is_any = !breakpoints.is_empty() || !watchpoints.is_empty();
        for address in breakpoints.into_iter().filter(|address| !still.contains(address)) {
            ReportedBreakpoints::new(tracer, shepherd).remove(rank, pid, address);
        }
        for tid in tracer.threads(pid) {
            for address in &watchpoints {
                // A thread that has started later has no watchpoint, so an error does not matter.
                _ = tracer.request(pid, Some(tid), Request::ResetWatchpoint(*address));
            }
        }
        is_any
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_watched_range_is_aligned_and_its_length_is_a_power_of_two() {
        let length = |address, len| watched_range(Place { address, len }).map(|it| it.length);
        assert_eq!(length(0x1000, 4), Ok(4));
        assert_eq!(length(0x1000, 32), Ok(32));
        assert_eq!(
            [0x1000, 0x1004, 0x1002, 0x1001].map(|it| length(it, 0)),
            [Ok(8), Ok(4), Ok(2), Ok(1)]
        );
        for (address, len) in [(0x1000, 12), (0x1004, 8), (0x1000, 64)] {
            assert!(length(address, len).unwrap_err().contains("*ADDRESS"), "{len}");
        }
    }
}
