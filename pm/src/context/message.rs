//! Sending and receiving: the locks and checks around a message (docs/ARCHITECTURE.md, "A
//! message's life"). Most messages take the short way (`short.rs`); this is the one for all.

#![forbid(unsafe_code)]

use super::short::Poll;
use super::{Context, Inner};
use crate::device::{Body, Transport, on};
use crate::error::{Error, Result};
use crate::idle;
use crate::sync::Local;
use std::time::{Duration, Instant};

/// Polls that find nothing, or no room, before the processor is offered to others.
const PATIENCE: u64 = 10_000;
/// The same on a host that has more processes than processors.
const LITTLE_PATIENCE: u64 = 100;
/// Empty polls that messages count as there.
const MESSAGE: u64 = 16;
/// What a processor that is offered takes to come back if nobody wants it, at most.
const SWITCH: Duration = Duration::from_nanos(1500);
/// How often in a row that has to be before it is believed: the kernel may give the processor back
/// although others wait.
const SURE: u64 = 8;
/// How often a poll before `select` looks again after it found a source but no message.
const LOOKS: u32 = 64;

/// How long a context has polled in vain.
#[derive(Default)]
pub(super) struct Patience {
    /// Empty polls; from 0 again when there were [`LITTLE_PATIENCE`], not in a row.
    empty: Local,
    /// What `empty` was when the last message came; below 0 (wrapping) when it began again since.
    before: Local,
    /// Empty polls of a turn beyond [`LITTLE_PATIENCE`], before it is asked who else wants the
    /// processor.
    more: Local,
    /// How often in a row the processor came back at once.
    quick: Local,
    /// Reservations in a row that found no room.
    full: Local,
}

impl Inner {
    /// Reserves room for `len` bytes towards `node` and locks sending until `send`. Invalid: bad
    /// node, the own node, length 0 or beyond the MTU. NoBuffers: no room now. Busy: the lock is
    /// held. Io: that link is broken.
    #[inline(always)]
    pub fn get_send_buffer(&self, node: u32, len: usize) -> Result<*mut u8> {
        let locks = self.lock_send()?;
        match on!(&self.body, device => device.reserve(node, len)) {
            Ok(buffer) => {
                self.patience.room_found();
                Ok(buffer)
            }
            Err(error) => {
                locks.send.release();
                Err(self.no_room(error))
            }
        }
    }

    /// Reserves room towards all of `nodes`, or none. Errors as `get_send_buffer`; Invalid also
    /// for no node and for one that is named twice.
    pub fn get_multicast_buffer(&self, nodes: &[u32], len: usize) -> Result<*mut u8> {
        let locks = self.lock_send()?;
        on!(&self.body, device => device.reserve_many(nodes, len)).map_err(|error| {
            locks.send.release();
            self.no_room(error)
        })
    }

    /// Shortens the reserved message. Io: none is reserved. Invalid: to 0, or longer.
    pub fn truncate(&self, len: usize) -> Result<()> {
        if !self.locks().send.is_held_by(self.id) {
            return Err(Error::Io);
        }
        on!(&self.body, device => device.truncate(len))
    }

    /// Sends the reserved message. Io: none is reserved.
    #[inline(always)]
    pub fn send(&self) -> Result<()> {
        let locks = self.locks();
        if !locks.send.is_held_by(self.id) {
            return Err(Error::Io);
        }
        idle::before_send();
        on!(&self.body, device => device.publish());
        locks.send.release();
        Ok(())
    }

    /// Polls once: the payload where it lies. It is valid, and receiving locked, until release.
    /// NoBuffers: nothing there. Busy: the lock is held. Io: a source wrote what no sender
    /// writes; said once, that source is never read again.
    #[inline(always)]
    pub fn receive(&self) -> Result<(*mut u8, usize)> {
        if let Some(message) = self.receive_direct() {
            return Ok(message);
        }
        let Some(found) = on!(&self.body, device => device.find()) else {
            return self.nothing_found();
        };
        let locks = self.lock_receive()?;
        match on!(&self.body, device => device.take(found)) {
            Ok(message) => {
                self.patience.message_came();
                Ok(message)
            }
            Err(error) => {
                locks.receive.release();
                if error == Error::NoBuffers { self.nothing_found() } else { Err(error) }
            }
        }
    }

    /// Gives the received message's memory back. Io: none was received.
    #[inline(always)]
    pub fn release_receive_buffer(&self) -> Result<()> {
        let locks = self.locks();
        if !locks.receive.is_held_by(self.id) {
            return Err(Error::Io);
        }
        on!(&self.body, device => device.release());
        locks.receive.release();
        Ok(())
    }

    /// A poll found nothing. It took no lock.
    #[inline(never)]
    fn nothing_found(&self) -> Result<(*mut u8, usize)> {
        if !self.locks().receive.is_free() {
            return Err(Error::Busy);
        }
        self.fetch_ahead();
        let is_selecting = on!(&self.body, device => {
            device.count_empty_poll();
            device.is_selecting()
        });
        if is_selecting {
            return self.look_before_sleep();
        }
        let empty = self.patience.empty.get() + 1;
        self.patience.empty.set(empty);
        if empty > self.patience.turn() {
            self.lose_patience(empty);
        }
        Err(Error::NoBuffers)
    }

