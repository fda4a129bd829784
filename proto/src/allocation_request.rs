//! The number of nodes and hosts that a job requests if the server chooses its hosts.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::MAX_NODES;

/// The request of a job (manual, scrun(1), `nodes`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum AllocationRequest {
    /// `HxP`: this number of hosts, with this number of processes on each.
    HostsByProcs {
        /// Number of hosts.
        hosts: u32,
        /// Number of processes on each host.
        procs: u32,
    },
    /// `N`: this number of processes, evenly distributed over as few hosts as possible.
    FewestHosts(u32),
    /// No option given: one process per free slot, within these limits.
    AllFreeSlots {
        /// Smallest number of nodes.
        min_nodes: u32,
        /// Largest number of nodes.
        max_nodes: u32,
    },
    /// `hosts=H`: this number of hosts that no other job uses, with all of their slots.
    Exclusive {
        /// Number of hosts.
        hosts: u32,
        /// Smallest number of processes.
        min_nodes: u32,
        /// Largest number of processes.
        max_nodes: u32,
    },
    /// `xP`: every host, with this number of processes on each.
    EveryHost {
        /// Number of processes on each host.
        procs: u32,
        /// Smallest number of processes.
        min_nodes: u32,
        /// Largest number of processes.
        max_nodes: u32,
    },
}

impl AllocationRequest {
    /// The reason why no cluster could run the request, if there is one.
    pub fn invalid_reason(&self) -> Option<String> {
        let nodes =
            match *self {
                AllocationRequest::HostsByProcs { hosts, procs } => {
                    u64::from(hosts) * u64::from(procs)
                }
                AllocationRequest::FewestHosts(nodes) => nodes.into(),
                AllocationRequest::AllFreeSlots { min_nodes, max_nodes }
                | AllocationRequest::Exclusive { min_nodes, max_nodes, .. }
                | AllocationRequest::EveryHost { min_nodes, max_nodes, .. }
                    if min_nodes > max_nodes =>
                {
                    return Some(format!(
                        "at least {min_nodes} and at most {max_nodes} nodes requested"
                    ));
                }
                AllocationRequest::AllFreeSlots { min_nodes, max_nodes } => {
                    u64::from(min_nodes.max(1)).min(max_nodes.into())
                }
                AllocationRequest::Exclusive { hosts: number, max_nodes, .. }
                | AllocationRequest::EveryHost { procs: number, max_nodes, .. } => {
                    if max_nodes == 0 { 0 } else { number.into() }
                }
            };
        match nodes {
            0 => Some("a job needs at least one node".to_owned()),
            nodes if nodes > MAX_NODES.into() => {
                Some(format!("{nodes} nodes requested; the limit is {MAX_NODES}"))
            }
            _ => None,
        }
    }

    /// The smallest number of slots that the request needs.
    pub fn min_slots(&self) -> u64 {
        match *self {
            AllocationRequest::HostsByProcs { hosts, procs } => u64::from(hosts) * u64::from(procs),
            AllocationRequest::FewestHosts(nodes) => nodes.into(),
            AllocationRequest::AllFreeSlots { min_nodes, .. } => min_nodes.max(1).into(),
            AllocationRequest::Exclusive { hosts, min_nodes, .. } => hosts.max(min_nodes).into(),
            AllocationRequest::EveryHost { procs, min_nodes, .. } => procs.max(min_nodes).into(),
        }
    }
}

impl fmt::Display for AllocationRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            AllocationRequest::HostsByProcs { hosts, procs } => {
                write!(f, "{hosts} hosts with {procs} processes each")
            }
            AllocationRequest::FewestHosts(nodes) => write!(f, "{nodes} processes"),
            AllocationRequest::AllFreeSlots { min_nodes, .. } => {
                write!(f, "at least {} processes", min_nodes.max(1))
            }
            AllocationRequest::Exclusive { hosts, .. } => write!(f, "{hosts} whole hosts"),
            AllocationRequest::EveryHost { procs, .. } => {
                write!(f, "{procs} processes on every host")
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_impossible_allocation_request_is_invalid_with_a_reason() {
        for request in [
            AllocationRequest::FewestHosts(0),
            AllocationRequest::HostsByProcs { hosts: 0, procs: 4 },
            AllocationRequest::HostsByProcs { hosts: u32::MAX, procs: u32::MAX },
            AllocationRequest::AllFreeSlots { min_nodes: 3, max_nodes: 2 },
            AllocationRequest::AllFreeSlots { min_nodes: 0, max_nodes: 0 },
        ] {
            assert!(request.invalid_reason().is_some(), "{request:?}");
        }
        assert_eq!(AllocationRequest::FewestHosts(MAX_NODES).invalid_reason(), None);
    }

    #[test]
    fn a_possible_allocation_request_has_no_reason_against_it() {
        for request in [
            AllocationRequest::HostsByProcs { hosts: 1, procs: MAX_NODES },
            AllocationRequest::AllFreeSlots { min_nodes: 2, max_nodes: 2 },
            AllocationRequest::AllFreeSlots { min_nodes: 0, max_nodes: 1 },
            AllocationRequest::Exclusive { hosts: 1, min_nodes: 2, max_nodes: 2 },
            AllocationRequest::EveryHost { procs: 1, min_nodes: 1, max_nodes: u32::MAX },
        ] {
            assert_eq!(request.invalid_reason(), None, "{request:?}");
        }
    }

    #[test]
    fn the_reason_contains_the_numbers_of_the_request() {
        for (request, reason) in [
            (AllocationRequest::FewestHosts(0), "a job needs at least one node"),
            (
                AllocationRequest::Exclusive { hosts: 1, min_nodes: 0, max_nodes: 0 },
                "a job needs at least one node",
            ),
            (
                AllocationRequest::EveryHost { procs: 1, min_nodes: 3, max_nodes: 2 },
                "at least 3 and at most 2 nodes requested",
            ),
            (
                AllocationRequest::FewestHosts(MAX_NODES + 1),
                "1048577 nodes requested; the limit is 1048576",
            ),
        ] {
            assert_eq!(request.invalid_reason().as_deref(), Some(reason), "{request:?}");
        }
    }

    #[test]
    fn a_request_has_its_smallest_number_of_slots_and_a_text() {
        for (request, min_slots, text) in [
            (
                AllocationRequest::HostsByProcs { hosts: 3, procs: 4 },
                12,
                "3 hosts with 4 processes each",
            ),
            (AllocationRequest::FewestHosts(5), 5, "5 processes"),
            (
                AllocationRequest::AllFreeSlots { min_nodes: 0, max_nodes: 9 },
                1,
                "at least 1 processes",
            ),
            (
                AllocationRequest::AllFreeSlots { min_nodes: 6, max_nodes: 9 },
                6,
                "at least 6 processes",
            ),
            (
                AllocationRequest::Exclusive { hosts: 2, min_nodes: 7, max_nodes: 9 },
                7,
                "2 whole hosts",
            ),
            (
                AllocationRequest::EveryHost { procs: 3, min_nodes: 2, max_nodes: 9 },
                3,
                "3 processes on every host",
            ),
        ] {
            assert_eq!((request.min_slots(), request.to_string()), (min_slots, text.to_owned()));
        }
    }
}
