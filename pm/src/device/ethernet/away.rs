//! Packets of remote memory whose bytes are still where their user has them: the wire takes them
//! there when they go out. Most are acknowledged soon after, and were never copied to the slab.
//!
//! The slab says that such a packet is lost: whoever adopts the slots of a dead process sends that.
//! What has to go out again, or may not be lost with the process, is brought home before
//! (`homing`), and so is all when memory is unlocked.

#![forbid(unsafe_code)]

use super::transfers::Side;
use super::wire::Elsewhere;
use crate::remote::AddrHandle;

/// A frame whose bytes are away.
#[derive(Clone, Copy, Debug)]
pub(super) struct Frame {
    pub(super) peer: u32,
    pub(super) bytes: Elsewhere,
    /// They may be sent as long as they are locked. None: as long as they are there.
    pub(super) region: Option<AddrHandle>,
    pub(super) side: Side,
    pub(super) number: u32,
}

#[derive(Clone, Copy, Debug)]
pub(super) enum State {
    /// The slab has all of it.
    Home,
    /// It was never sent.
    Fresh(Frame),
    /// It was, once.
    Sent(Frame),
    /// There are no bytes any more.
    Lost,
}

/// Frames that are many.
const CROWD: usize = 64;

/// See the module.
pub(super) struct Away {
    /// The first slot of remote memory.
    first: usize,
    states: Box<[State]>,
    /// How many frames are away, and their slots in the order of going. Others may be among these.
    count: usize,
    order: Vec<u32>,
}

impl Away {
    /// For slots from `first` on, so many of them.
    pub(super) fn new(first: usize, slots: usize) -> Away {
        Away { first, states: vec![State::Home; slots].into(), count: 0, order: Vec::new() }
    }

    /// Whether no frame is away.
    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Whether they are so many that it costs less to look which have arrived than to bring all
    /// home.
    #[inline]
    pub(super) fn is_crowded(&self) -> bool {
        self.count > CROWD
    }

    fn index(&self, slot: u32) -> Option<usize> {
        (slot as usize).checked_sub(self.first).filter(|index| *index < self.states.len())
    }

    #[inline]
    pub(super) fn state(&self, slot: u32) -> &State {
        self.index(slot).map_or(&State::Home, |index| &self.states[index])
    }

    /// The frame of `slot`, if it is away.
    pub(super) fn frame(&self, slot: u32) -> Option<Frame> {
        match *self.state(slot) {
            State::Fresh(frame) | State::Sent(frame) => Some(frame),
            State::Home | State::Lost => None,
        }
    }

    fn set(&mut self, slot: u32, state: State) {
        self.count -= usize::from(self.frame(slot).is_some());
        if let Some(index) = self.index(slot) {
            self.states[index] = state;
        }
        self.count += usize::from(self.frame(slot).is_some());
    }

    /// The bytes of `slot` are away from now on.
    pub(super) fn go(&mut self, slot: u32, frame: Frame) {
        if self.order.len() > 2 * self.states.len() {
            let mut order = std::mem::take(&mut self.order);
            order.retain(|slot| self.frame(*slot).is_some());
            self.order = order;
        }
        self.order.push(slot);
        self.set(slot, State::Fresh(frame));
    }

    /// The kernel has taken the packet: if it has to go out again, it does from the slab.
    pub(super) fn has_gone_out(&mut self, slot: u32) {
        if let State::Fresh(frame) = *self.state(slot) {
            self.set(slot, State::Sent(frame));
        }
    }

    /// The slab has what `slot` has to say.
    #[inline]
    pub(super) fn come(&mut self, slot: u32) {
        if !matches!(self.state(slot), State::Home) {
            self.set(slot, State::Home);
            if self.count == 0 {
                self.order.clear();
            }
        }
    }

    /// There are none.
    pub(super) fn lose(&mut self, slot: u32) {
        self.set(slot, State::Lost);
    }

    /// The slots whose frames are away, in the order of going: own writes to `peer`, or all.
    pub(super) fn slots(&self, peer: Option<u32>) -> Vec<u32> {
        let writes = |frame: Frame, to| frame.side == Side::Origin && frame.peer == to;
        let wanted = |frame| peer.is_none_or(|peer| writes(frame, peer));
        let away = |slot: &u32| self.frame(*slot).is_some_and(wanted);
        self.order.iter().copied().filter(away).collect()
    }

    /// How many of these, from the first on, lie one behind the other.
    pub(super) fn run(&self, slots: &[u32]) -> usize {
        let follows = |pair: &[u32]| {
            let (Some(one), Some(other)) = (self.frame(pair[0]), self.frame(pair[1])) else {
                return false;
            };
            (one.peer, one.side, one.number, one.bytes.at + one.bytes.len)
                == (other.peer, other.side, other.number, other.bytes.at)
        };
        1 + slots.windows(2).take_while(|pair| follows(pair)).count()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(peer: u32, at: usize) -> Frame {
        let bytes = Elsewhere { at, len: 10 };
        Frame { peer, bytes, region: None, side: Side::Origin, number: 1 }
    }

    #[test]
    fn what_is_away_is_known_until_it_comes_home_or_is_none() {
        let mut away = Away::new(100, 8);
        away.come(3);
        assert!(away.is_empty() && away.frame(3).is_none(), "a slot of messages");
        away.go(104, frame(7, 10));
        away.go(101, frame(7, 20));
        away.go(102, frame(8, 30));
        away.go(103, frame(7, 40));
        assert_eq!(away.slots(Some(7)), [104, 101, 103]);
        assert_eq!(away.slots(None), [104, 101, 102, 103]);
        assert_eq!(away.run(&away.slots(Some(7))), 2, "a gap behind the second");
        away.has_gone_out(101);
        assert!(matches!(away.state(101), State::Sent(_)));
        away.lose(101);
        away.come(104);
        assert!(matches!((away.state(101), away.state(104)), (State::Lost, State::Home)));
        assert_eq!(away.slots(Some(7)), [103]);
        [101, 102, 103].into_iter().for_each(|slot| away.come(slot));
        assert!(away.is_empty() && away.slots(None).is_empty());
    }

    #[test]
    fn the_list_of_slots_does_not_grow_with_what_has_come_home() {
        let mut away = Away::new(0, 4);
        away.go(3, frame(1, 0));
        for turn in 0..1000 {
            away.go(turn % 3, frame(1, 0));
            away.come(turn % 3);
        }
        assert!(away.order.len() <= 9, "{}", away.order.len());
        assert_eq!(away.slots(None), [3]);
    }
}
