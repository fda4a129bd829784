//! The last displayed values.

use std::collections::VecDeque;

use crate::Metric;

/// The number of values that are kept of each metric.
const HISTORY_LEN: usize = 120;

/// The displayed values of a process or a host in the latest periods, the oldest first.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct History(VecDeque<[f32; 6]>);

impl History {
    /// Adds the newest values, in the order of [`Metric::ALL`].
    pub fn push(&mut self, values: [f32; 6]) {
        if self.0.len() == HISTORY_LEN {
            self.0.pop_front();
        }
        self.0.push_back(values);
    }

    /// The latest values of one metric, at most `count`, oldest first. Values are fractions between
    /// 0 and 1. The values of comm are messages per second.
    pub fn last(&self, kind: Metric, count: usize) -> impl ExactSizeIterator<Item = f32> + '_ {
        let skipped = self.0.len().saturating_sub(count);
        self.0.iter().skip(skipped).map(move |values| values[kind.index()])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_values_are_dropped_first() {
        let mut history = History::default();
        for step in 0..HISTORY_LEN as u16 + 5 {
            history.push([f32::from(step); 6]);
        }
        assert_eq!(history.last(Metric::Load, 1000).len(), HISTORY_LEN);
        assert_eq!(history.last(Metric::Usr1, 2).collect::<Vec<_>>(), [123.0, 124.0]);
        assert_eq!(History::default().last(Metric::Comm, 3).len(), 0);
    }
}