    /// Armed: whoever hears NoBuffers now may sleep, so look at everything.
    #[cold]
    fn look_before_sleep(&self) -> Result<(*mut u8, usize)> {
        for _ in 0..LOOKS {
            let Some(found) = on!(&self.body, device => device.look_again()) else {
                return Err(Error::NoBuffers);
            };
            let locks = self.lock_receive()?;
            match on!(&self.body, device => device.take(found)) {
                Ok(message) => return Ok(message),
                Err(error) => {
                    locks.receive.release();
                    if error != Error::NoBuffers {
                        return Err(error);
                    }
                }
            }
        }
        Err(Error::NoBuffers)
    }

    #[cold]
    fn no_room(&self, error: Error) -> Error {
        if error == Error::NoBuffers {
            let full = self.patience.full.get() + 1;
            self.patience.full.set(full);
            if full > PATIENCE || (full > LITTLE_PATIENCE && self.is_oversubscribed()) {
                std::thread::yield_now();
            }
        }
        error
    }

    /// Called at every empty poll beyond a turn. Two processes that happen to run side by side
    /// answer each other within a few polls and would never offer their processors to others; so
    /// where those are scarce, empty polls count in all, not only in a row. Where nobody takes the
    /// processor that is offered, turns become longer.
    #[cold]
    fn lose_patience(&self, empty: u64) {
        let patience = &self.patience;
        let in_a_row = empty.wrapping_sub(patience.before.get());
        if in_a_row <= LITTLE_PATIENCE {
            patience.before.set(patience.before.get().wrapping_sub(empty));
            patience.empty.set(0);
        }
        if self.is_oversubscribed() {
            let start = Instant::now();
            std::thread::yield_now();
            let came_back = start.elapsed() < SWITCH;
            let quick = if came_back { patience.quick.get() + 1 } else { 0 };
            patience.quick.set(quick);
            let more = if quick > SURE { patience.turn().min(PATIENCE) } else { 0 };
            patience.more.set(more);
        } else {
            patience.more.set(PATIENCE - LITTLE_PATIENCE);
            if in_a_row > PATIENCE {
                self.offer_processor();
            }
        }
    }

    /// Unless remote memory goes on by these polls: what is offered is gone for a slice.
    fn offer_processor(&self) {
        if on!(&self.body, device => device.has_moved()) {
            self.patience.message_came();
        } else {
            std::thread::yield_now();
        }
    }

    fn is_oversubscribed(&self) -> bool {
        on!(&self.body, device => device.oversubscribed())
    }
}

impl Patience {
    #[inline(always)]
    pub(super) fn message_came(&self) {
        self.before.set(self.empty.get());
    }

    #[inline(always)]
    pub(super) fn room_found(&self) {
        self.full.set(0);
    }

    #[inline(always)]
    pub(super) fn empty_polls(&self) -> u64 {
        self.empty.get()
    }

    /// Empty polls of a turn.
    #[inline(always)]
    pub(super) fn turn(&self) -> u64 {
        LITTLE_PATIENCE + self.more.get()
    }

    /// Whether others took the processor when it was offered last, or nobody knows yet.
    #[inline(always)]
    pub(super) fn is_crowded(&self) -> bool {
        self.more.get() == 0
    }

    /// What is counted besides the first empty poll after messages: they make a turn shorter, too.
    /// Empty polls in a row stay what they are.
    #[inline(always)]
    pub(super) fn weigh_message(&self) -> u64 {
        let before = self.before.get();
        if before == 0 || before != self.empty.get() {
            return 0;
        }
        self.before.set(before + MESSAGE);
        MESSAGE
    }

    #[inline(always)]
    pub(super) fn set_empty_polls(&self, polls: u64) {
        self.empty.set(polls);
    }
}

/// The same with the check that the context lives, by whichever way.
impl Context {
    /// See [`Inner::get_send_buffer`].
    #[inline]
    pub fn get_send_buffer(&self, node: u32, len: usize) -> Result<*mut u8> {
        let inner = self.live()?;
        inner.get_short(node, len).map_or_else(|| inner.get_send_buffer(node, len), Ok)
    }

    /// See [`Inner::get_multicast_buffer`].
    pub fn get_multicast_buffer(&self, nodes: &[u32], len: usize) -> Result<*mut u8> {
        self.live()?.get_multicast_buffer(nodes, len)
    }

    /// See [`Inner::truncate`].
    pub fn truncate(&self, len: usize) -> Result<()> {
        self.live()?.truncate(len)
    }

    /// See [`Inner::send`].
    #[inline]
    pub fn send(&self) -> Result<()> {
        let inner = self.live()?;
        if inner.send_short() { Ok(()) } else { inner.send() }
    }

    /// See [`Inner::receive`].
    #[inline]
    pub fn receive(&self) -> Result<(*mut u8, usize)> {
        let inner = self.live()?;
        match inner.receive_short() {
            Poll::Message(message, len) => Ok((message, len)),
            Poll::Nothing => Err(Error::NoBuffers),
            Poll::Aside if inner.is_silent_aside() => Err(Error::NoBuffers),
            Poll::Aside => inner.receive(),
            Poll::Ask => inner.receive(),
        }
    }

    /// See [`Inner::release_receive_buffer`].
    #[inline]
    pub fn release_receive_buffer(&self) -> Result<()> {
        let inner = self.live()?;
        if inner.release_short() { Ok(()) } else { inner.release_receive_buffer() }
    }
}
