//! The progress thread: one for each process that has an ethernet context in use. While the
//! application polls it only looks at the poll count by a slow timer; when the application
//! computes, or sleeps in `select`, it watches the wires. `watch` has the protocol.

#![forbid(unsafe_code)]

use super::engine::Engine;
use super::{Endpoint, Ethernet};
use crate::debug;
use crate::device::network::{Engine as _, Network, Pass};
use crate::error::{Error, Result};
use crate::segment::from_errno;
use crate::sync::Ordering;
use crate::threads;
use nix::errno::Errno;
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Between two looks at the poll count.
const TICK: Duration = Duration::from_millis(5);
/// The same while there is something on the way: what a burst has left behind waits for this.
const SHORT_TICK: Duration = Duration::from_millis(1);
/// The longest sleep while the thread watches the wires: for what the owner writes to the slab.
const REST: Duration = Duration::from_millis(100);

/// Of the thread.
const STACK: usize = 128 << 10;

/// What the thread and its endpoints share.
pub(super) struct Thread {
    epoll: Epoll,
    endpoints: Mutex<Vec<Arc<Endpoint>>>,
}

/// The thread of this process, by process number: a child of fork has none.
static THREAD: Mutex<Option<(u32, Arc<Thread>)>> = Mutex::new(None);

fn the_thread() -> MutexGuard<'static, Option<(u32, Arc<Thread>)>> {
    THREAD.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Has the thread look after `endpoint`. NoMemory: the kernel gives no thread.
pub(super) fn join(endpoint: &Arc<Endpoint>) -> Result<Arc<Thread>> {
    let mut known = the_thread();
    let process = std::process::id();
    let thread = match &*known {
        Some((owner, thread)) if *owner == process => thread.clone(),
        _ => {
            let thread = start()?;
            *known = Some((process, thread.clone()));
            thread
        }
    };
    thread.endpoints().push(endpoint.clone());
    Ok(thread)
}

/// `endpoint` is given up. When it was the last, the thread ends.
pub(super) fn leave(endpoint: &Endpoint) {
    if let Some(thread) = endpoint.net.thread.get() {
        thread.endpoints().retain(|other| !std::ptr::eq(&**other, endpoint));
        thread.unwatch(&endpoint.served.enter());
    }
}

fn start() -> Result<Arc<Thread>> {
    let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC).map_err(from_errno)?;
    let thread = Arc::new(Thread { epoll, endpoints: Mutex::default() });
    let of_thread = thread.clone();
    let started = threads::spawn("score-pm", STACK, move || of_thread.run());
    match started {
        Ok(()) => Ok(thread),
        Err(why) => {
            debug::say(debug::ERROR, || format!("ethernet: no progress thread: {why}"));
            Err(Error::NoMemory)
        }
    }
}

impl Thread {
    fn endpoints(&self) -> MutexGuard<'_, Vec<Arc<Endpoint>>> {
        self.endpoints.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Under the lock of the engine: its wires wake the thread from now on.
    pub(super) fn watch(&self, engine: &Engine) {
        for wire in &engine.links.wires {
            let event = EpollEvent::new(EpollFlags::EPOLLIN, 0);
            match self.epoll.add(wire.fd(), event) {
                Ok(()) | Err(Errno::EEXIST) => {}
                Err(errno) => debug::say(debug::ERROR, || {
                    format!("ethernet: the thread cannot watch a wire: {errno}")
                }),
            }
        }
    }

    /// Under the lock of the engine: they do not any more.
    pub(super) fn unwatch(&self, engine: &Engine) {
        for wire in &engine.links.wires {
            let _ = self.epoll.delete(wire.fd());
        }
    }

