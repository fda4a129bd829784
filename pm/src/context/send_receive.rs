//! Sending and receiving: the locks and checks around a message (docs/ARCHITECTURE.md, "A
//! message's life"). Most messages take the short way (`short.rs`); this is the one for all.

#![forbid(unsafe_code)]

use super::fast_path::FastReceive;
use super::{Context, LiveContext};
use crate::device::{DeviceContext, Transport, on};
use crate::error::{Error, PmResult};
use crate::idle;
use crate::sync::SingleWriterU64;
use std::time::{Duration, Instant};

/// Polls that find nothing, or no room, before the processor is offered to others.
const POLL_LIMIT: u64 = 10_000;
/// The same on a host that has more processes than processors.
const POLL_LIMIT_OVERSUBSCRIBED: u64 = 100;
/// Empty polls that messages count as there.
const MESSAGE_POLL_COST: u64 = 16;
/// What a processor that is offered takes to come back if nobody wants it, at most.
const UNCONTENDED_YIELD_WINDOW: Duration = Duration::from_nanos(1500);
/// How often in a row that has to be before it is believed: the kernel may give the processor back
/// although others wait.
const MIN_UNCONTENDED_YIELDS: u64 = 8;
/// How often a poll before `select` looks again after it found a source but no message.
const MAX_RESCANS: u32 = 64;

/// How long a context has polled in vain.
#[derive(Default)]
pub(super) struct PollBackoff {
    /// Empty polls; from 0 again when there were [`POLL_LIMIT_OVERSUBSCRIBED`], not in a row.
    empty_count: SingleWriterU64,
    /// What `empty` was when the last message came; below 0 (wrapping) when it began again since.
    empty_at_last_message: SingleWriterU64,
    /// Empty polls of a turn beyond [`POLL_LIMIT_OVERSUBSCRIBED`], before it is asked who else wants the
    /// processor.
    extra_polls: SingleWriterU64,
    /// How often in a row the processor came back at once.
    uncontended_yields: SingleWriterU64,
    /// Reservations in a row that found no room.
    failed_reservations: SingleWriterU64,
}

impl LiveContext {
    /// Reserves room for `len` bytes towards `node` and locks sending until `send`. Invalid: bad
    /// node, the own node, length 0 or beyond the MTU. NoBuffers: no room now. Busy: the lock is
    /// held. Io: that link is broken.
    #[inline(always)]
    pub fn get_send_buffer(&self, node: u32, len: usize) -> PmResult<*mut u8> {
        let locks = self.lock_send()?;
        match on!(&self.device_context, device => device.reserve(node, len)) {
            Ok(buffer) => {
                self.poll_backoff.on_reserved();
                Ok(buffer)
            }
            Err(error) => {
                locks.send.release();
                Err(self.on_reserve_failed(error))
            }
        }
    }

    /// Reserves room towards all of `nodes`, or none. Errors as `get_send_buffer`; Invalid also
    /// for no node and for one that is named twice.
    pub fn get_multicast_buffer(&self, nodes: &[u32], len: usize) -> PmResult<*mut u8> {
        let locks = self.lock_send()?;
        on!(&self.device_context, device => device.reserve_multicast(nodes, len)).map_err(|error| {
            locks.send.release();
            self.on_reserve_failed(error)
        })
    }

    /// Shortens the reserved message. Io: none is reserved. Invalid: to 0, or longer.
    pub fn truncate(&self, len: usize) -> PmResult<()> {
        if !self.locks().send.is_held_by(self.id) {
            return Err(Error::Io);
        }
        on!(&self.device_context, device => device.truncate(len))
    }

    /// Sends the reserved message. Io: none is reserved.
    #[inline(always)]
    pub fn send(&self) -> PmResult<()> {
        let locks = self.locks();
        if !locks.send.is_held_by(self.id) {
            return Err(Error::Io);
        }
        idle::before_send();
        on!(&self.device_context, device => device.publish());
        locks.send.release();
        Ok(())
    }

