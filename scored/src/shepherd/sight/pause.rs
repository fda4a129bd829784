//! From one look at an element to the next, when nobody rings (docs/time-sharing.md, "How often it
//! is looked whether a job is idle").

use std::time::Duration;

/// Between looks at what rings by itself, for what rings nowhere: what PM's threads count, and
/// whoever has lost its bell.
const LONGEST: Duration = Duration::from_secs(1);
/// Whoever rings for every change would ring all the time if it changes often. So only what has
/// stood for so many paces is rung for; the rest is looked at.
const SETTLED: u32 = 4;

/// Who tells of the next change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Hearing {
    /// A thread that works rings when it becomes idle.
    Worker,
    /// All are idle, and ring when that is over.
    All,
    /// It has to be looked.
    Nobody,
}

/// See the [module](self).
#[derive(Debug, Clone, Copy)]
pub struct Pause {
    last: Hearing,
    length: Duration,
}

impl Default for Pause {
    fn default() -> Self {
        Self { last: Hearing::Nobody, length: Duration::ZERO }
    }
}

/// What has not changed for so long is rung for when it does.
pub fn settled(pace: Duration) -> Duration {
    pace * SETTLED
}

impl Pause {
    /// After a look, which may have found other figures than the one before.
    pub fn next(&mut self, hearing: Hearing, changed: bool, pace: Duration) -> Duration {
        let (shortest, longest) = match hearing {
            Hearing::Worker => (LONGEST, LONGEST),
            Hearing::All => (settled(pace), LONGEST),
            Hearing::Nobody => (pace, pace),
        };
        let again = hearing == self.last && !(changed && hearing == Hearing::All);
        let length = if again { self.length * 2 } else { shortest };
        (self.last, self.length) = (hearing, length.min(longest).max(shortest));
        self.length
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PACE: Duration = Duration::from_micros(1500);

    fn lengths(hearing: Hearing, count: usize) -> Vec<u128> {
        let mut pause = Pause::default();
        (0..count).map(|_| pause.next(hearing, false, PACE).as_micros()).collect()
    }

    #[test]
    fn who_goes_to_and_fro_is_looked_at_at_the_pace() {
        assert_eq!(lengths(Hearing::Nobody, 3), [1500, 1500, 1500]);
    }

    #[test]
    fn who_works_is_left_alone() {
        assert_eq!(lengths(Hearing::Worker, 2), [1_000_000, 1_000_000]);
    }

    #[test]
    fn who_stays_idle_is_looked_at_once_a_second_in_the_end() {
        let lengths = lengths(Hearing::All, 12);
        assert_eq!((lengths[0], lengths[1], lengths[11]), (6000, 12_000, 1_000_000));
        let mut pause = Pause::default();
        let last = (0..12).map(|_| pause.next(Hearing::All, false, PACE)).last();
        assert_eq!(last, Some(LONGEST));
        assert_eq!(pause.next(Hearing::All, true, PACE), settled(PACE), "something was counted");
        assert_eq!(pause.next(Hearing::Nobody, true, PACE), PACE);
    }
}
