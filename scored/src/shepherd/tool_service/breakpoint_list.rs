//! The breakpoints that tools have set in the processes of this host. If the tool control service
//! is killed, the breakpoints stay in the program text, and SIGTRAP kills a process that reaches
//! one. The next service removes them (docs/dev/tools.md, ruling O16).
#![forbid(unsafe_code)]

use std::collections::BTreeMap;

use score_proto::exit_code::EXIT_FAILED;
use score_proto::ids::ElementIndex;
use score_proto::job_control::ElementReport;
use score_proto::toolctl::ToolctlOrder;

use super::ToolReport;

/// Largest number of breakpoints in all processes. The service also has a limit for each process.
const MAX_BREAKPOINTS: usize = 1 << 20;
/// After this many killed services in succession, no further service is started.
const MAX_DEATHS: u32 = 3;

/// See the [module](self).
#[derive(Debug, Default)]
pub struct BreakpointList {
    /// The original byte of the program, by rank and address.
    by_rank: BTreeMap<u32, BTreeMap<u64, u8>>,
    count: usize,
    /// Number of services that were killed since the list was last empty.
    deaths: u32,
}

impl BreakpointList {
    /// Whether there are no breakpoints.
    pub fn is_empty(&self) -> bool {
        self.by_rank.is_empty()
    }

    /// Adds a breakpoint that has been set. `original`: the byte that it replaces.
    pub fn add(&mut self, rank: u32, address: u64, original: u8) {
        if self.count >= MAX_BREAKPOINTS {
            return;
        }
        if self.by_rank.entry(rank).or_default().insert(address, original).is_none() {
            self.count += 1;
        }
    }

    /// Removes a breakpoint that has been reset.
    pub fn remove(&mut self, rank: u32, address: u64) {
        let Some(of_rank) = self.by_rank.get_mut(&rank) else { return };
        if of_rank.remove(&address).is_some() {
            self.count -= 1;
        }
        if of_rank.is_empty() {
            self.clear(rank);
        }
    }

    /// Removes all breakpoints of a process.
    pub fn clear(&mut self, rank: u32) {
        let of_rank = self.by_rank.remove(&rank);
        self.count -= of_rank.map_or(0, |of_rank| of_rank.len());
        if self.by_rank.is_empty() {
            self.deaths = 0;
        }
    }

    /// The orders for a new service: it has to remove these breakpoints.
    pub fn orders(&self) -> Vec<ToolctlOrder> {
        let order = |(rank, of_rank): (&u32, &BTreeMap<u64, u8>)| {
            let breakpoints = of_rank.iter().map(|(address, byte)| (*address, *byte)).collect();
            ToolctlOrder::RemoveBreakpoints { rank: *rank, breakpoints }
        };
        self.by_rank.iter().map(order).collect()
    }

    /// Counts a killed service. Returns a report that ends the job if no further service is tried.
    pub fn on_service_death(&mut self, reason: &str) -> Option<ToolReport> {
        self.deaths += 1;
        if self.deaths < MAX_DEATHS { None } else { self.give_up(reason) }
    }

    /// Clears the list. Returns a report that ends the job if breakpoints are left in processes.
    pub fn give_up(&mut self, reason: &str) -> Option<ToolReport> {
        let is_left = !self.is_empty();
        *self = Self::default();
        is_left.then(|| {
            let reason = format!(
                "breakpoints of a tool cannot be removed from the processes: {reason}; start the \
                 job again"
            );
            (ElementIndex::FIRST, ElementReport::Failed { code: EXIT_FAILED, reason })
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_list_has_the_set_breakpoints_and_the_job_ends_if_they_are_not_removed() {
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
        assert!(matches!(
            report,
            (ElementIndex::FIRST, ElementReport::Failed { code: EXIT_FAILED, .. })
        ));
        assert!(list.is_empty() && list.give_up("killed").is_none());
        list.add(1, 10, 5);
        list.clear(1);
        assert!(list.is_empty() && list.on_service_death("x").is_none());
    }
}
