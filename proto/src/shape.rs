//! How many nodes a job wants where the server chooses its hosts.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::MAX_NODES;

/// What a job wants (manual, scrun(1), `nodes`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Shape {
    /// `HxP`: so many hosts with so many processes each.
    Grid {
        /// Hosts.
        hosts: u32,
        /// Processes on each.
        procs: u32,
    },
    /// `N`: so many processes, evenly on the fewest hosts.
    Spread(u32),
    /// Nothing said: one process per slot that is free, within these numbers.
    Fill {
        /// At least.
        least: u32,
        /// At most.
        most: u32,
    },
    /// `hosts=H`: so many hosts that nobody else uses, with all of their slots.
    Whole {
        /// Hosts.
        hosts: u32,
        /// Processes at least.
        least: u32,
        /// Processes at most.
        most: u32,
    },
    /// `xP`: every host with so many processes.
    Every {
        /// Processes on each.
        procs: u32,
        /// Processes at least.
        least: u32,
        /// Processes at most.
        most: u32,
    },
}

impl Shape {
    /// Why no cluster could run it, if so.
    pub fn fault(&self) -> Option<String> {
        let nodes = match *self {
            Shape::Grid { hosts, procs } => u64::from(hosts) * u64::from(procs),
            Shape::Spread(nodes) => nodes.into(),
            Shape::Fill { least, most }
            | Shape::Whole { least, most, .. }
            | Shape::Every { least, most, .. }
                if least > most =>
            {
                return Some(format!("at least {least} and at most {most} nodes are wanted"));
            }
            Shape::Fill { least, most } => u64::from(least.max(1)).min(most.into()),
            Shape::Whole { hosts: number, most, .. } | Shape::Every { procs: number, most, .. } => {
                if most == 0 {
                    0
                } else {
                    number.into()
                }
            }
        };
        match nodes {
            0 => Some("a job needs at least one node".to_owned()),
            nodes if nodes > MAX_NODES.into() => {
                Some(format!("{nodes} nodes are wanted, at most {MAX_NODES} are possible"))
            }
            _ => None,
        }
    }

    /// The least number of slots that it takes.
    pub fn least(&self) -> u64 {
        match *self {
            Shape::Grid { hosts, procs } => u64::from(hosts) * u64::from(procs),
            Shape::Spread(nodes) => nodes.into(),
            Shape::Fill { least, .. } => least.max(1).into(),
            Shape::Whole { hosts, least, .. } => hosts.max(least).into(),
            Shape::Every { procs, least, .. } => procs.max(least).into(),
        }
    }
}

impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Shape::Grid { hosts, procs } => write!(f, "{hosts} hosts with {procs} processes each"),
            Shape::Spread(nodes) => write!(f, "{nodes} processes"),
            Shape::Fill { least, .. } => write!(f, "at least {} processes", least.max(1)),
            Shape::Whole { hosts, .. } => write!(f, "{hosts} whole hosts"),
            Shape::Every { procs, .. } => write!(f, "{procs} processes on every host"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_no_cluster_can_run_is_named() {
        for shape in [
            Shape::Spread(0),
            Shape::Grid { hosts: 0, procs: 4 },
            Shape::Grid { hosts: u32::MAX, procs: u32::MAX },
            Shape::Fill { least: 3, most: 2 },
            Shape::Fill { least: 0, most: 0 },
        ] {
            assert!(shape.fault().is_some(), "{shape:?}");
        }
        assert_eq!(Shape::Spread(MAX_NODES).fault(), None);
    }
}
