//! The breakpoints that tools have set in the processes of this host. If the tool control service
//! is killed they stay in the text, and a process that reaches one dies of SIGTRAP: the next
//! service removes them (docs/tools.md, ruling O16).
#![forbid(unsafe_code)]

use std::collections::BTreeMap;

use score_proto::exit_code::EXIT_FAILED;
use score_proto::job_control::ElementReport;
use score_proto::toolctl::ToolctlOrder;

use super::tool_service::ToolReport;

/// Breakpoints of all processes. The service has a bound for each process.
const MAX_BREAKPOINTS: usize = 1 << 20;
/// Services that may be killed one after the other before any has removed them.
const MAX_DEATHS: u32 = 3;

/// See the [module](self).
#[derive(Debug, Default)]
pub struct BreakpointList {
    /// The byte of the program, by rank and address.
    by_rank: BTreeMap<u32, BTreeMap<u64, u8>>,
    count: usize,
    /// Services that were killed since the list was empty.
    deaths: u32,
}

impl BreakpointList {
    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.by_rank.is_empty()
    }

    /// A breakpoint is set.
    pub fn add(&mut self, rank: u32, address: u64, original: u8) {
        if self.count >= MAX_BREAKPOINTS {
            return;
        }
        if self.by_rank.entry(rank).or_default().insert(address, original).is_none() {
            self.count += 1;
        }
    }

    /// A breakpoint has been removed.
    pub fn remove(&mut self, rank: u32, address: u64) {
        let Some(of_rank) = self.by_rank.get_mut(&rank) else { return };
        if of_rank.remove(&address).is_some() {
            self.count -= 1;
        }
        if of_rank.is_empty() {
            self.clear(rank);
        }
    }

    /// A process has none any more.
    pub fn clear(&mut self, rank: u32) {
        let of_rank = self.by_rank.remove(&rank);
        self.count -= of_rank.map_or(0, |of_rank| of_rank.len());
        if self.by_rank.is_empty() {
            self.deaths = 0;
        }
    }

    /// What a new service has to do.
    pub fn orders(&self) -> Vec<ToolctlOrder> {
        let order = |(rank, of_rank): (&u32, &BTreeMap<u64, u8>)| {
            let breakpoints = of_rank.iter().map(|(address, byte)| (*address, *byte)).collect();
            ToolctlOrder::RemoveBreakpoints { rank: *rank, breakpoints }
        };
        self.by_rank.iter().map(order).collect()
    }

    /// The service has been killed. Returns a report if no further one is tried.
    pub fn on_service_death(&mut self, reason: &str) -> Option<ToolReport> {
        self.deaths += 1;
        if self.deaths < MAX_DEATHS { None } else { self.give_up(reason) }
    }

    /// The breakpoints cannot be removed: the job ends.
    pub fn give_up(&mut self, reason: &str) -> Option<ToolReport> {
        let is_left = !self.is_empty();
        *self = Self::default();
        is_left.then(|| {
            let reason = format!(
                "breakpoints of a tool cannot be removed from the processes: {reason}; start the \
                 job again"
            );
            (0, ElementReport::Failed { code: EXIT_FAILED, reason })
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_list_has_what_is_set_and_the_job_ends_when_nobody_removes_it() {
        let mut list = BreakpointList::default();
        for (rank, address, byte) in [(1, 10, 5), (1, 10, 6), (1, 20, 7), (2, 10, 8)] {
            list.add(rank, address, byte);
        }
        list.remove(1, 20);
        list.remove(1, 21);
        list.remove(9, 10);
        let order =
            |rank, byte| ToolctlOrder::RemoveBreakpoints { rank, breakpoints: vec![(10, byte)] };
        assert_eq!(list.orders(), [order(1, 6), order(2, 8)]);
        assert!(list.on_service_death("x").is_none() && list.on_service_death("x").is_none());
        list.remove(1, 10);
        let report = list.on_service_death("killed").unwrap();
        assert!(matches!(report, (0, ElementReport::Failed { code: EXIT_FAILED, .. })));
        assert!(list.is_empty() && list.give_up("killed").is_none());
        list.add(1, 10, 5);
        list.clear(1);
        assert!(list.is_empty() && list.on_service_death("x").is_none());
    }
}
