//! Records whether the job is stopped. The switch thread writes this state, and the shepherd's loop
//! reads it before it starts a process or releases a held one.

use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use mio::Waker;
use score_proto::carea::board;

use crate::sys::memfd::PublishedMap;

/// See the [module](self). The switch thread writes `stopped` and `stopped_ns` under the lock.
#[derive(Debug)]
pub struct RunGate {
    inner: Mutex<Inner>,
    stopped: AtomicBool,
    stopped_ns: AtomicU64,
    idle_check_interval_us: AtomicU32,
    /// Whether the loop has requested a wake-up when the job runs again.
    wake_requested: AtomicBool,
    /// The process id of the tool control service, which answers while the job is stopped. 0: there
    /// is none.
    tool_service_pid: AtomicI32,
    waker: Waker,
}

#[derive(Debug, Default)]
struct Inner {
    board: Option<Arc<PublishedMap>>,
    stopped_since: Option<Instant>,
    stop_count: u64,
    /// Processes that wait for a debugger before their first instruction. They have stopped
    /// themselves, or will do so. The switch thread neither stops nor resumes them.
    held: HashSet<i32>,
}

/// The job cannot be stopped while this guard exists.
pub struct RunGuard<'a>(MutexGuard<'a, Inner>);

impl RunGuard<'_> {
    /// Marks a process that was just started as held.
    pub fn hold(&mut self, pid: i32) {
        self.0.held.insert(pid);
    }

    /// Removes and returns all held processes.
    pub fn take_held(&mut self) -> HashSet<i32> {
        std::mem::take(&mut self.0.held)
    }
}

impl RunGate {
    /// The gate of a running job. `waker` wakes the loop.
    pub fn new(waker: Waker) -> Self {
        Self {
            inner: Mutex::default(),
            stopped: AtomicBool::new(false),
            stopped_ns: AtomicU64::new(0),
            idle_check_interval_us: AtomicU32::new(0),
            wake_requested: AtomicBool::new(false),
            tool_service_pid: AtomicI32::new(0),
            waker,
        }
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A guard for starting a process, which should be dropped as soon as possible. None while the
    /// job is stopped.
    pub fn acquire(&self) -> Option<RunGuard<'_>> {
        let inner = self.lock();
        inner.stopped_since.is_none().then_some(RunGuard(inner))
    }

    /// The processes that are held.
    pub fn held(&self) -> HashSet<i32> {
        self.lock().held.clone()
    }

    /// Handles the exit of a process that has been reaped.
    pub fn on_process_exit(&self, pid: i32) {
        self.lock().held.remove(&pid);
    }

    /// Whether the job is stopped, or about to be.
    pub fn is_stopped(&self) -> bool {
        self.stopped.load(Ordering::SeqCst)
    }

    /// Total time for which the job has been stopped, without the current stop.
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

    /// Requests that the loop is woken when the job runs again. Returns true if the job runs now.
    pub fn wake_on_resume(&self) -> bool {
        self.wake_requested.store(true, Ordering::SeqCst);
        !self.is_stopped()
    }

    /// Interval of polls whether all processes are idle (`SwitchOrder::Run`). Zero disables the
    /// polls.
    pub fn poll_interval(&self) -> Duration {
        Duration::from_micros(self.idle_check_interval_us.load(Ordering::SeqCst).into())
    }

    /// Sets the process that keeps running while the job is stopped; 0 for none.
    pub fn exempt_tool_service(&self, pid: i32) {
        self.tool_service_pid.store(pid, Ordering::SeqCst);
    }

    /// The process that is not stopped with the job.
    pub(super) fn exempt_pid(&self) -> Option<i32> {
        Some(self.tool_service_pid.load(Ordering::SeqCst)).filter(|pid| *pid != 0)
    }

    /// Publishes the stopped time on this board, where the processes read it.
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

    /// Marks the job as stopped: no process is started from now on. Returns false if it was stopped
    /// already.
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
        self.idle_check_interval_us.store(poll_interval_us, Ordering::SeqCst);
    }

    /// Marks the job as running, with this poll interval. Returns true if it was stopped.
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

    /// Wakes the loop if it has requested a wake-up.
    pub(super) fn wake(&self) {
        if self.wake_requested.swap(false, Ordering::SeqCst) {
            // Fails only if the counter is full, and a full counter also wakes the loop.
            let _ = self.waker.wake();
        }
    }
}
