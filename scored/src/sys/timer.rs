//! A timer with a descriptor. Its resolution is finer than the milliseconds of epoll_wait(2).

use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::time::Duration;

use mio::unix::SourceFd;
use mio::{Interest, Registry, Token};
use nix::sys::time::TimeSpec;
use nix::sys::timerfd::{ClockId, Expiration, TimerFd, TimerFlags, TimerSetTimeFlags};

/// A timer. It is off initially.
#[derive(Debug)]
pub struct Timer(TimerFd);

impl Timer {
    /// A timer that is off. `registry` reports `token` when it has expired.
    ///
    /// # Errors
    /// The errors of timerfd_create(2) and epoll_ctl(2).
    pub fn new(registry: &Registry, token: Token) -> io::Result<Self> {
        let flags = TimerFlags::TFD_NONBLOCK | TimerFlags::TFD_CLOEXEC;
        let timer = TimerFd::new(ClockId::CLOCK_MONOTONIC, flags)?;
        let fd = timer.as_fd().as_raw_fd();
        registry.register(&mut SourceFd(&fd), token, Interest::READABLE)?;
        Ok(Self(timer))
    }

    /// Sets the timer to expire once, after `delay`. None turns it off.
    pub fn set(&self, delay: Option<Duration>) {
        // A time of 0 would turn the timer off.
        let delay = delay.map(|delay| TimeSpec::from(delay.max(Duration::from_nanos(1))));
        // Both calls accept every time that a Duration can represent.
        let _ = match delay {
            Some(delay) => self.0.set(Expiration::OneShot(delay), TimerSetTimeFlags::empty()),
            None => self.0.unset(),
        };
    }
}
