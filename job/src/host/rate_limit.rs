//! A limit on how often an action may occur on average, with a burst.

use std::time::{Duration, Instant};

/// A bucket to which tokens are added at a constant rate, up to its capacity.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TokenBucket {
    capacity: u32,
    interval: Duration,
    /// The time at which the bucket was full, or will be full.
    full_at: Instant,
}

impl TokenBucket {
    /// A full bucket of `capacity` tokens, to which one is added in each `interval`.
    pub fn new(capacity: u32, interval: Duration, now: Instant) -> Self {
        Self { capacity, interval, full_at: now }
    }

    /// Takes one token. If there is no token, the caller owes one.
    pub fn take(&mut self, now: Instant) {
        self.full_at = self.full_at.max(now) + self.interval;
    }

    /// The time at which a token will be available. None: a token is available now.
    pub fn next_at(&self, now: Instant) -> Option<Instant> {
        let slack = self.interval * self.capacity.saturating_sub(1);
        (self.full_at > now + slack).then(|| self.full_at - slack)
    }

    /// Whether the bucket is full, like a new one.
    pub fn is_full(&self, now: Instant) -> bool {
        self.full_at <= now
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_burst_is_followed_by_the_rate() {
        let (start, interval) = (Instant::now(), Duration::from_millis(10));
        let mut bucket = TokenBucket::new(3, interval, start);
        for _ in 0..3 {
            assert_eq!(bucket.next_at(start), None);
            bucket.take(start);
        }
        assert_eq!(bucket.next_at(start), Some(start + interval));
        assert_eq!(bucket.next_at(start + interval), None);
        bucket.take(start + interval);
        assert_eq!(bucket.next_at(start + interval), Some(start + 2 * interval));
        // The token that is owed is paid first.
        bucket.take(start + interval);
        assert_eq!(bucket.next_at(start + interval), Some(start + 3 * interval));
        // The bucket is full again, and no fuller.
        let later = start + 100 * interval;
        assert!(!bucket.is_full(start + 4 * interval) && bucket.is_full(later));
        for _ in 0..3 {
            assert_eq!(bucket.next_at(later), None);
            bucket.take(later);
        }
        assert_eq!(bucket.next_at(later), Some(later + interval));
    }
}
