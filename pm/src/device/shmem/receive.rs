//! Receiving: which ring is looked at when.
//!
//! The ring that gave the last message is *hot* and looked at on every poll; after [`TURN`]
//! messages in a row the others come first. Of the other active rings every poll that finds the
//! hot one empty looks at [`SWEEP`], in turn: at the slot where the next message will come, and at
//! a word of our own that says where that is, eight of them to a line. So while one source floods,
//! another's message waits for at most `TURN` messages of each other source and its own turn in the
//! sweep; and when nothing floods it is found within `active / SWEEP` polls.

// UNSAFETY: points into the segment.
#![expect(unsafe_code)]

use super::send::{Sender, Target};
use super::{Endpoint, message_ring};
use crate::error::{Error, Result};
use crate::ring::{Consumer, IN_SLOT, Next, Received, Watch};
use crate::segment::layout::Node;
use crate::segment::{Kind, Segment};
use crate::sync::{AtomicU64, Local, Ordering};
use std::ptr::NonNull;

/// Messages in a row from one source.
pub(super) const TURN: u64 = 16;
/// Cold rings per poll.
pub(super) const SWEEP: u64 = 4;

/// No source: none is hot yet.
const NOBODY: u64 = u64::MAX;
/// Found: not a message, but a source that was not there before.
const NEW_SOURCE: u32 = u32::MAX;
/// The held message lies in its slot.
pub(crate) const NO_DATA: u64 = u64::MAX;
/// The place of a source that has not sent.
const NO_PLACE: u64 = u64::MAX;
/// Slots lie at whole lines.
const LINE: usize = crate::ring::LINE;

/// The way from one node. All that a message needs is here, so that a composite can keep
/// the address of the hot one.
#[repr(align(64))]
pub(crate) struct Source {
    consumer: Consumer,
    /// Messages left of its turn.
    left: Local,
    /// The own node's record: what is received is counted there.
    own: NonNull<Node>,
    /// 1 + the node.
    name: u32,
    /// The way back.
    back: NonNull<Target>,
    /// Where in `Receiver::order` it stands, or [`NO_PLACE`].
    place: Local,
}

impl Source {
    /// No lock. What is next here, if it is this source's turn. Other: `Endpoint::find` knows.
    #[inline(always)]
    pub(crate) fn peek(&self) -> Next {
        if self.left.get() == 0 { Next::Other } else { self.consumer.peek() }
    }

    /// As `peek`, for a message of any length.
    #[inline(always)]
    pub(crate) fn peek_longer(&self) -> Option<Received> {
        match self.peek() {
            Next::Short(short) => Some(short.received()),
            Next::Other if self.left.get() != 0 => self.consumer.peek_long(),
            Next::Other | Next::Nothing => None,
        }
    }

    /// Receive lock. Whether nobody has taken what was seen.
    #[inline(always)]
    pub(crate) fn is_next(&self, message: &Received) -> bool {
        self.left.get() != 0 && self.consumer.is_next(message)
    }

    /// Receive lock. A message was taken that does not lie in its slot.
    #[inline(always)]
    pub(crate) fn credit(&self, message: &Received) {
        if message.position != IN_SLOT {
            // SAFETY: one of the endpoint that owns `self`.
            unsafe { self.back.as_ref() }.credit(message.passed);
        }
    }

    /// Receive lock. Takes what was seen, a message of this length.
    #[inline(always)]
    pub(crate) fn take_next(&self, len: usize) {
        // From the hot source, whose first message `Endpoint::take` took.
        self.own().receive.0.count_further(len);
        // SAFETY: one of the endpoint that owns `self`.
        unsafe { self.back.as_ref() }.expect(len & (LINE - 1));
        self.left.set(self.left.get().wrapping_sub(1));
    }

    /// No lock. A poll found nothing.
    #[inline(always)]
    pub(crate) fn count_empty_poll(&self) {
        let epoch = &self.own().epoch.0;
        epoch.store(epoch.load(Ordering::Relaxed).wrapping_add(1), Ordering::Release);
    }

    /// Receive lock, after `take_next`.
    #[inline(always)]
    pub(crate) fn release_short(&self) {
        self.release_long(NO_DATA);
    }

    /// The same; the message ends at `end` in the data area, or [`NO_DATA`].
    #[inline(always)]
    pub(crate) fn release_long(&self, end: u64) {
        self.own().receive.0.count_released();
        self.consumer.release_next((end != NO_DATA).then_some(end));
    }

    #[inline(always)]
    fn own(&self) -> &Node {
        // SAFETY: points into the segment of the endpoint that owns `self`; only atomics.
        unsafe { self.own.as_ref() }
    }

    /// Messages left of its turn.
    pub(crate) fn left(&self) -> u64 {
        self.left.get()
    }
}

/// What was taken and not yet released.
#[derive(Default)]
struct Held {
    source: Local,
    next: Local,
    data_end: Local,
}

