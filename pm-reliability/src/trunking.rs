//! Trunking: selects the link for each packet to a peer, and detects links that carry no packets.
//!
//! Packets on the same link mostly keep their order, packets on different links do not. Therefore
//! losses are detected for each link. A run of packets uses one link. The next run uses the link
//! with the fewest packets in flight. This rule divides the load between links by their speed.
//!
//! A link is suspect if all of its packets are lost while another link works. A suspect link is
//! avoided and probed. Losses alone do not show that a link is down, because one late run counts as
//! many losses. A link is down for this peer if several probes stay unanswered while another link
//! carried packets that were sent later. The link is used again when it answers a probe.

use crate::packet_header::MAX_LINKS;
use crate::{Config, NO_DEADLINE, ReliabilityEvent};

/// Losses in a row that make a link suspect.
const SUSPECT_LOSSES: u32 = 8;
/// Unanswered probes after which a link is down. With the intervals between them this takes at
/// least 150 ms.
const DEAD_PROBES: u32 = 4;
/// The longest run of packets on one link.
const MAX_RUN: u32 = 16;
/// The interval between two probes of a link, in nanoseconds: the initial value and the maximum.
const PROBE_INTERVAL_NS: (u64, u64) = (10_000_000, 1_000_000_000);

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum LinkHealth {
    #[default]
    Up,
    /// The link is avoided until a probe is answered.
    Suspect,
    /// The link is avoided as well, and was reported to the operator.
    Down,
}

#[derive(Clone, Copy, Default)]
pub(super) struct Link {
    /// Transmissions so far.
    pub(super) sent: u64,
    /// Number of transmissions that are considered lost.
    pub(super) lost_count: u64,
    /// Transmissions in flight.
    pub(super) in_flight: u32,
    /// The number of the latest transmission.
    sent_sequence: u32,
    /// The highest number that has arrived.
    acked_sequence: u32,
    /// Losses since the last packet arrived, and the time at which the earliest of them was sent.
    consecutive_losses: u32,
    oldest_loss_sent_at: u64,
    /// The latest sending time among transmissions that have arrived.
    newest_acked_sent_at: u64,
    pub(super) health: LinkHealth,
    /// The number of unanswered probes since the link became suspect, and the time from which the
    /// next probe is counted. A probe counts only if another link carried packets that were sent
    /// later.
    unanswered_probes: u32,
    probe_counted_at: u64,
    /// The link has answered a probe, and no packet on it has arrived since.
    unproven: bool,
}

impl Link {
    pub(super) fn is_up(&self) -> bool {
        self.health == LinkHealth::Up
    }
}

pub(super) struct LinkScheduler {
    links: [Link; MAX_LINKS as usize],
    count: u8,
    current: u8,
    run_len: u32,
    /// The time of the next probe of the avoided links, and the interval after it.
    pub(super) probe_at: u64,
    probe_interval_ns: u64,
    /// Links over which to send a probe now.
    probes_due: u8,
    /// Links on which a probe was received, each with the sender's number for the link. The answer
    /// carries that number.
    probe_answers: [Option<u8>; MAX_LINKS as usize],
    answers_due: u8,
}

