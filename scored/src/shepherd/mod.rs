//! The shepherd: one for each job and host. It owns the job's processes, pipes and shared memory,
//! and dies with them. What is to be done is decided by the job's master ([`crate::job`]); here it
//! is done.

mod callers;
mod calls;
mod disk;
mod ending;
mod figures;
mod files;
mod input;
mod limits;
mod networks;
mod orders;
mod output;
mod processors;
mod reports;
mod segments;
mod sight;
mod start;
mod switch;
mod work;

use std::fs::File;
use std::io;
use std::mem::ManuallyDrop;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use mio::unix::SourceFd;
use mio::{Events, Interest, Poll, Token};
use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use score_proto::PROTOCOL_VERSION;
use score_proto::order::{Order, Owner, Report};

use crate::link::Link;
use crate::raw::Asker;
use crate::sys::prompt::{self, Heirs};
use crate::sys::{descriptor, process, user};
pub use limits::Counts;
pub use networks::{raw_links, secret_of};
use reports::Reports;
use switch::Switch;
use work::Work;

const LINK: Token = Token(0);
const CHILD: Token = Token(1);
const INPUT: Token = Token(2);
const NETWORKS: Token = Token(3);
/// The job runs again.
const RUN: Token = Token(4);
/// Orders to stop and to run, as long as there is no thread that hears them.
const SWITCH: Token = Token(5);
const FIRST: usize = 8;

/// Exit code of a shepherd that could not become the user; it has said why.
pub const NOT_THE_OWNER: u8 = 77;

/// What the process is called.
const NAME: &std::ffi::CStr = c"scored-shepherd";

/// What scored tells its shepherd.
#[derive(Debug)]
pub struct Setting {
    /// Socket to scored.
    pub control: OwnedFd,
    /// The same for orders to stop and to run.
    pub switch: OwnedFd,
    /// The job's directory.
    pub directory: PathBuf,
    /// To whoever opens raw sockets for the job, where it has any.
    pub raw: Option<OwnedFd>,
    /// /proc of the outer PID namespace, when this process is init of an inner one.
    pub outer_proc: Option<OwnedFd>,
    /// Whose job it is, when it is not that of whoever has started scored.
    pub owner: Option<Owner>,
    /// Where the kernel counts what the job uses.
    pub counts: Counts,
}

/// Runs the shepherd until its job has ended.
///
/// # Errors
/// What the system refused before the job began.
pub fn run(setting: Setting) -> io::Result<()> {
    process::set_name(NAME);
    descriptor::reserve_low()?;
    descriptor::close_on_exec_from(3);
    let descriptor_limit = process::raise_descriptor_limit();
    match setting.outer_proc {
        // Its end ends all the others.
        Some(_) => process::die_with_parent(libc::SIGKILL),
        // Somebody has to be left to kill the descendants: it sees scored's end on the socket.
        None => process::become_subreaper(),
    }
    let poll = Poll::new()?;
    let mut reports = Reports::new(Link::new(setting.control)?);
    reports.register(poll.registry(), LINK)?;
    if let Some(owner) = &setting.owner {
        // Before the right to it is gone; for the thread that switches.
        let _ = prompt::take(Heirs::Same);
        if let Err(reason) = user::become_owner(owner) {
            reports.add(Report::Lost { code: 1, reason });
            reports.flush(poll.registry());
            std::process::exit(NOT_THE_OWNER.into());
        }
        // The kernel forgets it when ids change.
        if setting.outer_proc.is_some() {
            process::die_with_parent(libc::SIGKILL);
        }
    }
    let child = SignalFd::with_flags(
        &SigSet::from(Signal::SIGCHLD),
        SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK,
    )?;
    poll.registry().register(&mut SourceFd(&child.as_raw_fd()), CHILD, Interest::READABLE)?;
    let sight = sight::Sight::new()?;
    let now = setting.owner.is_some();
    let tokens = (RUN, SWITCH);
    let switch = Switch::new(setting.switch, poll.registry(), tokens, sight.clone(), now)?;
    let null = File::options().read(true).write(true).open("/dev/null")?;
    let ground = work::Ground {
        directory: setting.directory,
        outer_proc: setting.outer_proc,
        descriptor_limit,
        null,
        counts: setting.counts,
        multi_user: setting.owner.is_some(),
        raw: setting.raw.map(Asker::new).transpose()?,
    };
    let work = Work::new(ground, reports, switch.gate(), sight);
    // The kernel closes and frees faster, and this process ends with it.
    ManuallyDrop::new(Shepherd { poll, child, switch, work }).live()
}

