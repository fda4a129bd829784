//! A timer that is a descriptor: finer than the milliseconds that epoll counts.

use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::time::Duration;

use mio::unix::SourceFd;
use mio::{Interest, Registry, Token};
use nix::sys::time::TimeSpec;
use nix::sys::timerfd::{ClockId, Expiration, TimerFd, TimerFlags, TimerSetTimeFlags};

/// A timer. Off at first.
#[derive(Debug)]
pub struct Timer(TimerFd);

impl Timer {
    /// A timer that `registry` reports as `token` when it has run out.
    ///
    /// # Errors
    /// As timerfd_create(2), epoll_ctl(2).
    pub fn new(registry: &Registry, token: Token) -> io::Result<Self> {
        let flags = TimerFlags::TFD_NONBLOCK | TimerFlags::TFD_CLOEXEC;
        let timer = TimerFd::new(ClockId::CLOCK_MONOTONIC, flags)?;
        let fd = timer.as_fd().as_raw_fd();
        registry.register(&mut SourceFd(&fd), token, Interest::READABLE)?;
        Ok(Self(timer))
    }

    /// It runs out once, after so long; never, if there is no time.
    pub fn set(&self, delay: Option<Duration>) {
        // A time of 0 would be off.
        let delay = delay.map(|after| TimeSpec::from(after.max(Duration::from_nanos(1))));
        // Neither fails with times that a Duration can say.
        let _ = match delay {
            Some(after) => self.0.set(Expiration::OneShot(after), TimerSetTimeFlags::empty()),
            None => self.0.unset(),
        };
    }
}
