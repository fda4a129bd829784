//! The numbers of remote memory operations of an endpoint, to all peers together.

#![forbid(unsafe_code)]

use crate::rma::Direction;

/// See the module.
#[derive(Default)]
pub(super) struct RdmaCounts {
    /// The operations in flight, by direction.
    in_flight: [u64; 2],
    /// Whether operations have failed that were not reported yet, by direction.
    has_failed: [bool; 2],
    /// The number of all operations that were refused.
    refused: u64,
}

impl RdmaCounts {
    pub(super) fn begin(&mut self, direction: Direction) {
        self.in_flight[direction as usize] += 1;
    }

    pub(super) fn end(&mut self, direction: Direction) {
        self.in_flight[direction as usize] -= 1;
    }

    /// Ends an operation that an adapter has refused.
    pub(super) fn end_refused(&mut self, direction: Direction) {
        self.refused += 1;
        self.end(direction);
    }

    /// Notes a failure, for the next report.
    pub(super) fn note_failure(&mut self, direction: Direction) {
        self.has_failed[direction as usize] = true;
    }

    /// Whether an operation has failed since the last call.
    pub(super) fn take_failure(&mut self, direction: Direction) -> bool {
        std::mem::take(&mut self.has_failed[direction as usize])
    }

    pub(super) fn in_flight(&self, direction: Direction) -> u64 {
        self.in_flight[direction as usize]
    }

    /// The operations in flight in both directions.
    pub(super) fn all_in_flight(&self) -> u64 {
        self.in_flight.iter().sum()
    }

    pub(super) fn refused(&self) -> u64 {
        self.refused
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_is_reported_once_and_in_its_direction() {
        let mut counts = RdmaCounts::default();
        for direction in [Direction::Write, Direction::Write, Direction::Read] {
            counts.begin(direction);
        }
        counts.end_refused(Direction::Write);
        counts.note_failure(Direction::Write);
        assert_eq!((counts.all_in_flight(), counts.refused()), (2, 1));
        assert_eq!(counts.in_flight(Direction::Write), 1);
        assert!(!counts.take_failure(Direction::Read));
        assert!(counts.take_failure(Direction::Write));
        assert!(!counts.take_failure(Direction::Write));
        counts.end(Direction::Read);
        assert_eq!(counts.in_flight(Direction::Read), 0);
    }
}
