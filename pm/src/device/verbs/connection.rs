//! How two processes come to a pair of queue pairs: pure, from events to actions.
//!
//! Both do the same. Each names its own queue pair by an *epoch*, which grows: who makes a new
//! queue pair, or takes over for a process that has ended, has a higher one. A *hello* tells the
//! own epoch, the other's that the own queue pair is wired to, and whether the sender is ready: it
//! is when it has heard of the other that this one is wired to its present queue pair. Hellos are
//! datagrams that may be lost, doubled and late. Who is not ready repeats them; who is ready
//! answers one that is not, and everybody one that means an older queue pair. A hello of a higher
//! epoch than the known one means that the other's queue pair is new: the own one is wired anew, or
//! replaced, if anything was ever sent by it.
//! Where wiring takes its time (iWARP), nobody says that he is wired before he has heard it.

#![forbid(unsafe_code)]

/// Nanoseconds until a hello is repeated: at first, and at most.
const FIRST: u64 = 20_000_000;
const MOST: u64 = 1_000_000_000;

/// What a hello says of the connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Claim {
    /// The speaker's queue pair.
    pub(super) own: u64,
    /// The other's that it is wired to; 0: to none.
    pub(super) other: u64,
    pub(super) ready: bool,
}

/// What has happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Event {
    /// Something is to be sent.
    Wanted,
    Heard(Claim),
    /// The own queue pair is wired, where that takes its time.
    Joined,
    /// The own queue pair has failed.
    Failed,
    Tick,
    /// The peer's process has ended, by membership: nobody is met any more. But who brings home
    /// what it has sent may come.
    Gone,
}

/// What is to be done, in this order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Action {
    /// Give the queue pair up, when all that it has received was taken.
    Drop,
    /// Make one.
    Make,
    /// Back to one that was just made.
    Reset,
    /// Wire it to the one that was heard of.
    Wire,
    /// Both ends are wired: send, from what the peer does not have on.
    Open,
    Say,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum State {
    #[default]
    Idle,
    /// There is a queue pair, wired to nothing.
    Made,
    /// It is about to be wired.
    Wiring,
    /// It is wired, and the peer may not know it.
    Wired,
    Ready,
    /// There is none, for want of something.
    Without,
    Gone,
}

/// The connection to one peer.
#[derive(Clone, Debug, Default)]
pub(super) struct Connection {
    state: State,
    own: u64,
    other: u64,
    /// What the other's present queue pair is wired to, as it says.
    answered: u64,
    /// `Wire` only begins with it: `Joined` says that it is done.
    is_slow: bool,
    /// When the next hello is due, and how long after that another.
    due: u64,
    wait: u64,
    /// The peer's process has ended: whatever comes of it, others begin.
    passive: bool,
}

impl Connection {
    /// One that is never made.
    pub(super) fn gone() -> Connection {
        Connection { state: State::Gone, ..Connection::default() }
    }

    /// One whose queue pairs are wired by a connection manager.
    pub(super) fn slow() -> Connection {
        Connection { is_slow: true, ..Connection::default() }
    }

    pub(super) fn is_ready(&self) -> bool {
        self.state == State::Ready
    }

    /// `Wire` was said, and neither `Joined` nor anything else came since.
    pub(super) fn is_wiring(&self) -> bool {
        self.state == State::Wiring
    }

    /// The own queue pair, and the other's that it is wired to or is to be.
    pub(super) fn meant(&self) -> (u64, u64) {
        (self.own, self.other)
    }

    /// What a hello says now.
    pub(super) fn claim(&self) -> Claim {
        let wired = matches!(self.state, State::Wired | State::Ready);
        let other = if wired { self.other } else { 0 };
        Claim { own: self.own, other, ready: self.state == State::Ready }
    }

    /// Whether what was heard is not older than what is known.
    pub(super) fn is_news(&self, claim: Claim) -> bool {
        claim.own != 0 && claim.own >= self.other && self.state != State::Gone
    }

