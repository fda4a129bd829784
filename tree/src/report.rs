//! How the reports of a job merge on their way up: what says the same of different nodes becomes
//! one report.

use score_proto::nodeset::NodeSet;
use score_proto::order::Report;

use crate::merge;

/// Figures of processes in one report at most.
const MOST_USAGES: usize = 4096;

/// Element and nodes of a report that can be counted.
fn counted(report: &Report) -> Option<(u32, &NodeSet)> {
    match report {
        Report::Attached { element, nodes, .. }
        | Report::InBarrier { element, nodes }
        | Report::Ended { element, nodes, .. }
        | Report::Skipped { element, nodes }
        | Report::Sent { element, nodes, .. }
        | Report::NotStarted { element, nodes, .. } => Some((*element, nodes)),
        _ => None,
    }
}

/// Whether its place among reports of nodes does not matter.
fn is_free(report: &Report) -> bool {
    matches!(
        report,
        Report::Usage(_)
            | Report::StdinWindow(_)
            | Report::StdinClosed
            | Report::Figures(_)
            | Report::Waits { .. }
            | Report::Quiet { .. }
            | Report::Sleep { .. }
            | Report::Yield { .. }
    )
}

impl merge::Report for Report {
    fn merge(&mut self, other: &Self) -> bool {
        let (ours, theirs) = match (self, other) {
            (Report::Usage(ours), Report::Usage(theirs)) => {
                let fits = ours.len() + theirs.len() <= MOST_USAGES;
                if fits {
                    ours.extend_from_slice(theirs);
                }
                return fits;
            }
            (Report::Figures(ours), Report::Figures(theirs)) => {
                let fits = ours.nodes.len() + theirs.nodes.len() <= MOST_USAGES;
                if fits {
                    ours.hosts.extend_from_slice(&theirs.hosts);
                    ours.nodes.extend_from_slice(&theirs.nodes);
                }
                return fits;
            }
            (
                Report::Waits { element, waits },
                Report::Waits { element: other, waits: further },
            ) if element == other => {
                let fits = waits.len() + further.len() <= MOST_USAGES;
                if fits {
                    waits.extend_from_slice(further);
                }
                return fits;
            }
            (Report::Quiet { element, quiet }, Report::Quiet { element: other, quiet: newer })
                if element == other =>
            {
                *quiet = *newer;
                return true;
            }
            (Report::Yield { element }, Report::Yield { element: other }) => {
                return element == other;
            }
            // Who sleeps as long sleeps together.
            (
                Report::Sleep { element, seconds },
                Report::Sleep { element: other, seconds: wanted },
            ) => return element == other && seconds == wanted,
            (
                Report::Attached { element, nodes, addresses },
                Report::Attached { element: other, nodes: more, addresses: further },
            ) if element == other && nodes.union_fits(more) => {
                addresses.extend_from_slice(further);
                (nodes, more)
            }
            (
                Report::InBarrier { element, nodes },
                Report::InBarrier { element: other, nodes: more },
            )
            | (
                Report::Skipped { element, nodes },
                Report::Skipped { element: other, nodes: more },
            ) if element == other => (nodes, more),
            (
                Report::Ended { element, nodes, status },
                Report::Ended { element: other, nodes: more, status: how },
            ) if element == other && status == how => (nodes, more),
            (
                Report::Sent { element, serial, nodes },
                Report::Sent { element: other, serial: which, nodes: more },
            ) if element == other && serial == which => (nodes, more),
            (
                Report::NotStarted { element, nodes, code, why },
                Report::NotStarted { element: other, nodes: more, code: theirs, why: reason },
            ) if element == other && code == theirs && why == reason => (nodes, more),
            _ => return false,
        };
        let fits = ours.union_fits(theirs);
        if fits {
            ours.union(theirs);
        }
        fits
    }

    fn concerns(&self, other: &Self) -> bool {
        match (counted(self), counted(other)) {
            (Some((element, nodes)), Some((another, more))) => {
                element == another && nodes.intersects(more)
            }
            _ => !is_free(self) && !is_free(other),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::merge::Queue;
    use score_proto::message::NodeUsage;
    use score_proto::order::Status;

    fn ended(node: u32, code: u8) -> Report {
        Report::Ended { element: 0, nodes: NodeSet::one(node), status: Status::Exited(code) }
    }

    fn waits(node: u32) -> Report {
        Report::InBarrier { element: 0, nodes: NodeSet::one(node) }
    }

    fn merged(reports: &[Report]) -> Vec<Report> {
        let mut queue = Queue::new(100);
        for report in reports {
            queue.push(report.clone()).unwrap();
        }
        std::iter::from_fn(|| queue.pop()).collect()
    }

    #[test]
    fn the_same_of_many_nodes_is_one_report() {
        let all = Report::Ended { element: 0, nodes: (0..3).into(), status: Status::Exited(0) };
        assert_eq!(merged(&[ended(0, 0), ended(2, 0), ended(1, 0)]), [all]);
        assert_eq!(merged(&[ended(0, 0), ended(1, 1), ended(2, 0)]).len(), 2);
    }

    #[test]
    fn nothing_passes_what_concerns_the_same_node_or_the_whole_element() {
        let two = Report::Ended { element: 0, nodes: (0..2).into(), status: Status::Exited(0) };
        assert_eq!(merged(&[waits(1), ended(0, 0), ended(1, 0)]), [waits(1), two]);
        let order = [ended(0, 0), waits(1), ended(1, 0)];
        assert_eq!(merged(&order), order);
        let exit = Report::Exit { element: 0, code: 1 };
        let order = [ended(0, 0), exit, ended(1, 0)];
        assert_eq!(merged(&order), order);
    }

    #[test]
    fn figures_are_gathered_and_keep_nothing_apart() {
        let usage = |node| NodeUsage {
            stage: 0,
            element: 0,
            node,
            user_ns: 1,
            system_ns: 2,
            max_rss_kib: 3,
            code: 0,
            ..NodeUsage::default()
        };
        let reports = [
            Report::Usage(vec![usage(0)]),
            ended(0, 0),
            Report::Usage(vec![usage(1)]),
            ended(1, 0),
        ];
        assert_eq!(merged(&reports).len(), 2);
    }
}
