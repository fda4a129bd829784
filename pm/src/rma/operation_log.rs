//! Records which remote operations of an endpoint on one node have ended (`pmGetRemoteStatus`).
//! Writes and reads are numbered together: 1, 2, 3 and so on, in the order of their start. They
//! take effect in this order (manual 3.6.3), so that one number identifies the operations that have
//! ended. An operation that fails may end before earlier ones. It is counted when the earlier ones
//! have ended.

#![forbid(unsafe_code)]

use std::collections::VecDeque;

/// The largest number of separate series of failed operations on a node that are recorded.
const MAX_FAILED_SERIES: usize = 256;

/// The state of the remote operations of a context on one node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct RemoteStatus {
    /// The number of the operation that was started last; 0: no operation was started.
    pub started: u64,
    /// All operations up to this number have ended. All failures among them were reported,
    /// including a failure of the operation with this number.
    pub completed: u64,
    /// Whether the operation with the number `completed` has failed. Each failure is reported once.
    pub has_failed: bool,
}

/// How an operation has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Outcome {
    Done,
    Failed,
}

/// The operations that have failed and were not yet reported, as series of consecutive numbers: the
/// first and the last number of each. If there are too many series, the two newest become one. An
/// operation between them is then reported as failed although it was done. A failed operation is
/// never reported as done.
#[derive(Debug, Default)]
pub(crate) struct FailedOperations(VecDeque<(u64, u64)>);

impl FailedOperations {
    /// Adds an operation with a higher number than all others.
    pub(crate) fn push(&mut self, number: u64) {
        let is_full = self.0.len() == MAX_FAILED_SERIES;
        match self.0.back_mut() {
            Some((_, last)) if is_full || *last + 1 == number => *last = number,
            _ => self.0.push_back((number, number)),
        }
    }

    /// Removes the lowest number, if it is not above `completed`.
    pub(crate) fn take_up_to(&mut self, completed: u64) -> Option<u64> {
        let (first, last) = self.0.front_mut()?;
        let number = *first;
        if number > completed {
            return None;
        }
        if first == last {
            self.0.pop_front();
        } else {
            *first += 1;
        }
        Some(number)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The next report about operations that have ended up to `completed`.
    pub(crate) fn report(&mut self, started: u64, completed: u64) -> RemoteStatus {
        match self.take_up_to(completed) {
            Some(number) => RemoteStatus { started, completed: number, has_failed: true },
            None => RemoteStatus { started, completed, has_failed: false },
        }
    }
}

/// See the [module](self). It is for devices whose operations may end in another order.
#[derive(Debug, Default)]
pub(crate) struct OperationLog {
    /// The number up to which all operations have ended.
    completed: u64,
    /// The operations after these, in order. None: the operation is in flight.
    outcomes: VecDeque<Option<Outcome>>,
    failed: FailedOperations,
}

impl OperationLog {
    fn started(&self) -> u64 {
        self.completed + self.outcomes.len() as u64
    }

    /// Records the start of an operation and returns its number.
    pub(crate) fn start(&mut self) -> u64 {
        self.outcomes.push_back(None);
        self.started()
    }

    /// Records the end of the operation with this number, unless it was recorded before.
    pub(crate) fn end(&mut self, number: u64, outcome: Outcome) {
        let index = number.wrapping_sub(self.completed + 1);
        let slot = usize::try_from(index).ok().and_then(|index| self.outcomes.get_mut(index));
        if let Some(slot @ None) = slot {
            *slot = Some(outcome);
        }
        self.count_completed();
    }

    /// Records the end of the operation that has been in flight for longest.
    pub(crate) fn end_oldest(&mut self, outcome: Outcome) {
        if let Some(slot) = self.outcomes.iter_mut().find(|slot| slot.is_none()) {
            *slot = Some(outcome);
        }
        self.count_completed();
    }

    /// Records that all operations in flight have failed.
    pub(crate) fn fail_all(&mut self) {
        for slot in &mut self.outcomes {
            slot.get_or_insert(Outcome::Failed);
        }
        self.count_completed();
    }

