//! Who wants figures of a job, and how often.

use std::collections::BTreeMap;

/// Somebody who wants figures.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Watcher {
    /// The scrun of the job.
    Scrun,
    /// A session that has asked for them (`scmon`).
    Session(usize),
    /// The page.
    Page,
}

/// All of them, each with its period.
#[derive(Debug, Default)]
pub struct Watchers(BTreeMap<Watcher, u32>);

impl Watchers {
    /// Somebody wants figures so often; 0 for never again. The period for all, when it has
    /// changed.
    pub fn set(&mut self, watcher: Watcher, period_ms: u32) -> Option<u32> {
        let before = self.shortest();
        match period_ms {
            0 => self.0.remove(&watcher),
            _ => self.0.insert(watcher, period_ms),
        };
        Some(self.shortest()).filter(|now| *now != before)
    }

    /// The shortest period; 0 when nobody watches.
    pub fn shortest(&self) -> u32 {
        self.0.values().copied().min().unwrap_or(0)
    }

    /// Whether scrun watches, and whether others do.
    pub fn who(&self) -> (bool, bool) {
        let scrun = self.0.contains_key(&Watcher::Scrun);
        (scrun, self.0.len() > usize::from(scrun))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_shortest_period_wins_and_only_changes_are_told() {
        let mut all = Watchers::default();
        assert_eq!(all.set(Watcher::Scrun, 0), None);
        assert_eq!(all.set(Watcher::Scrun, 500), Some(500));
        assert_eq!((all.set(Watcher::Page, 1000), all.who()), (None, (true, true)));
        assert_eq!(all.set(Watcher::Session(7), 100), Some(100));
        assert_eq!(all.set(Watcher::Scrun, 0), None);
        assert_eq!((all.set(Watcher::Session(7), 0), all.who()), (Some(1000), (false, true)));
        assert_eq!((all.set(Watcher::Page, 0), all.who()), (Some(0), (false, false)));
    }
}
