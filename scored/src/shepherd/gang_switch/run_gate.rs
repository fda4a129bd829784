//! Whether the job is stopped: the thread that switches says it, the loop asks before it starts
//! anything.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use mio::Waker;
use score_proto::carea::board;

use crate::sys::memfd::PublishedMap;

/// See the [module](self). The words are written by the thread, under the lock.
#[derive(Debug)]
pub struct RunGate {
    inner: Mutex<Inner>,
    stopped: AtomicBool,
    stopped_ns: AtomicU64,
    poll_interval_us: AtomicU32,
    /// The loop wants to know when the job runs again.
    wake_requested: AtomicBool,
    waker: Waker,
}

#[derive(Debug, Default)]
struct Inner {
    board: Option<Arc<PublishedMap>>,
    stopped_since: Option<Instant>,
    stop_count: u64,
}

/// As long as this lives the job does not become stopped.
pub struct RunGuard<'a>(#[expect(dead_code, reason = "held")] MutexGuard<'a, Inner>);

impl RunGate {
    /// A job that runs; `waker` wakes the loop.
    pub fn new(waker: Waker) -> Self {
        Self {
            inner: Mutex::default(),
            stopped: AtomicBool::new(false),
            stopped_ns: AtomicU64::new(0),
            poll_interval_us: AtomicU32::new(0),
            wake_requested: AtomicBool::new(false),
            waker,
        }
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Leave to start a process, which is to be had for as short as possible; none while the job
    /// is stopped.
    pub fn acquire(&self) -> Option<RunGuard<'_>> {
        let inner = self.lock();
        inner.stopped_since.is_none().then_some(RunGuard(inner))
    }

    /// Whether the job is stopped, or about to be.
    pub fn is_stopped(&self) -> bool {
        self.stopped.load(Ordering::SeqCst)
    }

    /// For how long it has been stopped in all, the present stop not counted.
    pub fn total_stopped(&self) -> Duration {
        Duration::from_nanos(self.stopped_ns.load(Ordering::SeqCst))
    }

    /// The job's time: the clock without the stops (`board::STOPPED_NS`).
    pub fn job_time(&self) -> Duration {
        let inner = self.lock();
        let now = Duration::from_nanos(super::super::monotonic_ns());
        let current_stop = inner.stopped_since.map(|since| since.elapsed()).unwrap_or_default();
        now.saturating_sub(self.total_stopped() + current_stop)
    }

    /// Has the loop woken when the job runs again. True if it does already.
    pub fn wake_on_resume(&self) -> bool {
        self.wake_requested.store(true, Ordering::SeqCst);
        !self.is_stopped()
    }

    /// How often it is to be looked whether all processes are idle (`Order::Run`); zero for never.
    pub fn poll_interval(&self) -> Duration {
        Duration::from_micros(self.poll_interval_us.load(Ordering::SeqCst).into())
    }

    /// From now on processes read there for how long the job was stopped.
    pub fn publish_to(&self, board: Arc<PublishedMap>) {
        let mut inner = self.lock();
        inner.board = Some(board);
        self.publish(&inner);
    }

    fn publish(&self, inner: &Inner) {
        if let Some(page) = &inner.board {
            page.store_u64(board::STOPPED_NS, self.stopped_ns.load(Ordering::SeqCst));
            page.store_u64(board::STOP_COUNT, inner.stop_count);
        }
    }

    /// The job is about to be stopped: nothing is started from now on. False if it was already.
    pub(super) fn mark_stopped(&self, now: Instant) -> bool {
        let mut inner = self.lock();
        if inner.stopped_since.is_some() {
            return false;
        }
        inner.stopped_since = Some(now);
        inner.stop_count += 1;
        self.stopped.store(true, Ordering::SeqCst);
        self.publish(&inner);
        true
    }

    /// See [`RunGate::poll_interval`].
    pub(super) fn set_poll_interval(&self, poll_interval_us: u32) {
        self.poll_interval_us.store(poll_interval_us, Ordering::SeqCst);
    }

    /// The job is about to run again, by an order with this pace; true if it was stopped.
    pub(super) fn mark_running(&self, now: Instant, poll_interval_us: u32) -> bool {
        let mut inner = self.lock();
        self.set_poll_interval(poll_interval_us);
        let Some(stopped_since) = inner.stopped_since.take() else { return false };
        let stop_ns = u64::try_from((now - stopped_since).as_nanos()).unwrap_or(u64::MAX);
        self.stopped_ns.fetch_add(stop_ns, Ordering::SeqCst);
        inner.stop_count += 1;
        self.publish(&inner);
        self.stopped.store(false, Ordering::SeqCst);
        true
    }

    /// Wakes the loop if it has asked for that.
    pub(super) fn wake(&self) {
        if self.wake_requested.swap(false, Ordering::SeqCst) {
            // Only a full counter fails, and that wakes as well.
            let _ = self.waker.wake();
        }
    }
}
