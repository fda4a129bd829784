//! Round trips, and the time-out that follows from them (as RFC 6298 computes it).

use super::Config;

/// Time-out before the first round trip is known.
const FIRST: u64 = 5_000_000;
/// A sample beyond this is the age of a stale stamp, or of a process that was held.
const LONGEST: u64 = 10_000_000_000;
/// What a round trip may take more than four times the shortest.
const CROWDED: u64 = 1_000_000;
/// Nanoseconds in a unit of a packet's stamp, as a power of two.
const UNIT: u32 = 6;
/// The most doublings.
const MAX_BACKOFF: u32 = 16;

/// A time as it travels in a packet.
#[inline]
pub(super) fn stamp(now: u64) -> u32 {
    (now >> UNIT) as u32
}

#[derive(Clone, Copy)]
pub(super) struct Rtt {
    pub(super) smooth: u64,
    variation: u64,
    /// The shortest round trip seen; 0: none.
    pub(super) shortest: u64,
    pub(super) backoff: u32,
}

impl Rtt {
    pub(super) fn new() -> Rtt {
        Rtt { smooth: 0, variation: 0, shortest: 0, backoff: 0 }
    }

    /// An answer has come to the packet that was stamped `echo`.
    #[inline]
    pub(super) fn sample(&mut self, echo: u32, now: u64) {
        let took = u64::from(stamp(now).wrapping_sub(echo)) << UNIT;
        if took > LONGEST {
            return;
        }
        if self.smooth == 0 {
            self.shortest = took;
            (self.smooth, self.variation) = (took.max(1), took / 2);
            return;
        }
        self.shortest = self.shortest.min(took);
        let error = took.abs_diff(self.smooth);
        self.variation = (3 * self.variation + error) / 4;
        self.smooth = ((7 * self.smooth + took) / 8).max(1);
    }

    /// How much later than another a packet may arrive that was sent before it.
    #[inline]
    pub(super) fn spread(&self) -> u64 {
        (self.smooth + 4 * self.variation).max(200_000)
    }

    /// Whether packets wait on their way rather than travel.
    #[inline]
    pub(super) fn is_crowded(&self) -> bool {
        self.smooth > 4 * self.shortest + CROWDED
    }

    /// Until an unanswered packet counts as lost.
    #[inline]
    pub(super) fn time_out(&self, config: &Config) -> u64 {
        let (shortest, longest) = config.time_out;
        let once = if self.smooth == 0 {
            FIRST
        } else {
            self.smooth + (4 * self.variation).max(1 << UNIT)
        };
        once.max(shortest).saturating_mul(1 << self.backoff).min(longest)
    }

    pub(super) fn back_off(&mut self) {
        self.backoff = (self.backoff + 1).min(MAX_BACKOFF);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_time_out_follows_the_round_trips_within_its_bounds() {
        let config = Config::new(0, 2, 0, 0);
        let mut rtt = Rtt::new();
        assert_eq!(rtt.time_out(&config), FIRST);
        for i in 0..100 {
            rtt.sample(stamp(i * 1000), i * 1000 + 20_000);
        }
        assert_eq!(rtt.time_out(&config), config.time_out.0);
        for i in 100..200 {
            rtt.sample(stamp(i * 1_000_000), i * 1_000_000 + 8_000_000);
        }
        let slow = rtt.time_out(&config);
        assert!((8_000_000..20_000_000).contains(&slow), "{slow}");
        (0..40).for_each(|_| rtt.back_off());
        assert_eq!(rtt.time_out(&config), config.time_out.1);
    }

    #[test]
    fn a_stamp_may_wrap_and_a_stale_one_is_no_sample() {
        let mut rtt = Rtt::new();
        let sent = (1 << (32 + UNIT)) - 640;
        rtt.sample(stamp(sent), sent + 6400);
        assert_eq!(rtt.smooth, 6400);
        rtt.sample(stamp(sent), sent + LONGEST + 1_000_000);
        assert_eq!(rtt.smooth, 6400);
    }
}
