//! Which operation breaks a connection, where nothing tells (iWARP): what was under way when one
//! broke is tried alone in the next ones, and what breaks several of these, one after the other,
//! is given up. Pure.

#![forbid(unsafe_code)]

use super::{Flow, Item, Move, is_before};

/// Connections that break while an operation is alone under way and comes no further.
const TRIES: u8 = 3;

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Caution {
    /// So many of the first items are tried alone.
    suspects: usize,
    /// The other end's operations are first: until then (nanoseconds), none is posted here. 0: no.
    held: u64,
}

impl Caution {
    pub(super) fn is_removed(&mut self, at: usize) {
        self.suspects -= usize::from(at < self.suspects);
    }
}

impl Flow {
    /// Whether what is posted next may be what has broken a connection.
    pub(in super::super) fn is_cautious(&self) -> bool {
        self.caution.suspects > 0
    }

    /// Operations wait until then, if they are suspected; 0: they do not.
    pub(in super::super) fn hold(&mut self, until: u64) {
        self.caution.held = until;
    }

    /// Unless it was put off meanwhile.
    pub(in super::super) fn release(&mut self, until: u64) {
        if self.caution.held == until {
            self.caution.held = 0;
        }
    }

    /// Something is posted that nothing else may be posted beside.
    pub(super) fn is_alone(&self) -> bool {
        self.is_cautious() && self.posted > 0
    }

    pub(super) fn waits_alone(&self, item: &Item) -> bool {
        let is_held = self.caution.held != 0 && matches!(item, Item::Move(_));
        self.is_alone() || self.is_cautious() && is_held
    }

    /// As `fail`, where any operation that was under way may be the reason; answers one that is
    /// given up. `asking`: the region of the next one was asked for. `is_down`: the port is the
    /// reason.
    pub(in super::super) fn fail_and_suspect(
        &mut self,
        asking: bool,
        is_down: bool,
    ) -> Option<Move> {
        let is_begun = match self.to_post() {
            Some(Item::Move(it)) => asking || it.posted > 0,
            _ => false,
        };
        let under_way = self.posted + usize::from(is_begun);
        let was_alone = self.is_cautious() && under_way == 1;
        let is_move = |(item, _): &(Item, u32)| matches!(item, Item::Move(_));
        let last = self.items.iter().take(under_way).rposition(is_move);
        let suspects = last.map_or(0, |last| last + 1).max(self.caution.suspects);
        self.caution.suspects = if is_down { self.caution.suspects } else { suspects };
        let given_up = was_alone && !is_down && self.has_broken_it();
        let given_up = if given_up { self.remove(0) } else { None };
        self.fail();
        match given_up? {
            Item::Move(it) => Some(it),
            Item::Message(_) => None,
        }
    }

    /// Once more. True: that was too often.
    fn has_broken_it(&mut self) -> bool {
        let retired = self.retired;
        let Some((Item::Move(it), _)) = self.items.front_mut() else { return false };
        let begun = it.posted > 0 && is_before(it.first, retired);
        let reached = if begun { retired.wrapping_sub(it.first) } else { 0 };
        if reached > it.reached {
            (it.reached, it.tries) = (reached, 0);
        }
        it.tries += 1;
        it.tries >= TRIES
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Kind, Outgoing};
    use super::*;
    use crate::remote::{AddrHandle, Direction};
    use proptest::prelude::*;

    const LEN: usize = 10;

    fn message(sequence: u32) -> Item {
        Item::Message(Outgoing { slot: 0, len: 1, kind: Kind::Data, sequence })
    }

    /// Its address here tells which it is.
    fn operation(direction: Direction, name: u32) -> Item {
        Item::Move(Move::new(direction, (name.into(), 0), AddrHandle::from_bits(1), LEN))
    }

    fn name(item: Item) -> u32 {
        match item {
            Item::Message(it) => it.sequence,
            Item::Move(it) => it.here.0 as u32,
        }
    }

    /// A work that is under way, what it is for, and whether its completion is told.
    type Posted = (u32, Option<u32>, bool);

    /// As `Engine::transmit`.
    fn post(flow: &mut Flow, wire: &mut Vec<Posted>) {
        while let Some(&item) = flow.to_post().filter(|_| !flow.must_wait()) {
            let is_read = matches!(item, Item::Move(it) if it.direction == Direction::Read);
            let (work, told) = if is_read { flow.begin_read() } else { flow.begin(false) };
            match item {
                Item::Message(_) => flow.is_posted(work),
                Item::Move(_) => flow.is_begun(work, LEN),
            }
            wire.push((work, Some(name(item)), told));
            if flow.wants_read() && flow.may_read() {
                wire.push((flow.begin_read().0, None, true));
            }
        }
        if flow.is_silent() && flow.may_read() {
            wire.push((flow.begin_read().0, None, true));
        }
    }

