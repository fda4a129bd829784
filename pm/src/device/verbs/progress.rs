//! The thread of an endpoint: it meets peers while the application computes, wakes a receiver that
//! sleeps, and now and then looks at all the rest. Messages between peers that have met do without.

#![forbid(unsafe_code)]

use super::Endpoint;
use super::engine::Engine;
use crate::debug;
use crate::device::network::{Engine as _, Pass};
use crate::error::{Error, Result};
use crate::sync::Ordering;
use crate::threads;
use nix::poll::{PollFd, PollFlags, poll};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The longest sleep: for what the owner writes to the slab; and while messages are on the way,
/// for failures of which only a poll tells.
const REST: Duration = Duration::from_millis(100);
const SHORT_REST: Duration = Duration::from_millis(20);
/// How long an exit waits for acknowledgements at most: the owner brings home what is left.
const LINGER: Duration = Duration::from_millis(200);

/// Of a thread.
pub(super) const STACK: usize = 256 << 10;

/// Starts it. NoMemory: the kernel gives no thread.
pub(super) fn start(endpoint: &Arc<Endpoint>) -> Result<()> {
    let of_thread = endpoint.clone();
    threads::spawn("score-pm", STACK, move || of_thread.attend()).map_err(|why| {
        debug::say(debug::ERROR, || format!("verbs: no progress thread: {why}"));
        Error::NoMemory
    })
}

impl Endpoint {
    /// By the thread, until the endpoint is given up.
    fn attend(&self) {
        let (adapter, socket, manager) = {
            let engine = self.served.enter();
            let Ok(socket) = engine.socket.try_clone() else { return };
            (engine.adapter.clone(), socket, engine.manager_bell())
        };
        let bell = manager.as_ref().map_or(self.net.stop.as_fd(), |bell| bell.as_fd());
        let mut wait = Duration::ZERO;
        while self.left.load(Ordering::Acquire) == 0 {
            let of_adapter = [adapter.channel_fd(), adapter.events_fd()];
            let fds = [socket.as_fd(), of_adapter[0], of_adapter[1], self.net.stop.as_fd(), bell];
            let mut fds = fds.map(|fd| PollFd::new(fd, PollFlags::POLLIN));
            // An adapter that has gone would wake it without end.
            let count = if self.is_broken() { 1 } else { fds.len() };
            let timeout = wait.as_micros().div_ceil(1000).min(100) as u8;
            let _ = poll(&mut fds[..count], timeout);
            if self.left.load(Ordering::Acquire) != 0 {
                return;
            }
            let _ = manager.as_ref().map(|bell| bell.read());
            wait = self.look(fds[1].any().unwrap_or(false));
        }
    }

    /// Answers how long the thread may sleep. `came`: the adapter says that something has come.
    fn look(&self, came: bool) -> Duration {
        let mut wait = REST;
        let mut ring = false;
        drop(self.served.enter());
        let pass = |engine: &mut Engine| {
            if came {
                engine.adapter.drain_channel();
            }
            engine.attend(&self.lanes);
            ring |= engine.pass(&self.lanes, Pass::All) && self.lanes.bell.must_ring();
            self.net.broken.store(u64::from(engine.is_broken), Ordering::Release);
            if !engine.is_quiet() {
                wait = SHORT_REST;
            }
            if let Some(nanoseconds) = engine.wait() {
                wait = wait.min(Duration::from_nanos(nanoseconds));
            }
        };
        self.served.serve(pass, || true);
        if ring {
            self.select.ring();
        }
        wait
    }

    /// Waits until what was sent is acknowledged.
    pub(super) fn linger(&self) {
        let end = Instant::now() + LINGER;
        while self.is_send_done() == Err(Error::Busy) && Instant::now() < end {
            self.look(false);
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}
