//! Decides when a packet in flight counts as lost because later packets have arrived (RFC 8985).
//! Packets of one link may overtake each other. Therefore the number of later packets that must
//! arrive first (the reordering threshold) adapts to the order in which packets arrive.

use crate::rtt::Rtt;

/// The reordering threshold: initially, and at most.
const INITIAL_THRESHOLD: i32 = 3;
const MAX_THRESHOLD: i32 = 64;
/// The threshold is lowered after this many packets without an unnecessary retransmission.
const THRESHOLD_DECAY_PACKETS: u32 = 1024;

/// See the module.
#[derive(Clone, Copy)]
pub(super) struct LossDetector {
    /// The latest sending time among packets that have arrived.
    newest_acked_sent_at: u64,
    /// How many later packets of the same link must arrive before a packet counts as lost.
    threshold: i32,
    threshold_raised_at: u64,
    /// The packets that have arrived since the threshold last changed.
    packets_since_change: u32,
}

impl LossDetector {
    pub(super) fn new() -> LossDetector {
        LossDetector {
            newest_acked_sent_at: 0,
            threshold: INITIAL_THRESHOLD,
            threshold_raised_at: 0,
            packets_since_change: 0,
        }
    }

    pub(super) fn threshold(&self) -> i32 {
        self.threshold
    }

    /// Notes that a packet in flight has arrived, which was sent at `sent_at`.
    #[inline]
    pub(super) fn on_arrived(&mut self, sent_at: u64) {
        self.newest_acked_sent_at = self.newest_acked_sent_at.max(sent_at);
    }

    /// Notes that a message has arrived. `was_spurious`: it was sent again or was to be sent again,
    /// although its packet was only late.
    #[inline]
    pub(super) fn on_acked(&mut self, was_spurious: bool, rtt: &Rtt, now: u64) {
        if was_spurious {
            self.raise_threshold(rtt, now);
        }
        self.packets_since_change += 1;
        if self.packets_since_change >= THRESHOLD_DECAY_PACKETS {
            self.packets_since_change = 0;
            self.threshold = (self.threshold - 1).max(INITIAL_THRESHOLD);
        }
    }

    /// Raises the threshold at most once per round trip, and not after a time-out.
    #[cold]
    fn raise_threshold(&mut self, rtt: &Rtt, now: u64) {
        if rtt.backoff_shift > 0 || now < self.threshold_raised_at.saturating_add(rtt.smoothed_ns) {
            return;
        }
        self.threshold = (self.threshold * 2).min(MAX_THRESHOLD);
        self.threshold_raised_at = now;
        self.packets_since_change = 0;
    }

    /// A packet in flight that was sent before this time counts as lost, because a packet that was
    /// sent much later has arrived.
    pub(super) fn lost_if_sent_before(&self, rtt: &Rtt) -> u64 {
        self.newest_acked_sent_at.saturating_sub(rtt.reorder_margin_ns())
    }

    /// Whether a packet in flight counts as lost after `count` later packets of its link have
    /// arrived.
    pub(super) fn is_overtaken(&self, count: i32) -> bool {
        count >= self.threshold
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The state after many round trips of `round_trip_ns`, without variation.
    fn rtt(round_trip_ns: u64) -> Rtt {
        let mut rtt = Rtt::new();
        for _ in 0..100 {
            rtt.sample(0, round_trip_ns);
        }
        rtt
    }

    #[test]
    fn late_packets_raise_the_threshold_once_per_round_trip_and_on_time_packets_lower_it() {
        let (mut detector, rtt) = (LossDetector::new(), rtt(64_000));
        assert!(detector.is_overtaken(3) && !detector.is_overtaken(2));
        for now in [1_000_000, 1_000_001, 1_063_999] {
            detector.on_acked(true, &rtt, now);
            assert_eq!(detector.threshold(), 6, "{now}");
        }
        detector.on_acked(true, &rtt, 1_064_000);
        assert_eq!(detector.threshold(), 12);
        (2..20).for_each(|round| detector.on_acked(true, &rtt, round * 1_000_000));
        assert_eq!(detector.threshold(), MAX_THRESHOLD);
        (1..1024).for_each(|_| detector.on_acked(false, &rtt, 20_000_000));
        assert_eq!(detector.threshold(), MAX_THRESHOLD - 1);
        (0..100 * 1024).for_each(|_| detector.on_acked(false, &rtt, 20_000_000));
        assert_eq!(detector.threshold(), INITIAL_THRESHOLD);
    }

    #[test]
    fn a_packet_that_is_late_after_a_time_out_does_not_raise_the_threshold() {
        let (mut detector, mut rtt) = (LossDetector::new(), rtt(64_000));
        rtt.back_off();
        detector.on_acked(true, &rtt, 1_000_000);
        assert_eq!(detector.threshold(), INITIAL_THRESHOLD);
    }

    #[test]
    fn a_packet_counts_as_lost_a_margin_before_the_newest_packet_that_has_arrived() {
        let (mut detector, rtt) = (LossDetector::new(), rtt(6_400_000));
        assert_eq!(detector.lost_if_sent_before(&rtt), 0);
        detector.on_arrived(20_000_000);
        detector.on_arrived(10_000_000);
        let margin = rtt.reorder_margin_ns();
        assert!(margin >= 6_400_000, "{margin}");
        assert_eq!(detector.lost_if_sent_before(&rtt), 20_000_000 - margin);
    }
}
