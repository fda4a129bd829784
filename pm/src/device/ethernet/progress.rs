//! The progress thread: one for each process that has an ethernet context in use. While the
//! application polls it only looks at the poll count by a slow timer; when the application
//! computes, or sleeps in `select`, it watches the wires. `watch` has the protocol.

#![forbid(unsafe_code)]

use super::engine::EthernetEngine;
use super::{Ethernet, EthernetEndpoint};
use crate::debug;
use crate::device::net_common::{Engine as _, NetworkDevice, ProgressMode};
use crate::error::{Error, PmResult};
use crate::segment::from_errno;
use crate::sync::Ordering;
use crate::threads;
use nix::errno::Errno;
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Between two looks at the poll count.
const CHECK_INTERVAL: Duration = Duration::from_millis(5);
/// The same while there is something on the way: what a burst has left behind waits for this.
const BUSY_CHECK_INTERVAL: Duration = Duration::from_millis(1);
/// The longest sleep while the thread watches the wires: for what the owner writes to the slab.
const MAX_SLEEP_INTERVAL: Duration = Duration::from_millis(100);

/// Of the thread.
const STACK: usize = 128 << 10;

/// What the thread and its endpoints share.
pub(super) struct ProgressThread {
    epoll: Epoll,
    endpoints: Mutex<Vec<Arc<EthernetEndpoint>>>,
}

/// The thread of this process, by process number: a child of fork has none.
static PROGRESS_THREAD: Mutex<Option<(u32, Arc<ProgressThread>)>> = Mutex::new(None);

fn lock_thread() -> MutexGuard<'static, Option<(u32, Arc<ProgressThread>)>> {
    PROGRESS_THREAD.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Has the thread look after `endpoint`. NoMemory: the kernel gives no thread.
pub(super) fn register(endpoint: &Arc<EthernetEndpoint>) -> PmResult<Arc<ProgressThread>> {
    let mut registered = lock_thread();
    let process = std::process::id();
    let thread = match &*registered {
        Some((owner, thread)) if *owner == process => thread.clone(),
        _ => {
            let thread = start()?;
            *registered = Some((process, thread.clone()));
            thread
        }
    };
    thread.endpoints().push(endpoint.clone());
    Ok(thread)
}

/// `endpoint` is given up. When it was the last, the thread ends.
pub(super) fn unregister(endpoint: &EthernetEndpoint) {
    if let Some(thread) = endpoint.net.thread.get() {
        thread.endpoints().retain(|other| !std::ptr::eq(&**other, endpoint));
        thread.unwatch(&endpoint.progress_lock.lock());
    }
}

fn start() -> PmResult<Arc<ProgressThread>> {
    let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC).map_err(from_errno)?;
    let thread = Arc::new(ProgressThread { epoll, endpoints: Mutex::default() });
    let worker = thread.clone();
    let started = threads::spawn("score-pm", STACK, move || worker.run());
    match started {
        Ok(()) => Ok(thread),
        Err(why) => {
            debug::log(debug::ERROR, || format!("ethernet: no progress thread: {why}"));
            Err(Error::NoMemory)
        }
    }
}

impl ProgressThread {
    fn endpoints(&self) -> MutexGuard<'_, Vec<Arc<EthernetEndpoint>>> {
        self.endpoints.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Under the lock of the engine: its wires wake the thread from now on.
    pub(super) fn watch(&self, engine: &EthernetEngine) {
        for wire in &engine.transmitter.wires {
            let event = EpollEvent::new(EpollFlags::EPOLLIN, 0);
            match self.epoll.add(wire.fd(), event) {
                Ok(()) | Err(Errno::EEXIST) => {}
                Err(errno) => debug::log(debug::ERROR, || {
                    format!("ethernet: the thread cannot watch a wire: {errno}")
                }),
            }
        }
    }

    /// Under the lock of the engine: they do not any more.
    pub(super) fn unwatch(&self, engine: &EthernetEngine) {
        for wire in &engine.transmitter.wires {
            let _ = self.epoll.delete(wire.fd());
        }
    }

    /// Until the last endpoint has left.
    fn run(self: Arc<ProgressThread>) {
        let mut poll_counts: Vec<(Arc<EthernetEndpoint>, u64)> = Vec::new();
        let mut next_tick = Instant::now() + CHECK_INTERVAL;
        let mut sleep = CHECK_INTERVAL;
        loop {
            let mut events = [EpollEvent::empty(); 8];
            // Rounded up: what is due in less than a millisecond is still due then.
            let timeout = sleep.as_micros().div_ceil(1000).min(1000) as u16;
            let _ = self.epoll.wait(&mut events, EpollTimeout::from(timeout));
            if !self.sync_endpoints(&mut poll_counts) {
                return;
            }
            let is_tick = Instant::now() >= next_tick;
            sleep = MAX_SLEEP_INTERVAL;
            for (endpoint, polls) in &mut poll_counts {
                let wait = endpoint.serve_as_thread(polls, is_tick);
                sleep = sleep.min(wait);
            }
            if is_tick {
                next_tick = Instant::now() + sleep.min(CHECK_INTERVAL);
            }
        }
    }

