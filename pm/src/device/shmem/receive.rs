//! Receiving: which ring is looked at when.
//!
//! The ring that gave the last message is *hot* and looked at on every poll; after [`TURN`]
//! messages in a row the others come first. Of the other active rings every poll that finds the
//! hot one empty looks at [`SWEEP`], in turn. So while one source floods, another's message
//! waits for at most `TURN` messages of each other source and its own turn in the sweep; and when
//! nothing floods it is found within `active / SWEEP` polls.

// UNSAFETY: points into the segment.
#![expect(unsafe_code)]

use super::send::{Sender, Target};
use super::{Endpoint, message_ring};
use crate::error::{Error, Result};
use crate::ring::{Consumer, Next, Short};
use crate::segment::layout::Node;
use crate::segment::{Kind, Segment};
use crate::sync::{Local, Ordering};
use std::ptr::NonNull;

/// Messages in a row from one source.
pub(super) const TURN: u64 = 16;
/// Cold rings per poll.
pub(super) const SWEEP: u64 = 4;

/// No source is hot yet.
const NOBODY: u64 = u64::MAX;
/// Found: not a message, but a source that was not there before.
const NEW_SOURCE: u32 = u32::MAX;
/// The held message lies in its slot.
const NO_DATA: u64 = u64::MAX;

/// The way from one node. All that a short message needs is here, so that a composite can keep
/// the address of the hot one.
#[repr(align(64))]
pub(crate) struct Source {
    consumer: Consumer,
    /// Messages left of its turn.
    left: Local,
    /// The own node's record: what is received is counted there.
    own: NonNull<Node>,
    /// The way back.
    back: NonNull<Target>,
    known: Local,
}

impl Source {
    /// No lock. What is next here, if it is this source's turn. Other: `Endpoint::find` knows.
    #[inline(always)]
    pub(crate) fn peek(&self) -> Next {
        if self.left.get() == 0 { Next::Other } else { self.consumer.peek() }
    }

    /// Receive lock. Whether nobody has taken what `peek` saw.
    #[inline(always)]
    pub(crate) fn is_next(&self, short: &Short) -> bool {
        self.left.get() != 0 && self.consumer.is_next(short)
    }

    /// Receive lock. Takes what `peek` saw.
    #[inline(always)]
    pub(crate) fn take_short(&self) {
        // SAFETY: one of the endpoint that owns `self`.
        unsafe { self.back.as_ref() }.expect();
        self.left.set(self.left.get().wrapping_sub(1));
    }

    /// No lock. A poll found nothing.
    #[inline(always)]
    pub(crate) fn count_empty_poll(&self) {
        // SAFETY: as in `count_received`.
        let epoch = unsafe { &self.own.as_ref().epoch.0 };
        epoch.store(epoch.load(Ordering::Relaxed).wrapping_add(1), Ordering::Release);
    }

    /// Receive lock, after `take_short`.
    #[inline(always)]
    pub(crate) fn release_short(&self) {
        self.count_received();
        self.consumer.release_short();
    }

    #[inline(always)]
    fn count_received(&self) {
        // SAFETY: points into the segment of the endpoint that owns `self`; only atomics.
        let received = unsafe { &self.own.as_ref().received.0 };
        // SYNC: received (who sees it has seen the process become busy before)
        received.store(received.load(Ordering::Relaxed).wrapping_add(1), Ordering::Release);
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
    /// The active sources, `count` of them, in the order of their first message.
    order: Box<[Local]>,
    count: Local,
    generation: Local,
    /// The hot source.
    hot: Local,
    /// Where in `order` the sweep goes on.
    cursor: Local,
    held: Held,
}

impl Receiver {
    pub(super) fn new(segment: &Segment, own: usize, sender: &Sender) -> Receiver {
        let nodes = 0..segment.geometry().nodes;
        let source = |from| Source {
            consumer: Consumer::new(message_ring(segment, from, own)),
            left: Local::default(),
            own: NonNull::from(segment.node(own)),
            back: NonNull::from(sender.target(from)),
            known: Local::default(),
        };
        Receiver {
            sources: nodes.clone().map(source).collect(),
            order: nodes.map(|_| Local::default()).collect(),
            count: Local::default(),
            generation: Local::default(),
            hot: Local::new(NOBODY),
            cursor: Local::default(),
            held: Held::default(),
        }
    }

    /// From now on this source is the first that is looked at.
    fn begin_turn(&self, source: u64) {
        self.hot.set(source);
        if let Some(source) = self.sources.get(source as usize) {
            source.left.set(TURN);
        }
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
        if self.generation().load(Ordering::Relaxed) != receiver.generation.get() {
            return Some(NEW_SOURCE);
        }
        let found = if receiver.count.get() > 1 { self.sweep(SWEEP) } else { None };
        if found.is_some() {
            return found;
        }
        // The hot one's turn was over, but nobody else has anything.
        let source = source.filter(|source| source.left.get() == 0)?;
        source.left.set(TURN);
        source.consumer.is_waiting().then_some(hot as u32)
    }

    /// No lock. Whether there is no source but the hot one.
    #[inline(always)]
    pub(crate) fn is_alone(&self) -> bool {
        let receiver = &self.receive;
        receiver.count.get() <= 1
            && self.generation().load(Ordering::Relaxed) == receiver.generation.get()
    }

    /// Looks at the next `rings` rings in turn, not at the hot one.
    #[inline(never)]
    fn sweep(&self, rings: u64) -> Option<u32> {
        let receiver = &self.receive;
        let count = receiver.count.get();
        let mut place = receiver.cursor.get();
        for _ in 0..rings.min(count) {
            place = if place + 1 >= count { 0 } else { place + 1 };
            if let Some((source, cold)) = receiver.at(place)
                && u64::from(source) != receiver.hot.get()
                && cold.consumer.is_waiting()
            {
                receiver.cursor.set(place);
                receiver.begin_turn(u64::from(source));
                return Some(source);
            }
        }
        receiver.cursor.set(place);
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
                from.left.set(from.left.get().saturating_sub(1));
                receiver.held.source.set(u64::from(source));
                receiver.held.next.set(message.next);
                receiver.held.data_end.set(message.data.map_or(NO_DATA, |(_, end)| end));
                Ok((message.payload, message.len))
            }
            Ok(None) => Err(Error::NoBuffers),
            Err(error) => {
                self.forget(source);
                Err(error)
            }
        }
    }

    /// Adds the sources that have sent for the first time, and takes from one of them.
    #[cold]
    fn new_sources(&self) -> Result<(*mut u8, usize)> {
        let receiver = &self.receive;
        let own = self.own as usize;
        // SYNC: activation
        let generation = self.generation().load(Ordering::Acquire);
        for source in self.segment.active(own, Kind::Message) {
            let known = &receiver.sources[source].known;
            if known.get() == 0 && source != own {
                known.set(1);
                receiver.begin_turn(source as u64);
                let count = receiver.count.get();
                receiver.order[count as usize].set(source as u64);
                receiver.count.set(count + 1);
            }
        }
        receiver.generation.set(generation);
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
        let last = receiver.count.get().saturating_sub(1);
        for place in 0..=last {
            if receiver.order[place as usize].get() == u64::from(source) {
                receiver.order[place as usize].set(receiver.order[last as usize].get());
                receiver.count.set(last);
                return;
            }
        }
    }

    #[inline(always)]
    pub(crate) fn release(&self) {
        let receiver = &self.receive;
        let held = &receiver.held;
        let Some(source) = receiver.sources.get(held.source.get() as usize) else { return };
        source.count_received();
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
