//! Sending and receiving: the locks and checks around a message (docs/dev/messages.md). Most
//! messages take the fast path (`fast_path.rs`). This is the slow path, which can carry every
//! message.

#![forbid(unsafe_code)]

use super::fast_path::FastReceive;
use super::{Context, LiveContext};
use crate::device::{ReadySource, ReceiveInterface, SelectInterface, SendInterface, on_device};
use crate::error::{Error, PmResult};
use crate::idle;
use crate::sync::{AtomicBool, Ordering, SingleWriterU64};
use std::time::{Duration, Instant};

/// Polls without a message, or reservations without room, before the process yields its processor.
const MAX_POLLS: u64 = 10_000;
/// Like [`MAX_POLLS`], while another process waits for the processor.
const MAX_POLLS_CONTENDED: u64 = 100;
/// The number of empty polls that a series of messages adds to the count, while another process
/// waits for the processor.
const MESSAGE_POLL_COST: u64 = 16;
/// A yield that returns within this time has found no other process that waits for the processor.
const UNCONTENDED_YIELD_WINDOW: Duration = Duration::from_nanos(1500);
/// More than this number of consecutive yields must return at once before the processor counts as
/// uncontended. The kernel may return from one yield although other processes wait.
const MIN_UNCONTENDED_YIELDS: u64 = 8;
/// The limit of [`PollBackoff::extra_polls`].
const MAX_EXTRA_POLLS: u64 = MAX_POLLS - MAX_POLLS_CONTENDED;
/// How often the poll before `select` is repeated after it has found a source but no message.
const MAX_RESCANS: u32 = 64;

/// Counts polls without a message and reservations without room, to decide when the process yields
/// its processor.
pub(super) struct PollBackoff {
    /// Empty polls, consecutive or not, and the polls that `charge_message` adds. `back_off` may
    /// restart the count from 0.
    empty_count: SingleWriterU64,
    /// The value of `empty_count` at the last message. Below 0 (wrapping) if `empty_count` has
    /// restarted since.
    empty_at_last_message: SingleWriterU64,
    /// Empty polls in addition to [`MAX_POLLS_CONTENDED`] before a yield shows whether another
    /// process waits for the processor. 0 if a recent yield has shown that one waits.
    extra_polls: SingleWriterU64,
    /// Consecutive yields that returned at once.
    uncontended_yields: SingleWriterU64,
    /// Consecutive reservations that found no room.
    failed_reservations: SingleWriterU64,
    /// Whether the program works between two polls, so that they need no pause.
    skips_pause: AtomicBool,
}