    /// Who has come and who has left. False: nobody is left, and the thread is not known any more.
    fn sync_endpoints(&self, poll_counts: &mut Vec<(Arc<EthernetEndpoint>, u64)>) -> bool {
        let mut registered = lock_thread();
        let endpoints = self.endpoints();
        if endpoints.is_empty() {
            if registered.as_ref().is_some_and(|(_, thread)| std::ptr::eq(&**thread, self)) {
                *registered = None;
            }
            return false;
        }
        let contains = |endpoint: &Arc<EthernetEndpoint>, list: &[Arc<EthernetEndpoint>]| {
            list.iter().any(|other| Arc::ptr_eq(other, endpoint))
        };
        poll_counts.retain(|(endpoint, _)| contains(endpoint, &endpoints));
        for endpoint in endpoints.iter() {
            if !poll_counts.iter().any(|(other, _)| Arc::ptr_eq(other, endpoint)) {
                // Never what it is: a count has to be seen twice.
                poll_counts.push((endpoint.clone(), u64::MAX));
            }
        }
        true
    }
}

impl EthernetEndpoint {
    /// By the thread: serves what is its to serve; answers how long it may sleep.
    fn serve_as_thread(&self, polls: &mut u64, is_tick: bool) -> Duration {
        if !self.net.poll_owner.is_owned_by_thread() {
            let stalled = is_tick && self.net.poll_owner.has_stalled(polls);
            if !stalled {
                let pending = self.queues.outstanding.load(Ordering::Relaxed) != 0
                    || self.net.rma_requests.is_busy()
                    || Ethernet::has_work(self);
                return if pending { BUSY_CHECK_INTERVAL } else { CHECK_INTERVAL };
            }
            let engine = self.progress_lock.lock();
            if self.net.poll_owner.hand_to_thread_if_stalled(*polls) {
                self.watch(&engine);
            }
        }
        // As long as somebody else serves, the wires wake the thread again and again: it waits.
        drop(self.progress_lock.lock());
        let mut wait = MAX_SLEEP_INTERVAL;
        let mut wake = false;
        let progress = |engine: &mut EthernetEngine| {
            wake |= engine.progress(&self.queues, ProgressMode::All)
                && self.queues.wakeup_flag.take_wakeup();
            engine.report_events();
            if let Some(nanoseconds) = engine.ns_until_next_pass() {
                wait = MAX_SLEEP_INTERVAL.min(Duration::from_nanos(nanoseconds));
            }
        };
        self.progress_lock.run_exclusive(progress, || Ethernet::has_work(self));
        if wake {
            self.select.notify();
        }
        wait
    }

    /// Waits until what was sent is acknowledged, and what was received is: the owner brings home
    /// what has no time for that.
    ///
    /// Writes need this process until all their bytes are on the way: it waits as long as they go
    /// on, and [`EXIT_WRITE_TIMEOUT_NS`] more.
    pub(super) fn drain(&self) {
        let start = self.progress_lock.lock().now();
        let (mut deadline, mut frames_sent_seen) = (start + EXIT_ACK_TIMEOUT_NS, u64::MAX);
        loop {
            let mut engine = self.progress_lock.lock();
            let delivered = engine.progress(&self.queues, ProgressMode::All);
            let wait = engine.ns_until_next_pass();
            let now = engine.now();
            let sending = engine.rma.protocol.is_sending();
            let frames_sent = engine.rma.frames_sent();
            if sending && std::mem::replace(&mut frames_sent_seen, frames_sent) != frames_sent {
                deadline = now + EXIT_WRITE_TIMEOUT_NS;
            }
            let done = engine.machine.is_all_acked() && wait.is_none() && !delivered && !sending;
            if done || now >= deadline {
                return engine.abort_operations(&self.queues);
            }
            let wait = Duration::from_nanos(wait.unwrap_or(0)).min(Duration::from_millis(5));
            let mut fds: Vec<_> = engine
                .transmitter
                .wires
                .iter()
                .map(|wire| nix::poll::PollFd::new(wire.fd(), nix::poll::PollFlags::POLLIN))
                .collect();
            let timeout = wait.as_micros().div_ceil(1000).min(5) as u8;
            let _ = nix::poll::poll(&mut fds, timeout);
        }
    }
}

/// How long an exit waits for acknowledgements at most, in nanoseconds of running time.
const EXIT_ACK_TIMEOUT_NS: u64 = 200_000_000;
/// How long an exit waits for a peer that takes no more of what is written to it, in nanoseconds of
/// running time.
const EXIT_WRITE_TIMEOUT_NS: u64 = 10_000_000_000;