    /// What was to be done cannot be: there is no queue pair. It is tried again later.
    pub(super) fn give_up(&mut self, now: u64) {
        if self.passive && self.state != State::Gone {
            self.state = State::Idle;
        } else if self.state != State::Gone {
            self.state = State::Without;
            self.wait = (self.wait * 2).clamp(FIRST, MOST);
            self.due = now.saturating_add(self.wait);
        }
    }

    /// When `Tick` is due. None: nothing is.
    pub(super) fn due(&self) -> Option<u64> {
        let is_due =
            matches!(self.state, State::Made | State::Wiring | State::Wired | State::Without);
        (is_due && !self.passive).then_some(self.due)
    }

    pub(super) fn handle(&mut self, event: Event, now: u64) -> Vec<Action> {
        let mut actions = Vec::new();
        match (event, self.state) {
            (_, State::Gone) => {}
            (Event::Gone, state) => {
                if !matches!(state, State::Idle | State::Without) {
                    actions.push(Action::Drop);
                }
                (self.state, self.passive) = (State::Idle, true);
            }
            (Event::Failed, State::Made | State::Wiring | State::Wired | State::Ready)
                if self.passive =>
            {
                actions.push(Action::Drop);
                self.state = State::Idle;
            }
            (Event::Wanted, State::Idle) if !self.passive => {
                self.make(now, &mut actions);
                self.say(now, &mut actions);
            }
            // What fails again and again is tried again ever later.
            (Event::Failed, State::Made | State::Wiring | State::Wired | State::Ready) => {
                actions.push(Action::Drop);
                self.make(now, &mut actions);
                self.due = now.saturating_add(self.wait.max(FIRST));
            }
            (Event::Joined, State::Wiring) => {
                self.state = State::Wired;
                self.open(&mut actions);
                self.say(now, &mut actions);
            }
            (Event::Tick, State::Made | State::Wiring | State::Wired) if now >= self.due => {
                self.say(now, &mut actions);
            }
            (Event::Tick, State::Without) if now >= self.due => {
                self.make(now, &mut actions);
                self.say(now, &mut actions);
            }
            (Event::Heard(claim), _) if self.is_news(claim) => {
                self.hear(claim, now, &mut actions);
            }
            _ => {}
        }
        actions
    }

    fn make(&mut self, now: u64, actions: &mut Vec<Action>) {
        self.own = now.max(self.own.saturating_add(1));
        self.state = State::Made;
        actions.push(Action::Make);
    }

    fn say(&mut self, now: u64, actions: &mut Vec<Action>) {
        self.wait = (self.wait * 2).clamp(FIRST, MOST);
        self.due = now.saturating_add(self.wait);
        actions.push(Action::Say);
    }

    fn hear(&mut self, claim: Claim, now: u64, actions: &mut Vec<Action>) {
        let is_new = claim.own > self.other;
        (self.other, self.answered) = (claim.own, claim.other);
        match self.state {
            State::Idle | State::Without => {
                self.make(now, actions);
                self.wire(actions);
            }
            State::Made => self.wire(actions),
            State::Wiring | State::Wired if is_new => {
                actions.push(Action::Reset);
                self.wire(actions);
            }
            State::Ready if is_new => {
                actions.push(Action::Drop);
                self.make(now, actions);
                self.wire(actions);
            }
            _ => {}
        }
        self.open(actions);
        // While both are about to be wired there is nothing to tell that the timers do not.
        let is_told = self.state == State::Wiring && !is_new && !self.passive;
        // Who is ready with another queue pair than the present one does not know it yet.
        if (!claim.ready || claim.other != self.own) && !is_told {
            self.say(now, actions);
        }
    }

    fn wire(&mut self, actions: &mut Vec<Action>) {
        self.state = if self.is_slow { State::Wiring } else { State::Wired };
        actions.push(Action::Wire);
    }

