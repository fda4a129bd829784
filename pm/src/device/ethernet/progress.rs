//! The progress thread, one for each process that uses an ethernet context. While the application
//! polls, the thread only reads the poll count at long intervals. While the application computes or
//! sleeps in `select`, the thread watches the wires. `progress_lock.rs` describes the protocol
//! between the two.

#![forbid(unsafe_code)]

use super::engine::EthernetEngine;
use super::{Ethernet, EthernetEndpoint};
use crate::debug;
use crate::device::net_common::{Engine as _, NetworkDevice, ProgressMode};
use crate::error::{Error, PmResult, from_errno};
use crate::sync::Ordering;
use crate::threads;
use nix::errno::Errno;
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// The time between two reads of the poll count while no message is in flight.
const CHECK_INTERVAL: Duration = Duration::from_millis(5);
/// The time between two reads of the poll count while messages are in flight. It bounds the delay
/// of the last messages of a burst.
const BUSY_CHECK_INTERVAL: Duration = Duration::from_millis(1);
/// The longest sleep while the thread watches the wires. It bounds the time until the thread reads
/// the owner's changes to the slab.
const MAX_SLEEP_INTERVAL: Duration = Duration::from_millis(100);

/// The size of the thread's stack in bytes.
const STACK: usize = 128 << 10;

/// The state that the thread shares with its endpoints.
pub(super) struct ProgressThread {
    epoll: Epoll,
    endpoints: Mutex<Vec<Arc<EthernetEndpoint>>>,
}

/// The thread of this process, with the process id, because a child of fork(2) has no such thread.
static PROGRESS_THREAD: Mutex<Option<(u32, Arc<ProgressThread>)>> = Mutex::new(None);

fn lock_thread() -> MutexGuard<'static, Option<(u32, Arc<ProgressThread>)>> {
    PROGRESS_THREAD.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Makes the thread serve `endpoint`. Starts the thread if this process has none. Returns
/// `NoMemory` if the kernel cannot create it.
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

/// Removes `endpoint`. The thread ends when it has no endpoint left.
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
            debug::log(debug::ERROR, || format!("ethernet: cannot start a progress thread: {why}"));
            Err(Error::NoMemory)
        }
    }
}

impl ProgressThread {
    fn endpoints(&self) -> MutexGuard<'_, Vec<Arc<EthernetEndpoint>>> {
        self.endpoints.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes the engine's wires wake the thread. Called under the engine's lock.
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

    /// Stops the engine's wires from waking the thread. Called under the engine's lock.
    pub(super) fn unwatch(&self, engine: &EthernetEngine) {
        for wire in &engine.transmitter.wires {
            let _ = self.epoll.delete(wire.fd());
        }
    }

    /// Runs until the last endpoint is unregistered.
    fn run(self: Arc<ProgressThread>) {
        let mut poll_counts: Vec<(Arc<EthernetEndpoint>, u64)> = Vec::new();
        let mut next_tick = Instant::now() + CHECK_INTERVAL;
        let mut sleep = CHECK_INTERVAL;
        loop {
            let mut events = [EpollEvent::empty(); 8];
            // The time-out is rounded up, so that a deadline in less than a millisecond has passed
            // after the wait.
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

    /// Makes `poll_counts` match the registered endpoints. If none is left, unregisters the thread
    /// and returns false.
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
                // No endpoint has this count. A new endpoint therefore counts as stalled only after
                // two reads.
                poll_counts.push((endpoint.clone(), u64::MAX));
            }
        }
        true
    }
}

impl EthernetEndpoint {
    /// Makes progress if the progress thread owns the wires of this endpoint. Returns how long the
    /// thread may sleep. Called by the thread.
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
        // While another thread makes progress, the wires stay readable. This thread waits for the
        // lock, because it would otherwise wake again and again.
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

    /// Waits until all sent messages are acknowledged and the acknowledgements of received messages
    /// are sent, but at most [`EXIT_ACK_TIMEOUT_NS`]. The owner delivers the messages that are not
    /// acknowledged by then.
    ///
    /// Remote writes need this process until all their bytes are in frames. This function therefore
    /// continues to wait until they have made no progress for [`EXIT_WRITE_TIMEOUT_NS`].
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

/// The longest time that an exit waits for acknowledgements, in nanoseconds of the job's running
/// time.
const EXIT_ACK_TIMEOUT_NS: u64 = 200_000_000;
/// The longest time that an exit waits for a peer that accepts no more written bytes, in
/// nanoseconds of the job's running time.
const EXIT_WRITE_TIMEOUT_NS: u64 = 10_000_000_000;