struct Shepherd {
    poll: Poll,
    child: SignalFd,
    switch: Switch,
    work: Work,
}

impl Shepherd {
    fn live(&mut self) -> io::Result<()> {
        let mut events = Events::with_capacity(256);
        loop {
            let timeout = self.timeout();
            match self.poll.poll(&mut events, timeout) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                other => other?,
            }
            let mut reap = false;
            for event in &events {
                match event.token() {
                    LINK => self.work.reports.mark_readable(),
                    CHILD => reap = true,
                    // A turn is all that it needs.
                    RUN => {}
                    SWITCH => self.switch.hear(self.poll.registry())?,
                    NETWORKS => self.work.serve_networks(),
                    INPUT => self.work.input.mark(event.is_write_closed() || event.is_error()),
                    Token(number) if number % 2 == 0 => {
                        self.work.outputs.mark_ready((number - FIRST) / 2);
                    }
                    Token(number) => self.work.controls.mark_ready((number - FIRST) / 2),
                }
            }
            self.hear_scored();
            if self.work.reports.is_closed() {
                // scored has gone: nobody is left to run for.
                return ending::reclaim(Duration::from_secs(2));
            }
            self.switch.look(self.poll.registry())?;
            let now = Instant::now();
            self.work.turn(self.poll.registry(), now);
            if reap {
                while matches!(self.child.read_signal(), Ok(Some(_))) {}
                self.work.reap(self.poll.registry());
            }
            self.work.outputs.send_batch(false, &mut self.work.reports);
            self.work.reports.flush(self.poll.registry());
            if self.work.is_done() && self.work.reports.is_flushed() {
                return Ok(());
            }
        }
    }

    fn timeout(&self) -> Option<Duration> {
        if self.work.is_runnable() || self.work.reports.may_have_more() {
            return Some(Duration::ZERO);
        }
        if self.work.gate.is_stopped() && self.work.gate.wake_me() {
            return Some(Duration::ZERO);
        }
        let due = self.work.next_deadline()?;
        // epoll counts milliseconds: round up, or the loop would spin at the end.
        Some(due.saturating_duration_since(Instant::now()) + Duration::from_millis(1))
    }

    fn hear_scored(&mut self) {
        loop {
            match self.work.reports.order() {
                Ok(Some(Order::Hello { version })) => {
                    self.work.reports.add(Report::Hello { version: PROTOCOL_VERSION });
                    if version != PROTOCOL_VERSION {
                        std::process::exit(1);
                    }
                }
                Ok(Some(order)) => self.work.ordered(order),
                Ok(None) => return,
                Err(_) => std::process::exit(1),
            }
        }
    }
}

/// The identity of this process's PID namespace.
fn own_namespace() -> u64 {
    process::namespace_of("/proc/self").unwrap_or(0)
}

/// Processors that this process may run on.
fn processors() -> usize {
    std::thread::available_parallelism().map_or(1, std::num::NonZero::get)
}

/// The clock that processes and shepherd share, nanoseconds.
fn monotonic_ns() -> u64 {
    let now = nix::time::clock_gettime(nix::time::ClockId::CLOCK_MONOTONIC);
    now.map_or(0, |now| {
        let seconds = u64::try_from(now.tv_sec()).unwrap_or(0);
        seconds * 1_000_000_000 + u64::try_from(now.tv_nsec()).unwrap_or(0)
    })
}
