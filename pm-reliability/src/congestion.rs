//! Decides how many packets to one peer may be in flight. Losses have two causes, which a sender
//! cannot distinguish: full queues, and noise. A lower rate helps only if queues are full.
//! Therefore the window shrinks only if the loss rate is higher than noise explains.

/// The initial window in packets.
const INITIAL_CWND: u32 = 32;
/// The smallest window after losses, and the window after persistent congestion.
const MIN_CWND_AFTER_LOSS: u32 = 4;
const MIN_CWND: u32 = 2;
/// Fewer losses than this are ignored.
const MIN_LOSSES: u32 = 6;
/// A loss of one packet in this many is still noise.
const RANDOM_LOSS_RATIO: u32 = 16;
/// Packets over which the loss rate is computed.
const LOSS_SAMPLE_PACKETS: u32 = 256;

#[derive(Clone, Copy)]
pub(super) struct Congestion {
    /// Packets that may be in flight.
    pub(super) window: u32,
    /// Below this value the window doubles each round trip, above it grows slowly.
    slow_start_threshold: u32,
    acked_since_growth: u32,
    acked_count: u32,
    lost_count: u32,
    reduced_at: u64,
    max_window: u32,
}

impl Congestion {
    pub(super) fn new(max_window: u32) -> Congestion {
        Congestion {
            window: INITIAL_CWND.min(max_window),
            slow_start_threshold: max_window,
            acked_since_growth: 0,
            acked_count: 0,
            lost_count: 0,
            reduced_at: 0,
            max_window,
        }
    }

    /// Notes that `count` packets have arrived. `was_full`: before their arrival, the window
    /// prevented further packets from being sent.
    #[inline]
    pub(super) fn on_acked(&mut self, count: u32, was_full: bool) {
        self.acked_count += count;
        if self.acked_count + self.lost_count > LOSS_SAMPLE_PACKETS {
            self.acked_count /= 2;
            self.lost_count /= 2;
        }
        if !was_full || self.window >= self.max_window {
            return;
        }
        if self.window < self.slow_start_threshold {
            self.window = (self.window + count).min(self.max_window);
        } else {
            self.acked_since_growth += count;
            if self.acked_since_growth >= self.window {
                self.acked_since_growth = 0;
                // Queues of a LAN drain in a few round trips, so the window grows fast: by one
                // packet and 1 % per round trip.
                self.window = (self.window + 1 + self.window / 100).min(self.max_window);
            }
        }
    }

    /// Called if round trips take much longer than the shortest one. Queues are then filling, so
    /// the window stops doubling.
    #[inline]
    pub(super) fn on_queueing(&mut self) {
        self.slow_start_threshold = self.slow_start_threshold.min(self.window);
    }

    /// Called if a packet was lost. The window shrinks at most once per round trip.
    pub(super) fn on_loss(&mut self, now: u64, round_trip: u64) {
        self.lost_count += 1;
        let is_noise = self.lost_count < MIN_LOSSES
            || self.lost_count * RANDOM_LOSS_RATIO <= self.acked_count + self.lost_count;
        if is_noise || now < self.reduced_at.saturating_add(round_trip) {
            return;
        }
        self.shrink(now, self.window / 10 * 7, MIN_CWND_AFTER_LOSS);
    }

    /// Called if no packet arrived for several time-outs in a row.
    pub(super) fn on_persistent_congestion(&mut self, now: u64) {
        self.shrink(now, self.window / 2, MIN_CWND_AFTER_LOSS);
        self.window = MIN_CWND;
    }

    fn shrink(&mut self, now: u64, new_window: u32, min_window: u32) {
        self.slow_start_threshold = new_window.max(min_window);
        self.window = self.slow_start_threshold;
        (self.acked_since_growth, self.acked_count, self.lost_count) = (0, 0, 0);
        self.reduced_at = now;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_percent_of_noise_does_not_change_the_window_and_ten_percent_does() {
        let mut quiet = Congestion::new(512);
        let mut congested = Congestion::new(512);
        for i in 0..100_000 {
            quiet.on_acked(1, true);
            congested.on_acked(1, true);
            if i % 100 == 0 {
                quiet.on_loss(i, 100);
            }
            if i % 10 == 0 {
                congested.on_loss(i, 100);
            }
        }
        assert_eq!(quiet.window, 512);
        assert!(congested.window < 64, "{}", congested.window);
        congested.on_persistent_congestion(1 << 40);
        assert_eq!(congested.window, MIN_CWND);
    }

    #[test]
    fn the_window_doubles_in_a_round_trip_until_queues_fill_and_then_grows_slowly() {
        let mut congestion = Congestion::new(512);
        congestion.on_acked(4, false);
        assert_eq!(congestion.window, INITIAL_CWND, "the window was not the limit");
        congestion.on_acked(4, true);
        assert_eq!(congestion.window, 36);
        congestion.on_queueing();
        congestion.on_acked(35, true);
        assert_eq!(congestion.window, 36);
        congestion.on_acked(1, true);
        assert_eq!(congestion.window, 37);
        congestion.window = 250;
        congestion.on_acked(249, true);
        assert_eq!(congestion.window, 250);
        congestion.on_acked(1, true);
        assert_eq!(congestion.window, 253, "by one packet and 1 %");
        congestion.window = 511;
        congestion.on_acked(511, true);
        assert_eq!(congestion.window, 512, "at most the maximum");
        assert_eq!(Congestion::new(8).window, 8);
    }

    #[test]
    fn a_few_losses_are_ignored_and_more_shrink_the_window_once_per_round_trip() {
        let mut congestion = Congestion::new(512);
        (1..MIN_LOSSES).for_each(|_| congestion.on_loss(1000, 100));
        assert_eq!(congestion.window, INITIAL_CWND);
        congestion.on_loss(1000, 100);
        assert_eq!(congestion.window, 21, "seven tenths");
        (0..2 * MIN_LOSSES).for_each(|_| congestion.on_loss(1099, 100));
        assert_eq!(congestion.window, 21);
        congestion.on_loss(1100, 100);
        assert_eq!(congestion.window, 14);
        (0..50).for_each(|round| {
            (0..MIN_LOSSES).for_each(|_| congestion.on_loss(2000 + 100 * round, 100))
        });
        assert_eq!(congestion.window, MIN_CWND_AFTER_LOSS);
    }

    #[test]
    fn one_loss_in_sixteen_packets_is_noise() {
        for (acked, window) in [(90, INITIAL_CWND), (89, 21)] {
            let mut congestion = Congestion::new(512);
            congestion.on_acked(acked, false);
            (0..6).for_each(|_| congestion.on_loss(1000, 100));
            assert_eq!(congestion.window, window, "{acked} packets arrived, 6 were lost");
        }
    }

    #[test]
    fn old_losses_count_less_and_less() {
        let mut congestion = Congestion::new(512);
        (congestion.acked_count, congestion.lost_count) = (LOSS_SAMPLE_PACKETS - 11, 10);
        congestion.on_acked(1, false);
        assert_eq!((congestion.acked_count, congestion.lost_count), (LOSS_SAMPLE_PACKETS - 10, 10));
        congestion.on_acked(1, false);
        assert_eq!((congestion.acked_count, congestion.lost_count), (123, 5));
    }

    #[test]
    fn persistent_congestion_starts_again_with_the_smallest_window() {
        let mut congestion = Congestion::new(512);
        congestion.window = 100;
        congestion.on_persistent_congestion(1000);
        assert_eq!((congestion.window, congestion.slow_start_threshold), (MIN_CWND, 50));
    }
}
