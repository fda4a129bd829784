//! Trunking: over which link a packet to a peer goes. Within a link packets keep their order,
//! between links they do not, so losses are told link by link. A run of packets takes one link;
//! the next run takes the link with the fewest on the way, which shares evenly between equal
//! links and by speed between others. A link on which everything is lost while another carries
//! is suspected: it is spared and probed. Losses alone prove nothing, because one run that is
//! late is many losses; when probe after probe stays unanswered, while another link carried what
//! was sent later, the link is dead to this peer. It is taken back when it answers.

use super::{Config, Event, NEVER};
use score_proto::wire::MAX_LINKS;

/// Losses in a row that make a link suspect.
const MISSES: u32 = 8;
/// Unanswered probes that prove it dead: with the waits between them, 150 ms at least.
const STRIKES: u32 = 4;
/// The longest run on one link.
const RUN: u32 = 16;
/// Between two probes of a link, in nanoseconds: at first and at most.
const PROBE: (u64, u64) = (10_000_000, 1_000_000_000);

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Health {
    #[default]
    Carries,
    /// Spared until a probe is answered.
    Suspected,
    /// The same, and the operator has been told.
    Dead,
}

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
    pub(super) health: Health,
    /// Since it is suspected: probes that were not answered although another link carried what was
    /// sent later, and since when the next is counted.
    strikes: u32,
    asked_at: u64,
    /// It has answered, and carried nothing since.
    unproven: bool,
}

impl Link {
    pub(super) fn carries(&self) -> bool {
        self.health == Health::Carries
    }
}

pub(super) struct Links {
    all: [Link; MAX_LINKS as usize],
    count: u8,
    current: u8,
    run: u32,
    /// When to probe the links that are spared, and how long to wait then.
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