    /// Until the last endpoint has left.
    fn run(self: Arc<Thread>) {
        let mut seen: Vec<(Arc<Endpoint>, u64)> = Vec::new();
        let mut next_tick = Instant::now() + TICK;
        let mut sleep = TICK;
        loop {
            let mut events = [EpollEvent::empty(); 8];
            // Rounded up: what is due in less than a millisecond is still due then.
            let timeout = sleep.as_micros().div_ceil(1000).min(1000) as u16;
            let _ = self.epoll.wait(&mut events, EpollTimeout::from(timeout));
            if !self.bring_up_to_date(&mut seen) {
                return;
            }
            let is_tick = Instant::now() >= next_tick;
            sleep = REST;
            for (endpoint, polls) in &mut seen {
                let wait = endpoint.serve_as_thread(polls, is_tick);
                sleep = sleep.min(wait);
            }
            if is_tick {
                next_tick = Instant::now() + sleep.min(TICK);
            }
        }
    }

    /// Who has come and who has left. False: nobody is left, and the thread is not known any more.
    fn bring_up_to_date(&self, seen: &mut Vec<(Arc<Endpoint>, u64)>) -> bool {
        let mut known = the_thread();
        let endpoints = self.endpoints();
        if endpoints.is_empty() {
            if known.as_ref().is_some_and(|(_, thread)| std::ptr::eq(&**thread, self)) {
                *known = None;
            }
            return false;
        }
        let have = |endpoint: &Arc<Endpoint>, list: &[Arc<Endpoint>]| {
            list.iter().any(|other| Arc::ptr_eq(other, endpoint))
        };
        seen.retain(|(endpoint, _)| have(endpoint, &endpoints));
        for endpoint in endpoints.iter() {
            if !seen.iter().any(|(other, _)| Arc::ptr_eq(other, endpoint)) {
                // Never what it is: a count has to be seen twice.
                seen.push((endpoint.clone(), u64::MAX));
            }
        }
        true
    }
}

impl Endpoint {
    /// By the thread: serves what is its to serve; answers how long it may sleep.
    fn serve_as_thread(&self, polls: &mut u64, is_tick: bool) -> Duration {
        if !self.net.turn.is_threads() {
            let stalled = is_tick && self.net.turn.has_stalled(polls);
            if !stalled {
                let pending = self.lanes.outstanding.load(Ordering::Relaxed) != 0
                    || self.net.desk.is_busy()
                    || Ethernet::has_work(self);
                return if pending { SHORT_TICK } else { TICK };
            }
            let engine = self.served.enter();
            if self.net.turn.give(*polls) {
                self.watch(&engine);
            }
        }
        // As long as somebody else serves, the wires wake the thread again and again: it waits.
        drop(self.served.enter());
        let mut wait = REST;
        let mut ring = false;
        let pass = |engine: &mut Engine| {
            ring |= engine.pass(&self.lanes, Pass::All) && self.lanes.bell.must_ring();
            engine.tell();
            if let Some(nanoseconds) = engine.wait() {
                wait = REST.min(Duration::from_nanos(nanoseconds));
            }
        };
        self.served.serve(pass, || Ethernet::has_work(self));
        if ring {
            self.select.ring();
        }
        wait
    }

    /// Waits until what was sent is acknowledged, and what was received is: the owner brings home
    /// what has no time for that.
    ///
    /// Writes need this process until all their bytes are on the way: it waits as long as they go
    /// on, and [`PATIENCE`] more.
    pub(super) fn linger(&self) {
        let start = self.served.enter().now();
        let (mut end, mut seen) = (start + LINGER, u64::MAX);
        loop {
            let mut engine = self.served.enter();
            let delivered = engine.pass(&self.lanes, Pass::All);
            let wait = engine.wait();
            let now = engine.now();
            let sending = engine.remote.transfers.is_sending();
            let flown = engine.remote.flown();
            if sending && std::mem::replace(&mut seen, flown) != flown {
                end = now + PATIENCE;
            }
            let done = engine.machine.is_done() && wait.is_none() && !delivered && !sending;
            if done || now >= end {
                return engine.give_up_operations(&self.lanes);
            }
            let wait = Duration::from_nanos(wait.unwrap_or(0)).min(Duration::from_millis(5));
            let mut fds: Vec<_> = engine
                .links
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
const LINGER: u64 = 200_000_000;
/// How long an exit waits for a peer that takes no more of what is written to it, in nanoseconds of
/// running time.
const PATIENCE: u64 = 10_000_000_000;
