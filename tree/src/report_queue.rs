//! The queue of reports on their way to the master. Reports of the same kind merge while they wait.
//!
//! A report merges with a queued report of its kind, even if other reports are between them. It
//! never merges past a report about the same nodes. Therefore reports about one node arrive in the
//! order in which they were made.

use std::collections::VecDeque;

/// A message on its way to the master.
pub trait Mergeable: Sized {
    /// Merges `other`, the later report, into this one. Returns false, without a change, if they
    /// are of different kinds or if the result would be too long.
    fn merge(&mut self, other: &Self) -> bool;

    /// Whether both concern a common node, so that their order matters.
    fn concerns(&self, other: &Self) -> bool;
}

/// Reports in order, up to a limit.
#[derive(Debug)]
pub struct CoalescingQueue<R> {
    reports: VecDeque<R>,
    limit: usize,
}

impl<R: Mergeable> CoalescingQueue<R> {
    /// A queue that holds at most `limit` reports.
    pub fn new(limit: usize) -> Self {
        Self { reports: VecDeque::new(), limit }
    }

    /// Adds a report, merged with a queued one if possible.
    ///
    /// # Errors
    /// Returns the report if the queue is full. The producer then has to wait.
    pub fn push(&mut self, report: R) -> Result<(), R> {
        for queued in self.reports.iter_mut().rev() {
            if queued.merge(&report) {
                return Ok(());
            }
            if queued.concerns(&report) {
                break;
            }
        }
        if self.reports.len() >= self.limit {
            return Err(report);
        }
        self.reports.push_back(report);
        Ok(())
    }

    /// Takes the next report to send.
    pub fn pop(&mut self) -> Option<R> {
        self.reports.pop_front()
    }

    /// The number of queued reports.
    pub fn len(&self) -> usize {
        self.reports.len()
    }

    /// Whether the queue is empty.
    pub fn is_empty(&self) -> bool {
        self.reports.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use score_proto::nodeset::NodeSet;

    /// Nodes that have reached a step; `Line` never merges.
    #[derive(Debug, Clone, PartialEq)]
    enum TestReport {
        Step(u32, NodeSet),
        Line(u32, u32),
    }

    impl TestReport {
        fn nodes(&self) -> NodeSet {
            match self {
                TestReport::Step(_, nodes) => nodes.clone(),
                TestReport::Line(node, _) => NodeSet::one(*node),
            }
        }
    }

    impl Mergeable for TestReport {
        fn merge(&mut self, other: &Self) -> bool {
            match (self, other) {
                (TestReport::Step(one, nodes), TestReport::Step(two, more)) if one == two => {
                    nodes.union(more);
                    true
                }
                _ => false,
            }
        }

        fn concerns(&self, other: &Self) -> bool {
            self.nodes().intersects(&other.nodes())
        }
    }

    #[test]
    fn equal_reports_of_many_nodes_become_one() {
        let mut queue = CoalescingQueue::new(4);
        for node in 0..1000 {
            queue.push(TestReport::Step(1, NodeSet::one(node))).unwrap();
            queue.push(TestReport::Step(2, NodeSet::one(node))).unwrap();
        }
        assert_eq!(queue.len(), 2);
        assert_eq!(queue.pop(), Some(TestReport::Step(1, NodeSet::from(0..1000))));
        assert_eq!(queue.pop(), Some(TestReport::Step(2, NodeSet::from(0..1000))));
        assert!(queue.is_empty());
    }

    #[test]
    fn a_report_never_overtakes_a_report_about_the_same_node() {
        let mut queue = CoalescingQueue::new(9);
        queue.push(TestReport::Step(1, NodeSet::one(0))).unwrap();
        queue.push(TestReport::Line(5, 0)).unwrap();
        queue.push(TestReport::Step(1, NodeSet::one(4))).unwrap();
        queue.push(TestReport::Step(1, NodeSet::one(5))).unwrap();
        let all: Vec<_> = std::iter::from_fn(|| queue.pop()).collect();
        assert_eq!(
            all,
            [
                TestReport::Step(1, [0, 4].into_iter().collect()),
                TestReport::Line(5, 0),
                TestReport::Step(1, NodeSet::one(5)),
            ]
        );
    }

    #[test]
    fn a_full_queue_returns_a_report_that_it_cannot_merge() {
        let mut queue = CoalescingQueue::new(1);
        queue.push(TestReport::Line(1, 1)).unwrap();
        assert_eq!(queue.push(TestReport::Line(2, 2)), Err(TestReport::Line(2, 2)));
        queue.pop();
        queue.push(TestReport::Step(1, NodeSet::one(1))).unwrap();
        queue.push(TestReport::Step(1, NodeSet::one(2))).unwrap();
        assert!(queue.push(TestReport::Line(2, 2)).is_err());
    }

    proptest! {
        /// The reports of each node arrive complete and in the node's order.
        #[test]
        fn reports_of_each_node_arrive_in_order(
            events in proptest::collection::vec((0u32..5, 0u32..3), 0..60),
            taken in proptest::collection::vec(any::<bool>(), 60),
        ) {
            let mut queue = CoalescingQueue::new(100);
            let (mut sent, mut received) = (vec![Vec::new(); 5], vec![Vec::new(); 5]);
            let mut check_report = |report: Option<TestReport>| match report {
                Some(TestReport::Step(step, nodes)) => {
                    nodes.iter().for_each(|node| received[node as usize].push((step, 0)));
                }
                Some(TestReport::Line(node, line)) => received[node as usize].push((9, line)),
                None => {}
            };
            let mut last = [u32::MAX; 5];
            for (number, (node, step)) in events.into_iter().enumerate() {
                // The same step is never reported twice in a row, because merging keeps sets and
                // not counts.
                let report = if step == 2 || last[node as usize] == step {
                    last[node as usize] = 9;
                    sent[node as usize].push((9, number as u32));
                    TestReport::Line(node, number as u32)
                } else {
                    last[node as usize] = step;
                    sent[node as usize].push((step, 0));
                    TestReport::Step(step, NodeSet::one(node))
                };
                queue.push(report).unwrap();
                if taken[number] {
                    check_report(queue.pop());
                }
            }
            while !queue.is_empty() {
                check_report(queue.pop());
            }
            prop_assert_eq!(received, sent);
        }
    }
}