    /// One connection, which breaks with the first work for one of `bad`. Answers what is done;
    /// true: it holds.
    fn connect(flow: &mut Flow, bad: &[u32]) -> (Vec<u32>, bool) {
        let (mut wire, mut done) = (Vec::new(), Vec::new());
        loop {
            post(flow, &mut wire);
            if wire.is_empty() {
                return (done, true);
            }
            let (work, item, told) = wire.remove(0);
            if item.is_some_and(|item| bad.contains(&item)) {
                return (done, false);
            }
            if told {
                flow.done(work);
                done.extend(std::iter::from_fn(|| flow.pop_done()).map(name));
            }
        }
    }

    #[test]
    fn an_operation_with_which_each_connection_breaks_is_given_up_and_no_other() {
        let mut flow = Flow::by_reads(2);
        flow.push(message(0));
        flow.push(operation(Direction::Write, 1));
        flow.push(operation(Direction::Write, 2));
        flow.push(operation(Direction::Read, 3));
        flow.push(message(4));
        let (mut done, mut given_up, mut connections) = (Vec::new(), Vec::new(), 0);
        loop {
            connections += 1;
            let (more, holds) = connect(&mut flow, &[2]);
            done.extend(more);
            if holds {
                break;
            }
            let lost = flow.fail_and_suspect(false, false);
            given_up.extend(lost.map(|it| (it.here.0, connections)));
        }
        assert_eq!((done, given_up), (vec![0, 1, 3, 4], vec![(2, 1 + u32::from(TRIES))]));
        assert!(!flow.is_cautious() && flow.moves() == 0, "and then all goes on as before");
    }

    #[test]
    fn a_region_that_breaks_connections_when_it_is_asked_for_is_given_up_as_well() {
        let mut flow = Flow::by_reads(2);
        flow.push(operation(Direction::Write, 7));
        for _ in 0..TRIES {
            let _ = flow.begin_read();
            assert_eq!(flow.fail_and_suspect(true, false), None);
        }
        assert!(flow.fail_and_suspect(true, false).is_some_and(|it| it.here.0 == 7));
    }

    #[test]
    fn a_port_that_goes_down_again_and_again_and_one_who_comes_further_are_no_reason() {
        let mut flow = Flow::by_reads(2);
        let there = AddrHandle::from_bits(1);
        flow.push(Item::Move(Move::new(Direction::Write, (0, 0), there, 1000)));
        for down in 0..40 {
            let (work, _) = flow.begin(false);
            flow.is_begun(work, 1);
            assert_eq!(flow.fail_and_suspect(false, down % 10 != 0 || down == 0), None, "{down}");
        }
        for further in 1..40 {
            for _ in 0..further {
                let (work, _) = flow.begin_read();
                flow.is_begun(work, 1);
                flow.done(work);
            }
            assert_eq!(flow.fail_and_suspect(false, false), None, "{further}");
        }
    }

    #[test]
    fn who_is_held_posts_messages_and_no_suspected_operation_before_its_time() {
        let mut flow = Flow::by_reads(2);
        flow.push(message(0));
        flow.push(operation(Direction::Write, 1));
        post(&mut flow, &mut Vec::new());
        assert_eq!(flow.fail_and_suspect(false, false), None);
        flow.hold(5);
        assert_eq!(connect(&mut flow, &[]).0, [0]);
        flow.release(4);
        assert!(flow.must_wait());
        flow.release(5);
        assert_eq!(connect(&mut flow, &[]).0, [1]);
        flow.hold(6);
        flow.push(operation(Direction::Write, 2));
        assert!(!flow.must_wait(), "nobody suspects it");
    }

    proptest! {
        #[test]
        fn whatever_is_bad_among_much_is_given_up_and_all_else_is_done_in_order(
            kinds in prop::collection::vec((0..3u8, 0..4u8), 1..40)
        ) {
            let mut flow = Flow::by_reads(2);
            let is_bad = |&(kind, quarter): &(u8, u8)| kind > 0 && quarter == 0;
            let mut bad = Vec::new();
            for (name, kind) in (0..).zip(&kinds) {
                flow.push(match kind.0 {
                    0 => message(name),
                    1 => operation(Direction::Write, name),
                    _ => operation(Direction::Read, name),
                });
                bad.extend(is_bad(kind).then_some(name));
            }
            let (mut done, mut given_up) = (Vec::new(), Vec::new());
            for _ in 0..=bad.len() * (usize::from(TRIES) + 1) {
                let (more, holds) = connect(&mut flow, &bad);
                done.extend(more);
                if holds {
                    break;
                }
                given_up.extend(flow.fail_and_suspect(false, false).map(|it| it.here.0 as u32));
            }
            prop_assert_eq!(flow.len(), 0, "in time");
            prop_assert_eq!(&given_up, &bad);
            let good: Vec<u32> = (0..kinds.len() as u32).filter(|it| !bad.contains(it)).collect();
            prop_assert_eq!(done, good);
        }
    }
}
