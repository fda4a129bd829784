//! Measures round trips, and computes the time-out from them (RFC 6298).

use crate::Config;

/// Time-out before the first round-trip sample.
const INITIAL_RTO_NS: u64 = 5_000_000;
/// Longer samples are ignored, because the timestamp is stale or a process was stopped meanwhile.
const MAX_RTT_NS: u64 = 10_000_000_000;
/// A round trip counts as queueing if it takes this much more than four times the shortest.
const QUEUEING_DELAY_NS: u64 = 1_000_000;
/// Nanoseconds in a unit of a packet's timestamp, as a power of two.
const TIMESTAMP_SHIFT: u32 = 6;
/// The time-out is doubled at most this many times.
const MAX_BACKOFF: u32 = 16;

/// Converts a time to the timestamp that packets carry.
#[inline]
pub(super) fn timestamp(now: u64) -> u32 {
    (now >> TIMESTAMP_SHIFT) as u32
}

#[derive(Clone, Copy)]
pub(super) struct Rtt {
    pub(super) smoothed_ns: u64,
    variation_ns: u64,
    /// The shortest round trip so far; 0 before the first sample.
    pub(super) min_ns: u64,
    pub(super) backoff_shift: u32,
}

impl Rtt {
    pub(super) fn new() -> Rtt {
        Rtt { smoothed_ns: 0, variation_ns: 0, min_ns: 0, backoff_shift: 0 }
    }

    /// Takes a sample from the answer to the packet with the timestamp `echo`.
    #[inline]
    pub(super) fn sample(&mut self, echo: u32, now: u64) {
        let round_trip = u64::from(timestamp(now).wrapping_sub(echo)) << TIMESTAMP_SHIFT;
        if round_trip > MAX_RTT_NS {
            return;
        }
        if self.smoothed_ns == 0 {
            self.min_ns = round_trip;
            (self.smoothed_ns, self.variation_ns) = (round_trip.max(1), round_trip / 2);
            return;
        }
        self.min_ns = self.min_ns.min(round_trip);
        let error = round_trip.abs_diff(self.smoothed_ns);
        self.variation_ns = (3 * self.variation_ns + error) / 4;
        self.smoothed_ns = ((7 * self.smoothed_ns + round_trip) / 8).max(1);
    }

    /// The longest time by which a packet may arrive after a packet that was sent later.
    #[inline]
    pub(super) fn reorder_margin_ns(&self) -> u64 {
        (self.smoothed_ns + 4 * self.variation_ns).max(200_000)
    }

    /// Whether packets spend most of the round trip in queues.
    #[inline]
    pub(super) fn is_queueing(&self) -> bool {
        self.smoothed_ns > 4 * self.min_ns + QUEUEING_DELAY_NS
    }

    /// The time until an unanswered packet counts as lost.
    #[inline]
    pub(super) fn timeout(&self, config: &Config) -> u64 {
        let (min, max) = config.timeout_range_ns;
        let base = if self.smoothed_ns == 0 {
            INITIAL_RTO_NS
        } else {
            self.smoothed_ns + (4 * self.variation_ns).max(1 << TIMESTAMP_SHIFT)
        };
        base.max(min).saturating_mul(1 << self.backoff_shift).min(max)
    }

    pub(super) fn back_off(&mut self) {
        self.backoff_shift = (self.backoff_shift + 1).min(MAX_BACKOFF);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_time_out_follows_the_round_trips_within_its_bounds() {
        let config = Config::new(0, 2, 0, 0);
        let mut rtt = Rtt::new();
        assert_eq!(rtt.timeout(&config), INITIAL_RTO_NS);
        for i in 0..100 {
            rtt.sample(timestamp(i * 1000), i * 1000 + 20_000);
        }
        assert_eq!(rtt.timeout(&config), config.timeout_range_ns.0);
        for i in 100..200 {
            rtt.sample(timestamp(i * 1_000_000), i * 1_000_000 + 8_000_000);
        }
        let slow = rtt.timeout(&config);
        assert!((8_000_000..20_000_000).contains(&slow), "{slow}");
        (0..40).for_each(|_| rtt.back_off());
        assert_eq!(rtt.timeout(&config), config.timeout_range_ns.1);
    }

    /// The formulas of RFC 6298, section 2. Times are multiples of the unit of timestamps.
    #[test]
    fn samples_are_smoothed_as_the_rfc_demands() {
        let config = Config { timeout_range_ns: (1, u64::MAX), ..Config::new(0, 2, 0, 0) };
        let mut rtt = Rtt::new();
        let expected =
            [(64_000, 64_000, 32_000), (96_000, 68_000, 32_000), (32_000, 63_500, 33_000)];
        for (round_trip, smoothed_ns, variation_ns) in expected {
            rtt.sample(timestamp(6_400_000), 6_400_000 + round_trip);
            assert_eq!((rtt.smoothed_ns, rtt.variation_ns), (smoothed_ns, variation_ns));
        }
        assert_eq!(rtt.min_ns, 32_000);
        assert_eq!(rtt.timeout(&config), 63_500 + 4 * 33_000);
        rtt.back_off();
        assert_eq!(rtt.timeout(&config), 2 * (63_500 + 4 * 33_000));
        (0..40).for_each(|_| rtt.back_off());
        assert_eq!(rtt.timeout(&config), (63_500 + 4 * 33_000) << MAX_BACKOFF);
        // Without variation, the time-out is one unit of a timestamp longer than the round trip.
        let steady = Rtt { smoothed_ns: 64_000, variation_ns: 0, ..Rtt::new() };
        assert_eq!(steady.timeout(&config), 64_064);
    }

    #[test]
    fn packets_are_late_after_a_round_trip_and_its_variation_or_the_minimum() {
        let rtt = Rtt { smoothed_ns: 160_000, variation_ns: 10_000, ..Rtt::new() };
        assert_eq!(rtt.reorder_margin_ns(), 200_000);
        let slow = Rtt { variation_ns: 10_001, ..rtt };
        assert_eq!(slow.reorder_margin_ns(), 200_004);
    }

    #[test]
    fn packets_are_in_queues_if_round_trips_are_much_longer_than_the_shortest() {
        let rtt = Rtt { smoothed_ns: 9_000_000, min_ns: 2_000_000, ..Rtt::new() };
        assert!(!rtt.is_queueing());
        assert!(Rtt { smoothed_ns: 9_000_001, ..rtt }.is_queueing());
    }

    #[test]
    fn a_timestamp_can_wrap_and_a_stale_timestamp_is_no_sample() {
        let mut rtt = Rtt::new();
        let sent = (1 << (32 + TIMESTAMP_SHIFT)) - 640;
        rtt.sample(timestamp(sent), sent + 6400);
        assert_eq!(rtt.smoothed_ns, 6400);
        rtt.sample(timestamp(sent), sent + MAX_RTT_NS + 1_000_000);
        assert_eq!(rtt.smoothed_ns, 6400);
        let mut slowest = Rtt::new();
        slowest.sample(timestamp(sent), sent + MAX_RTT_NS);
        assert_eq!((slowest.smoothed_ns, slowest.min_ns), (MAX_RTT_NS, MAX_RTT_NS));
        let mut instant = Rtt::new();
        instant.sample(timestamp(sent), sent);
        assert_eq!(instant.smoothed_ns, 1, "0 would mean that there is no sample");
    }
}