impl LiveContext {
    /// Reserves room for a message of `len` bytes to `node` and locks sending until `send`.
    ///
    /// # Errors
    /// Invalid: bad node, this node itself, or a length of 0 or above the MTU. NoBuffers: there is
    /// no room now. Busy: the lock is held. Io: the link to `node` has failed.
    #[inline(always)]
    pub fn get_send_buffer(&self, node: u32, len: usize) -> PmResult<*mut u8> {
        let locks = self.lock_send()?;
        match on_device!(opened &self.device_context, device => device.reserve(node, len)) {
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

    /// Reserves room for a message to all of `nodes`, or to none.
    ///
    /// # Errors
    /// Those of `get_send_buffer`. Also Invalid: `nodes` is empty or contains a node twice.
    pub fn get_multicast_buffer(&self, nodes: &[u32], len: usize) -> PmResult<*mut u8> {
        let locks = self.lock_send()?;
        let context = &self.device_context;
        let reserved = on_device!(opened context, device => device.reserve_multicast(nodes, len));
        reserved.map_err(|error| {
            locks.send.release();
            self.on_reserve_failed(error)
        })
    }

    /// Shortens the reserved message.
    ///
    /// # Errors
    /// Io: no message is reserved. Invalid: `len` is 0 or above the reserved length.
    pub fn truncate(&self, len: usize) -> PmResult<()> {
        if !self.locks().send.is_held_by(self.id) {
            return Err(Error::Io);
        }
        on_device!(opened &self.device_context, device => device.truncate(len))
    }

    /// Sends the reserved message.
    ///
    /// # Errors
    /// Io: no message is reserved.
    #[inline(always)]
    pub fn send(&self) -> PmResult<()> {
        let locks = self.locks();
        if !locks.send.is_held_by(self.id) {
            return Err(Error::Io);
        }
        idle::before_send();
        on_device!(active &self.device_context, device => device.publish(), else ());
        locks.send.release();
        Ok(())
    }

    /// Polls once and returns the payload in its buffer. The payload stays valid, and receiving
    /// locked, until release.
    ///
    /// # Errors
    /// NoBuffers: there is no message. Busy: the lock is held. Io: a source has corrupted its ring.
    /// PM reports this once, and never reads that source again.
    #[inline(always)]
    #[expect(clippy::useless_conversion)] // An endpoint finds a number, a composite a ReadySource.
    pub fn receive(&self) -> PmResult<(*mut u8, usize)> {
        if let Some(message) = self.receive_direct() {
            return Ok(message);
        }
        let found = on_device!(opened &self.device_context, device => {
            device.find().map(ReadySource::from)
        }, else None);
        let Some(found) = found else { return self.on_empty_poll() };
        let locks = self.lock_receive()?;
        match self.take(found) {
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

    /// Takes the message that was found, under the receive lock.
    #[inline(always)]
    #[expect(clippy::useless_conversion)] // As in `receive`.
    fn take(&self, found: ReadySource) -> PmResult<(*mut u8, usize)> {
        on_device!(opened &self.device_context, device => device.take(found.into()))
    }

    /// Releases the received message's memory.
    ///
    /// # Errors
    /// Io: no message was received.
    #[inline(always)]
    pub fn release_receive_buffer(&self) -> PmResult<()> {
        let locks = self.locks();
        if !locks.receive.is_held_by(self.id) {
            return Err(Error::Io);
        }
        on_device!(active &self.device_context, device => device.release(), else ());
        locks.receive.release();
        Ok(())
    }

    /// Ends a poll that found no message and took no lock.
    #[inline(never)]
    fn on_empty_poll(&self) -> PmResult<(*mut u8, usize)> {
        if !self.locks().receive.is_free() {
            return Err(Error::Busy);
        }
        self.fetch_ahead();
        let is_selecting = on_device!(active &self.device_context, device => {
            device.count_empty_poll();
            device.is_selecting()
        }, else false);
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

    /// Checks all sources. The receiver is selecting, so a caller that gets NoBuffers may sleep.
    #[cold]
    #[expect(clippy::useless_conversion)] // As in `receive`.
    fn rescan_before_sleep(&self) -> PmResult<(*mut u8, usize)> {
        for _ in 0..MAX_RESCANS {
            let context = &self.device_context;
            let found = on_device!(opened context, device => {
                device.rearm_and_rescan().map(ReadySource::from)
            }, else None);
            let Some(found) = found else { return Err(Error::NoBuffers) };
            let locks = self.lock_receive()?;
            match self.take(found) {
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
            if failed_reservations > self.poll_backoff.poll_limit() {
                self.poll_backoff.yield_and_measure();
            }
        }
        error
    }

    /// Yields the processor. Called at every empty poll beyond the poll limit. All empty polls
    /// count, not only consecutive ones: two processes that run at the same time answer each other
    /// within a few polls, and would never yield their processors to others.
    #[cold]
    fn back_off(&self, empty_polls: u64) {
        let backoff = &self.poll_backoff;
        // While these polls make progress on remote memory, the process does not yield an
        // uncontended processor. Another process would keep it for a time slice of the kernel.
        let context = &self.device_context;
        if !backoff.is_cpu_contended()
            && on_device!(active context, device => device.take_rma_activity(), else false)
        {
            backoff.empty_at_last_message.set(0);
            backoff.empty_count.set(0);
            return;
        }
        let consecutive = empty_polls.wrapping_sub(backoff.empty_at_last_message.get());
        if consecutive <= MAX_POLLS_CONTENDED {
            backoff
                .empty_at_last_message
                .set(backoff.empty_at_last_message.get().wrapping_sub(empty_polls));
            backoff.empty_count.set(0);
        }
        backoff.yield_and_measure();
    }
}

impl Default for PollBackoff {
    fn default() -> Self {
        Self {
            empty_count: SingleWriterU64::default(),
            empty_at_last_message: SingleWriterU64::default(),
            extra_polls: SingleWriterU64::new(MAX_EXTRA_POLLS),
            uncontended_yields: SingleWriterU64::default(),
            failed_reservations: SingleWriterU64::default(),
            skips_pause: AtomicBool::default(),
        }
    }
}

impl PollBackoff {
    /// Yields the processor. If another process took it, the next yield comes after
    /// [`MAX_POLLS_CONTENDED`] polls. If not, the limit grows from yield to yield.
    fn yield_and_measure(&self) {
        let start = Instant::now();
        std::thread::yield_now();
        let returned_at_once = start.elapsed() < UNCONTENDED_YIELD_WINDOW;
        let uncontended_yields =
            if returned_at_once { self.uncontended_yields.get() + 1 } else { 0 };
        self.uncontended_yields.set(uncontended_yields);
        let extra_polls = match (returned_at_once, self.extra_polls.get()) {
            (false, _) => 0,
            (true, 0) if uncontended_yields <= MIN_UNCONTENDED_YIELDS => 0,
            (true, extra) => (extra + MAX_POLLS_CONTENDED).min(MAX_EXTRA_POLLS),
        };
        self.extra_polls.set(extra_polls);
    }

    #[inline(always)]
    pub(super) fn on_message(&self) {
        self.empty_at_last_message.set(self.empty_count.get());
    }

    pub(super) fn set_pause(&self, pauses: bool) {
        self.skips_pause.store(!pauses, Ordering::Relaxed);
    }

    /// Pauses the processor after a poll that found no message. An immediate poll would take the
    /// cache line of the next message away from the sender, which is about to write it. It would
    /// also slow down the core's other hardware thread.
    #[inline(always)]
    pub(super) fn pause(&self) {
        if !self.skips_pause.load(Ordering::Relaxed) {
            std::hint::spin_loop();
        }
    }

    #[inline(always)]
    pub(super) fn on_reserved(&self) {
        self.failed_reservations.set(0);
    }

    #[inline(always)]
    pub(super) fn empty_polls(&self) -> u64 {
        self.empty_count.get()
    }

    /// Empty polls before the next `back_off`.
    #[inline(always)]
    pub(super) fn poll_limit(&self) -> u64 {
        MAX_POLLS_CONTENDED + self.extra_polls.get()
    }

    /// Whether another process took the processor at the last yield, or at one shortly before it.
    #[inline(always)]
    pub(super) fn is_cpu_contended(&self) -> bool {
        self.extra_polls.get() == 0
    }

    /// The number of polls to count in addition to the first empty poll after messages, so that
    /// messages also use up the poll limit. The number of consecutive empty polls is not affected.
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

/// The functions of [`LiveContext`], with a check that the context is live. They try the fast path
/// first.
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
