//! Receiving: which ring is looked at when.
//!
//! The ring that gave the last message is *hot* and looked at on every poll; after [`TURN`]
//! messages in a row the others come first. Of the other active rings every poll that finds the
//! hot one empty looks at [`SWEEP`], in turn. So while one source floods, another's message
//! waits for at most `TURN` messages of each other source and its own turn in the sweep; and when
//! nothing floods it is found within `active / SWEEP` polls.

#![forbid(unsafe_code)]

use super::{Endpoint, message_ring};
use crate::error::{Error, Result};
use crate::ring::Consumer;
use crate::segment::{Kind, Segment};
use crate::sync::{Local, Ordering};

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

#[repr(align(64))]
struct Source {
    consumer: Consumer,
    known: Local,
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
    /// The hot source, and the messages left of its turn.
    hot: Local,
    left: Local,
    /// Where in `order` the sweep goes on.
    cursor: Local,
    held: Held,
}

impl Receiver {
    pub(super) fn new(segment: &Segment, own: usize) -> Receiver {
        let nodes = 0..segment.geometry().nodes;
        let source = |from| Source {
            consumer: Consumer::new(message_ring(segment, from, own)),
            known: Local::default(),
        };
        Receiver {
            sources: nodes.clone().map(source).collect(),
            order: nodes.map(|_| Local::default()).collect(),
            count: Local::default(),
            generation: Local::default(),
            hot: Local::new(NOBODY),
            left: Local::new(TURN),
            cursor: Local::default(),
            held: Held::default(),
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
        let alone = receiver.count.get() <= 1;
        if (alone || receiver.left.get() != 0)
            && let Some(source) = receiver.sources.get(hot as usize)
            && source.consumer.is_waiting()
        {
            return Some(hot as u32);
        }
        let generation = self.generation().load(Ordering::Relaxed);
        if alone && generation == receiver.generation.get() {
            return None;
        }
        self.find_cold(generation)
    }

    #[inline(never)]
    fn find_cold(&self, generation: u64) -> Option<u32> {
        let receiver = &self.receive;
        if generation != receiver.generation.get() {
            return Some(NEW_SOURCE);
        }
        let found = self.sweep(SWEEP);
        if found.is_some() || receiver.left.get() != 0 {
            return found;
        }
        // The hot one's turn was over, but nobody else has anything.
        receiver.left.set(TURN);
        let hot = receiver.hot.get();
        receiver.sources.get(hot as usize)?.consumer.is_waiting().then_some(hot as u32)
    }

    /// Looks at the next `rings` rings in turn, not at the hot one.
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
                receiver.hot.set(u64::from(source));
                receiver.left.set(TURN);
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
                receiver.left.set(receiver.left.get().saturating_sub(1));
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
                receiver.hot.set(source as u64);
                receiver.left.set(TURN);
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
        let received = &self.record().received.0;
        // SYNC: received (who sees it has seen the process become busy before)
        received.store(received.load(Ordering::Relaxed).wrapping_add(1), Ordering::Release);
        let data_end = held.data_end.get();
        source.consumer.release(held.next.get(), (data_end != NO_DATA).then_some(data_end));
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