pub(super) struct Receiver {
    sources: Box<[Source]>,
    /// The active sources, `count` of them, in the order of their first message; [`NOBODY`] where
    /// one was corrupt.
    order: Box<[Local]>,
    /// For each place in `order` where the source's next message will come, in lines from `first`
    /// (lower half), and the upper half of what is there until then. A slot's word changes before
    /// its message can be taken; so where one was taken and this is not up to date (the hot source,
    /// or after a reset), something seems to have come, and `settle` sets it right.
    watches: Box<[Local]>,
    /// The ring from node 0.
    first: NonNull<u8>,
    count: Local,
    generation: Local,
    /// The hot source.
    hot: Local,
    /// The place in `order` that the sweep looks at next.
    cursor: Local,
    /// Empty polls when a turn of the hot one last followed another.
    polls: Local,
    held: Held,
}

impl Receiver {
    pub(super) fn new(segment: &Segment, own: usize, sender: &Sender) -> Receiver {
        let nodes = 0..segment.geometry().nodes;
        let source = |from| Source {
            consumer: Consumer::new(message_ring(segment, from, own)),
            left: Local::default(),
            own: NonNull::from(segment.node(own)),
            name: from as u32 + 1,
            back: NonNull::from(sender.target(from)),
            place: Local::new(NO_PLACE),
        };
        let locals = || nodes.clone().map(|_| Local::default()).collect();
        Receiver {
            order: locals(),
            watches: locals(),
            first: segment.ring(0, own, Kind::Message).start(),
            sources: nodes.clone().map(source).collect(),
            count: Local::default(),
            generation: Local::default(),
            hot: Local::new(NOBODY),
            cursor: Local::default(),
            polls: Local::default(),
            held: Held::default(),
        }
    }

    /// From now on this source is the first that is looked at.
    fn begin_turn(&self, source: u64) {
        let before = self.hot.get();
        self.hot.set(source);
        if let Some(before) = self.sources.get(before as usize) {
            self.watch(before);
        }
        if let Some(source) = self.sources.get(source as usize) {
            source.left.set(TURN);
        }
    }

    /// Notes where the next message of `source` will come.
    fn watch(&self, source: &Source) {
        if let Some(place) = self.watches.get(source.place.get() as usize) {
            let Watch { slot, before } = source.consumer.watch();
            let line = (slot.addr() - self.first.addr().get()) / LINE;
            place.set(before.mark() | line as u64);
        }
    }

    /// Looks at the next `rings` places: the first where something has come, or may have. The next
    /// look begins there.
    #[inline(always)]
    fn look_aside(&self, rings: u64) -> Option<u64> {
        let watches = &self.watches[..];
        let count = self.count.get().min(watches.len() as u64);
        let mut place = self.cursor.get();
        for _ in 0..rings.min(count) {
            if place >= count {
                place = 0;
            }
            let watch = watches[place as usize].get();
            let line = watch as u32 as usize;
            // SAFETY: `watch` has noted a slot of a ring in the segment; or it is 0, and this is
            // the head of a ring there: an atomic word in any case.
            let word = unsafe { self.first.add(line * LINE).cast::<AtomicU64>().as_ref() };
            if (word.load(Ordering::Relaxed) ^ watch) >> 32 != 0 {
                self.cursor.set(place);
                return Some(place);
            }
            place += 1;
        }
        self.cursor.set(place);
        None
    }

    /// The source at a place in the order.
    #[inline(always)]
    fn at(&self, place: u64) -> Option<(u32, &Source)> {
        if place >= self.count.get() {
            return None;
        }
        let source = self.order.get(place as usize)?.get();
        Some((source as u32, self.sources.get(source as usize)?))
    }
}

impl Endpoint {
    /// Where something waits. May be called by any thread at any time; `take` looks again.
    #[inline(always)]
    pub(crate) fn find(&self) -> Option<u32> {
        let receiver = &self.receive;
        let hot = receiver.hot.get();
        let source = receiver.sources.get(hot as usize);
        if let Some(source) = source.filter(|source| source.left.get() != 0)
            && source.consumer.is_waiting()
        {
            return Some(hot as u32);
        }
        if !self.knows_all() {
            return Some(NEW_SOURCE);
        }
        let found = if receiver.count.get() > 1 { self.sweep(SWEEP) } else { None };
        if found.is_some() {
            return found;
        }
        // The hot one's turn was over, but nobody else has anything.
        let source = source.filter(|source| source.left.get() == 0)?;
        self.next_turn(source).then_some(hot as u32)
    }

    /// Another turn of the hot source. Whether it has something. If no poll was in vain since the
    /// last one, this is a flood: its slots are fetched a turn ahead.
    #[inline(never)]
    fn next_turn(&self, hot: &Source) -> bool {
        hot.left.set(TURN);
        let polls = self.record().epoch.0.load(Ordering::Relaxed);
        if polls == self.receive.polls.get() {
            hot.consumer.fetch_slots(TURN);
        }
        self.receive.polls.set(polls);
        hot.consumer.is_waiting()
    }

    /// No lock. Whether there is no source but the hot one.
    #[inline(always)]
    pub(crate) fn is_alone(&self) -> bool {
        self.receive.count.get() <= 1 && self.knows_all()
    }