    #[inline(never)]
    fn pick_one(&mut self, avoid: Option<u8>, window: u32) -> u8 {
        let longest = (window / (2 * u32::from(self.count))).clamp(1, RUN);
        let stay = self.all[usize::from(self.current)].carries() && avoid != Some(self.current);
        if stay && self.run < longest {
            self.run += 1;
            return self.current;
        }
        let after = |step: u8| (self.current + step) % self.count;
        let best = (1..=self.count)
            .map(after)
            .filter(|link| self.all[usize::from(*link)].carries() && avoid != Some(*link))
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
        (link.misses, link.unproven) = (0, false);
        link.carried_at = link.carried_at.max(sent_at);
        if link.health == Health::Suspected {
            link.health = Health::Carries;
        }
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

    /// Suspects a link that carries nothing while another does, and has it probed at once. At most
    /// one at a time; the next acknowledgement looks again. Answers whether it suspects one.
    pub(super) fn judge(&mut self, now: u64) -> bool {
        if self.count == 1 {
            return false;
        }
        let all = &self.all[..usize::from(self.count)];
        let suspect = all.iter().position(|link| {
            let carries = |other: &Link| other.carries() && other.misses < MISSES;
            link.carries()
                && link.misses >= MISSES
                && all.iter().any(|other| carries(other) && other.carried_at > link.missed_at)
        });
        let Some(suspect) = suspect else { return false };
        let link = &mut self.all[suspect];
        (link.health, link.strikes, link.asked_at) = (Health::Suspected, 0, now);
        if !link.unproven {
            // One that answers probes and loses all else has to wait longer each time.
            self.gap = PROBE.0;
            self.probes |= 1 << suspect;
        }
        self.probe_at = self.probe_at.min(now + self.gap);
        true
    }

    /// A probe over `link` was answered.
    pub(super) fn answered(&mut self, link: u8, peer: u32) -> Option<Event> {
        let state = self.all[..usize::from(self.count)].get_mut(usize::from(link))?;
        let was = std::mem::take(&mut state.health);
        if was == Health::Carries {
            return None;
        }
        (state.misses, state.unproven) = (0, true);
        if self.iter().all(Link::carries) {
            self.forget_probes();
        }
        (was == Health::Dead).then_some(Event::LinkUp { peer, link })
    }

    /// It is time to probe. Answers the set of links that are found dead.
    pub(super) fn time_out(&mut self, now: u64) -> u8 {
        // Who comes late was held, and what it waits for may lie in its socket.
        let late = now.saturating_sub(self.probe_at) > self.gap;
        let latest = self.iter().filter(|link| link.carries()).map(|link| link.carried_at).max();
        let mut dead = 0;
        self.probes = 0;
        for (number, link) in self.all[..usize::from(self.count)].iter_mut().enumerate() {
            if link.carries() {
                continue;
            }
            self.probes |= 1 << number;
            let outrun = latest.is_some_and(|at| at > link.asked_at);
            link.strikes += u32::from(outrun && !late);
            if outrun || late {
                link.asked_at = now;
            }
            if link.health == Health::Suspected && link.strikes >= STRIKES {
                link.health = Health::Dead;
                dead |= 1 << number;
            }
        }
        self.gap = (self.gap * 2).min(PROBE.1);
        self.probe_at = if self.probes == 0 { NEVER } else { now + self.gap };
        dead
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
pub(super) fn take_lowest(set: &mut u8) -> Option<u8> {
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

    /// Two links, of which the first has lost so much that it is suspected at the time 20.
    fn suspected() -> Links {
        let mut links = links(2);
        let order = links.fly(1);
        (0..MISSES).for_each(|i| links.missed(0, 10 + u64::from(i)));
        assert!(!links.judge(20), "nothing shows that the other one is better");
        links.carried(1, order, 15);
        assert!(links.judge(20) && !links.judge(20));
        assert_eq!(links.all[0].health, Health::Suspected);
        assert_eq!((links.next_probe(), links.next_probe()), (Some(0), None));
        links
    }

    /// Another probe stays unanswered, while the other link carries if it is `heard`.
    fn goes_on(links: &mut Links, heard: bool, late: u64) -> u8 {
        let at = links.probe_at + late;
        let order = links.fly(1);
        if heard {
            links.carried(1, order, at - 1);
        }
        let dead = links.time_out(at);
        assert_eq!((links.next_probe(), links.next_probe()), (Some(0), None));
        dead
    }

    #[test]
    fn a_link_that_carries_nothing_is_spared_then_dead_and_back_when_it_answers() {
        let mut links = suspected();
        (0..100).for_each(|_| assert_eq!(links.pick(None, 64), 1));
        assert_eq!(links.pick(Some(1), 64), 1, "there is no other");
        assert_eq!(links.probe_at, 20 + PROBE.0);
        (1..STRIKES).for_each(|_| assert_eq!(goes_on(&mut links, true, 0), 0));
        assert_eq!(goes_on(&mut links, true, 0), 1);
        assert_eq!(goes_on(&mut links, true, 0), 0, "it is told once");
        assert_eq!(links.answered(0, 7), Some(Event::LinkUp { peer: 7, link: 0 }));
        assert_eq!(links.answered(0, 7), None);
        assert_eq!(links.probe_at, NEVER);
    }

    #[test]
    fn silence_is_no_proof_while_nobody_is_heard_or_nobody_listened() {
        let mut links = suspected();
        (0..20).for_each(|_| assert_eq!(goes_on(&mut links, false, 0), 0, "the peer is held"));
        (0..20).for_each(|_| {
            assert_eq!(goes_on(&mut links, true, 2 * PROBE.1), 0, "this process is held");
        });
        assert_eq!(links.answered(0, 7), None, "nobody was told that it was away");
        assert!(links.all[0].carries());
    }

    #[test]
    fn a_packet_that_was_only_late_clears_its_link() {
        let mut links = suspected();
        links.carried(0, 1, 12);
        assert!(links.all[0].carries());
        assert_eq!(links.time_out(links.probe_at), 0);
        assert_eq!((links.next_probe(), links.probe_at), (None, NEVER));
    }

    #[test]
    fn a_link_that_answers_probes_and_loses_all_else_waits_longer_each_time() {
        let mut links = suspected();
        let (mut now, mut gap) = (20, 0);
        for _ in 0..4 {
            links.answered(0, 7);
            let order = links.fly(1);
            (0..MISSES).for_each(|_| links.missed(0, now));
            links.carried(1, order, now + 1);
            assert!(links.judge(now + 2));
            assert_eq!(links.next_probe(), None);
            assert!(links.probe_at - now > gap, "{} after {gap}", links.probe_at - now);
            gap = links.probe_at - now;
            now = links.probe_at;
            links.time_out(now);
            assert_eq!(links.next_probe(), Some(0));
        }
    }
}
