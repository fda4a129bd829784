//! Trunking: over which link a packet to a peer goes. Within a link packets keep their order,
//! between links they do not, so losses are told link by link. A run of packets takes one link;
//! the next run takes the link with the fewest on the way, which shares evenly between equal
//! links and by speed between others. A link on which everything is lost while another carries
//! is taken out for this peer, probed, and taken back when it answers.

use super::{Config, Event, NEVER};
use score_proto::wire::MAX_LINKS;

/// Losses in a row that take a link out.
const MISSES: u32 = 8;
/// The longest run on one link.
const RUN: u32 = 16;
/// Between two probes of a dead link, in nanoseconds: at first and at most.
const PROBE: (u64, u64) = (10_000_000, 1_000_000_000);

#[derive(Clone, Copy, Default)]
pub(super) struct Link {
    /// Transmissions so far.
    pub(super) sent: u64,
    /// Of these, taken for lost.
    pub(super) lost: u64,
    /// Transmissions on the way.
    pub(super) flying: u32,
    /// Number of the next transmission.
    order: u32,
    /// The highest number that has arrived.
    passed: u32,
    /// Losses since something arrived, and when the first of them had been sent.
    misses: u32,
    missed_at: u64,
    /// When the latest transmission that has arrived was sent.
    carried_at: u64,
    pub(super) out: bool,
}

pub(super) struct Links {
    all: [Link; MAX_LINKS as usize],
    count: u8,
    current: u8,
    run: u32,
    /// When to probe the links that are out, and how long to wait then.
    pub(super) probe_at: u64,
    gap: u64,
    /// Links over which to send a probe now.
    probes: u8,
    /// Links on which a probe has come, with the link that it names: the answer goes back there.
    answers: [Option<u8>; MAX_LINKS as usize],
    answering: u8,
}