    /// Both are wired to each other.
    fn open(&mut self, actions: &mut Vec<Action>) {
        if self.state == State::Wired && self.answered == self.own {
            self.state = State::Ready;
            self.wait = 0;
            actions.push(Action::Open);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Two ends, the queue pairs that they have, and the datagrams between them.
    struct World {
        ends: [Connection; 2],
        /// Of each the wiring of its queue pair: own epoch, other's.
        pairs: [Option<(u64, u64)>; 2],
        heard: [u64; 2],
        under_way: Vec<(usize, Claim)>,
        /// Where wiring takes its time: who waits for it.
        wiring: [bool; 2],
        now: u64,
    }

    impl World {
        fn new(is_slow: bool) -> World {
            World {
                ends: [(); 2].map(|()| World::end(is_slow)),
                pairs: [None; 2],
                heard: [0; 2],
                under_way: Vec::new(),
                wiring: [false; 2],
                now: 1,
            }
        }

        fn end(is_slow: bool) -> Connection {
            if is_slow { Connection::slow() } else { Connection::default() }
        }

        /// As a connection manager: end 0 calls, and is refused by one that means another.
        fn call(&mut self) {
            match (self.wiring, self.pairs) {
                ([true, true], [Some((a, b)), Some((c, d))]) if (a, b) == (d, c) => {
                    self.wiring = [false; 2];
                    (0..2).for_each(|end| self.event(end, Event::Joined));
                }
                // Who has not heard of it yet lets it wait.
                ([true, _], [Some((a, b)), other])
                    if other.is_none_or(|(c, d)| c != b || d >= a) =>
                {
                    self.event(0, Event::Failed);
                }
                _ => {}
            }
        }

        fn event(&mut self, end: usize, event: Event) {
            self.now += 1000;
            if let Event::Heard(claim) = event
                && claim.own >= self.heard[end]
            {
                self.heard[end] = claim.own;
            }
            let actions = self.ends[end].handle(event, self.now);
            for action in actions {
                let own = self.ends[end].claim().own;
                match action {
                    Action::Drop => {
                        self.wiring[end] = false;
                        assert!(self.pairs[end].take().is_some());
                    }
                    Action::Make => {
                        assert!(self.pairs[end].is_none());
                        self.pairs[end] = Some((own, 0));
                    }
                    Action::Reset => {
                        assert!(self.pairs[end].is_some_and(|(_, other)| other != 0));
                        self.pairs[end] = Some((own, 0));
                        self.wiring[end] = false;
                    }
                    Action::Wire => {
                        assert_eq!(self.pairs[end], Some((own, 0)));
                        self.pairs[end] = Some((own, self.heard[end]));
                        self.wiring[end] = self.ends[end].is_slow;
                    }
                    Action::Open => assert!(self.pairs[end].is_some()),
                    Action::Say => self.under_way.push((1 - end, self.ends[end].claim())),
                }
            }
        }

        fn are_joined(&self) -> bool {
            let wired = matches!(self.pairs, [Some((a, b)), Some((c, d))] if (a, b) == (d, c));
            wired && self.ends.iter().all(Connection::is_ready)
        }

        /// No loss from here on: hellos and time do the rest.
        fn settle(&mut self) {
            for _ in 0..1000 {
                let mut heard = 0;
                while let Some((to, claim)) = self.under_way.pop() {
                    self.event(to, Event::Heard(claim));
                    heard += 1;
                    assert!(heard < 1000, "they talk without end");
                }
                self.call();
                if !self.under_way.is_empty() {
                    continue;
                }
                if self.are_joined() {
                    return;
                }
                let due = self.ends.iter().filter_map(Connection::due).min();
                self.now = self.now.max(due.expect("somebody still tries"));
                (0..2).for_each(|end| self.event(end, Event::Tick));
            }
            panic!("never joined: {:?} {:?}", self.ends, self.pairs);
        }
    }

    #[test]
    fn one_who_wants_is_joined_with_one_who_answers_and_both_at_once_too() {
        let all = [&[0][..], &[1], &[0, 1]].map(|wanted| [(wanted, false), (wanted, true)]);
        for (wanted, is_slow) in all.into_iter().flatten() {
            let mut world = World::new(is_slow);
            wanted.iter().for_each(|&end| world.event(end, Event::Wanted));
            world.settle();
            assert!(world.ends.iter().all(|end| end.due().is_none()), "nothing is left to do");
        }
    }

    #[test]
    fn a_peer_that_has_gone_is_not_talked_to_but_who_brings_home_what_it_sent_is_answered() {
        for is_slow in [false, true] {
            let mut world = World::new(is_slow);
            world.event(0, Event::Wanted);
            world.settle();
            world.event(0, Event::Gone);
            world.event(0, Event::Wanted);
            assert_eq!((world.pairs[0], world.ends[0].due()), (None, None));
            assert!(world.under_way.is_empty());
            (world.ends[1], world.pairs[1], world.heard[1]) = (World::end(is_slow), None, 0);
            world.event(1, Event::Wanted);
            world.settle();
            world.event(0, Event::Failed);
            assert_eq!((world.pairs[0], world.ends[0].due()), (None, None));
        }
    }

    #[test]
    fn who_had_no_queue_pair_to_give_has_one_later() {
        for is_slow in [false, true] {
            let mut world = World::new(is_slow);
            world.event(0, Event::Wanted);
            world.pairs[0] = None;
            world.ends[0].give_up(world.now);
            world.settle();
        }
    }

    #[test]
    fn a_successor_of_a_process_that_has_ended_takes_its_place() {
        for is_slow in [false, true] {
            let mut world = World::new(is_slow);
            world.event(0, Event::Wanted);
            world.settle();
            (world.ends[0], world.pairs[0], world.heard[0]) = (World::end(is_slow), None, 0);
            world.event(0, Event::Wanted);
            world.settle();
        }
    }

    #[test]
    fn who_drops_the_successor_with_the_one_that_has_gone_tells_it() {
        for is_slow in [false, true] {
            let mut world = World::new(is_slow);
            world.event(0, Event::Wanted);
            world.settle();
            (world.ends[1], world.pairs[1], world.heard[1]) = (World::end(is_slow), None, 0);
            world.event(1, Event::Wanted);
            world.settle();
            // Its last word comes after that of membership.
            let last = world.ends[1].claim();
            world.event(0, Event::Gone);
            world.event(0, Event::Heard(last));
            world.settle();
        }
    }

    proptest! {
        /// Datagrams are lost, doubled and delayed, and queue pairs fail; then all is calm.
        #[test]
        fn after_any_trouble_both_are_joined(
            steps in prop::collection::vec((0..9u8, 0..64usize), 1..60), is_slow in any::<bool>()
        ) {
            let mut world = World::new(is_slow);
            world.event(0, Event::Wanted);
            for (what, which) in steps {
                let end = which % 2;
                match what {
                    0 => world.event(end, Event::Wanted),
                    1 if world.pairs[end].is_some() => world.event(end, Event::Failed),
                    2 => {
                        world.now += MOST;
                        world.event(end, Event::Tick);
                    }
                    3 if !world.under_way.is_empty() => {
                        let at = which % world.under_way.len();
                        world.under_way.remove(at);
                    }
                    8 => world.call(),
                    _ if !world.under_way.is_empty() => {
                        let at = which % world.under_way.len();
                        // What 4 delivers may come once more.
                        let (to, claim) = if what == 4 {
                            world.under_way[at]
                        } else {
                            world.under_way.remove(at)
                        };
                        world.event(to, Event::Heard(claim));
                    }
                    _ => {}
                }
            }
            if world.ends.iter().all(|end| end.due().is_none()) && !world.are_joined() {
                // Nobody knows yet that the other has failed: whoever sends next will.
                world.event(0, Event::Failed);
            }
            world.settle();
        }
    }
}