impl LinkScheduler {
    pub(super) fn new(config: &Config) -> LinkScheduler {
        LinkScheduler {
            links: [Link::default(); MAX_LINKS as usize],
            count: config.links,
            current: 0,
            run_len: 0,
            probe_at: NO_DEADLINE,
            probe_interval_ns: PROBE_INTERVAL_NS.0,
            probes_due: 0,
            probe_answers: [None; MAX_LINKS as usize],
            answers_due: 0,
        }
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Link> {
        self.links[..usize::from(self.count)].iter()
    }

    pub(super) fn current(&self) -> u8 {
        self.current
    }

    /// The link for the next packet if `window` packets may be in flight. If possible, it is not
    /// `avoid`, the link on which the packet was lost.
    #[inline]
    pub(super) fn pick(&mut self, avoid: Option<u8>, window: u32) -> u8 {
        if self.count == 1 {
            return 0;
        }
        self.pick_among(avoid, window)
    }

    #[inline(never)]
    fn pick_among(&mut self, avoid: Option<u8>, window: u32) -> u8 {
        let max_run = (window / (2 * u32::from(self.count))).clamp(1, MAX_RUN);
        let can_stay = self.links[usize::from(self.current)].is_up() && avoid != Some(self.current);
        if can_stay && self.run_len < max_run {
            self.run_len += 1;
            return self.current;
        }
        let nth_after = |offset: u8| (self.current + offset) % self.count;
        let best = (1..=self.count)
            .map(nth_after)
            .filter(|link| self.links[usize::from(*link)].is_up() && avoid != Some(*link))
            .min_by_key(|link| self.links[usize::from(*link)].in_flight);
        // If the link to avoid is the only one, it is used.
        if let Some(best) = best {
            self.current = best;
            self.run_len = 1;
        }
        self.current
    }

    /// Counts a packet sent over `link`, and returns its number on that link.
    #[inline]
    pub(super) fn on_sent(&mut self, link: u8) -> u32 {
        let link = &mut self.links[usize::from(link)];
        link.sent += 1;
        link.in_flight += 1;
        link.sent_sequence = link.sent_sequence.wrapping_add(1);
        link.sent_sequence
    }

    /// A packet on `link` is no longer in flight.
    #[inline]
    pub(super) fn remove_in_flight(&mut self, link: u8) {
        self.links[usize::from(link)].in_flight -= 1;
    }

    /// A packet on `link` has arrived.
    #[inline]
    pub(super) fn on_acked(&mut self, link: u8, sequence: u32, sent_at: u64) {
        let link = &mut self.links[usize::from(link)];
        (link.consecutive_losses, link.unproven) = (0, false);
        link.newest_acked_sent_at = link.newest_acked_sent_at.max(sent_at);
        if link.health == LinkHealth::Suspect {
            link.health = LinkHealth::Up;
        }
        if (sequence.wrapping_sub(link.acked_sequence) as i32) > 0 {
            link.acked_sequence = sequence;
        }
    }

    /// An upper bound for the transmissions after number `sequence` of `link` that have arrived.
    #[inline]
    pub(super) fn overtaken_by(&self, link: u8, sequence: u32) -> i32 {
        self.links[usize::from(link)].acked_sequence.wrapping_sub(sequence) as i32
    }

    /// A packet on `link` is considered lost.
    pub(super) fn on_lost(&mut self, link: u8, sent_at: u64) {
        let link = &mut self.links[usize::from(link)];
        link.lost_count += 1;
        link.oldest_loss_sent_at = if link.consecutive_losses == 0 {
            sent_at
        } else {
            link.oldest_loss_sent_at.min(sent_at)
        };
        link.consecutive_losses += 1;
    }

    /// Marks a link as suspect if it carries nothing while another link does, and schedules a
    /// probe. At most one link becomes suspect in a call, because the next acknowledgement checks
    /// again. Returns whether a link became suspect.
    pub(super) fn suspect_link(&mut self, now: u64) -> bool {
        if self.count == 1 {
            return false;
        }
        let links = &self.links[..usize::from(self.count)];
        let suspect = links.iter().position(|link| {
            let is_working =
                |other: &Link| other.is_up() && other.consecutive_losses < SUSPECT_LOSSES;
            link.is_up()
                && link.consecutive_losses >= SUSPECT_LOSSES
                && links.iter().any(|other| {
                    is_working(other) && other.newest_acked_sent_at > link.oldest_loss_sent_at
                })
        });
        let Some(suspect) = suspect else { return false };
        let link = &mut self.links[suspect];
        (link.health, link.unanswered_probes, link.probe_counted_at) =
            (LinkHealth::Suspect, 0, now);
        if !link.unproven {
            // Only a link that answers probes but loses all other packets waits for its probe, and
            // longer each time.
            self.probe_interval_ns = PROBE_INTERVAL_NS.0;
            self.probes_due |= 1 << suspect;
        }
        self.probe_at = self.probe_at.min(now + self.probe_interval_ns);
        true
    }

    /// A probe over `link` was answered.
    pub(super) fn on_probe_answer(&mut self, link: u8, peer: u32) -> Option<ReliabilityEvent> {
        let state = self.links[..usize::from(self.count)].get_mut(usize::from(link))?;
        let previous = std::mem::take(&mut state.health);
        if previous == LinkHealth::Up {
            return None;
        }
        (state.consecutive_losses, state.unproven) = (0, true);
        if self.iter().all(Link::is_up) {
            self.cancel_probes();
        }
        (previous == LinkHealth::Down).then_some(ReliabilityEvent::LinkUp { peer, link })
    }

    /// Handles the probe timer. Returns the set of links that are now down.
    pub(super) fn on_probe_timeout(&mut self, now: u64) -> u8 {
        // If the timer is late, this process was stopped, and the expected packets may be in its
        // socket.
        let is_late = now.saturating_sub(self.probe_at) > self.probe_interval_ns;
        let latest =
            self.iter().filter(|link| link.is_up()).map(|link| link.newest_acked_sent_at).max();
        let mut down_links = 0;
        self.probes_due = 0;
        for (number, link) in self.links[..usize::from(self.count)].iter_mut().enumerate() {
            if link.is_up() {
                continue;
            }
            self.probes_due |= 1 << number;
            let others_carried = latest.is_some_and(|sent_at| sent_at > link.probe_counted_at);
            link.unanswered_probes += u32::from(others_carried && !is_late);
            if others_carried || is_late {
                link.probe_counted_at = now;
            }
            if link.health == LinkHealth::Suspect && link.unanswered_probes >= DEAD_PROBES {
                link.health = LinkHealth::Down;
                down_links |= 1 << number;
            }
        }
        self.probe_interval_ns = (self.probe_interval_ns * 2).min(PROBE_INTERVAL_NS.1);
        self.probe_at =
            if self.probes_due == 0 { NO_DEADLINE } else { now + self.probe_interval_ns };
        down_links
    }

    pub(super) fn cancel_probes(&mut self) {
        self.probes_due = 0;
        self.probe_at = NO_DEADLINE;
    }

    /// Handles a probe that was received over `link`. `remote_link` is the sender's number for that
    /// link.
    pub(super) fn on_probe(&mut self, link: u8, remote_link: u8) {
        self.probe_answers[usize::from(link)] = Some(remote_link);
        self.answers_due |= 1 << link;
    }

    /// A link to probe now.
    #[inline]
    pub(super) fn next_probe(&mut self) -> Option<u8> {
        take_lowest(&mut self.probes_due)
    }

    /// A probe to answer now: the link, and the sender's number for that link.
    #[inline]
    pub(super) fn next_answer(&mut self) -> Option<(u8, u8)> {
        let link = take_lowest(&mut self.answers_due)?;
        self.probe_answers[usize::from(link)].take().map(|remote_link| (link, remote_link))
    }

    #[inline]
    pub(super) fn has_work(&self) -> bool {
        self.probes_due | self.answers_due != 0
    }
}

#[inline]
pub(super) fn take_lowest(set: &mut u8) -> Option<u8> {
    let lowest = set.trailing_zeros() as u8;
    *set &= set.wrapping_sub(1);
    (lowest < u8::BITS as u8).then_some(lowest)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn links(count: u8) -> LinkScheduler {
        LinkScheduler::new(&Config { links: count, ..Config::new(0, 2, 0, 0) })
    }

    #[test]
    fn equal_links_share_the_load_and_the_least_loaded_link_is_used_next() {
        let mut links = links(3);
        for _ in 0..480 {
            let link = links.pick(None, 512);
            links.on_sent(link);
        }
        assert!(links.iter().all(|link| link.in_flight == 160));
        (0..80).for_each(|_| links.remove_in_flight(2));
        links.run_len = MAX_RUN;
        assert_eq!(links.pick(None, 512), 2);
    }

    /// Two links, of which the first has lost so many packets that it is suspect at time 20.
    fn suspected() -> LinkScheduler {
        let mut links = links(2);
        let sequence = links.on_sent(1);
        (0..SUSPECT_LOSSES).for_each(|i| links.on_lost(0, 10 + u64::from(i)));
        assert!(!links.suspect_link(20), "nothing shows that the other one is better");
        links.on_acked(1, sequence, 15);
        assert!(links.suspect_link(20) && !links.suspect_link(20));
        assert_eq!(links.links[0].health, LinkHealth::Suspect);
        assert_eq!((links.next_probe(), links.next_probe()), (Some(0), None));
        links
    }

    /// Leaves another probe unanswered. `other_carries`: the other link carries packets meanwhile.
    fn miss_probe(links: &mut LinkScheduler, other_carries: bool, delay_ns: u64) -> u8 {
        let now = links.probe_at + delay_ns;
        let sequence = links.on_sent(1);
        if other_carries {
            links.on_acked(1, sequence, now - 1);
        }
        let dead = links.on_probe_timeout(now);
        assert_eq!((links.next_probe(), links.next_probe()), (Some(0), None));
        dead
    }

    #[test]
    fn a_link_without_answers_is_avoided_then_dead_and_used_again_after_an_answer() {
        let mut links = suspected();
        (0..100).for_each(|_| assert_eq!(links.pick(None, 64), 1));
        assert_eq!(links.pick(Some(1), 64), 1, "there is no other");
        assert_eq!(links.probe_at, 20 + PROBE_INTERVAL_NS.0);
        (1..DEAD_PROBES).for_each(|_| assert_eq!(miss_probe(&mut links, true, 0), 0));
        assert_eq!(miss_probe(&mut links, true, 0), 1);
        assert_eq!(miss_probe(&mut links, true, 0), 0, "it is reported once");
        assert_eq!(
            links.on_probe_answer(0, 7),
            Some(ReliabilityEvent::LinkUp { peer: 7, link: 0 })
        );
        assert_eq!(links.on_probe_answer(0, 7), None);
        assert_eq!(links.probe_at, NO_DEADLINE);
    }

    #[test]
    fn an_unanswered_probe_does_not_count_while_the_peer_or_this_process_is_stopped() {
        let mut links = suspected();
        (0..20).for_each(|_| assert_eq!(miss_probe(&mut links, false, 0), 0, "the peer is held"));
        (0..20).for_each(|_| {
            assert_eq!(
                miss_probe(&mut links, true, 2 * PROBE_INTERVAL_NS.1),
                0,
                "this process is held"
            );
        });
        assert_eq!(links.on_probe_answer(0, 7), None, "it was never reported as down");
        assert!(links.links[0].is_up());
    }

    #[test]
    fn a_packet_that_was_only_late_clears_its_link() {
        let mut links = suspected();
        links.on_acked(0, 1, 12);
        assert!(links.links[0].is_up());
        assert_eq!(links.on_probe_timeout(links.probe_at), 0);
        assert_eq!((links.next_probe(), links.probe_at), (None, NO_DEADLINE));
    }

    #[test]
    fn a_link_that_answers_only_probes_is_retried_after_longer_intervals() {
        let mut links = suspected();
        let (mut now, mut interval) = (20, 0);
        for _ in 0..4 {
            links.on_probe_answer(0, 7);
            let sequence = links.on_sent(1);
            (0..SUSPECT_LOSSES).for_each(|_| links.on_lost(0, now));
            links.on_acked(1, sequence, now + 1);
            assert!(links.suspect_link(now + 2));
            assert_eq!(links.next_probe(), None);
            assert!(links.probe_at - now > interval, "{} after {interval}", links.probe_at - now);
            interval = links.probe_at - now;
            now = links.probe_at;
            links.on_probe_timeout(now);
            assert_eq!(links.next_probe(), Some(0));
        }
    }

    #[test]
    fn a_run_of_packets_uses_one_link_and_is_half_of_its_share_and_at_most_sixteen() {
        let picked = |links: &mut LinkScheduler, count: usize, window: u32| -> Vec<u8> {
            let pick_next = |_| {
                let link = links.pick(None, window);
                assert_eq!(links.current(), link);
                links.on_sent(link);
                link
            };
            (0..count).map(pick_next).collect()
        };
        let runs = |len: usize| [vec![0; len], vec![1; len], vec![2; len]].concat();
        assert_eq!(picked(&mut links(3), 30, 60), runs(10));
        assert_eq!(picked(&mut links(3), 48, 512), runs(16));
        assert_eq!(picked(&mut links(3), 3, 1), runs(1));
    }

    #[test]
    fn packets_of_a_link_are_counted_by_their_number_on_it() {
        let mut links = links(2);
        assert_eq!([0, 0, 0, 1].map(|link| links.on_sent(link)), [1, 2, 3, 1]);
        links.on_acked(0, 3, 10);
        links.on_acked(0, 2, 10);
        assert_eq!([1, 3, 5].map(|sequence| links.overtaken_by(0, sequence)), [2, 0, -2]);
        links.on_lost(0, 10);
        links.remove_in_flight(0);
        let link = links.links[0];
        assert_eq!((link.sent, link.lost_count, link.in_flight), (3, 1, 2));
    }

    #[test]
    fn a_link_is_not_suspect_if_no_other_link_has_carried_a_later_packet() {
        let mut links = links(2);
        (0..SUSPECT_LOSSES).for_each(|_| links.on_lost(0, 10));
        links.on_acked(1, 1, 10);
        assert!(!links.suspect_link(20), "the packets were sent at the same time");
        links.on_acked(1, 2, 11);
        (0..SUSPECT_LOSSES).for_each(|_| links.on_lost(1, 12));
        assert!(!links.suspect_link(20), "the other link carries nothing, either");
        links.on_acked(1, 3, 13);
        assert!(links.suspect_link(20));
    }

    #[test]
    fn the_second_link_is_probed_and_reported_under_its_own_number() {
        let mut links = links(2);
        (0..SUSPECT_LOSSES).for_each(|_| links.on_lost(1, 10));
        links.on_acked(0, 1, 15);
        assert!(links.suspect_link(20));
        assert_eq!((links.next_probe(), links.next_probe()), (Some(1), None));
        for probe in 1..=DEAD_PROBES {
            let now = links.probe_at;
            links.on_acked(0, 1 + probe, now - 1);
            let down_links = if probe == DEAD_PROBES { 0b10 } else { 0 };
            assert_eq!(links.on_probe_timeout(now), down_links);
            assert_eq!((links.next_probe(), links.next_probe()), (Some(1), None));
        }
    }

    #[test]
    fn the_interval_between_probes_doubles_up_to_its_maximum() {
        let mut links = suspected();
        for interval_ms in [20, 40, 80, 160, 320, 640, 1000, 1000] {
            let now = links.probe_at;
            assert_eq!(links.on_probe_timeout(now), 0);
            assert_eq!(links.probe_at, now + interval_ms * 1_000_000);
        }
    }

    #[test]
    fn a_probe_counts_if_its_timer_is_late_by_no_more_than_the_interval() {
        for (extra_ns, down_links) in [(0, 1), (1, 0)] {
            let mut links = suspected();
            let mut reported = 0;
            for _ in 0..DEAD_PROBES {
                let delay_ns = links.probe_interval_ns + extra_ns;
                reported |= miss_probe(&mut links, true, delay_ns);
            }
            assert_eq!(reported, down_links, "{extra_ns} ns more than the interval");
        }
    }

    #[test]
    fn a_packet_that_was_sent_before_the_last_counted_probe_does_not_count() {
        let mut links = suspected();
        links.on_acked(1, 2, 20);
        links.on_probe_timeout(links.probe_at);
        assert_eq!(links.links[0].unanswered_probes, 0, "the link became suspect at time 20");
        let mut links = suspected();
        assert_eq!(miss_probe(&mut links, true, 0), 0);
        (0..DEAD_PROBES).for_each(|_| assert_eq!(miss_probe(&mut links, false, 0), 0));
        assert_eq!(links.links[0].unanswered_probes, 1);
    }

    #[test]
    fn a_probe_and_an_answer_may_be_due_on_one_link() {
        let mut links = suspected();
        assert!(!links.has_work());
        links.on_probe_timeout(links.probe_at);
        links.on_probe(0, 3);
        assert!(links.has_work());
        assert_eq!(links.next_probe(), Some(0));
        assert!(links.has_work());
        assert_eq!((links.next_answer(), links.next_answer()), (Some((0, 3)), None));
        assert!(!links.has_work());
    }
}