    fn count_completed(&mut self) {
        while let Some(&Some(outcome)) = self.outcomes.front() {
            self.outcomes.pop_front();
            self.completed += 1;
            if outcome == Outcome::Failed {
                self.failed.push(self.completed);
            }
        }
    }

    /// The next report.
    pub(crate) fn report(&mut self) -> RemoteStatus {
        self.failed.report(self.started(), self.completed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    fn done(started: u64, completed: u64) -> RemoteStatus {
        RemoteStatus { started, completed, has_failed: false }
    }

    fn failed(started: u64, completed: u64) -> RemoteStatus {
        RemoteStatus { started, completed, has_failed: true }
    }

    #[test]
    fn an_operation_that_fails_early_is_counted_when_those_before_it_have_ended() {
        let mut log = OperationLog::default();
        assert_eq!(log.report(), RemoteStatus::default());
        assert_eq!([log.start(), log.start(), log.start()], [1, 2, 3]);
        log.end(3, Outcome::Done);
        log.end(2, Outcome::Failed);
        assert_eq!(log.report(), done(3, 0));
        log.end_oldest(Outcome::Done);
        assert_eq!(log.report(), failed(3, 2));
        assert_eq!([log.report(), log.report()], [done(3, 3), done(3, 3)], "reported once");
    }

    #[test]
    fn an_operation_ends_once_and_unknown_numbers_have_no_effect() {
        let mut log = OperationLog::default();
        log.start();
        log.fail_all();
        log.end(1, Outcome::Done);
        [0, 2, u64::MAX].into_iter().for_each(|number| log.end(number, Outcome::Failed));
        log.end_oldest(Outcome::Failed);
        assert_eq!([log.report(), log.report()], [failed(1, 1), done(1, 1)]);
    }

    #[test]
    fn no_failure_is_forgotten_however_many_operations_fail() {
        let mut log = OperationLog::default();
        for number in 1..=4 * MAX_FAILED_SERIES as u64 {
            log.start();
            log.end(number, if number % 2 == 1 { Outcome::Failed } else { Outcome::Done });
        }
        let started = 4 * MAX_FAILED_SERIES as u64;
        for number in (1..started).step_by(2).take(MAX_FAILED_SERIES - 1) {
            assert_eq!(log.report(), failed(started, number));
        }
        for number in 2 * MAX_FAILED_SERIES as u64 - 1..started {
            assert_eq!(log.report(), failed(started, number), "one series");
        }
        assert_eq!(log.report(), done(started, started));
    }

    proptest! {
        /// Reports never go back, and each operation is reported as it has ended.
        // Promise of `operations_complete_one_by_one_while_others_are_in_flight`.
        #[test]
        fn reports_agree_with_a_map_of_all_operations(
            steps in prop::collection::vec((0..5u8, any::<u64>(), any::<bool>()), 0..300)
        ) {
            let (mut log, mut in_flight) = (OperationLog::default(), BTreeMap::new());
            let (mut ended, mut reported) = (BTreeMap::new(), 0);
            for (step, choice, is_done) in steps {
                let outcome = if is_done { Outcome::Done } else { Outcome::Failed };
                match step {
                    0 | 1 => drop(in_flight.insert(log.start(), ())),
                    2 => {
                        let index = choice as usize % (in_flight.len() + 1);
                        if let Some((&number, ())) = in_flight.iter().nth(index) {
                            in_flight.remove(&number);
                            ended.insert(number, outcome);
                            log.end(number, outcome);
                        }
                    }
                    3 => {
                        if let Some((number, ())) = in_flight.pop_first() {
                            ended.insert(number, outcome);
                            log.end_oldest(outcome);
                        }
                    }
                    _ => {
                        let RemoteStatus { started, completed, has_failed } = log.report();
                        prop_assert_eq!(started as usize, in_flight.len() + ended.len());
                        prop_assert!(completed >= reported);
                        for number in reported + 1..=completed {
                            let is_failed = has_failed && number == completed;
                            let expected = if is_failed { Outcome::Failed } else { Outcome::Done };
                            prop_assert_eq!(ended.get(&number), Some(&expected));
                        }
                        reported = completed;
                    }
                }
            }
        }
    }
}