impl Links {
    pub(super) fn new(config: &Config) -> Links {
        Links {
            all: [Link::default(); MAX_LINKS as usize],
            count: config.links,
            current: 0,
            run: 0,
            probe_at: NEVER,
            gap: PROBE.0,
            probes: 0,
            answers: [None; MAX_LINKS as usize],
            answering: 0,
        }
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Link> {
        self.all[..usize::from(self.count)].iter()
    }

    pub(super) fn current(&self) -> u8 {
        self.current
    }

    /// The link of the next packet, when `window` may be on the way; not `avoid`, on which it was
    /// lost, if there is another.
    #[inline]
    pub(super) fn pick(&mut self, avoid: Option<u8>, window: u32) -> u8 {
        if self.count == 1 {
            return 0;
        }
        self.pick_one(avoid, window)
    }

    fn pick_one(&mut self, avoid: Option<u8>, window: u32) -> u8 {
        let longest = (window / (2 * u32::from(self.count))).clamp(1, RUN);
        let stay = !self.all[usize::from(self.current)].out && avoid != Some(self.current);
        if stay && self.run < longest {
            self.run += 1;
            return self.current;
        }
        let after = |step: u8| (self.current + step) % self.count;
        let best = (1..=self.count)
            .map(after)
            .filter(|link| !self.all[usize::from(*link)].out && avoid != Some(*link))
            .min_by_key(|link| self.all[usize::from(*link)].flying);
        // Where only the link to avoid is left, it must do.
        if let Some(best) = best {
            self.current = best;
            self.run = 1;
        }
        self.current
    }

    /// A packet goes out over `link`; answers its number there.
    #[inline]
    pub(super) fn fly(&mut self, link: u8) -> u32 {
        let link = &mut self.all[usize::from(link)];
        link.sent += 1;
        link.flying += 1;
        link.order = link.order.wrapping_add(1);
        link.order
    }

    /// A packet is no longer on the way.
    #[inline]
    pub(super) fn land(&mut self, link: u8) {
        self.all[usize::from(link)].flying -= 1;
    }

    /// It has arrived.
    #[inline]
    pub(super) fn carried(&mut self, link: u8, order: u32, sent_at: u64) {
        let link = &mut self.all[usize::from(link)];
        link.misses = 0;
        link.carried_at = link.carried_at.max(sent_at);
        if (order.wrapping_sub(link.passed) as i32) > 0 {
            link.passed = order;
        }
    }

    /// How many transmissions after number `order` of `link`, at most, have arrived.
    #[inline]
    pub(super) fn overtaken(&self, link: u8, order: u32) -> i32 {
        self.all[usize::from(link)].passed.wrapping_sub(order) as i32
    }

    /// It is taken for lost.
    pub(super) fn missed(&mut self, link: u8, sent_at: u64) {
        let link = &mut self.all[usize::from(link)];
        link.lost += 1;
        link.missed_at = if link.misses == 0 { sent_at } else { link.missed_at.min(sent_at) };
        link.misses += 1;
    }

    /// Takes out a link that carries nothing while another does. At most one at a time; the next
    /// acknowledgement looks again.
    pub(super) fn judge(&mut self, now: u64) -> Option<u8> {
        if self.count == 1 {
            return None;
        }
        let all = &self.all[..usize::from(self.count)];
        let dead = all.iter().position(|link| {
            let carries = |other: &Link| !other.out && other.misses < MISSES;
            !link.out
                && link.misses >= MISSES
                && all.iter().any(|other| carries(other) && other.carried_at > link.missed_at)
        })?;
        self.all[dead].out = true;
        self.gap = PROBE.0;
        self.probe_at = self.probe_at.min(now + self.gap);
        Some(dead as u8)
    }

    /// A probe over `link` was answered.
    pub(super) fn answered(&mut self, link: u8, peer: u32) -> Option<Event> {
        let link_state = self.all[..usize::from(self.count)].get_mut(usize::from(link))?;
        if !link_state.out {
            return None;
        }
        link_state.out = false;
        link_state.misses = 0;
        if !self.iter().any(|link| link.out) {
            self.forget_probes();
        }
        Some(Event::LinkUp { peer, link })
    }

    /// It is time to probe.
    pub(super) fn time_out(&mut self, now: u64) {
        let out = (0..self.count).filter(|link| self.all[usize::from(*link)].out);
        self.probes = out.fold(0, |set, link| set | 1 << link);
        self.gap = (self.gap * 2).min(PROBE.1);
        self.probe_at = if self.probes == 0 { NEVER } else { now + self.gap };
    }

    pub(super) fn forget_probes(&mut self) {
        self.probes = 0;
        self.probe_at = NEVER;
    }

    /// A probe has come over `link`; its sender calls that link `name`.
    pub(super) fn probed(&mut self, link: u8, name: u8) {
        self.answers[usize::from(link)] = Some(name);
        self.answering |= 1 << link;
    }

    /// A link to probe now.
    #[inline]
    pub(super) fn next_probe(&mut self) -> Option<u8> {
        take_lowest(&mut self.probes)
    }

    /// A probe to answer now: over which link, and what its sender calls it.
    #[inline]
    pub(super) fn next_answer(&mut self) -> Option<(u8, u8)> {
        let link = take_lowest(&mut self.answering)?;
        self.answers[usize::from(link)].take().map(|name| (link, name))
    }

    #[inline]
    pub(super) fn has_work(&self) -> bool {
        self.probes | self.answering != 0
    }
}

#[inline]
fn take_lowest(set: &mut u8) -> Option<u8> {
    let lowest = set.trailing_zeros() as u8;
    *set &= set.wrapping_sub(1);
    (lowest < u8::BITS as u8).then_some(lowest)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn links(count: u8) -> Links {
        Links::new(&Config { links: count, ..Config::new(0, 2, 0, 0) })
    }

    #[test]
    fn equal_links_share_evenly_and_a_full_one_is_spared() {
        let mut links = links(3);
        for _ in 0..480 {
            let link = links.pick(None, 512);
            links.fly(link);
        }
        assert!(links.iter().all(|link| link.flying == 160));
        (0..80).for_each(|_| links.land(2));
        links.run = RUN;
        assert_eq!(links.pick(None, 512), 2);
    }

    #[test]
    fn a_link_that_loses_all_is_taken_out_once_and_back_when_it_answers() {
        let mut links = links(2);
        let order = links.fly(1);
        (0..MISSES).for_each(|i| links.missed(0, 10 + u64::from(i)));
        assert_eq!(links.judge(20), None, "nothing shows that the other one is better");
        links.carried(1, order, 15);
        assert_eq!(links.judge(20), Some(0));
        assert_eq!(links.judge(20), None);
        (0..100).for_each(|_| assert_eq!(links.pick(None, 64), 1));
        assert_eq!(links.pick(Some(1), 64), 1, "there is no other");
        assert_eq!(links.probe_at, 20 + PROBE.0);
        links.time_out(links.probe_at);
        assert_eq!((links.next_probe(), links.next_probe()), (Some(0), None));
        assert_eq!(links.answered(0, 7), Some(Event::LinkUp { peer: 7, link: 0 }));
        assert_eq!(links.answered(0, 7), None);
        assert_eq!(links.probe_at, NEVER);
    }
}