    /// Polls once: the payload where it lies. It is valid, and receiving locked, until release.
    /// NoBuffers: nothing there. Busy: the lock is held. Io: a source wrote what no sender
    /// writes; said once, that source is never read again.
    #[inline(always)]
    pub fn receive(&self) -> PmResult<(*mut u8, usize)> {
        if let Some(message) = self.receive_direct() {
            return Ok(message);
        }
        let Some(found) = on!(&self.device_context, device => device.find()) else {
            return self.on_empty_poll();
        };
        let locks = self.lock_receive()?;
        match on!(&self.device_context, device => device.take(found)) {
            Ok(message) => {
                self.poll_backoff.on_message();
                Ok(message)
            }
            Err(error) => {
                locks.receive.release();
                if error == Error::NoBuffers { self.on_empty_poll() } else { Err(error) }
            }
        }
    }

    /// Gives the received message's memory back. Io: none was received.
    #[inline(always)]
    pub fn release_receive_buffer(&self) -> PmResult<()> {
        let locks = self.locks();
        if !locks.receive.is_held_by(self.id) {
            return Err(Error::Io);
        }
        on!(&self.device_context, device => device.release());
        locks.receive.release();
        Ok(())
    }

    /// A poll found nothing. It took no lock.
    #[inline(never)]
    fn on_empty_poll(&self) -> PmResult<(*mut u8, usize)> {
        if !self.locks().receive.is_free() {
            return Err(Error::Busy);
        }
        self.fetch_ahead();
        let is_selecting = on!(&self.device_context, device => {
            device.count_empty_poll();
            device.is_selecting()
        });
        if is_selecting {
            return self.rescan_before_sleep();
        }
        let empty_polls = self.poll_backoff.empty_count.get() + 1;
        self.poll_backoff.empty_count.set(empty_polls);
        if empty_polls > self.poll_backoff.poll_limit() {
            self.back_off(empty_polls);
        }
        Err(Error::NoBuffers)
    }

