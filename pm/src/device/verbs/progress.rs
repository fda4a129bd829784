//! The progress thread of an endpoint. It connects peers while the application computes, wakes a
//! sleeping receiver, and does all other work at intervals. Messages between connected peers do not
//! need the thread.

#![forbid(unsafe_code)]

use super::VerbsEndpoint;
use super::engine::VerbsEngine;
use crate::debug;
use crate::device::StateInterface;
use crate::device::net_common::{Engine as _, ProgressMode};
use crate::error::{Error, PmResult};
use crate::sync::Ordering;
use crate::threads;
use nix::poll::{PollFd, PollFlags, poll};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The longest sleeps. They bound the delay after which the thread reads the owner's writes to the
/// slab. The second applies while messages are in flight, because only a poll finds some failures.
const MAX_SLEEP_INTERVAL: Duration = Duration::from_millis(100);
const MAX_BUSY_SLEEP_INTERVAL: Duration = Duration::from_millis(20);
/// The longest time that an exit waits for acknowledgements. The owner delivers the remaining
/// messages.
const EXIT_ACK_TIMEOUT: Duration = Duration::from_millis(200);

/// Stack size of a progress thread.
const STACK: usize = 256 << 10;

/// Starts the thread. NoMemory: the kernel cannot create a thread.
pub(super) fn start(endpoint: &Arc<VerbsEndpoint>) -> PmResult<()> {
    let thread_endpoint = endpoint.clone();
    threads::spawn("score-pm", STACK, move || thread_endpoint.run_progress_thread()).map_err(
        |why| {
            debug::log(debug::ERROR, || format!("verbs: cannot start the progress thread: {why}"));
            Error::NoMemory
        },
    )
}

impl VerbsEndpoint {
    /// The thread's main loop, until the endpoint is closed.
    fn run_progress_thread(&self) {
        let (adapter, socket) = {
            let engine = self.progress_lock.lock();
            let Ok(socket) = engine.hello_socket.socket().try_clone() else { return };
            (engine.adapter.clone(), socket)
        };
        let mut max_sleep = Duration::ZERO;
        while self.closed.load(Ordering::Acquire) == 0 {
            let adapter_fds = [adapter.completion_fd(), adapter.async_event_fd()];
            let fds = [socket.as_fd(), adapter_fds[0], adapter_fds[1], self.net.stop.as_fd()];
            let mut fds = fds.map(|fd| PollFd::new(fd, PollFlags::POLLIN));
            // A removed adapter would wake the thread all the time.
            let count = if self.is_broken() { 1 } else { fds.len() };
            let timeout_ms = max_sleep.as_micros().div_ceil(1000).min(100) as u8;
            let _ = poll(&mut fds[..count], timeout_ms);
            if self.closed.load(Ordering::Acquire) != 0 {
                return;
            }
            max_sleep = self.service_once(fds[1].any().unwrap_or(false));
        }
    }

    /// Runs one pass. Returns how long the thread may sleep. `has_event`: the adapter has signalled
    /// a completion.
    fn service_once(&self, has_event: bool) -> Duration {
        let mut max_sleep = MAX_SLEEP_INTERVAL;
        let mut must_wake = false;
        drop(self.progress_lock.lock());
        let pass = |engine: &mut VerbsEngine| {
            if has_event {
                engine.adapter.drain_channel();
            }
            engine.service(&self.queues);
            must_wake |= engine.progress(&self.queues, ProgressMode::All)
                && self.queues.wakeup_flag.take_wakeup();
            let is_removed = engine.adapter_status.is_removed();
            self.net.broken.store(u64::from(is_removed), Ordering::Release);
            if !engine.is_idle() {
                max_sleep = MAX_BUSY_SLEEP_INTERVAL;
            }
            if let Some(timer_ns) = engine.time_to_timer_ns() {
                max_sleep = max_sleep.min(Duration::from_nanos(timer_ns));
            }
        };
        self.progress_lock.run_exclusive(pass, || true);
        if must_wake {
            self.select.notify();
        }
        max_sleep
    }

    /// Waits until all sent messages are acknowledged, but at most [`EXIT_ACK_TIMEOUT`].
    pub(super) fn wait_for_acks(&self) {
        let deadline = Instant::now() + EXIT_ACK_TIMEOUT;
        while self.is_send_done() == Err(Error::Busy) && Instant::now() < deadline {
            self.service_once(false);
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}