    /// No lock. Whether neither a new source nor the next few in turn have anything.
    #[inline(always)]
    pub(crate) fn is_silent_aside(&self) -> bool {
        self.knows_all() && self.receive.look_aside(SWEEP).is_none()
    }

    #[inline(always)]
    fn knows_all(&self) -> bool {
        self.generation().load(Ordering::Relaxed) == self.receive.generation.get()
    }

    /// Looks at the next `rings` rings in turn, not at the hot one.
    #[inline(never)]
    fn sweep(&self, rings: u64) -> Option<u32> {
        for _ in 0..rings {
            let place = self.receive.look_aside(rings)?;
            self.receive.cursor.set(place + 1);
            if let Some(source) = self.settle(place) {
                return Some(source);
            }
        }
        None
    }

    /// Something may have come from the source at `place`. If so, its turn begins.
    fn settle(&self, place: u64) -> Option<u32> {
        let receiver = &self.receive;
        let (source, cold) = receiver.at(place)?;
        if u64::from(source) != receiver.hot.get() && cold.consumer.is_waiting() {
            receiver.begin_turn(u64::from(source));
            return Some(source);
        }
        receiver.watch(cold);
        None
    }

    /// Looks at every ring.
    pub(crate) fn find_anywhere(&self) -> Option<u32> {
        let all = self.receive.count.get();
        self.find().or_else(|| self.sweep(all)).or_else(|| self.find())
    }

    #[inline(always)]
    pub(crate) fn take(&self, source: u32) -> Result<(*mut u8, usize)> {
        let receiver = &self.receive;
        let Some(from) = receiver.sources.get(source as usize) else {
            return self.new_sources();
        };
        match from.consumer.take() {
            Ok(Some(message)) => {
                from.own().receive.0.count_taken(from.name, message.len);
                from.credit(&message);
                from.left.set(from.left.get().saturating_sub(1));
                receiver.held.source.set(u64::from(source));
                receiver.held.next.set(message.next);
                receiver.held.data_end.set(message.data_end().unwrap_or(NO_DATA));
                Ok((message.payload, message.len))
            }
            Ok(None) => Err(Error::NoBuffers),
            Err(error) => {
                self.forget(source);
                Err(error)
            }
        }
    }

    /// Adds the sources that have sent for the first time, serves those that ask for remote memory,
    /// and takes from one that has sent.
    #[cold]
    fn new_sources(&self) -> Result<(*mut u8, usize)> {
        let receiver = &self.receive;
        let own = self.own as usize;
        // SYNC: activation
        let generation = self.generation().load(Ordering::Acquire);
        for source in self.segment.active(own, Kind::Message) {
            let new = &receiver.sources[source];
            if new.place.get() == NO_PLACE && source != own {
                let count = receiver.count.get();
                new.place.set(count);
                receiver.watch(new);
                receiver.order[count as usize].set(source as u64);
                receiver.count.set(count + 1);
                receiver.begin_turn(source as u64);
            }
        }
        receiver.generation.set(generation);
        if self.relay_is_used() {
            self.relay_progress();
        }
        match self.find() {
            Some(NEW_SOURCE) | None => Err(Error::NoBuffers),
            Some(source) => self.take(source),
        }
    }

    /// The ring of this source is corrupt: it is told once and never read again.
    #[cold]
    fn forget(&self, source: u32) {
        self.break_link(source, "it wrote to its ring what no sender writes");
        let receiver = &self.receive;
        receiver.hot.set(NOBODY);
        receiver.sources[source as usize].left.set(0);
        // Its place stays its own: a glance may be there.
        let place = receiver.sources[source as usize].place.get();
        if let Some(place) = receiver.order.get(place as usize) {
            place.set(NOBODY);
        }
    }

    #[inline(always)]
    pub(crate) fn release(&self) {
        let receiver = &self.receive;
        let held = &receiver.held;
        let Some(source) = receiver.sources.get(held.source.get() as usize) else { return };
        source.own().receive.0.count_released();
        let data_end = held.data_end.get();
        source.consumer.release(held.next.get(), (data_end != NO_DATA).then_some(data_end));
    }

    /// Whether `source` is one of ours.
    pub(crate) fn feeds(&self, source: &Source) -> bool {
        self.receive.sources.as_ptr_range().contains(&std::ptr::from_ref(source))
    }

    /// The source whose message is held.
    #[inline(always)]
    pub(crate) fn held(&self) -> Option<&Source> {
        self.receive.sources.get(self.receive.held.source.get() as usize)
    }

    #[inline(always)]
    pub(crate) fn count_empty_poll(&self) {
        let epoch = &self.record().epoch.0;
        epoch.store(epoch.load(Ordering::Relaxed).wrapping_add(1), Ordering::Release);
    }

    /// The known sources with their consumers.
    pub(crate) fn known_sources(&self) -> impl Iterator<Item = (usize, &Consumer)> {
        (0..self.receive.count.get())
            .filter_map(|place| self.receive.at(place))
            .map(|(source, from)| (source as usize, &from.consumer))
    }
}