    /// Armed: whoever hears NoBuffers now may sleep, so look at everything.
    #[cold]
    fn rescan_before_sleep(&self) -> PmResult<(*mut u8, usize)> {
        for _ in 0..MAX_RESCANS {
            let Some(found) = on!(&self.device_context, device => device.rearm_and_rescan()) else {
                return Err(Error::NoBuffers);
            };
            let locks = self.lock_receive()?;
            match on!(&self.device_context, device => device.take(found)) {
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
    fn on_reserve_failed(&self, error: Error) -> Error {
        if error == Error::NoBuffers {
            let failed_reservations = self.poll_backoff.failed_reservations.get() + 1;
            self.poll_backoff.failed_reservations.set(failed_reservations);
            if failed_reservations > POLL_LIMIT
                || (failed_reservations > POLL_LIMIT_OVERSUBSCRIBED && self.is_oversubscribed())
            {
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
    fn back_off(&self, empty_polls: u64) {
        let backoff = &self.poll_backoff;
        let consecutive = empty_polls.wrapping_sub(backoff.empty_at_last_message.get());
        if consecutive <= POLL_LIMIT_OVERSUBSCRIBED {
            backoff
                .empty_at_last_message
                .set(backoff.empty_at_last_message.get().wrapping_sub(empty_polls));
            backoff.empty_count.set(0);
        }
        if self.is_oversubscribed() {
            let start = Instant::now();
            std::thread::yield_now();
            let returned_at_once = start.elapsed() < UNCONTENDED_YIELD_WINDOW;
            let uncontended_yields =
                if returned_at_once { backoff.uncontended_yields.get() + 1 } else { 0 };
            backoff.uncontended_yields.set(uncontended_yields);
            let extra_polls = if uncontended_yields > MIN_UNCONTENDED_YIELDS {
                backoff.poll_limit().min(POLL_LIMIT)
            } else {
                0
            };
            backoff.extra_polls.set(extra_polls);
        } else {
            backoff.extra_polls.set(POLL_LIMIT - POLL_LIMIT_OVERSUBSCRIBED);
            if consecutive > POLL_LIMIT {
                self.yield_cpu();
            }
        }
    }

    /// Unless remote memory goes on by these polls: what is offered is gone for a slice.
    fn yield_cpu(&self) {
        if on!(&self.device_context, device => device.take_rma_activity()) {
            self.poll_backoff.on_message();
        } else {
            std::thread::yield_now();
        }
    }

    fn is_oversubscribed(&self) -> bool {
        on!(&self.device_context, device => device.is_oversubscribed())
    }
}

impl PollBackoff {
    #[inline(always)]
    pub(super) fn on_message(&self) {
        self.empty_at_last_message.set(self.empty_count.get());
    }

    #[inline(always)]
    pub(super) fn on_reserved(&self) {
        self.failed_reservations.set(0);
    }

    #[inline(always)]
    pub(super) fn empty_polls(&self) -> u64 {
        self.empty_count.get()
    }

    /// Empty polls of a turn.
    #[inline(always)]
    pub(super) fn poll_limit(&self) -> u64 {
        POLL_LIMIT_OVERSUBSCRIBED + self.extra_polls.get()
    }

    /// Whether others took the processor when it was offered last, or nobody knows yet.
    #[inline(always)]
    pub(super) fn is_cpu_contended(&self) -> bool {
        self.extra_polls.get() == 0
    }

    /// What is counted besides the first empty poll after messages: they make a turn shorter, too.
    /// Empty polls in a row stay what they are.
    #[inline(always)]
    pub(super) fn charge_message(&self) -> u64 {
        let at_last_message = self.empty_at_last_message.get();
        if at_last_message == 0 || at_last_message != self.empty_count.get() {
            return 0;
        }
        self.empty_at_last_message.set(at_last_message + MESSAGE_POLL_COST);
        MESSAGE_POLL_COST
    }

    #[inline(always)]
    pub(super) fn set_empty_polls(&self, polls: u64) {
        self.empty_count.set(polls);
    }
}

/// The same with the check that the context lives, by whichever way.
impl Context {
    /// See [`LiveContext::get_send_buffer`].
    #[inline]
    pub fn get_send_buffer(&self, node: u32, len: usize) -> PmResult<*mut u8> {
        let inner = self.live()?;
        inner.get_send_buffer_fast(node, len).map_or_else(|| inner.get_send_buffer(node, len), Ok)
    }

    /// See [`LiveContext::get_multicast_buffer`].
    pub fn get_multicast_buffer(&self, nodes: &[u32], len: usize) -> PmResult<*mut u8> {
        self.live()?.get_multicast_buffer(nodes, len)
    }

    /// See [`LiveContext::truncate`].
    pub fn truncate(&self, len: usize) -> PmResult<()> {
        self.live()?.truncate(len)
    }

    /// See [`LiveContext::send`].
    #[inline]
    pub fn send(&self) -> PmResult<()> {
        let inner = self.live()?;
        if inner.send_fast() { Ok(()) } else { inner.send() }
    }

    /// See [`LiveContext::receive`].
    #[inline]
    pub fn receive(&self) -> PmResult<(*mut u8, usize)> {
        let inner = self.live()?;
        match inner.receive_fast() {
            FastReceive::Message(message, len) => Ok((message, len)),
            FastReceive::Empty => Err(Error::NoBuffers),
            FastReceive::CheckOthers if inner.finish_poll_if_others_empty() => {
                Err(Error::NoBuffers)
            }
            FastReceive::CheckOthers => inner.receive(),
            FastReceive::SlowPath => inner.receive(),
        }
    }

    /// See [`LiveContext::release_receive_buffer`].
    #[inline]
    pub fn release_receive_buffer(&self) -> PmResult<()> {
        let inner = self.live()?;
        if inner.release_fast() { Ok(()) } else { inner.release_receive_buffer() }
    }
}
