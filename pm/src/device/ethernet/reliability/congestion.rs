//! How many packets to one peer may be on the way. Losses come from two sources that look alike:
//! noise, which slowing down does not cure, and full queues, which it does. So only a share of
//! lost packets that noise does not explain makes the window smaller.

/// The window at first.
const FIRST: u32 = 32;
/// The smallest window after losses, and after nothing came back at all.
const SMALL: u32 = 4;
const SMALLEST: u32 = 2;
/// Losses that say nothing by themselves.
const FEW: u32 = 6;
/// One in so many lost is still noise.
const NOISE: u32 = 16;
/// Packets over which the share of losses is watched.
const MEMORY: u32 = 256;

#[derive(Clone, Copy)]
pub(super) struct Congestion {
    /// Packets that may be on the way.
    pub(super) window: u32,
    /// Below it the window doubles each round trip, above it grows slowly.
    threshold: u32,
    grown: u32,
    acked: u32,
    lost: u32,
    reduced_at: u64,
    most: u32,
}

impl Congestion {
    pub(super) fn new(most: u32) -> Congestion {
        Congestion {
            window: FIRST.min(most),
            threshold: most,
            grown: 0,
            acked: 0,
            lost: 0,
            reduced_at: 0,
            most,
        }
    }

    /// `count` packets have arrived; `full`: the window kept more from being sent.
    #[inline]
    pub(super) fn acked(&mut self, count: u32, full: bool) {
        self.acked += count;
        if self.acked + self.lost > MEMORY {
            self.acked /= 2;
            self.lost /= 2;
        }
        if !full || self.window >= self.most {
            return;
        }
        if self.window < self.threshold {
            self.window = (self.window + count).min(self.most);
        } else {
            self.grown += count;
            if self.grown >= self.window {
                self.grown = 0;
                // A LAN's queue drains in a few round trips: 1 % a round, at least one packet.
                self.window = (self.window + 1 + self.window / 100).min(self.most);
            }
        }
    }

    /// A round trip takes much longer than it can: queues are filling, so doubling ends here.
    #[inline]
    pub(super) fn crowded(&mut self) {
        self.threshold = self.threshold.min(self.window);
    }

    /// A packet was lost; at most one reduction each round trip.
    pub(super) fn lost(&mut self, now: u64, round: u64) {
        self.lost += 1;
        let noise = self.lost < FEW || self.lost * NOISE <= self.acked + self.lost;
        if noise || now < self.reduced_at.saturating_add(round) {
            return;
        }
        self.shrink(now, self.window / 10 * 7, SMALL);
    }

    /// Nothing has come back for two time-outs.
    pub(super) fn silence(&mut self, now: u64) {
        self.shrink(now, self.window / 2, SMALL);
        self.window = SMALLEST;
    }

    fn shrink(&mut self, now: u64, to: u32, least: u32) {
        self.threshold = to.max(least);
        self.window = self.threshold;
        (self.grown, self.acked, self.lost) = (0, 0, 0);
        self.reduced_at = now;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_percent_of_noise_leaves_the_window_alone_and_a_tenth_does_not() {
        let mut quiet = Congestion::new(512);
        let mut crowded = Congestion::new(512);
        for i in 0..100_000 {
            quiet.acked(1, true);
            crowded.acked(1, true);
            if i % 100 == 0 {
                quiet.lost(i, 100);
            }
            if i % 10 == 0 {
                crowded.lost(i, 100);
            }
        }
        assert_eq!(quiet.window, 512);
        assert!(crowded.window < 64, "{}", crowded.window);
        crowded.silence(1 << 40);
        assert_eq!(crowded.window, SMALLEST);
    }
}
