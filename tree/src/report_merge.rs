//! How the reports of a job merge on their way up: equal reports about different nodes become one
//! report.

use score_proto::job_control::Report;
use score_proto::nodeset::NodeSet;

use crate::report_queue;

/// Most statistics of processes in one report.
const MAX_USAGES: usize = 4096;

/// Element and nodes of a report that can be counted.
fn mergeable_nodes(report: &Report) -> Option<(u32, &NodeSet)> {
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

/// Whether the report may change its position among reports about nodes.
fn is_order_independent(report: &Report) -> bool {
    matches!(
        report,
        Report::Usage(_)
            | Report::StdinWindow(_)
            | Report::StdinClosed
            | Report::Metrics(_)
            | Report::WaitStates { .. }
            | Report::IdleSummary { .. }
            | Report::Sleep { .. }
            | Report::Yield { .. }
    )
}

impl report_queue::Mergeable for Report {
    fn merge(&mut self, other: &Self) -> bool {
        let (ours, theirs) = match (self, other) {
            (Report::Usage(ours), Report::Usage(theirs)) => {
                let fits = ours.len() + theirs.len() <= MAX_USAGES;
                if fits {
                    ours.extend_from_slice(theirs);
                }
                return fits;
            }
            (Report::Metrics(ours), Report::Metrics(theirs)) => {
                let fits = ours.nodes.len() + theirs.nodes.len() <= MAX_USAGES;
                if fits {
                    ours.hosts.extend_from_slice(&theirs.hosts);
                    ours.nodes.extend_from_slice(&theirs.nodes);
                }
                return fits;
            }
            (
                Report::WaitStates { element, waits },
                Report::WaitStates { element: other, waits: other_waits },
            ) if element == other => {
                let fits = waits.len() + other_waits.len() <= MAX_USAGES;
                if fits {
                    waits.extend_from_slice(other_waits);
                }
                return fits;
            }
            (
                Report::IdleSummary { element, summary },
                Report::IdleSummary { element: other, summary: newer },
            ) if element == other => {
                *summary = *newer;
                return true;
            }
            (Report::Yield { element }, Report::Yield { element: other }) => {
                return element == other;
            }
            // Equal sleep times merge.
            (
                Report::Sleep { element, seconds },
                Report::Sleep { element: other, seconds: other_seconds },
            ) => return element == other && seconds == other_seconds,
            (
                Report::Attached { element, nodes, addresses },
                Report::Attached { element: other, nodes: other_nodes, addresses: other_addresses },
            ) if element == other && nodes.union_fits(other_nodes) => {
                addresses.extend_from_slice(other_addresses);
                (nodes, other_nodes)
            }
            (
                Report::InBarrier { element, nodes },
                Report::InBarrier { element: other, nodes: other_nodes },
            )
            | (
                Report::Skipped { element, nodes },
                Report::Skipped { element: other, nodes: other_nodes },
            ) if element == other => (nodes, other_nodes),
            (
                Report::Ended { element, nodes, status },
                Report::Ended { element: other, nodes: other_nodes, status: other_status },
            ) if element == other && status == other_status => (nodes, other_nodes),
            (
                Report::Sent { element, serial, nodes },
                Report::Sent { element: other, serial: other_serial, nodes: other_nodes },
            ) if element == other && serial == other_serial => (nodes, other_nodes),
            (
                Report::NotStarted { element, nodes, code, reason: why },
                Report::NotStarted { element: other, nodes: other_nodes, code: other_code, reason },
            ) if element == other && code == other_code && why == reason => (nodes, other_nodes),
            _ => return false,
        };
        let fits = ours.union_fits(theirs);
        if fits {
            ours.union(theirs);
        }
        fits
    }

    fn concerns(&self, other: &Self) -> bool {
        match (mergeable_nodes(self), mergeable_nodes(other)) {
            (Some((element, nodes)), Some((other_element, other_nodes))) => {
                element == other_element && nodes.intersects(other_nodes)
            }
            _ => !is_order_independent(self) && !is_order_independent(other),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report_queue::CoalescingQueue;
    use score_proto::job_control::Status;
    use score_proto::message::NodeUsage;

    fn ended(node: u32, code: u8) -> Report {
        Report::Ended { element: 0, nodes: NodeSet::one(node), status: Status::Exited(code) }
    }

    fn in_barrier(node: u32) -> Report {
        Report::InBarrier { element: 0, nodes: NodeSet::one(node) }
    }

    fn merged(reports: &[Report]) -> Vec<Report> {
        let mut queue = CoalescingQueue::new(100);
        for report in reports {
            queue.push(report.clone()).unwrap();
        }
        std::iter::from_fn(|| queue.pop()).collect()
    }

    #[test]
    fn equal_reports_of_many_nodes_become_one() {
        let all = Report::Ended { element: 0, nodes: (0..3).into(), status: Status::Exited(0) };
        assert_eq!(merged(&[ended(0, 0), ended(2, 0), ended(1, 0)]), [all]);
        assert_eq!(merged(&[ended(0, 0), ended(1, 1), ended(2, 0)]).len(), 2);
    }

    #[test]
    fn no_report_overtakes_one_about_the_same_node_or_the_whole_element() {
        let two = Report::Ended { element: 0, nodes: (0..2).into(), status: Status::Exited(0) };
        assert_eq!(merged(&[in_barrier(1), ended(0, 0), ended(1, 0)]), [in_barrier(1), two]);
        let order = [ended(0, 0), in_barrier(1), ended(1, 0)];
        assert_eq!(merged(&order), order);
        let exit = Report::Exit { element: 0, code: 1 };
        let order = [ended(0, 0), exit, ended(1, 0)];
        assert_eq!(merged(&order), order);
    }

    #[test]
    fn usage_reports_are_merged_and_do_not_keep_others_apart() {
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
