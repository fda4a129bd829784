//! Whether the job is stopped: the thread that switches says it, the loop asks before it starts
//! anything.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use mio::Waker;
use score_proto::carea::board;

use crate::sys::memfd::Published;

/// See the [module](self). The words are written by the thread, under the lock.
#[derive(Debug)]
pub struct Gate {
    inner: Mutex<Inner>,
    stopped: AtomicBool,
    stopped_ns: AtomicU64,
    pace_us: AtomicU32,
    /// The loop wants to know when the job runs again.
    is_awaited: AtomicBool,
    waker: Waker,
}

#[derive(Debug, Default)]
struct Inner {
    board: Option<Arc<Published>>,
    since: Option<Instant>,
    stops: u64,
}

/// As long as this lives the job does not become stopped.
pub struct Open<'a>(#[expect(dead_code, reason = "held")] MutexGuard<'a, Inner>);

impl Gate {
    /// A job that runs; `waker` wakes the loop.
    pub fn new(waker: Waker) -> Self {
        Self {
            inner: Mutex::default(),
            stopped: AtomicBool::new(false),
            stopped_ns: AtomicU64::new(0),
            pace_us: AtomicU32::new(0),
            is_awaited: AtomicBool::new(false),
            waker,
        }
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Leave to start a process, which is to be had for as short as possible; none while the job
    /// is stopped.
    pub fn open(&self) -> Option<Open<'_>> {
        let inner = self.lock();
        inner.since.is_none().then_some(Open(inner))
    }

    /// Whether the job is stopped, or about to be.
    pub fn is_stopped(&self) -> bool {
        self.stopped.load(Ordering::SeqCst)
    }

    /// For how long it has been stopped in all, the present stop not counted.
    pub fn stopped_for(&self) -> Duration {
        Duration::from_nanos(self.stopped_ns.load(Ordering::SeqCst))
    }

    /// The job's time: the clock without the stops (`board::STOPPED_NS`).
    pub fn job_time(&self) -> Duration {
        let inner = self.lock();
        let now = Duration::from_nanos(super::super::monotonic_ns());
        let stop = inner.since.map(|since| since.elapsed()).unwrap_or_default();
        now.saturating_sub(self.stopped_for() + stop)
    }

    /// Has the loop woken when the job runs again. True if it does already.
    pub fn wake_me(&self) -> bool {
        self.is_awaited.store(true, Ordering::SeqCst);
        !self.is_stopped()
    }

    /// How often it is to be looked whether all processes are idle (`Order::Run`); zero for never.
    pub fn pace(&self) -> Duration {
        Duration::from_micros(self.pace_us.load(Ordering::SeqCst).into())
    }

    /// From now on processes read there for how long the job was stopped.
    pub fn publish_on(&self, board: Arc<Published>) {
        let mut inner = self.lock();
        inner.board = Some(board);
        self.publish(&inner);
    }

    fn publish(&self, inner: &Inner) {
        if let Some(page) = &inner.board {
            page.store_u64(board::STOPPED_NS, self.stopped_ns.load(Ordering::SeqCst));
            page.store_u64(board::STOP_COUNT, inner.stops);
        }
    }

    /// The job is about to be stopped: nothing is started from now on. False if it was already.
    pub(super) fn close(&self, now: Instant) -> bool {
        let mut inner = self.lock();
        if inner.since.is_some() {
            return false;
        }
        inner.since = Some(now);
        inner.stops += 1;
        self.stopped.store(true, Ordering::SeqCst);
        self.publish(&inner);
        true
    }

    /// See [`Gate::pace`].
    pub(super) fn set_pace(&self, pace_us: u32) {
        self.pace_us.store(pace_us, Ordering::SeqCst);
    }

    /// The job is about to run again, by an order with this pace; true if it was stopped.
    pub(super) fn reopen(&self, now: Instant, pace_us: u32) -> bool {
        let mut inner = self.lock();
        self.set_pace(pace_us);
        let Some(since) = inner.since.take() else { return false };
        let pause = u64::try_from((now - since).as_nanos()).unwrap_or(u64::MAX);
        self.stopped_ns.fetch_add(pause, Ordering::SeqCst);
        inner.stops += 1;
        self.publish(&inner);
        self.stopped.store(false, Ordering::SeqCst);
        true
    }

    /// Wakes the loop if it has asked for that.
    pub(super) fn wake(&self) {
        if self.is_awaited.swap(false, Ordering::SeqCst) {
            // Only a full counter fails, and that wakes as well.
            let _ = self.waker.wake();
        }
    }
}
